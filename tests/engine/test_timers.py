"""Timers, races against time, and asking a workflow to stop."""

import asyncio
from typing import Any

from resurgam.client.handle import Handle
from resurgam.core import errors
from resurgam.core import event as events
from resurgam.core.state import Status
from resurgam.runtime.context.context import Context
from resurgam.runtime.registry import Registry
from resurgam.testing.contract.bench import raises
from resurgam.testing.environment import Environment
from support.engines import Engines, run, types_of


async def test_a_timer_fires_at_its_moment(engines: Engines) -> None:
    """A sleep ends when its time has passed, not before, however long it is."""
    registry = Registry()

    @registry.workflow
    async def nap(ctx: Context) -> float:
        begin = ctx.now()
        await ctx.sleep(30 * 86400)
        await asyncio.sleep(0.5)
        return (ctx.now() - begin).total_seconds()

    async with engines.open(registry) as env:
        handle = await env.start(nap)
        await env.advance(30 * 86400 - 0.001)
        assert await types_of(handle) == ["workflow_started", "timer_started"]
        await env.advance(0.001)
        assert (await types_of(handle))[2:] == ["timer_fired", "timer_started"]
        assert await env.finish(handle.result()) == 30 * 86400 + 0.5


async def test_a_timer_fires_though_an_update_waits_for_its_handler(engines: Engines) -> None:
    """What lies in the inbox and means nothing yet holds up neither the clock nor what comes behind it."""
    registry = Registry()

    @registry.workflow
    async def late(ctx: Context) -> list[Any]:
        told: list[Any] = []
        await ctx.sleep(60)
        told.append(ctx.now().timestamp())
        await ctx.listen("go")

        @ctx.on_update("add")
        def add(number: int) -> None:
            told.append(number)

        await ctx.until(lambda: len(told) > 1)
        return told

    async with engines.open(registry) as env:
        begin = env.now().timestamp()
        handle = await env.start(late)
        sent = asyncio.ensure_future(handle.update("add", 7))
        await env.advance(30)
        await handle.signal("go")
        assert await env.finish(handle.result()) == [begin + 60, 7]
        assert await env.finish(sent) is None


async def test_cancel_ends_a_workflow_that_waits_for_a_timer(engines: Engines) -> None:
    """A cancelled workflow ends without waiting for its timer, and leaves no deadline."""
    registry = Registry()

    @registry.workflow
    async def wait(ctx: Context) -> None:
        await ctx.sleep(10)

    async with engines.open(registry) as env:
        handle = await env.start(wait)
        before = env.clock.now()
        await handle.cancel("enough")
        with raises(errors.WorkflowCancelled):
            await env.finish(handle.result())
        assert env.clock.now() == before
        assert (await types_of(handle))[2:] == [
            "cancel_requested",
            "timer_cancelled",
            "workflow_cancelled",
            "workflow_deactivated",
        ]
        await _no_deadline_is_left(env, handle)


async def test_a_timer_cancelled_before_its_commit_is_never_waited_for(engines: Engines) -> None:
    """It is in the history as a pair, and the store has no deadline for it."""
    registry = Registry()

    @registry.workflow
    async def changes_its_mind(ctx: Context) -> str:
        ctx.sleep(10).cancel()
        return await ctx.listen("go", type=str)

    async with engines.open(registry) as env:
        handle = await env.start(changes_its_mind)
        assert (await types_of(handle))[1:3] == ["timer_started", "timer_cancelled"]
        await _no_deadline_is_left(env, handle)
        await env.advance(20)
        assert "timer_fired" not in await types_of(handle)
        await handle.signal("go", "went")
        assert await env.finish(handle.result()) == "went"


async def test_a_timer_cancelled_twice_is_cancelled_once(engines: Engines) -> None:
    """Calling a timer off again, in the same step or a later one, changes nothing."""
    registry = Registry()

    @registry.workflow
    async def cancels(ctx: Context) -> list[bool]:
        timer = ctx.sleep(100)
        await ctx.sleep(1)
        answers = [timer.cancel(), timer.cancel()]
        await ctx.sleep(1)
        return [*answers, timer.cancel()]

    async with engines.open(registry) as env:
        handle = await env.start(cancels)
        assert await env.finish(handle.result()) == [True, False, False]
        assert (await types_of(handle)).count("timer_cancelled") == 1
        await _no_deadline_is_left(env, handle)


async def test_a_timer_cancelled_later_leaves_no_deadline(engines: Engines) -> None:
    """A timer that is called off in a later step is recorded so, and is not waited for any more."""
    registry = Registry()

    @registry.workflow
    async def cancels(ctx: Context) -> str:
        timer = ctx.sleep(100)
        await ctx.sleep(1)
        timer.cancel()
        return await ctx.listen("go", type=str)

    async with engines.open(registry) as env:
        handle = await env.start(cancels)
        await env.advance(1)
        history = await handle.history()
        [cancelled] = [entry for entry in history if isinstance(entry, events.TimerCancelled)]
        assert cancelled.ref == 2
        await _no_deadline_is_left(env, handle)
        await handle.signal("go", "done")
        assert await env.finish(handle.result()) == "done"


