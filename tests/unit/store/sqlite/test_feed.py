"""The feed, workers and values of one file that several stores have open."""

import asyncio
import sqlite3
from contextlib import AsyncExitStack, closing

import pytest
from msgspec.structs import replace

from resurgam.core import event as events
from resurgam.core.outcome import Outcome
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.sqlite import feed
from resurgam.store.sqlite.store import SqliteStore
from resurgam.testing import ManualClock
from resurgam.testing.contract.live_workers import worker
from support.limits import HANGS


@pytest.fixture
async def stores(tmp_path):
    clock = ManualClock()
    async with AsyncExitStack() as stack:
        opened = []
        for number in range(3):
            store = SqliteStore(tmp_path / "a.db", clock, name=f"store-{number}", synchronous="OFF")
            stack.push_async_callback(store.close)
            opened.append(store)
        yield opened


def started(number: int) -> events.WorkflowStarted:
    ids = {"entity_id": f"e-{number}", "execution_id": f"x-{number}", "run_id": f"r-{number}", "tree_id": "t"}
    return events.WorkflowStarted(seq=1, at=1, name="w", queue="default", python="3.11", **ids)


async def create(store, number: int) -> None:
    await store.create([r.Creation(started=started(number))])


async def test_a_reader_gets_every_event_of_several_writers_once(stores):
    """It reads while they write, and in the order in which the file has them."""
    seen, cursor = [], ""
    for number in range(30):
        await asyncio.gather(*(create(store, 3 * number + n) for n, store in enumerate(stores)))
        page = await stores[0].feed.read(r.FeedQuery(after=cursor, limit=2))
        seen += [entry.execution_id for entry in page.entries]
        cursor = page.cursor
    while page.more:
        page = await stores[1].feed.read(r.FeedQuery(after=cursor))
        seen += [entry.execution_id for entry in page.entries]
        cursor = page.cursor
    assert len(seen) == 90
    assert set(seen) == {f"x-{number}" for number in range(90)}


async def test_a_wait_for_the_feed_ends_when_another_store_writes(stores):
    one, two, _ = stores
    waiting = asyncio.ensure_future(two.wait(r.FeedGrown(after=await two.feed.now())))
    while two._watcher._sleep is None:
        await asyncio.sleep(0)
    await create(one, 1)
    assert await asyncio.wait_for(waiting, HANGS)


async def test_a_filter_with_rare_matches_reads_on_page_by_page(stores, monkeypatch):
    """A page passes over a bounded number of events, and says that there are more."""
    monkeypatch.setattr(feed, "_WINDOW", 10)
    store = stores[0]
    for number in range(35):
        await create(store, number)
    rare = r.FeedQuery(types=("workflow_completed",), limit=5)
    pages = [await store.feed.read(rare)]
    while pages[-1].more:
        pages.append(await store.feed.read(replace(rare, after=pages[-1].cursor)))
    assert [page.entries for page in pages] == [(), (), (), ()]
    assert pages[-1].cursor == await store.feed.now()


async def test_the_kinds_of_events_can_be_asked_for_after_the_newest_event_was_purged(stores):
    store = stores[0]
    await create(store, 1)
    ended = events.WorkflowTerminated(at=2)
    await store.deliver([r.Delivery(entity_id="e-1", event=ended)])
    [claim] = await store.claim("w", ["default"], 1)
    outcome = Outcome(status=Status.TERMINATED, deactivated=True)
    fence = {"epoch": claim.epoch, "base_seq": claim.instance.last_seq, "wake": claim.wake}
    await store.commit([r.Commit(entity_id="e-1", execution_id="x-1", outcome=outcome, **fence)])
    assert await store.purge([claim.instance]) == [r.Purged()]
    await create(store, 2)
    page = await store.feed.read(r.FeedQuery(types=("workflow_started",)))
    assert [entry.entity_id for entry in page.entries] == ["e-2"]


async def test_an_event_that_this_version_cannot_decode_is_in_the_feed(stores, tmp_path):
    await create(stores[0], 1)
    with closing(sqlite3.connect(tmp_path / "a.db")) as other:
        other.execute("""UPDATE events SET body = '{"type": "of_tomorrow", "seq": 1}'""")
        other.commit()
    page = await stores[0].feed.read(r.FeedQuery())
    assert [(entry.type, bytes(entry.body)) for entry in page.entries] == [
        ("of_tomorrow", b'{"type": "of_tomorrow", "seq": 1}')
    ]


async def test_all_stores_of_a_file_list_the_same_workers(stores):
    await asyncio.gather(*(store.workers.announce(worker(f"w-{n}"), 1000) for n, store in enumerate(stores)))
    for store in stores:
        assert {live.worker_id for live in await store.workers.list()} == {"w-0", "w-1", "w-2"}


async def test_the_workers_of_a_dead_process_are_removed_with_its_leases(stores, tmp_path):
    """Their record would last longer than their process."""
    one, two, _ = stores
    await one.workers.announce(worker("gone"), 1000)
    await two.workers.announce(worker("alive"), 1000)
    with closing(sqlite3.connect(tmp_path / "a.db")) as other:
        other.execute("UPDATE workers SET owner = 'dead' WHERE worker_id = 'gone'")
        other.commit()
    (tmp_path / "a.db-owners" / "dead").touch()
    await two.claim("alive", ["default"], 1)
    assert [live.worker_id for live in await two.workers.list()] == ["alive"]


async def test_a_worker_that_is_announced_does_not_count_those_of_a_dead_process(stores, tmp_path):
    """Or it would share the work that they left with nobody, until its next announcement."""
    one, two, _ = stores
    await one.workers.announce(worker("gone"), 1000)
    with closing(sqlite3.connect(tmp_path / "a.db")) as other:
        other.execute("UPDATE workers SET owner = 'dead' WHERE worker_id = 'gone'")
        other.commit()
    (tmp_path / "a.db-owners" / "dead").touch()
    assert [live.worker_id for live in await two.workers.announce(worker("alive"), 1000)] == ["alive"]


async def test_of_all_stores_that_put_if_absent_one_value_is_stored(stores):
    put = [store.values.put_if_absent("k", bytes([n])) for n, store in enumerate(stores)]
    assert len(set(await asyncio.gather(*put))) == 1


async def test_expired_values_are_deleted_when_others_are_put(stores, tmp_path):
    store = stores[0]
    await store.values.put("old", b"v", expires_at=1)
    await store.values.put("new", b"v")
    with closing(sqlite3.connect(tmp_path / "a.db")) as other:
        assert other.execute("SELECT key FROM stored_values").fetchall() == [("new",)]
