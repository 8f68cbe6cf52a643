"""The read side of the Postgres store: feeds and open transactions, inspectors of their own, plans of statements."""

import asyncio
import re

import asyncpg
import pytest
from msgspec import Raw
from msgspec.structs import replace

from resurgam.core import event as events
from resurgam.core.errors import StoreError
from resurgam.core.outcome import Publication
from resurgam.store import records as r
from resurgam.store.postgres.inspector import OpenPostgresInspector
from resurgam.store.postgres.statements import statement, statements
from resurgam.store.rules import MESSAGES_KEPT
from resurgam.testing import ManualClock
from resurgam.testing.contract.bench import HOUR, request
from support.postgres import execute, fresh_url, shared_server


async def connected():
    return await asyncpg.connect(shared_server().url)


# Feeds.


async def test_the_feed_does_not_run_past_the_oldest_open_transaction(b):
    """A transaction that is open may still commit events behind those that others have committed meanwhile."""
    await b.create("before")
    other = await connected()
    try:
        start = await b.store.feed.now()
        transaction = other.transaction()
        await transaction.start()
        await other.fetchval("SELECT pg_current_xact_id()::text")
        await b.create("meanwhile")
        page = await b.store.feed.read(r.FeedQuery(after=start))
        assert (page.entries, page.more) == ((), False)
        assert (await b.store.feed.read(r.FeedQuery(after=start, entity_id="meanwhile"))).entries == ()
        await transaction.commit()
        page = await b.store.feed.read(r.FeedQuery(after=page.cursor))
        assert [entry.entity_id for entry in page.entries] == ["meanwhile"]
    finally:
        await other.close()


async def test_a_feed_with_rare_matches_is_read_window_by_window(b):
    """A page may be empty; its cursor goes on, and nothing is left out."""
    await b.create("rare")
    claim = await b.claim_one()
    await b.want(claim, *(request(ref) for ref in range(2, 1200)))
    await b.create("last")
    cursor, found, pages = "", [], 0
    while True:
        page = await b.store.feed.read(r.FeedQuery(after=cursor, types=("workflow_started",), limit=5))
        found += [entry.entity_id for entry in page.entries]
        pages, cursor = pages + 1, page.cursor
        if not page.more:
            break
    assert (found, pages) == (["rare", "last"], 2)


@pytest.mark.parametrize("cursor", ["x", "1", "1-", "-1-1", "1-2-3", "٣-1"])
async def test_a_cursor_that_no_feed_has_returned_is_refused(b, cursor):
    with pytest.raises(StoreError, match="cursor must be one that a feed of this store returned"):
        await b.store.feed.read(r.FeedQuery(after=cursor))


# Topics.


async def publish(b, topic, *values):
    claim = await b.claim_one()
    publications = tuple(Publication(topic=topic, value=Raw(value)) for value in values)
    await b.committed(claim, publications=publications)
    await b.send_signals("order", "again")


async def test_cursors_stay_valid_when_a_silent_topic_is_deleted(b):
    await b.create()
    await publish(b, "news", b"1", b"2")
    cursor = (await b.store.inspector.messages("news")).cursor
    await b.pass_time(MESSAGES_KEPT + 1)
    await publish(b, "other", b"3")
    assert await execute(f"SELECT topic FROM {b.schema}.topics") == [("other",)]
    assert await b.store.inspector.messages("news", cursor) == r.Messages(cursor=cursor)
    await publish(b, "news", b"4")
    found = await b.store.inspector.messages("news", cursor)
    assert [bytes(value) for value in found.values] == [b"4"]
    assert int(found.cursor) > int(cursor)


# Inspectors of their own.


async def test_an_inspector_of_its_own_writes_nothing_and_installs_nothing(b):
    instance = await b.create(tags={"shop": "berlin"})
    counted = f"SELECT count(*) FROM pg_proc WHERE pronamespace = '{b.schema}'::regnamespace"
    before = await execute(counted)
    await execute(f"DELETE FROM {b.schema}.meta WHERE false")
    inspector = OpenPostgresInspector(b.url, b.clock)
    try:
        assert await inspector.get("order") == instance
        assert (await inspector.list(r.Query())).instances == (instance,)
        assert (await inspector.stats()).instances == {"running": 1}
        assert len(await inspector.history(instance)) == 1
        with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
            async with inspector._reader._connection.transaction(readonly=True):
                await inspector._reader._connection.execute(f"DELETE FROM {b.schema}.workers")
    finally:
        await inspector.close()
    assert await execute(counted) == before
    with pytest.raises(StoreError, match="closed"):
        await inspector.get("order")


