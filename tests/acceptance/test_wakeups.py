"""Time passes while a store checks its watches: whenever a deadline falls due, a waiter is woken for it."""

import asyncio
import sqlite3

import pytest

from resurgam.core import event as events
from resurgam.core.outcome import Outcome
from resurgam.core.state import Status
from resurgam.runtime.system import SystemClock
from resurgam.store import records as r
from resurgam.store.sqlite.store import SqliteStore
from support.limits import HANGS


class TickingClock:
    """Each look at it takes a millisecond; calls are made when the test says so."""

    def __init__(self) -> None:
        self.moment = 1_000_000
        self.calls: dict[object, tuple[int, object]] = {}

    def now(self) -> int:
        self.moment += 1
        return self.moment

    def call_at(self, when, callback):
        key = object()
        self.calls[key] = when, callback
        return lambda: self.calls.pop(key, None)

    def ring(self) -> bool:
        """Go to the next call and make it; whether there was one."""
        if not self.calls:
            return False
        key = min(self.calls, key=lambda key: self.calls[key][0])
        when, callback = self.calls.pop(key)
        self.moment = max(self.moment, when)
        callback()
        return True


def _started() -> events.WorkflowStarted:
    ids = {"entity_id": "e", "execution_id": "x", "run_id": "r", "tree_id": "t"}
    return events.WorkflowStarted(seq=1, at=1, name="w", queue="default", python="3.11", **ids)


async def _is_woken(ahead: int) -> bool:
    """Let an instance want to be woken *ahead* looks at the clock from now; whether a waiting worker is told."""
    clock = TickingClock()
    store = SqliteStore(None, clock, name="one", lease=60_000, synchronous="OFF")
    try:
        await store.create([r.Creation(started=_started())])
        [claim] = await store.claim("worker", ["default"], 1)
        watch = r.Work(worker="worker", queues=("default",), instances=True, activities=True)
        waiting = asyncio.ensure_future(store.wait(watch))
        await asyncio.sleep(0)
        outcome = Outcome(status=Status.RUNNING, wake_at=clock.moment + ahead)
        commit = r.Commit(
            execution_id="x",
            entity_id="e",
            epoch=claim.epoch,
            base_seq=1,
            wake=claim.wake,
            outcome=outcome,
            worker="worker",
            release=True,
        )
        await store.commit([commit])
        await asyncio.sleep(0)
        while not waiting.done() and clock.ring():
            await asyncio.sleep(0)
        told = waiting.done()
        waiting.cancel()
        return told
    finally:
        await store.close()


@pytest.mark.parametrize("ahead", range(1, 12))
async def test_no_deadline_is_missed(ahead):
    assert await _is_woken(ahead)


WATCH = r.Work(worker="worker", queues=("default",), instances=True, activities=True)


async def _begin_to_wait(store) -> asyncio.Future[bool]:
    """Wait for work; if the test fails before, the error of the closed store is dropped."""
    waiting = asyncio.ensure_future(store.wait(WATCH))
    waiting.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    for _ in range(3):  # the poll, too, has had its first look
        await asyncio.sleep(0)
    return waiting


class Failing:
    """A connection that fails at the next few statements of a kind, as a disk does."""

    def __init__(self, connection, statement: str, times: int) -> None:
        self._connection = connection
        self._statement = statement
        self.left = times

    def __getattr__(self, name: str):
        return getattr(self._connection, name)

    def execute(self, statement: str):
        if self.left and statement == self._statement:
            self.left -= 1
            raise sqlite3.OperationalError("disk I/O error")
        return self._connection.execute(statement)


def _fail(monkeypatch, store, statement: str, times: int) -> Failing:
    connection = "_reading" if statement == "BEGIN" else "_writing"
    failing = Failing(getattr(store._database, connection), statement, times)
    monkeypatch.setattr(store._database, connection, failing)
    return failing


async def test_a_disk_that_fails_when_a_deadline_comes_does_not_lose_it(monkeypatch):
    """The waiter is woken a little later."""
    clock = TickingClock()
    store = SqliteStore(None, clock, name="one", lease=60_000, synchronous="OFF")
    try:
        await store.create([r.Creation(started=_started())])
        [claim] = await store.claim("worker", ["default"], 1)
        outcome = Outcome(status=Status.RUNNING, wake_at=clock.moment + 1000)
        await store.commit(
            [
                r.Commit(
                    execution_id="x",
                    entity_id="e",
                    epoch=claim.epoch,
                    base_seq=1,
                    wake=claim.wake,
                    outcome=outcome,
                    release=True,
                )
            ]
        )
        waiting = await _begin_to_wait(store)
        failing = _fail(monkeypatch, store, "BEGIN", 3)
        assert clock.ring()
        assert failing.left == 2
        assert await asyncio.wait_for(waiting, HANGS)
        assert failing.left == 0
    finally:
        monkeypatch.undo()
        await store.close()


@pytest.mark.parametrize("statement", ["BEGIN", "PRAGMA data_version"])
async def test_a_disk_that_fails_while_another_process_writes_loses_no_news(tmp_path, monkeypatch, statement):
    """The waiter is woken by one of the next polls."""
    one, two = (SqliteStore(tmp_path / "a.db", SystemClock(), name=name, synchronous="OFF") for name in ("one", "two"))
    try:
        waiting = await _begin_to_wait(one)
        failing = _fail(monkeypatch, one, statement, 1)
        if statement == "PRAGMA data_version":  # asked by the poll, which finds what was written if a message is lost
            monkeypatch.setattr(two._wakeups, "wake_others", lambda *_: None)
        await two.create([r.Creation(started=_started())])
        assert await asyncio.wait_for(waiting, HANGS)
        assert failing.left == 0
    finally:
        monkeypatch.undo()
        await one.close()
        await two.close()


async def test_what_is_written_is_acknowledged_though_the_disk_fails_at_the_look_afterwards(monkeypatch):
    """The writer gets its answer and does not repeat the write; the waiter is woken a little later."""
    store = SqliteStore(None, TickingClock(), name="one", lease=60_000, synchronous="OFF")
    try:
        waiting = await _begin_to_wait(store)
        failing = _fail(monkeypatch, store, "BEGIN", 1)
        [created] = await store.create([r.Creation(started=_started())])
        assert isinstance(created, r.Created)
        assert failing.left == 0
        assert await asyncio.wait_for(waiting, HANGS)
    finally:
        monkeypatch.undo()
        await store.close()
