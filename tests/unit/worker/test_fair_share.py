"""Activities are shared between the workers of a queue; a worker that is alone takes all it can."""

import pytest
from msgspec import Raw

from resurgam.core.outcome import ActivityRequest
from resurgam.store.memory.store import MemoryStore
from resurgam.store.records import Announcement
from resurgam.testing import ManualClock
from resurgam.worker.fair_share import BATCH, REFILL, ClaimWindow, fair_share
from resurgam.worker.presence import Presence


def requests(**queues: int) -> list[ActivityRequest]:
    names = [queue for queue, count in queues.items() for _ in range(count)]
    return [ActivityRequest(ref=n, name="a", queue=q, input=Raw(b"[]"), entity_id="e") for n, q in enumerate(names)]


@pytest.mark.parametrize(
    ("queues", "workers", "share"),
    [
        ({"q": 60}, {"q": 3}, 20),
        ({"q": 1}, {"q": 3}, 1),
        ({"q": 7}, {"q": 3}, 3),
        ({"q": 10, "own": 4}, {"q": 2, "own": 1}, 9),
        ({}, {}, 0),
    ],
)
def test_a_share_is_the_part_of_one_worker_rounded_up_for_each_queue(queues, workers, share):
    assert fair_share(requests(**queues), workers.__getitem__) == share


def test_a_window_allows_a_batch_and_another_one_after_each_interval():
    clock = ManualClock()
    window = ClaimWindow(clock)
    assert window.size == BATCH
    for _ in range(BATCH):
        window.take()
    assert window.size == 0
    clock.move_to(window.refill_at - 1)
    assert window.size == 0
    clock.move_to(window.refill_at)
    assert window.size == BATCH
    clock.move_to(clock.now() + 100 * REFILL)
    assert window.size == BATCH


def test_a_window_opens_by_one_for_each_activity_that_ends():
    window = ClaimWindow(ManualClock())
    for _ in range(BATCH):
        window.take()
    window.give_back()
    assert window.size == 1
    for _ in range(2 * BATCH):
        window.give_back()
    assert window.size == BATCH


def test_what_a_commit_claimed_beyond_a_batch_is_a_debt_of_the_window():
    clock = ManualClock()
    window = ClaimWindow(clock)
    for _ in range(2 * BATCH + 1):
        window.take()
    for size in (0, BATCH - 1, BATCH):
        clock.move_to(window.refill_at)
        assert window.size == size


def test_a_clock_that_is_set_back_does_not_close_a_window_for_ever():
    clock = ManualClock()
    window = ClaimWindow(clock)
    for _ in range(BATCH):
        window.take()
    clock.set_back(3_600_000)
    assert window.size == 0
    clock.move_to(window.refill_at)
    assert window.size == BATCH


async def test_a_worker_is_alone_until_another_one_serves_one_of_its_queues():
    store = MemoryStore(ManualClock())
    presence = Presence(store.workers, name="me", build="b", queues=("q", "own"), lease=10_000)
    assert presence.alone
    other = Announcement(worker_id="other", host="h", pid=1, build="b", queues=("elsewhere",), slots=1)
    presence.note(await store.workers.announce(other, 1000))
    assert presence.alone
    another = Announcement(worker_id="another", host="h", pid=1, build="b", queues=("q", "elsewhere"), slots=1)
    presence.note(await store.workers.announce(another, 1000))
    assert not presence.alone
    assert (presence.workers_of("q"), presence.workers_of("own")) == (2, 1)
    await store.workers.remove("another")
    presence.note(await store.workers.list())
    assert presence.alone
