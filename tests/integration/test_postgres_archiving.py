"""Archiving on Postgres beside other writers, over connections that are lost, and in tables of the version before."""

import pytest
from msgspec.structs import replace

from resurgam.core import event as events
from resurgam.runtime.system import SystemClock
from resurgam.store import records as r
from resurgam.store.postgres.functions import join
from resurgam.store.postgres.migrate import migrations
from resurgam.store.postgres.pool import Pool
from resurgam.store.postgres.store import PostgresStore
from resurgam.store.postgres.url import parse
from resurgam.testing import ManualClock
from resurgam.testing.contract.bench import LEASE, Bench, OpensStores
from support.postgres import execute, fresh_url
from support.wire import proxied

URL = "file:///archive"


@pytest.fixture
async def wired():
    async with proxied(fresh_url()) as (wire, url):
        clock = ManualClock()
        store = PostgresStore(url, clock, name="test", lease=LEASE)
        yield wire, Bench(store, clock, OpensStores())
        await store.close()


def between(monkeypatch, pool, action):
    """Have *action* run once behind the first statement from which an archival or an adoption is decided."""
    select, left = pool.select, ["known", "copies"]

    async def interrupted(name, *arguments, **parts):
        rows = await select(name, *arguments, **parts)
        if name in left:
            left.clear()
            await action()
        return rows

    monkeypatch.setattr(pool, "select", interrupted)


def reservation(instance):
    event = events.WorkflowArchiving(seq=instance.last_seq + 1, at=5, archiver="keeper")
    return r.Reservation(entity_id=instance.entity_id, execution_id=instance.execution_id, event=event)


async def archival(b, entity_id="order"):
    return r.Archival(entity_id=entity_id, copies=tuple(await b.store.transfer.copies(entity_id)), archive=URL)


@pytest.mark.parametrize("lost", ["lose_requests", "lose_replies"])
async def test_what_is_lost_on_the_wire_is_done_once(wired, lost):
    wire, b = wired
    ended, transfer = await b.ended(), b.store.transfer
    wire.when = lambda request: b"workflow_archiving" in request
    setattr(wire, lost, 1)
    assert await transfer.reserve([reservation(ended)]) == [r.Reserved()]
    assert len(await b.store.read(ended)) == ended.last_seq + 1
    part = await archival(b)
    wire.when = lambda request: URL.encode() in request
    setattr(wire, lost, 1)
    assert await transfer.archive([part]) == [r.Archived()]
    assert (wire.lose_requests, wire.lose_replies) == (0, 0)
    assert (await b.get()).archived == URL
    wire.when = None


async def test_what_changes_between_the_look_and_the_archival_is_kept(wired, monkeypatch):
    _, b = wired
    ended = await b.ended()
    part = await archival(b)
    between(monkeypatch, b.store._pool, lambda: b.store.transfer.reserve([reservation(ended)]))
    assert await b.store.transfer.archive([part]) == [r.Changed()]
    assert len(await b.store.read(ended)) == ended.last_seq + 1


async def test_of_two_archivers_only_one_archives_an_execution(wired, monkeypatch):
    _, b = wired
    await b.ended()
    part = await archival(b)
    other = replace(part, archive="file:///other")
    between(monkeypatch, b.store._pool, lambda: b.store.transfer.archive([other]))
    assert await b.store.transfer.archive([part]) == [r.Changed()]
    assert (await b.get()).archived == "file:///other"


async def test_what_another_restores_meanwhile_is_left_as_it_is(wired, monkeypatch):
    _, b = wired
    await b.ended()
    part = await archival(b)
    await b.store.transfer.archive([part])
    adoption = r.Adoption(entity_id="order", copies=part.copies)

    async def restore():
        await b.store.transfer.adopt([adoption])
        await b.store.transfer.reserve([reservation(await b.get())])

    between(monkeypatch, b.store._pool, restore)
    [adopted] = await b.store.transfer.adopt([adoption])
    assert [arrival.new for arrival in adopted.arrivals] == [False]
    assert len(await b.store.read(adopted.arrivals[0].instance)) == len(part.copies[0].log) + 1


async def test_what_is_archived_in_between_is_not_removed(wired, monkeypatch):
    _, b = wired
    await b.ended()
    part = await archival(b)
    between(monkeypatch, b.store._pool, lambda: b.store.transfer.archive([part]))
    removal = r.Removal(entity_id="order", copies=part.copies)
    assert await b.store.transfer.remove([removal]) == [r.Changed()]
    assert (await b.get()).archived == URL


async def test_no_row_is_left_but_the_two_of_the_execution(wired):
    _, b = wired
    ended, schema = await b.ended(), b.store._pool.address.schema
    await b.store.transfer.archive([await archival(b)])
    tables = ("events", "inbox", "activities", "promises", "answers", "tried", "queries", "instances", "states")
    counts = ", ".join(f"(SELECT count(*) FROM {schema}.{table} WHERE execution_id = $1)" for table in tables)
    assert await execute(f"SELECT {counts}", ended.execution_id) == [(0, 0, 0, 0, 0, 0, 0, 1, 1)]


ROW = """
INSERT INTO {schema}.instances (
    execution_id, entity_id, run_id, tree_id, generation, attempt, kind, name, queue, status, created_at, closed_at, deactivated,
    first_run)
VALUES ('x', 'order', 'r', 't', 1, 1, 'workflow', 'sell', 'default', 'completed', 1, 2, true, 'r')
"""
STATE = "INSERT INTO {schema}.states (execution_id, entity_id, queue, status, last_seq) VALUES ('x', 'order', 'q', 'completed', 1)"


async def test_rows_of_the_version_before_are_listed_and_archived():
    url = fresh_url()
    nothing = join(["CREATE FUNCTION {schema}.nothing_{code}() RETURNS int LANGUAGE sql AS 'SELECT 1';"])
    before = Pool(parse(url), SystemClock(), name="old", lease=LEASE, steps=migrations()[:1], code=nothing)
    await before._opened()
    await before.close()
    schema = parse(url).schema
    for text in (ROW, STATE):
        await execute(text.replace("{schema}", schema))
    clock = ManualClock()
    store = PostgresStore(url, clock, name="new", lease=LEASE)
    try:
        b = Bench(store, clock, OpensStores())
        [found] = (await store.inspector.list(r.Query(name="sell"))).instances
        assert (found.execution_id, found.archived) == ("x", None)
        assert await store.inspector.ended(r.EndedQuery(before=3, name="sell")) == [found]
        assert await store.transfer.archive([await archival(b)]) == [r.Archived()]
        assert await store.inspector.ended(r.EndedQuery(before=3, archived=True)) == [replace(found, archived=URL)]
    finally:
        await store.close()
    rows = await execute(f"SELECT version, oldest FROM {schema}.meta")
    assert [tuple(row) for row in rows] == [(len(migrations()), 1)]
