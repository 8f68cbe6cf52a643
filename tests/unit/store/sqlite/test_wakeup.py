"""How a store that waits learns what another process has written: it is woken by a pipe, and rarely looks by itself."""

import asyncio
import os

import pytest

from resurgam.core import event as events
from resurgam.core.outcome import Outcome, Publication
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.sqlite.peers import Peer
from resurgam.store.sqlite.store import SqliteStore
from resurgam.testing import ManualClock
from support.limits import HANGS

WORK = r.Work(worker="w", queues=("default",))
NEVER = 3600.0


@pytest.fixture
async def stores(tmp_path):
    clock = ManualClock()
    pair = [SqliteStore(tmp_path / "a.db", clock, name=name, synchronous="OFF") for name in ("one", "two")]
    yield pair
    for store in pair:
        await store.close()


@pytest.fixture
def looks_never(monkeypatch):
    for name in ("_POLL", "_HEARD", "_UNHEARD"):
        monkeypatch.setattr(f"resurgam.store.sqlite.watcher.{name}", NEVER)


def started() -> events.WorkflowStarted:
    ids = {"entity_id": "e", "execution_id": "x", "run_id": "r", "tree_id": "t"}
    return events.WorkflowStarted(seq=1, at=1, name="w", queue="default", python="3.11", **ids)


async def create(store) -> None:
    await store.create([r.Creation(started=started())])


async def commit(store, claim: r.Claim, *, release: bool = True, **outcome) -> None:
    ids = {"execution_id": "x", "entity_id": "e", "epoch": claim.epoch, "base_seq": 1, "wake": claim.wake}
    part = r.Commit(**ids, outcome=Outcome(**{"status": Status.RUNNING, **outcome}), worker="w", release=release)
    assert isinstance((await store.commit([part]))[0], r.Committed)


async def waits(store, watch: r.Watch) -> asyncio.Future[bool]:
    """Begin to wait; the poll has had its first look when this returns."""
    waiting = asyncio.ensure_future(store.wait(watch))
    while store._watcher._sleep is None:
        await asyncio.sleep(0)
    return waiting


@pytest.mark.usefixtures("looks_never")
async def test_another_store_is_woken_by_what_it_waits_for(stores):
    one, two = stores
    waiting = await waits(two, WORK)
    await create(one)
    assert await asyncio.wait_for(waiting, HANGS)

    [claim] = await one.claim("w", ["default"], 1)
    topic = await waits(two, r.Published(topic="news", after=""))
    await commit(one, claim, release=False, publications=(Publication("news", events.NULL),))
    assert await asyncio.wait_for(topic, HANGS)

    closing = await waits(two, r.Closed(entity_id="x", execution_id="x"))
    await commit(one, claim, status=Status.COMPLETED)
    assert await asyncio.wait_for(closing, HANGS)


@pytest.mark.usefixtures("looks_never")
async def test_another_store_learns_of_what_becomes_due_soon(stores):
    one, two = stores
    await create(one)
    [claim] = await one.claim("w", ["default"], 1)
    waiting = await waits(two, WORK)
    await commit(one, claim, wake_at=one._clock.now() + 1000)
    due = one._clock.now() + 1000
    while two._watcher._waiting._alarm is None or two._watcher._waiting._alarm[0] > due:
        await asyncio.sleep(0)
    one._clock.move_to(due)
    assert await asyncio.wait_for(waiting, HANGS)


async def test_no_other_process_is_woken_for_a_step(stores, monkeypatch):
    """A step that only its own worker goes on with wakes no other store."""
    one, _ = stores
    await create(one)
    [claim] = await one.claim("w", ["default"], 1)
    woken = []
    monkeypatch.setattr(one._wakeups, "wake_others", lambda *_: woken.append(1))
    await commit(one, claim, release=False)
    assert not woken
    await commit(one, claim, status=Status.COMPLETED)
    assert woken


@pytest.fixture
async def delays(monkeypatch):
    """Make all timers of the loop come at once, and list how long they would have taken."""
    found: list[float] = []
    loop = asyncio.get_running_loop()

    def call_later(delay, callback, *arguments, context=None):
        found.append(delay)
        return loop.call_soon(callback, *arguments, context=context)

    monkeypatch.setattr(loop, "call_later", call_later)
    return found


async def look(times: int) -> None:
    for _ in range(10 * times):
        await asyncio.sleep(0)


async def test_a_store_that_others_wake_looks_once_a_second_whatever_happens(stores, delays):
    one, two = stores
    await create(one)
    await look(1)
    delays.clear()
    waiting = await waits(two, r.Closed(entity_id="x", execution_id="x"))
    await look(20)
    assert set(delays) == {1.0}

    delays.clear()
    await one.deliver([r.Delivery(event=events.WorkflowTerminated(reason="end"), entity_id="e")])
    assert await waiting
    await look(20)
    assert set(delays) == {0.002, 1.0}  # the first is the pause after a round of wake-ups


