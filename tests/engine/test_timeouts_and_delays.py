"""The timeout of a whole workflow, and starts that are put off."""

import asyncio
from typing import Any

from resurgam.core import errors
from resurgam.core.retry import RetryPolicy
from resurgam.core.state import Status
from resurgam.runtime.context.context import Context
from resurgam.runtime.registry import Registry
from resurgam.testing import Environment
from resurgam.testing.contract.bench import raises
from support.engines import Engines, count_of, run, types_of


async def test_a_workflow_whose_time_is_over_has_failed(engines: Engines) -> None:
    """With `WorkflowTimeout`, at its moment; its clean-up runs, by durable calls, and it is not tried again."""
    registry = Registry()
    ran: list[int] = []

    @registry.activity
    async def clean() -> None:
        ran.append(1)

    @registry.workflow(timeout=60, retry=RetryPolicy(max_attempts=3))
    async def slow(ctx: Context) -> None:
        try:
            await ctx.sleep(3600)
        finally:
            await ctx.activity(clean)

    async with engines.open(registry) as env:
        handle = await env.start(slow)
        begin = env.now()
        await env.advance(59)
        assert (await handle.describe()).status is Status.RUNNING
        with raises(errors.WorkflowFailed) as caught:
            await env.finish(handle.result())
        assert isinstance(caught[0].__cause__, errors.WorkflowTimeout)
        assert (env.now() - begin).total_seconds() == 60
        assert ran == [1]
        assert (await handle.describe()).status is Status.FAILED
        assert await count_of(env) == 1


async def test_a_workflow_that_ends_in_spite_of_its_timeout_is_completed(engines: Engines) -> None:
    """It may catch the cancellation and return; a second one does not come."""
    registry = Registry()

    @registry.workflow(timeout=60)
    async def stubborn(ctx: Context) -> str:
        try:
            await ctx.sleep(3600)
        except asyncio.CancelledError:
            await ctx.sleep(600)
        return "after all"

    async with engines.open(registry) as env:
        assert await run(env, stubborn) == "after all"


async def test_a_timeout_is_over_all_attempts(engines: Engines) -> None:
    """The next attempt has what the ones before have left; the pause between two attempts counts too."""
    registry = Registry()

    @registry.workflow(timeout=60, retry=RetryPolicy(max_attempts=9, initial_interval=20, backoff=1, jitter=0))
    async def slow(ctx: Context) -> None:
        await ctx.sleep(15)
        raise LookupError(f"attempt {ctx.info.attempt}")

    @registry.workflow(timeout=60, retry=RetryPolicy(max_attempts=9, initial_interval=90, jitter=0))
    async def paused(_ctx: Context) -> None:
        raise LookupError("at once")

    async with engines.open(registry) as env:
        for workflow in (slow, paused):
            begin = env.now()
            handle = await env.start(workflow)
            with raises(errors.WorkflowFailed) as caught:
                await env.finish(handle.result())
            assert isinstance(caught[0].__cause__, errors.WorkflowTimeout), workflow.name
            assert (env.now() - begin).total_seconds() == 60


async def test_a_timeout_is_that_of_one_generation(engines: Engines) -> None:
    """A workflow that continues as new has its whole time again."""
    registry = Registry()

    @registry.workflow(timeout=60)
    async def steps(ctx: Context, number: int) -> int:
        await ctx.sleep(50)
        if number < 3:
            ctx.continue_as_new(number + 1)
        return number

    async with engines.open(registry) as env:
        assert await run(env, steps, 0) == 3


async def test_a_timeout_of_a_child_reaches_its_parent(engines: Engines) -> None:
    """As `ChildWorkflowFailed` with `WorkflowTimeout`."""
    registry = Registry()

    @registry.workflow(timeout=60)
    async def child(ctx: Context) -> None:
        await ctx.sleep(3600)

    @registry.workflow
    async def parent(ctx: Context) -> str:
        try:
            await ctx.workflow(child)
        except errors.ChildWorkflowFailed as failed:
            return type(failed.__cause__).__name__
        return ""

    async with engines.open(registry) as env:
        assert await run(env, parent) == "WorkflowTimeout"


