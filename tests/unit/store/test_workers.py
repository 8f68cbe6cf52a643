"""The workers of a memory store: those that have expired are deleted."""

from resurgam.store.memory.store import MemoryStore
from resurgam.testing import ManualClock
from resurgam.testing.contract.live_workers import TTL, worker


async def test_workers_that_were_not_seen_for_too_long_leave_nothing_behind():
    clock = ManualClock()
    store = MemoryStore(clock)
    for number in range(10):
        await store.workers.announce(worker(f"w-{number}"), TTL)
        clock.move_to(clock.now() + TTL)
    assert list(store.workers._workers) == ["w-9"]
