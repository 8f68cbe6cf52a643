"""How long an attempt may take and how long it may say nothing, on a clock that the test moves."""

import asyncio

import pytest
from msgspec import Raw

from resurgam.core.outcome import ActivityRequest
from resurgam.store.records import ActivityTask
from resurgam.testing import ManualClock
from resurgam.worker.heartbeat import AttemptTimeouts, RunningAttempt

SILENT = "activity 'work' sent no heartbeat for 5 s, its heartbeat timeout"
SLOW = "activity 'work' ran longer than its timeout of 12 s"


def attempt_of(clock, **limits) -> RunningAttempt:
    request = ActivityRequest(ref=2, name="work", queue="default", input=Raw(b"[]"), entity_id="e", **limits)
    task = ActivityTask(entity_id="x", execution_id="x", epoch=1, attempt=1, deliveries=0, request=request)
    return RunningAttempt(clock, task, lambda _: None)


class World:
    """One attempt under its limits."""

    def __init__(self, **limits) -> None:
        self.clock = ManualClock()
        self.attempt = attempt_of(self.clock, **limits)
        self.limits = AttemptTimeouts(self.clock, self.attempt.task.request, self.attempt)

    async def passes(self, milliseconds: int) -> None:
        self.clock.move_to(self.clock.now() + milliseconds)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    @property
    def said(self):
        return self.limits.passed.result() if self.limits.passed.done() else None


async def test_an_attempt_that_says_nothing_has_had_its_time():
    world = World(heartbeat=5000)
    await world.passes(4999)
    assert world.said is None
    await world.passes(1)
    assert world.said == SILENT


async def test_a_heartbeat_just_in_time_is_in_time():
    world = World(heartbeat=5000)
    for _ in range(10):
        await world.passes(4999)
        world.attempt.beat(None)
    await world.passes(4999)
    assert world.said is None
    await world.passes(1)
    assert world.said == SILENT


async def test_a_heartbeat_that_comes_too_late_is_too_late():
    world = World(heartbeat=5000)
    await world.passes(5000)
    world.attempt.beat(None)
    assert world.said == SILENT


async def test_one_that_is_read_in_the_same_turn_is_in_time():
    """What came over a pipe while the loop did something else is read after the timer was called."""
    world = World(heartbeat=5000)
    world.clock.move_to(world.clock.now() + 5000)
    world.attempt.beat(None)
    await world.passes(0)
    assert world.said is None


async def test_heartbeats_do_not_lengthen_the_timeout():
    world = World(heartbeat=5000, timeout=12_000)
    for _ in range(11):
        await world.passes(1000)
        world.attempt.beat(None)
    assert world.said is None
    await world.passes(1000)
    assert world.said == SLOW


async def test_many_heartbeats_take_one_timer():
    world = World(heartbeat=5000)
    for _ in range(1000):
        world.attempt.beat(None)
        await world.passes(1)
    assert len(world.clock._callbacks) == 1
    assert world.clock.next_due() == world.clock.now() + 4000


async def test_what_is_over_waits_for_nothing():
    world = World(heartbeat=5000, timeout=12_000)
    world.limits.close()
    assert world.clock.next_due() is None
    world = World(heartbeat=5000)
    world.clock.move_to(world.clock.now() + 5000)
    world.limits.close()  # between the timer and the judgement
    await world.passes(0)
    assert world.clock.next_due() is None


async def test_without_limits_there_is_no_timer():
    world = World()
    assert world.clock.next_due() is None
    await world.passes(10**9)
    assert world.said is None


@pytest.mark.parametrize("jump", [-3_600_000, 3_600_000])
async def test_a_clock_that_is_set_neither_kills_an_attempt_nor_spares_it(jump):
    """Timers of an event loop keep their distance, whatever the clock says."""
    world = World(heartbeat=5000)
    await world.passes(3000)
    world.attempt.beat(None)
    [(number, callback)] = world.clock._callbacks.items()
    del world.clock._callbacks[number]
    world.clock._now += jump + 2000
    callback()
    await world.passes(0)
    assert world.said is None
    await world.passes(5000)
    assert world.said == SILENT


def test_details_are_those_told_last():
    attempt = attempt_of(ManualClock())
    assert attempt.details is None
    attempt.beat(Raw(b"1"))
    attempt.beat(Raw(b"2"))
    attempt.beat(None)
    assert bytes(attempt.details) == b"2"
