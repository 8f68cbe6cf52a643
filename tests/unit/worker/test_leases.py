"""Leases are renewed with the details of the last heartbeat, once per renewal."""

import asyncio

import pytest
from msgspec import Raw
from msgspec.structs import replace

from resurgam.core.errors import StoreError
from resurgam.core.outcome import ActivityRequest
from resurgam.store.records import ActivityTask, Extended, Lease, Refused
from resurgam.testing import ManualClock
from resurgam.worker.heartbeat import RunningAttempt
from resurgam.worker.leases import Leases
from resurgam.worker.tasks import Tasks

LENGTH = 9000
LEASE = Lease(entity_id="x", execution_id="x", epoch=1, ref=2)
KEY = ("x", 2, 1)
REQUEST = ActivityRequest(ref=2, name="work", queue="default", input=Raw(b"[]"), entity_id="e")
TASK = ActivityTask(entity_id="x", execution_id="x", epoch=1, attempt=1, deliveries=0, request=REQUEST)


class Renewed:
    """A store that remembers what it was asked to renew."""

    def __init__(self) -> None:
        self.asked = []
        self.answer = Extended()

    async def extend(self, leases):
        self.asked.append(list(leases))
        if isinstance(self.answer, Exception):
            raise self.answer
        return [self.answer for _ in leases]


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = Renewed()
        self.tasks = Tasks()
        self.leases = Leases(self.store, self.clock, self.tasks, length=LENGTH)
        self.attempt = RunningAttempt(self.clock, TASK, lambda _: None)
        self.leases.keep(KEY, self.attempt)

    async def renews(self):
        """Let the time of a renewal come; return the details that went with it."""
        self.clock.move_to(self.clock.now() + LENGTH // 3)
        while self.tasks:
            await asyncio.sleep(0)
        [lease] = self.store.asked[-1]
        return lease.details


@pytest.fixture
async def world():
    return World()


async def test_heartbeats_are_kept_with_the_next_renewal(world):
    for number in range(100):
        world.attempt.beat(Raw(b"%d" % number))
    assert world.store.asked == []
    assert await world.renews() == Raw(b"99")
    assert len(world.store.asked) == 1


async def test_a_heartbeat_without_details_is_kept_with_its_moment(world):
    assert await world.renews() is None
    beat_at = world.clock.now()
    world.attempt.beat(None)
    assert await world.renews() is None
    assert world.store.asked == [[LEASE], [replace(LEASE, heartbeat_at=beat_at)]]


async def test_what_the_store_did_not_hear_is_told_again(world):
    world.attempt.beat(Raw(b"1"))
    world.store.answer = StoreError("gone")
    assert await world.renews() == Raw(b"1")
    world.store.answer = Extended()
    assert await world.renews() == Raw(b"1")
    assert not world.attempt.abandoned


async def test_what_is_given_back_has_its_details(world):
    """And what the watchdog renews, which asks in the same way."""
    world.attempt.beat(Raw(b"1"))
    assert world.leases.all() == [replace(LEASE, details=Raw(b"1"), heartbeat_at=world.clock.now())]


async def test_details_are_kept_once_more_before_all_is_given_back(world):
    await world.leases.keep_details()
    assert world.store.asked == []
    other = RunningAttempt(world.clock, replace(TASK, execution_id="y"), lambda _: None)
    world.leases.keep(("y", 2, 1), other)
    world.attempt.beat(Raw(b"1"))
    await world.leases.keep_details()
    assert world.store.asked == [[replace(LEASE, details=Raw(b"1"), heartbeat_at=world.clock.now())]]


async def test_a_lease_with_details_is_dropped_as_any_other(world):
    world.attempt.beat(Raw(b"1"))
    world.leases.drop(KEY)
    assert world.leases.all() == []


async def test_the_loss_of_a_lease_is_reported_once(world):
    world.attempt.beat(Raw(b"1"))
    world.store.answer = Refused(reason="another has it")
    await world.renews()
    assert world.attempt.abandoned
    assert world.leases.all() == []


async def test_a_renewal_that_crosses_a_commit_which_may_end_the_lease_is_no_loss(world):
    class Ending:
        ending = True
        lost = False

        def lease(self):
            return LEASE

        def lose(self):
            self.lost = True

    world.leases.keep(KEY, ending := Ending())
    world.store.answer = Refused(reason="it was released")
    await world.renews()
    assert not ending.lost
    ending.ending = False
    await world.renews()
    assert ending.lost