async def test_a_timer_that_comes_due_while_it_is_being_cancelled_does_no_harm(engines: Engines) -> None:
    """Its moment passes while the step that calls it off is under way; the workflow ends as it should."""
    registry = Registry()
    passed: list[float] = []

    @registry.workflow
    async def close_call(ctx: Context, seconds: float) -> str:
        timer = ctx.sleep(1)
        await ctx.run(pass_time, seconds)
        timer.cancel()
        await ctx.run(pass_time, seconds)
        await ctx.sleep(1)
        return "fine"

    async with engines.open(registry) as env:

        def pass_time(seconds: float) -> None:
            passed.append(seconds)
            env.clock.move_to(env.clock.now() + int(seconds * 1000))

        for seconds in (0.5, 1, 3):  # within the lease, which would be lost otherwise
            handle = await env.start(close_call, seconds)
            assert await env.finish(handle.result()) == "fine"
            assert (await handle.describe()).status is Status.COMPLETED
        assert passed == [0.5, 0.5, 1, 1, 3, 3]


async def test_a_race_is_won_once(engines: Engines) -> None:
    """Who came first is written down; the losers are called off, and their deadlines with them."""
    registry = Registry()

    @registry.activity
    async def work() -> str:
        return "worked"

    @registry.workflow
    async def races(ctx: Context) -> list[Any]:
        won = [await ctx.race(ctx.activity(work), ctx.sleep(100))]
        won.append(await ctx.race(ctx.activity(work.options(queue="nowhere")), ctx.sleep(5)))
        won.append(await ctx.race(ctx.sleep(3), ctx.sleep(2), ctx.listen("never")))
        return won

    async with engines.open(registry) as env:
        handle = await env.start(races)
        assert await env.finish(handle.result()) == [[0, "worked"], [1, None], [1, None]]
        assert (await types_of(handle)).count("race_decided") == 3
        stats = await env.engine.store.inspector.stats()
        assert all(queue.activities == 0 for queue in stats.queues.values())
        await _no_deadline_is_left(env, handle)


async def test_clean_up_may_run_further_activities(engines: Engines) -> None:
    """A workflow that is asked to stop takes back what it did, and is cancelled after that."""
    registry = Registry()
    done: list[str] = []

    @registry.activity
    async def act(what: str) -> str:
        done.append(what)
        return what

    @registry.workflow
    async def order(ctx: Context) -> None:
        await ctx.activity(act, "charge")
        try:
            await ctx.sleep(100)
        finally:
            await ctx.activity(act, "refund")
            await ctx.sleep(5)
            await ctx.activity(act, "apologise")

    async with engines.open(registry) as env:
        handle = await env.start(order)
        await handle.cancel()
        with raises(errors.WorkflowCancelled):
            await env.finish(handle.result())
        assert done == ["charge", "refund", "apologise"]
        assert (await handle.describe()).status is Status.CANCELLED


async def test_a_workflow_that_catches_its_cancellation_completes(engines: Engines) -> None:
    """Who answers the request to stop with a result has completed; who fails has failed."""
    registry = Registry()

    @registry.workflow
    async def stubborn(ctx: Context, how: str) -> str:
        try:
            await ctx.sleep(100)
        except asyncio.CancelledError:
            await ctx.sleep(1)
            if how == "fails":
                raise ValueError("no") from None
        return "completed all the same"

    async with engines.open(registry) as env:
        for how, expected in (("completes", Status.COMPLETED), ("fails", Status.FAILED)):
            handle = await env.start(stubborn, how)
            await handle.cancel()
            await env.advance(2)
            assert (await handle.describe()).status is expected


async def test_a_cancellation_without_a_request_is_a_failure(engines: Engines) -> None:
    """Cancelled is only what was asked to stop; code that lets its own cancellation through has failed."""
    registry = Registry()

    @registry.workflow
    async def slips(ctx: Context) -> None:
        timer = ctx.sleep(10)
        timer.cancel()
        await timer

    async with engines.open(registry) as env:
        handle = await env.start(slips)
        with raises(errors.WorkflowFailed):
            await env.finish(handle.result())
        assert (await handle.describe()).status is Status.FAILED


async def test_a_workflow_cancelled_before_it_ran_is_cancelled(engines: Engines) -> None:
    """A request that comes before the first step is heard at the first wait."""
    registry = Registry()

    @registry.workflow
    async def wait(ctx: Context) -> None:
        await ctx.sleep(10)

    async with engines.client(registry) as (store, clock, client):
        handle = await client.start(wait)
        await handle.cancel()
        async with engines.serve(store, clock, registry) as env:
            with raises(errors.WorkflowCancelled):
                await env.finish(handle.result())


async def test_a_workflow_may_be_asked_to_stop_twice(engines: Engines) -> None:
    """The second request interrupts the clean-up, as a second Ctrl-C would; the workflow ends once."""
    registry = Registry()

    @registry.workflow
    async def slow_to_stop(ctx: Context) -> None:
        try:
            await ctx.sleep(100)
        finally:
            await ctx.sleep(100)

    async with engines.open(registry) as env:
        handle = await env.start(slow_to_stop)
        for _ in range(2):
            await handle.cancel()
            await env.settle()
        with raises(errors.WorkflowCancelled):
            await env.finish(handle.result())
        assert (await types_of(handle)).count("workflow_cancelled") == 1


async def _no_deadline_is_left(env: Environment, handle: Handle[Any]) -> None:
    found = await env.engine.store.inspector.get(handle.entity_id)
    assert found is not None
    assert found.wake_at is None


async def test_sleep_is_a_durable_timer(engines: Engines):
    registry = Registry()

    @registry.workflow
    async def work(ctx: Context) -> str:
        await ctx.sleep(30 * 86400)
        return "a month later"

    async with engines.open(registry) as env:
        assert await run(env, work) == "a month later"
