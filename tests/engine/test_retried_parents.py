"""Parents that are tried again while they have children, and children that end meanwhile."""

import asyncio
from typing import Any, Final, cast

from resurgam.core import errors
from resurgam.core.retry import RetryPolicy
from resurgam.core.state import Status
from resurgam.runtime.context.context import Context
from resurgam.runtime.registry import Registry
from resurgam.testing.contract.bench import raises
from support.engines import Engines, count_of, executions, run, types_of

TWICE: Final = RetryPolicy(max_attempts=2, initial_interval=10, jitter=0)
AT_ONCE: Final = RetryPolicy(max_attempts=2, initial_interval=0)


async def test_the_next_attempt_adopts_the_open_child(engines: Engines) -> None:
    """The child goes on as it was, is told nothing, and gives its result to the attempt that waits for it."""
    for retry in (TWICE, AT_ONCE):
        registry = Registry()
        ran: list[str] = []

        @registry.workflow
        async def child(ctx: Context, ran: list[str] = ran) -> str:
            ran.append(ctx.info.execution_id)
            return await ctx.listen("word", type=str)

        @registry.workflow(retry=retry)
        async def parent(ctx: Context) -> list[Any]:
            begun = ctx.workflow("child", id="child")
            execution_id = await begun.started
            if ctx.info.attempt == 1:
                raise LookupError("once")
            return [execution_id, await begun, ctx.info.attempt]

        async with engines.open(registry) as env:
            handle = await env.start(parent)
            await env.advance(20)
            below = env.engine.handle("child")
            seen = await below.describe()
            assert (seen.status, seen.attempt) == (Status.RUNNING, 1)
            await below.signal("word", "heard")
            assert await env.finish(handle.result()) == [seen.execution_id, "heard", 2]
            assert set(ran) == {seen.execution_id}
            assert await count_of(env, name="child") == 1


async def test_a_child_that_ends_between_two_attempts(engines: Engines) -> None:
    """Completed, its result is there when it is asked for; failed or cancelled, it is begun again."""
    registry = Registry()

    @registry.workflow
    async def child(ctx: Context) -> str:
        word = await ctx.listen("word", type=str)
        if word == "fail":
            raise LookupError("as I was told")
        return word

    @registry.workflow(retry=TWICE)
    async def parent(ctx: Context, name: str) -> str:
        begun = ctx.workflow(child, id=name)
        await begun.started
        if ctx.info.attempt == 1:
            raise LookupError("once")
        return str(await begun)

    async with engines.open(registry) as env:
        for how, begun in (("complete", 1), ("fail", 2), ("cancel", 2)):
            handle = await env.start(parent, how)
            below = env.engine.handle(how)
            await (below.cancel() if how == "cancel" else below.signal("word", how))
            await env.advance(11)
            if how != "complete":
                await below.signal("word", "again")
            assert await env.finish(handle.result()) == ("complete" if begun == 1 else "again")
            assert len(await env.engine.store.transfer.copies(how)) == begun, how
            carried = [entry for entry in await handle.history() if getattr(entry, "child", "")]
            assert len(carried) == 1


async def test_the_end_of_an_old_child_never_answers_a_newer_one(engines: Engines) -> None:
    """The next attempt asks at the same place for another one; what the old one says is not for it."""
    registry = Registry()

    @registry.workflow
    async def child(ctx: Context) -> str:
        return await ctx.listen("word", type=str)

    @registry.workflow(retry=TWICE)
    async def parent(ctx: Context, name: str) -> str:
        begun = ctx.workflow(child, id=f"{name} {ctx.info.attempt}", on_parent_close="abandon")
        await begun.started
        if ctx.info.attempt == 1:
            raise LookupError("once")
        return await begun

    async with engines.open(registry) as env:
        for name, between in (("late", False), ("between", True)):
            handle = await env.start(parent, name)
            if between:
                await env.engine.handle(f"{name} 1").signal("word", "old")
            await env.advance(11)
            if not between:
                await env.engine.handle(f"{name} 1").signal("word", "old")
            await env.settle()
            assert (await handle.describe()).status is Status.RUNNING, name
            await env.engine.handle(f"{name} 2").signal("word", "new")
            assert await env.finish(handle.result()) == "new"


