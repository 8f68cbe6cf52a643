"""Activities in processes of their own, which are stopped where a thread would be left behind."""

import os
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from resurgam.core import event as events
from resurgam.core.state import Status
from resurgam.testing.contract.bench import LEASE
from support.engines import Engines, run, types_of
from support.process_activities import (
    SLOW_TO_START,
    Parcel,
    Pipe,
    ask,
    ask_to_end,
    choose,
    fail,
    known,
    leave,
    listen,
    lives,
    send,
    survive,
    tell,
    wait,
    where,
)

# How a process is run does not depend on the store or the cache; where leases matter, one test runs on SQLite too.
pytestmark = pytest.mark.engines("memory-cached")
on_two_stores = pytest.mark.engines("memory-cached", "sqlite-replayed")


async def test_a_process_gives_what_was_recorded(engines: Engines) -> None:
    """Arguments and result go by their recorded bytes, typed on both sides."""
    parcel = Parcel(2, datetime(2026, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin")))
    async with engines.open(known, patience=SLOW_TO_START) as env:
        got = await run(env, send, parcel)
        assert got == Parcel(4, parcel.sent_at)
        assert got.sent_at.tzinfo == ZoneInfo("Europe/Berlin")


async def test_an_error_comes_back_from_a_process(engines: Engines) -> None:
    """Type, message, cause, traceback, and whether to try again, as from a thread."""
    async with engines.open(known, patience=SLOW_TO_START) as env:
        handle = await env.start(fail)
        got = await env.finish(handle.result())
        assert got == ["TornError", "torn at 7", "KeyError", 1, "NonRetryable", "no", "NoneType", 1]
        [torn, _] = [e for e in await handle.history() if isinstance(e, events.ActivityFailed)]
        assert "in tear" in torn.failure.traceback
        assert bytes(torn.failure.fields["weight"]) == b"7"


async def test_a_process_knows_its_activity_and_is_used_again(engines: Engines) -> None:
    """``activity.info()`` works there, and the second attempt finds the process of the first."""
    async with engines.open(known, patience=SLOW_TO_START) as env:
        pid, name, attempt, key, second, _, _, other = await run(env, ask)
        assert pid == second != os.getpid()
        assert (name, attempt) == ("whoami", 1)
        assert key != other
    assert not lives(pid)


async def test_a_call_may_choose_a_process(engines: Engines) -> None:
    """Options of one call go before those of the definition; a mock stays in this process."""
    async with engines.open(known, patience=SLOW_TO_START) as env:
        here, there = await run(env, choose)
        assert here == os.getpid() != there
        env.mock(where, calls=lambda: 0)
        assert await run(env, choose) == [0, 0]


async def test_the_death_of_a_process_is_a_failed_attempt(engines: Engines) -> None:
    """It says how the process ended, and is tried again as the policy says."""
    async with engines.open(known, patience=SLOW_TO_START) as env:
        handle = await env.start(survive)
        assert await env.finish(handle.result()) == "alive"
        retries = [e for e in await handle.history() if isinstance(e, events.ActivityRetryScheduled)]
        assert {retry.failure.type for retry in retries} == {"resurgam.core.errors.ProcessDied"}
        how = ("exit code 3", "killed by SIGSEGV", "killed by SIGKILL")
        for retry, words in zip(retries, how, strict=True):
            assert words in retry.failure.message


async def test_a_cancelled_process_ends(engines: Engines) -> None:
    """The workflow cancels the activity while it runs: its process is killed, and another takes its place."""
    async with Pipe.open() as pipe, engines.open(known) as env:
        handle = await env.start(wait, pipe.folder)
        pid = await pipe.begun()
        await handle.signal("stop", "enough")
        assert await env.finish(handle.result()) == "1: enough"
        await pipe.gone()
        assert (await types_of(handle)).count("activity_cancelled") == 1
    assert not lives(pid)


async def test_a_process_that_takes_too_long_ends(engines: Engines) -> None:
    """Past its timeout it is killed, and the attempt has failed with TimeoutError."""
    async with Pipe.open() as pipe, engines.open(known) as env:
        handle = await env.start(wait, pipe.folder, 5.0)
        await pipe.begun()
        await env.advance(5)
        assert await env.finish(handle.result()) == "TimeoutError"
        await pipe.gone()


@on_two_stores
async def test_a_process_whose_lease_is_lost_ends(engines: Engines) -> None:
    """Another worker has the activity now."""
    async with Pipe.open() as pipe, engines.client(known) as (store, clock, client):
        handle = await client.start(wait, pipe.folder)
        # It renews after a third of this, which is too late.
        async with engines.serve(store, clock, known, lease=3 * (LEASE / 1000 + 1)) as env:
            await pipe.begun()
            clock.move_to(clock.now() + LEASE)
            # The lease on the instance has covered the activity.
            assert len(await store.claim("thief", ["default"], 10)) == 1
            assert len(await store.claim_activities("thief", ["default"], 10)) == 1
            await env.advance(1)
            await pipe.gone()
        assert (await types_of(handle))[1:] == ["activity_scheduled", "listen_started", "race_started"]


@on_two_stores
async def test_a_process_that_does_not_end_in_time_is_given_back(engines: Engines) -> None:
    """A worker that drains kills what runs beyond its grace, and the next one runs it as the same attempt."""
    async with Pipe.open() as pipe, engines.client(known) as (store, clock, client):
        handle = await client.start(wait, pipe.folder)
        async with engines.serve(store, clock, known, grace=0):
            pid = await pipe.begun()
        assert not lives(pid)
        await pipe.gone()
        pipe.enough()
        async with engines.serve(store, clock, known, patience=SLOW_TO_START) as env:
            assert await env.finish(handle.result()) == "0: enough"
        assert "activity_retry_scheduled" not in await types_of(handle)


@on_two_stores
async def test_details_of_a_process_reach_the_next_attempt(engines: Engines) -> None:
    """One that raised, or died: what it told last is known to the next, under the same idempotency key."""
    async with engines.open(known, patience=SLOW_TO_START) as env:
        handle = await env.start(tell)
        [details, key], nonsense = await env.finish(handle.result())
        assert details == {"seen": [1, 2, 3]}
        [first, *_] = history = await handle.history()
        assert isinstance(first, events.WorkflowStarted)
        assert key.startswith(first.run_id)
        assert "heartbeat of activity 'tells_nonsense'[0]" in nonsense
        retries = [e for e in history if isinstance(e, events.ActivityRetryScheduled)]
        assert retries[0].next_at - retries[0].at == 5000


async def test_a_process_that_says_nothing_ends(engines: Engines) -> None:
    """Each heartbeat gives it its time again; without one it is killed, and the attempt has failed."""
    async with Pipe.open() as pipe, engines.open(known) as env:
        handle = await env.start(listen, pipe.folder, 3)
        for number in range(3):
            assert await pipe.number() == number
            await env.advance(4.999)
            pipe.touch(f"beat-{number}")
        await pipe.begun()
        await env.advance(4.999)
        assert (await handle.describe()).status is Status.RUNNING
        await env.advance(0.001)
        said = "activity 'beats' sent no heartbeat for 5 s, its heartbeat timeout"
        assert await env.finish(handle.result()) == said
        await pipe.gone()


async def test_a_process_that_is_asked_to_end_may_find_out_why(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler of SIGTERM sees that the attempt is cancelled; before that it was not."""
    monkeypatch.setattr("resurgam.worker.processes._GRACE", SLOW_TO_START)
    async with Pipe.open() as pipe, engines.open(known) as env:
        handle = await env.start(ask_to_end, pipe.folder)
        await pipe.begun()
        await handle.signal("stop", "enough")
        assert await env.finish(handle.result()) == "1"
        await pipe.gone()
        assert pipe.read("told") == "[False, True, True]"


@on_two_stores
async def test_the_result_of_a_process_that_comes_after_the_end_is_recorded(engines: Engines) -> None:
    """It runs on when its workflow ends."""
    async with Pipe.open() as pipe, engines.open(known, patience=SLOW_TO_START) as env:
        handle = await env.engine.start(leave, pipe.folder)
        await pipe.begun()
        await handle.signal("go", "gone")
        assert await handle.result() == "gone"
        assert not (await handle.describe()).deactivated
        pipe.enough()
        await env.settle()
        assert (await types_of(handle))[-3:] == ["workflow_completed", "activity_completed", "workflow_deactivated"]
        assert await handle.result() == "gone"
