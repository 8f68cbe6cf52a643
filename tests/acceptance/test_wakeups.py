"""Time goes on while a store looks around: whatever moment a deadline falls into, somebody is woken for it."""

import asyncio

import pytest

from resurgam.core import event as events
from resurgam.core.outcome import Outcome
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.sql.store import SqliteStore


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