async def test_a_start_can_be_put_off(engines: Engines) -> None:
    """Until its moment it is scheduled and nothing is run; signals wait for it; its timeout counts from there."""
    registry = Registry()

    @registry.workflow(timeout=60)
    async def later(ctx: Context) -> list[Any]:
        await ctx.sleep(50)
        return [ctx.now().timestamp(), await ctx.listen("word")]

    async with engines.open(registry) as env:
        begin = env.now().timestamp()
        handle = await env.start(later, delay=3600)
        await handle.signal("word", "early")
        await env.advance(3599)
        found = await handle.describe()
        assert (found.status, found.history_length) == (Status.SCHEDULED, 1)
        assert found.begins_at is not None
        assert found.begins_at.timestamp() == begin + 3600
        assert any("its start at" in text for text in found.waiting_for)
        assert await count_of(env, status="scheduled") == 1
        assert await env.finish(handle.result()) == [begin + 3650, "early"]
        assert "workflow_begun" in await types_of(handle)


async def test_a_start_that_was_put_off_can_be_begun_now(engines: Engines) -> None:
    """By `begin`; and what was put off is begun once."""
    registry = Registry()
    ran: list[int] = []

    @registry.workflow
    async def later(_ctx: Context) -> str:
        ran.append(1)
        return "now"

    async with engines.open(registry) as env:
        handle = await env.start(later, delay=3600)
        await handle.begin()
        assert await env.finish(handle.result(), limit=1) == "now"
        await env.advance(7200)
        assert ran == [1]


async def test_a_delayed_start_can_be_cancelled(engines: Engines) -> None:
    """Cancelled or terminated it never runs; another may use its id."""
    registry = Registry()
    ran: list[int] = []

    @registry.workflow
    async def later(_ctx: Context, number: int) -> int:
        ran.append(number)
        return number

    async with engines.open(registry) as env:
        for number, verb in enumerate(("cancel", "terminate")):
            handle = await env.start(later, number, id="later", delay=3600)
            with raises(errors.AlreadyExists, "scheduled"):
                await env.start(later, 9, id="later")
            await getattr(handle, verb)()
            await env.settle()
            ended = {"cancel": Status.CANCELLED, "terminate": Status.TERMINATED}[verb]
            assert (await handle.describe()).status is ended
        await env.advance(7200)
        # The first advance of a start that is refused may have been made, and was discarded.
        assert not {0, 1} & set(ran)
        assert await env.finish((await env.start(later, 3, id="later")).result()) == 3


async def test_bad_delays_and_timeouts_are_refused(engines: Engines) -> None:
    """One clear error, and nothing is begun."""
    registry = Registry()

    @registry.workflow
    async def work(_ctx: Context) -> None:
        return None

    async with engines.open(registry) as env:
        for bad in (-1, float("nan"), float("inf"), "soon", True):
            with raises(ValueError, "a duration must be" if bad != -1 else "delay"):
                await env.start(work, delay=bad)
        given: Any = "soon"
        for wrong in (-1, 0, given):
            with raises((ValueError, TypeError, errors.DefinitionError)):  # type: ignore[arg-type]
                registry.workflow(name="other", timeout=wrong)
        assert await count_of(env) == 0
        handle = await env.start(work, delay=0)
        assert (await handle.describe()).status is Status.COMPLETED


def parent_of_unserved(registry):
    """A workflow with a timeout, and a child on a queue that no worker serves."""

    @registry.workflow
    async def kid(ctx: Context) -> None: ...

    @registry.workflow(timeout=10)
    async def parent(ctx: Context) -> None:
        await ctx.workflow(kid, id="kid", queue="not served")

    return parent


async def test_a_workflow_times_out_though_its_child_is_on_a_queue_without_a_worker():

    registry = Registry()
    parent = parent_of_unserved(registry)
    async with Environment(registry=registry) as env:
        handle = await env.start(parent)
        await env.advance(24 * 3600)
        assert (await handle.describe()).status == "failed"