async def test_a_child_is_not_adopted_for_other_work(engines: Engines) -> None:
    """Asked for with other arguments while it is open, its id is in use; its result is not taken for the other's."""
    registry = Registry()

    @registry.workflow
    async def child(ctx: Context, number: int) -> int:
        await ctx.sleep(60)
        return number

    @registry.workflow(retry=TWICE)
    async def parent(ctx: Context) -> Any:
        begun = ctx.workflow(child, ctx.info.attempt, id="child")
        if ctx.info.attempt == 1:
            await begun.started
            raise LookupError("once")
        try:
            return await begun
        except errors.ChildWorkflowFailed as failed:
            return type(failed.__cause__).__name__

    async with engines.open(registry) as env:
        assert await run(env, parent) == "AlreadyExists"


async def test_a_refusal_that_one_attempt_did_not_read_means_nothing_to_the_next(engines: Engines) -> None:
    """Its id was in use, and the attempt that asked had failed by then: the next one has other commands there."""
    for retry in (TWICE, AT_ONCE):
        registry = Registry()

        @registry.workflow
        async def child(ctx: Context) -> str:
            return await ctx.listen("word", type=str)

        @registry.workflow(retry=retry)
        async def parent(ctx: Context) -> str:
            if ctx.info.attempt == 1:
                ctx.workflow("child", id="taken", on_parent_close="abandon")
                raise LookupError("before it heard")
            return str(await ctx.workflow("child", id="free", on_parent_close="abandon"))

        async with engines.open(registry) as env:
            await env.start(child, id="taken")
            handle = await env.start(parent)
            await env.advance(11)
            await env.engine.handle("free").signal("word", "heard")
            assert await env.finish(handle.result()) == "heard"


async def test_children_of_earlier_attempts_are_closed_with_the_run(engines: Engines) -> None:
    """The last attempt did not come to them, or was cancelled or terminated before it began: none is left behind."""
    registry = Registry()

    @registry.workflow
    async def child(ctx: Context) -> None:
        await ctx.sleep(36000)

    @registry.workflow(retry=TWICE)
    async def parent(ctx: Context, how: str) -> str:
        if ctx.info.attempt == 2:
            if how == "fail":
                raise LookupError("again")
            return how
        for policy in ("cancel", "terminate", "abandon"):
            await ctx.workflow(child, id=f"{how} {policy}", on_parent_close=policy).started
        raise LookupError("once")

    async with engines.open(registry) as env:
        for how in ("return", "fail", "cancel", "terminate"):
            handle = await env.start(parent, how)
            if how in ("cancel", "terminate"):
                await getattr(handle, how)()
            await env.advance(60)
            assert (await handle.describe()).status.terminal
            left = [(await env.engine.handle(f"{how} {p}").describe()).status for p in ("cancel", "terminate")]
            assert left == [Status.CANCELLED, Status.TERMINATED], how
            assert (await env.engine.handle(f"{how} abandon").describe()).status is Status.RUNNING


async def test_the_retries_of_a_child_are_its_own(engines: Engines) -> None:
    """Its parent hears of the last attempt only, and is one attempt itself."""
    registry = Registry()

    @registry.workflow(retry=RetryPolicy(max_attempts=3, initial_interval=1, jitter=0))
    async def child(ctx: Context, needed: int) -> int:
        if ctx.info.attempt < needed:
            raise LookupError(f"attempt {ctx.info.attempt}")
        return ctx.info.attempt

    @registry.workflow
    async def parent(ctx: Context, needed: int) -> list[int]:
        return [await ctx.workflow(child, needed), ctx.info.attempt]

    async with engines.open(registry) as env:
        handle = await env.start(parent, 3)
        assert await env.finish(handle.result()) == [3, 1]
        told = await types_of(handle)
        assert (told.count("child_started"), told.count("child_completed"), told.count("child_failed")) == (1, 1, 0)
        with raises(errors.WorkflowFailed) as caught:
            await run(env, parent, 9)
        failed = caught[0].__cause__
        assert failed is not None
        assert str(failed.__cause__) == "attempt 3"


