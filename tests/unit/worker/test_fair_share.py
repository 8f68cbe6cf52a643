"""Activities are shared between the workers of a queue; a worker that is alone takes all it can."""

import random
from collections import Counter

import pytest
from msgspec import Raw

from resurgam import Registry
from resurgam.core.outcome import ActivityRequest
from resurgam.store.memory.store import MemoryStore
from resurgam.store.records import Announcement
from resurgam.testing import ManualClock
from resurgam.worker.attempts import ActivityRunner
from resurgam.worker.fair_share import BATCH, REFILL, ClaimWindow, fair_share
from resurgam.worker.leases import Leases
from resurgam.worker.presence import Presence
from resurgam.worker.slots import Slots
from resurgam.worker.tasks import Tasks


def requests(**queues: int) -> list[ActivityRequest]:
    names = [queue for queue, count in queues.items() for _ in range(count)]
    return [ActivityRequest(ref=n, name="a", queue=q, input=Raw(b"[]"), entity_id="e") for n, q in enumerate(names)]


@pytest.mark.parametrize(
    ("queues", "workers", "share"),
    [
        ({"q": 60}, {"q": 3}, {"q": 20}),
        ({"q": 1}, {"q": 3}, {"q": 1}),
        ({"q": 7}, {"q": 3}, {"q": 3}),
        ({"q": 10, "own": 4}, {"q": 2, "own": 1}, {"q": 5, "own": 4}),
        ({"q": 9, "r": 9}, {"q": 3, "r": 2}, {"q": 3, "r": 5}),
        ({"q": 60, "not served": 60}, {"q": 3}, {"q": 20}),
        ({"not served": 5}, {"q": 3}, {}),
        ({}, {"q": 3}, {}),
    ],
)
def test_a_share_is_the_part_of_one_worker_rounded_up_for_each_queue_that_it_serves(queues, workers, share):
    wanted = requests(**queues)
    chosen = fair_share(wanted, tuple(workers), workers.__getitem__)
    assert Counter(wanted[ref].queue for ref in chosen) == share


def test_a_share_is_the_first_activities_of_each_queue_in_the_order_of_the_commit():
    in_turn = requests(q=4, r=4)
    mixed = [request for pair in zip(in_turn[:4], in_turn[4:], strict=True) for request in pair]
    assert fair_share(mixed, ("q", "r"), {"q": 2, "r": 4}.__getitem__) == [0, 4, 1]


@pytest.mark.parametrize(
    ("peers", "limit", "refs"),
    [
        ((), 100, (0, 1, 2, 6, 7)),
        ((), 4, (0, 1, 2, 6)),
        ((), 1, (0,)),
        (("q",), 100, (0, 1, 6, 7)),
        (("q", "not served"), 100, (0, 1, 6, 7)),
        (("not served",), 100, (0, 1, 2, 6, 7)),
        (("q",), 1, (0,)),
    ],
)
async def test_slots_are_reserved_for_the_share_of_each_served_queue(peers, limit, refs):
    clock = ManualClock()
    store = MemoryStore(clock)
    queues = ("q", "r")
    presence = Presence(store.workers, name="me", build="b", queues=queues, lease=10_000)
    if peers:
        peer = Announcement(worker_id="peer", host="h", pid=1, build="b", queues=peers, slots=1)
        presence.note(await store.workers.announce(peer, 1000))
    registry = Registry()

    @registry.activity
    def a() -> None: ...

    runner = ActivityRunner(registry, clock, chance=random.Random(1))
    leases = Leases(store, clock, Tasks(), length=10_000)
    slots = Slots(store, clock, runner, leases=leases, presence=presence, limit=limit)
    wanted = requests(q=3, **{"not served": 3}, r=2)
    assert slots.reserve_share(wanted) == set(refs)
    assert slots.free == limit - len(refs)


async def test_a_worker_that_stopped_announcing_itself_has_no_share():
    """It may be killed, or stopped without an end."""
    clock = ManualClock()
    store = MemoryStore(clock)
    presence = Presence(store.workers, name="me", build="b", queues=("q",), lease=10_000)
    peer = Announcement(worker_id="peer", host="h", pid=1, build="b", queues=("q",), slots=1)
    presence.note(await store.workers.announce(peer, 1000))
    assert presence.workers_of("q") == 2
    clock.move_to(clock.now() + 1000)
    presence.note(await store.workers.list())
    assert presence.alone
    assert presence.workers_of("q") == 1


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


def test_time_without_work_does_not_pay_for_what_begins_after_it():
    clock = ManualClock()
    window = ClaimWindow(clock)
    clock.move_to(clock.now() + 100 * REFILL)
    for _ in range(3 * BATCH):
        window.take()
    assert window.size == 0
    clock.move_to(clock.now() + 2 * REFILL)
    assert window.size == 0
    clock.move_to(clock.now() + REFILL)
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