async def test_an_inspector_connects_again_after_its_connection_was_cut(b):
    instance = await b.create()
    inspector = OpenPostgresInspector(b.url, b.clock)
    try:
        assert await inspector.get("order") == instance
        pid = inspector._reader._connection.get_server_pid()
        await execute("SELECT pg_terminate_backend($1, 20000)", pid)
        assert await inspector.get("order") == instance
    finally:
        await inspector.close()


async def test_an_inspector_says_that_there_is_no_store():
    inspector = OpenPostgresInspector(fresh_url(), ManualClock())
    try:
        with pytest.raises(StoreError, match=r"there is no store in the schema 't[0-9]+'; start a worker on it first"):
            await inspector.get("order")
    finally:
        await inspector.close()


# Values that are hard to keep.


async def test_an_activity_that_a_lease_covers_is_shown_whatever_its_input_is(b):
    """Also with the escape of a null character, which no JSON function of Postgres reads, and with names like its own."""
    await b.create()
    claim = await b.claim_one()
    wanted = replace(request(2), input=Raw(b'["\\u0000",{"ref":77}]'))
    moment = b.clock.now()
    await b.want(claim, wanted, covers=True, eager=(2,), release=False)
    work = await b.store.inspector.open_work(claim.instance)
    assert work is not None
    [shown] = work.activities
    assert (shown.request, shown.deliveries, shown.worker) == (wanted, 1, "first")
    assert shown.visible_at in {0, moment}
    [copy] = await b.store.transfer.copies("order")
    assert [one.request for one in copy.activities] == [wanted]
    assert (await b.queue()).claimed_activities == 1


@pytest.mark.parametrize("text", ["a\0b", "a\ud800"])
async def test_what_postgres_cannot_hold_is_not_there(b, text):
    reader, named = b.store.inspector, r.ExecutionRef(entity_id=text, execution_id=text)
    assert await reader.get(text) is None
    assert await reader.get(text, "run") is None
    assert await reader.get("order", execution_id=text) is None
    assert await reader.list(r.Query(name=text)) == r.Page(instances=())
    assert await reader.ended(r.EndedQuery(before=1, name=text)) == []
    assert await reader.history(named) == []
    assert await reader.open_work(named) is None
    assert await reader.messages(text) == r.Messages(cursor="0")
    assert await reader.promise(r.Delivery(event=events.PromiseResolved(ref=0), promise_id=text)) is None


async def test_values_that_are_put_at_once_are_answered_each_for_itself(b):
    names = ["b", "a", "c", "a"]
    answers = await asyncio.gather(
        *(b.store.values.put_if_absent(name, f"{name}{number}".encode()) for number, name in enumerate(names))
    )
    assert answers == [b"b0", b"a1", b"c2", b"a1"]


# Adoption and removal beside other writers.


def between(monkeypatch, pool, action):
    """Have *action* run once behind the first statement that an adoption or a removal makes its plan from."""
    select, left = pool.select, ["known", "copies"]

    async def interrupted(name, *arguments, **parts):
        rows = await select(name, *arguments, **parts)
        if name in left:
            left.clear()
            await action()
        return rows

    monkeypatch.setattr(pool, "select", interrupted)


async def test_an_adoption_is_planned_again_when_another_writer_comes_in_between(b, monkeypatch):
    await b.ended()
    [copy] = await b.store.transfer.copies("order")
    arriving = replace(copy, instance=replace(copy.instance, execution_id="new", run_id="new"))
    between(monkeypatch, b.store._pool, lambda: b.create("order", execution_id="other", run_id="other"))
    [answer] = await b.store.transfer.adopt([r.Adoption(entity_id="order", copies=(arriving,))])
    assert isinstance(answer, r.Adopted)
    assert [one.instance.execution_id for one in await b.store.transfer.copies("order")][-1] == "other"


async def test_an_open_execution_that_begins_in_between_refuses_the_one_that_is_adopted(b, monkeypatch):
    await b.create("elsewhere")
    [copy] = await b.store.transfer.copies("elsewhere")
    fields = {"entity_id": "order", "execution_id": "new", "run_id": "new"}
    arriving = replace(copy, instance=replace(copy.instance, **fields))
    between(monkeypatch, b.store._pool, lambda: b.create("order", execution_id="other", run_id="other"))
    [answer] = await b.store.transfer.adopt([r.Adoption(entity_id="order", copies=(arriving,))])
    assert isinstance(answer, r.Exists)
    assert answer.instance.execution_id == "other"