async def test_cancelling_reaches_a_child_between_its_attempts(engines: Engines) -> None:
    """It ends without another attempt, and its parent hears of it at once."""
    registry = Registry()

    @registry.workflow(retry=RetryPolicy(max_attempts=9, initial_interval=3600, max_interval=3600, jitter=0))
    async def child(_ctx: Context) -> None:
        raise LookupError("again and again")

    @registry.workflow
    async def parent(ctx: Context) -> float:
        begun = ctx.workflow(child, id="child")
        await ctx.sleep(60)
        begun.cancel()
        await asyncio.wait([begun])
        return ctx.now().timestamp() - begun.command.at / 1000

    async with engines.open(registry) as env:
        assert await run(env, parent) == 60.0
        assert (await env.engine.handle("child").describe()).status is Status.CANCELLED


async def test_a_child_that_is_retried_by_hand_does_not_answer_its_parent_twice(engines: Engines) -> None:
    """Its parent has heard of its failure and ended; the second end has no effect."""
    registry = Registry()
    broken: list[int] = [1]

    @registry.workflow
    async def child(_ctx: Context) -> str:
        if broken:
            raise LookupError("broken")
        return "mended"

    @registry.workflow
    async def parent(ctx: Context) -> str:
        try:
            return await ctx.workflow(child, id="child")
        except errors.ChildWorkflowFailed:
            await ctx.sleep(3600)
            return "failed"

    async with engines.open(registry) as env:
        handle = await env.start(parent)
        broken.clear()
        await env.engine.handle("child").retry()
        assert await env.finish(env.engine.handle("child").result()) == "mended"
        assert await env.finish(handle.result()) == "failed"
        assert (await types_of(handle)).count("child_completed") == 0


async def test_a_retry_by_hand_hears_of_a_child_that_ended_while_its_parent_was_closed(engines: Engines) -> None:
    """One that completed is not begun a second time, not even after a purge; one that was cancelled is begun anew."""
    for policy, runs in (("abandon", 1), ("cancel", 2)):
        registry = Registry()
        ran: list[str] = []

        @registry.workflow
        async def child(ctx: Context, ran: list[str] = ran) -> str:
            if ctx.info.generation == 1:
                ctx.continue_as_new()
            ran.append(ctx.info.execution_id)
            return await ctx.listen("word", type=str)

        @registry.workflow
        async def parent(ctx: Context, policy: Any) -> str:
            begun = ctx.workflow("child", id="child", on_parent_close=policy)
            await begun.started
            if ctx.info.attempt == 1:
                raise LookupError("once")
            return cast("str", await begun)

        async with engines.open(registry) as env:
            handle = await env.start(parent, policy)
            assert (await handle.describe()).status is Status.FAILED
            if policy == "abandon":
                await env.engine.handle("child").signal("word", "done")
                assert await env.finish(env.engine.handle("child").result()) == "done"
            await env.advance(60)
            await env.engine.purge(before=env.now(), name="child")
            await handle.retry()
            await env.settle()
            if policy == "cancel":
                await env.engine.handle("child").signal("word", "done")
            assert await env.finish(handle.result()) == "done"
            assert len(set(ran)) == runs


async def test_an_open_child_with_other_input_is_not_adopted(engines: Engines) -> None:
    """A child is reused for the same location, name and input."""
    registry = Registry()

    @registry.workflow
    async def child(ctx: Context, number: int) -> int:
        await ctx.sleep(60)
        return number

    @registry.workflow(retry=TWICE)
    async def parent(ctx: Context) -> int:
        call = ctx.workflow(child, ctx.info.attempt)
        if ctx.info.attempt == 1:
            await call.started
            raise LookupError("once")
        return await call

    async with engines.open(registry) as env:
        handle = await env.start(parent)
        try:
            assert await env.finish(handle.result()) == 2
        except errors.WorkflowFailed as refused:  # a clear refusal would do as well
            assert isinstance(refused.__cause__, errors.ChildWorkflowFailed)  # noqa: PT017