@pytest.mark.parametrize("reason", ["no pipe", "a log is followed"])
async def test_looks_stay_frequent_where_no_wakeup_comes(stores, delays, monkeypatch, reason):
    one, two = stores
    await create(one)
    await look(1)
    delays.clear()
    if reason == "no pipe":
        monkeypatch.setattr(os, "mkfifo", lambda *_: (_ for _ in ()).throw(PermissionError()))
        waiting = await waits(two, r.Closed(entity_id="x", execution_id="x"))
    else:
        waiting = await waits(two, r.LogGrown(entity_id="x", execution_id="x", last_seq=1))
    await look(20)
    assert delays[:5] == [0.01, 0.02, 0.04, 0.08, 0.1]
    assert max(delays) == 0.1
    delays.clear()
    await one.claim("w", ["default"], 1)
    await look(20)
    assert {0.01, 0.02, 0.04} <= set(delays)  # after a change the looks are frequent again
    waiting.cancel()


@pytest.fixture
def pauses_do_not_end(monkeypatch):
    monkeypatch.setattr("resurgam.store.sqlite.wakeup._INTERVAL", NEVER)


@pytest.fixture
def told(monkeypatch):
    """List what is written to pipes, by the name of the store that is told."""
    found: list[tuple[str, set[bytes]]] = []
    tell = Peer.tell

    def note(peer, messages):
        found.append((peer.name, set(messages.splitlines())))
        tell(peer, messages)

    monkeypatch.setattr(Peer, "tell", note)
    return found


@pytest.mark.usefixtures("pauses_do_not_end")
async def test_the_first_commit_is_told_at_once_and_those_in_short_succession_together(stores, told):
    one, two = stores
    waiting = await waits(two, WORK)
    one._wakeups.wake_others({"a", None})
    assert told == [("two", {b'k"a"', b"knull"})]
    for number in range(50):
        one._wakeups.wake_others({("topic", str(number % 2))}, 1000 - number)
    assert len(told) == 1
    one._wakeups._end_pause()
    assert told[1:] == [("two", {b'k["topic","0"]', b'k["topic","1"]', b"d951"})]
    one._wakeups._end_pause()
    assert len(told) == 2
    waiting.cancel()


@pytest.mark.usefixtures("pauses_do_not_end")
async def test_what_has_not_been_told_is_told_at_the_end(stores, told):
    one, two = stores
    waiting = await waits(two, WORK)
    one._wakeups.wake_others({"a"})
    one._wakeups.wake_others({"b"})
    await one.close()
    assert told == [("two", {b'k"a"'}), ("two", {b'k"b"'})]
    waiting.cancel()


@pytest.fixture
def read(stores, monkeypatch):
    """List what the second store reads to check its watches."""
    found: list[str] = []
    stores[1]._database.trace(None, found.append)
    return found


@pytest.mark.usefixtures("looks_never", "pauses_do_not_end")
async def test_a_store_does_not_read_the_file_for_what_it_does_not_wait_for(stores, read):
    """A process that has work enough is not bothered with more."""
    one, two = stores
    await create(one)
    waiting = await waits(two, r.Closed(entity_id="x", execution_id="x"))
    heard: list[object] = []
    two._peers._handlers[b"k"[0]] = lambda texts, hear=two._peers._handlers[b"k"[0]]: heard.append(hear(texts))
    read.clear()
    one._wakeups.wake_others({"y", None, ("topic", "news")})
    while not heard:
        await asyncio.sleep(0)
    assert read == []
    one._wakeups._end_pause()
    one._wakeups.wake_others({"x", "y"})
    while len(heard) < 2:
        await asyncio.sleep(0)
    assert len(read) == 1
    waiting.cancel()


@pytest.mark.usefixtures("looks_never", "pauses_do_not_end")
async def test_more_news_than_a_message_holds_make_the_others_look_at_everything(stores, told):
    one, two = stores
    waiting = await waits(two, WORK)
    one._wakeups._tell()
    one._wakeups.wake_others({f"{number:032}" for number in range(200)})
    await create(one)
    one._wakeups._end_pause()
    assert told[-1] == ("two", {b"."})
    assert await asyncio.wait_for(waiting, HANGS)


@pytest.mark.usefixtures("looks_never", "pauses_do_not_end")
async def test_a_message_of_another_version_makes_a_store_look_at_everything(stores):
    one, two = stores
    waiting = await waits(two, WORK)
    one._wakeups.wake_others(())  # so that what follows is held back
    await create(one)
    [peer] = one._peers.others()
    peer.tell(b"k[1, 2, 3]\n")
    assert await asyncio.wait_for(waiting, HANGS)


async def test_nothing_is_left_of_a_pipe(stores, tmp_path):
    waiting = await waits(stores[0], WORK)
    assert (tmp_path / "a.db-owners" / "+one").is_fifo()
    waiting.cancel()
    for store in stores:
        await store.close()
    assert [path.name for path in tmp_path.iterdir()] == ["a.db"]