async def test_what_changes_between_the_look_and_the_removal_is_kept(b, monkeypatch):
    await b.create()
    copies = tuple(await b.store.transfer.copies("order"))
    between(monkeypatch, b.store._pool, lambda: b.send_signals("order", "one"))
    part = r.Removal(entity_id="order", copies=copies)
    assert await b.store.transfer.remove([part]) == [r.Changed()]
    [copy] = await b.store.transfer.copies("order")
    assert len(copy.inbox) == 1


# Plans.


QUERIES = {
    "instances_shown": r.Query(),
    "instances_named": r.Query(name="order"),
    "instances_kind": r.Query(kind="flow"),
    "instances_children": r.Query(parent="order"),
    "instances_tree": r.Query(tree_id="tree"),
    "instances_failed": r.Query(failure="ValueError"),
    "instance_tags_listed": r.Query(tags={"shop": "berlin"}),
}


@pytest.mark.parametrize("index", QUERIES)
async def test_a_list_is_read_by_its_index(b, monkeypatch, index):
    await b.create()
    seen = []
    select = b.store._pool.select

    async def noted(name, *arguments, **parts):
        seen.append((statement(name, b.schema, **parts), arguments))
        return await select(name, *arguments, **parts)

    monkeypatch.setattr(b.store._pool, "select", noted)
    await b.store.inspector.list(QUERIES[index])
    [(text, arguments)] = seen
    assert index in await plan_of(text, arguments)


async def test_every_statement_is_planned_with_indexes(b):
    """But for the counts of `stats`, which look at everything; those of lists are in `test_postgres_lists`."""
    await b.create()
    arguments = {
        "newest": ["e"],
        "newest_of_run": ["e", "r"],
        "execution": ["e", "r", "x"],
        "dead_letters": ["x", 10],
        "history": ["x", False, 0, 10],
        "logs": [["e"], ["x"], [0]],
        "last_entries": ["x", True, 10],
        "open_work": ["x", "e"],
        "promise": ["p"],
        "promise_named": ["e", "x", "n"],
        "messages": ["t", 1],
        "feed": [1, 1, None, 10, 10],
        "feed_of_entity": [1, 1, None, 10, 10, "e"],
        "value": [1, "k"],
        "query_result": [1, "q"],
        "known": ["e", ["x"], ["p"]],
    }
    for name, given in arguments.items():
        plan = await plan_of(statement(name, b.schema), given)
        assert not re.search(r"Seq Scan on (?!topics)", plan), f"{name}: {plan}"
    rest = {
        "list",
        "reach",
        "ended",
        "count_statuses",
        "count_work",
        "covered",
        "feed_bound",
        "live_workers",
        "waiting_queries",
        "copies",
    }
    assert statements().keys() == arguments.keys() | rest


async def plan_of(text, arguments):
    connection = await connected()
    try:
        await connection.execute("SET enable_seqscan = off; SET enable_sort = off; SET enable_bitmapscan = off")
        rows = await connection.fetch(f"EXPLAIN {text}", *arguments)
        return "\n".join(row[0] for row in rows)
    finally:
        await connection.close()


async def test_a_page_that_begins_at_a_cursor_is_as_long_as_the_first(b):
    for number in range(7):
        await b.create(f"order-{number}")
        await b.pass_time(HOUR)
    first = await b.store.inspector.list(r.Query(limit=3))
    second = await b.store.inspector.list(r.Query(limit=3, cursor=first.cursor))
    third = await b.store.inspector.list(r.Query(limit=3, cursor=second.cursor))
    names = [one.entity_id for page in (first, second, third) for one in page.instances]
    assert names == [f"order-{number}" for number in reversed(range(7))]
    assert third.cursor is None
    with pytest.raises(StoreError, match="cursor must be one that a list returned"):
        await b.store.inspector.list(r.Query(cursor="x"))


# Logs.


async def test_logs_that_are_read_together_are_each_in_order(b):
    made = {}
    for entity_id in ("a", "b", "c"):
        made[entity_id] = await b.create(entity_id)
        claim = await b.claim_one()
        await b.committed(claim, *(events.TimerFired(seq=seq, ref=1) for seq in range(2, 32)))
    before = b.store._pool.flights
    asked = [(made["c"], 0), (made["a"], 0), (replace(made["a"], entity_id="other"), 0), (made["b"], 20)]
    first = asyncio.ensure_future(b.store.read(made["a"]))
    await asyncio.sleep(0)
    found = await asyncio.gather(*[b.store.read(one, after) for one, after in asked])
    seqs = [[entry.seq for entry in log] for log in found]
    assert seqs == [list(range(1, 32)), list(range(1, 32)), [], list(range(21, 32))]
    assert len(await first) == 31
    assert b.store._pool.flights == before + 2