async def test_a_detached_child_that_has_ended_is_not_started_again(engines: Engines) -> None:
    registry, ran = Registry(), []

    @registry.workflow
    async def child(ctx: Context) -> None:
        await ctx.run(lambda: ran.append("child"), name="effect")

    @registry.workflow(retry=TWICE)
    async def parent(ctx: Context) -> None:
        await ctx.workflow(child, detach=True).started
        await ctx.sleep(1)
        if ctx.info.attempt == 1:
            raise LookupError("once")

    async with engines.open(registry) as env:
        handle = await env.start(parent)
        await env.finish(handle.result())
    assert ran == ["child"]


async def test_the_future_of_an_adopted_child_has_its_run_id(engines: Engines) -> None:

    registry = Registry()

    @registry.workflow
    async def child(ctx: Context) -> str:
        await ctx.sleep(60)
        return ctx.info.run_id

    @registry.workflow(retry=TWICE)
    async def parent(ctx: Context) -> list[str]:
        call = ctx.workflow(child)
        await call.started
        if ctx.info.attempt == 1:
            raise LookupError("once")
        return [call.run_id, await call]

    async with engines.open(registry) as env:
        handle = await env.start(parent)
        said, real = await env.finish(handle.result())
        assert said == real


async def test_the_result_of_a_child_with_other_input_is_not_reused(engines: Engines) -> None:
    """The child of the first attempt completes between the attempts, and the second asks with other input."""
    registry = Registry()

    @registry.workflow
    async def child(ctx: Context, number: int) -> int:
        await ctx.sleep(5)
        return number

    @registry.workflow(retry=TWICE)
    async def parent(ctx: Context) -> int:
        call = ctx.workflow(child, ctx.info.attempt)
        if ctx.info.attempt == 1:
            await call.started
            raise LookupError("once")
        return await call

    async with engines.open(registry) as env:
        handle = await env.start(parent)
        assert await env.finish(handle.result()) == 2


async def test_a_child_whose_answer_is_carried_over_has_its_execution_id(engines: Engines) -> None:

    registry = Registry()

    @registry.workflow
    async def child(ctx: Context) -> str:
        return ctx.info.execution_id

    @registry.workflow(retry=TWICE)
    async def parent(ctx: Context) -> list[str]:
        call = ctx.workflow(child)
        begun, result = await call.started, await call
        if ctx.info.attempt == 1:
            raise LookupError("once")
        return [begun, result]

    async with engines.open(registry) as env:
        handle = await env.start(parent)
        begun, result = await env.finish(handle.result())
        assert begun == result


async def test_a_child_on_another_queue_is_started_once(engines: Engines):
    registry = Registry()
    ran = []

    @registry.workflow
    async def child(ctx: Context) -> str:
        ran.append(ctx.info.execution_id)
        await ctx.sleep(30)
        return "child"

    @registry.workflow(retry=TWICE)
    async def parent(ctx: Context) -> str:
        begun = ctx.workflow(child, id="child", queue="far")
        await begun.started
        if ctx.info.attempt == 1:
            raise LookupError("once")
        await ctx.listen("go")
        return await begun

    async with engines.open(registry, queues=["default", "far"]) as env:
        handle = await env.start(parent)
        await env.advance(20)
        await handle.pause()
        await env.advance(60)
        await handle.resume()
        await handle.signal("go")
        assert await env.finish(handle.result()) == "child"
        assert len(await executions(env, "child")) == 1
    assert len(set(ran)) == 1


async def test_a_parent_whose_deferred_child_was_never_begun_is_retried(engines: Engines):
    registry = Registry()

    @registry.workflow
    async def child(_ctx: Context) -> str:
        return "begun"

    @registry.workflow(retry=TWICE)
    async def parent(ctx: Context) -> str:
        later = ctx.workflow(child, id="later", deferred=True)
        await later.started
        if ctx.info.attempt == 1:
            raise LookupError("once")
        return await later

    async with engines.open(registry) as env:
        handle = await env.start(parent)
        await env.advance(60)
        assert (await handle.describe()).attempt == 2
        await env.engine.handle("later").begin()
        assert await env.finish(handle.result()) == "begun"
        assert len(await executions(env, "later")) == 1
