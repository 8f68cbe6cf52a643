"""Workflows that continue as new, with an empty history and what was not read yet."""

import asyncio
from typing import Any

from resurgam.core import errors
from resurgam.core import event as events
from resurgam.core.retry import RetryPolicy
from resurgam.core.state import Status
from resurgam.runtime.context.context import Context
from resurgam.runtime.definitions.info import activity_info
from resurgam.runtime.registry import Registry
from resurgam.testing.contract.bench import raises
from support.engines import Engines, of_kind, run, types, types_of


async def test_a_continuation_is_another_run_of_the_same_entity(engines: Engines) -> None:
    """Execution, run and generation are new, entity and tree are not; its history is empty, its arguments its own."""
    registry = Registry()

    @registry.workflow
    async def count(ctx: Context, number: int, seen: list[list[Any]]) -> list[list[Any]]:
        info = ctx.info
        seen = [*seen, [info.entity_id, info.tree_id, info.generation, info.attempt, info.history_length]]
        await ctx.sleep(1)
        if number < 3:
            ctx.continue_as_new(number + 1, seen)
        return seen

    async with engines.open(registry) as env:
        handle = await env.start(count, 1, [], id="count")
        first = handle.run_id
        assert await env.finish(handle.result()) == [["count", first, number, 1, 1] for number in (1, 2, 3)]
        copies = await env.engine.store.transfer.copies("count")
        assert len({one.instance.run_id for one in copies}) == 3
        assert len({one.instance.execution_id for one in copies}) == 3
        assert [one.instance.status for one in copies] == [Status.CONTINUED, Status.CONTINUED, Status.COMPLETED]
        found = await handle.describe()
        assert (found.generation, found.previous) == (3, copies[1].instance.execution_id)
        [continued] = of_kind(copies[0].log, events.WorkflowContinued)
        assert (continued.run_id, continued.execution_id) == (
            copies[1].instance.run_id,
            copies[1].instance.execution_id,
        )


async def test_a_handle_follows_to_the_last_generation_or_is_pinned(engines: Engines) -> None:
    """By its run a continued execution says so; without, the result is that of the last."""
    registry = Registry()

    @registry.workflow
    async def twice(ctx: Context, number: int) -> int:
        await ctx.sleep(60)
        if number == 1:
            ctx.continue_as_new(2)
        return number

    async with engines.open(registry) as env:
        handle = await env.start(twice, 1, id="twice")
        pinned = env.engine.handle("twice", handle.run_id)
        assert await env.finish(handle.result()) == 2
        assert await env.finish(env.engine.handle("twice").result()) == 2
        assert (await pinned.describe()).status is Status.CONTINUED
        with raises(errors.NotFound, "continued as new"):
            await env.finish(pinned.result())
        with raises(errors.NotFound, "continued"):
            await pinned.signal("word")


async def test_a_continuation_can_be_removed_without_the_others(engines: Engines) -> None:
    """What was continued can be purged while the newest goes on, and its result is still there."""
    registry = Registry()

    @registry.workflow
    async def steps(ctx: Context, number: int) -> int:
        await ctx.sleep(60)
        if number < 3:
            ctx.continue_as_new(number + 1)
        return number

    async with engines.open(registry) as env:
        handle = await env.start(steps, 1, id="steps")
        await env.advance(130)
        for old in (await env.engine.list(status="continued")).instances:
            await env.engine.store.purge([old])
        assert await env.finish(env.engine.handle("steps").result()) == 3
        assert await handle.result() == 3
        last = await env.engine.store.inspector.get("steps")
        assert last is not None
        await env.engine.store.purge([last])
        with raises(errors.NotFound, "was removed from the store"):
            await handle.result()


async def test_unread_signals_are_carried_over_in_order(engines: Engines) -> None:
    """In the mailbox, or still in the inbox: the next generation hears them, and what comes later behind them."""
    registry = Registry()

    @registry.workflow
    async def pairs(ctx: Context, got: list[int]) -> list[int]:
        got.append(await ctx.listen("number", type=int))
        if len(got) < 5:
            ctx.continue_as_new(got)
        return got

    async with engines.client(registry) as (store, clock, client):
        handle = await client.start(pairs, [])
        for number in range(3):
            await handle.signal("number", number)
        async with engines.serve(store, clock, registry) as env:
            await env.settle()
            for number in (3, 4):
                await handle.signal("number", number)
            assert await env.finish(handle.result()) == [0, 1, 2, 3, 4]


async def test_signals_can_be_dropped(engines: Engines) -> None:
    """With ``signals="drop"`` the next generation hears only what is sent to it; anything else is refused."""
    registry = Registry()

    @registry.workflow
    async def drop(ctx: Context, number: int) -> list[Any]:
        got = await ctx.listen("number", type=int)
        if number == 1:
            ctx.continue_as_new(2, signals="drop")
        return [number, got]

    @registry.workflow
    async def wrong(ctx: Context) -> None:
        given: Any = "keep"
        ctx.continue_as_new(signals=given)

    async with engines.client(registry) as (store, clock, client):
        handle = await client.start(drop, 1)
        for number in (1, 2, 3):
            await handle.signal("number", number)
        async with engines.serve(store, clock, registry) as env:
            await env.settle()
            await handle.signal("number", 4)
            assert await env.finish(handle.result()) == [2, 4]
            with raises(errors.WorkflowFailed) as caught:
                await run(env, wrong)
            assert "'carry' or 'drop'" in str(caught[0].__cause__)


async def test_updates_and_cancellations_are_carried_over(engines: Engines) -> None:
    """An update that no handler took, and a cancel that was not heard: the next generation hears both."""
    registry = Registry()

    @registry.workflow
    async def work(ctx: Context, number: int) -> list[str]:
        got: list[str] = []
        if number == 1:
            await ctx.sleep(60)
            ctx.continue_as_new(2)

        @ctx.on_update("add")
        def add(what: str) -> int:
            got.append(what)
            return len(got)

        try:
            await ctx.sleep(3600)
        except asyncio.CancelledError:
            got.append("cancelled")
        return got

    async with engines.open(registry) as env:
        handle = await env.start(work, 1)
        sent = asyncio.ensure_future(handle.update("add", "early"))
        await env.advance(61)
        assert await env.finish(sent) == 1
        await handle.cancel()
        assert await env.finish(handle.result()) == ["early", "cancelled"]


async def test_a_cancel_that_crosses_a_continuation_is_heard(engines: Engines) -> None:
    """It came before the worker did, beside what makes the workflow go on; the code decides which it hears first."""
    registry = Registry()

    @registry.workflow
    async def work(ctx: Context, number: int) -> int:
        if number == 1:
            await ctx.listen("go")
            ctx.continue_as_new(2)
        await ctx.sleep(3600)
        return number

    async with engines.client(registry) as (store, clock, client):
        handle = await client.start(work, 1)
        await handle.signal("go")
        await handle.cancel()
        async with engines.serve(store, clock, registry) as env:
            with raises(errors.WorkflowCancelled):
                await env.finish(handle.result(), limit=60)
            assert (await handle.describe()).generation == 2


async def test_the_attempts_of_a_generation_are_its_own(engines: Engines) -> None:
    """The policy starts anew, and idempotency keys belong to the generation."""
    registry = Registry()
    keys: list[str] = []

    @registry.activity
    async def act() -> None:
        keys.append(activity_info().idempotency_key)

    @registry.workflow(retry=RetryPolicy(max_attempts=2, initial_interval=1, jitter=0))
    async def work(ctx: Context, number: int) -> list[int]:
        await ctx.activity(act)
        if ctx.info.attempt == 1:
            raise LookupError("once in each generation")
        if number < 3:
            ctx.continue_as_new(number + 1)
        return [number, ctx.info.attempt]

    async with engines.open(registry) as env:
        assert await run(env, work, 1) == [3, 2]
        assert len(keys) == len(set(keys)) == 3


async def test_what_a_generation_left_behind_never_reaches_the_next(engines: Engines) -> None:
    """Answers of activities and promises of the old one stay there."""
    registry = Registry()
    go = asyncio.Event()

    @registry.activity
    async def slow() -> str:
        await go.wait()
        return "late"

    @registry.workflow
    async def work(ctx: Context, number: int) -> list[Any]:
        if number == 1:
            ctx.activity(slow)
            ctx.promise("word")
            await ctx.sleep(60)
            ctx.continue_as_new(2)
        mine = ctx.activity(slow)
        await ctx.sleep(60)
        go.set()
        return [await mine, await ctx.promise("word")]

    async with engines.open(registry) as env:
        handle = await env.start(work, 1)
        await env.advance(130)
        assert await handle.resolve("word", "new") is True
        assert await env.finish(handle.result()) == ["late", "new"]
        first, second = await env.engine.store.transfer.copies(handle.entity_id)
        assert types(first.log)[-1] == "workflow_deactivated"
        assert types(second.log).count("activity_completed") == 1


async def test_state_and_arguments_of_the_next_generation(engines: Engines) -> None:
    """Durable state is part of the history and begins empty; arguments that do not fit fail the run at the call."""
    registry = Registry()

    @registry.workflow
    async def work(ctx: Context, number: int) -> list[Any]:
        if number == 1:
            ctx.set("key", 1)
            ctx.continue_as_new(2)
        return [number, ctx.get("key", "empty")]

    @registry.workflow
    async def wrong(ctx: Context, number: int) -> None:
        ctx.continue_as_new("text", number)

    async with engines.open(registry) as env:
        assert await run(env, work, 1) == [2, "empty"]
        handle = await env.start(wrong, 1)
        assert (await handle.describe()).status is Status.FAILED
        assert "workflow_continued" not in await types_of(handle)


async def test_nothing_swallows_a_continuation(engines: Engines) -> None:
    """Neither ``except BaseException``, nor ``finally`` with further calls, nor a strand of its own."""
    registry = Registry()

    @registry.workflow
    async def swallow(ctx: Context, number: int) -> int:
        if number > 1:
            return number
        try:
            ctx.continue_as_new(2)
        except BaseException:
            await ctx.sleep(3600)
        return 0

    @registry.workflow
    async def strand(ctx: Context, number: int) -> int:
        async def below(ctx: Context) -> None:
            ctx.continue_as_new(number + 1)

        if number > 1:
            return number
        await asyncio.gather(ctx.branch(below), ctx.sleep(3600), return_exceptions=True)
        return 0

    async with engines.open(registry) as env:
        for workflow in (swallow, strand):
            handle = await env.start(workflow, 1)
            assert await env.finish(handle.result(), limit=60) == 2


async def test_tags_queue_and_parent_are_kept(engines: Engines) -> None:
    """A continuation is found where the one before was."""
    registry = Registry()

    @registry.workflow
    async def work(ctx: Context, number: int) -> str:
        if number == 1:
            ctx.continue_as_new(2)
        await ctx.sleep(60)
        return ctx.info.queue

    async with engines.open(registry, queues=["default", "other"]) as env:
        handle = await env.start(work, 1, queue="other", tags={"colour": "red"})
        [found] = (await env.engine.list(tags={"colour": "red"}, status="running")).instances
        assert (found.generation, found.queue) == (2, "other")
        assert await env.finish(handle.result()) == "other"


async def test_an_unread_answer_is_recorded_and_the_old_execution_deactivated(engines: Engines) -> None:
    """An execution is deactivated once it is closed and has no work outstanding."""
    registry = Registry()
    gate = asyncio.Event()

    @registry.activity
    async def work() -> str:
        await gate.wait()
        return "done"

    @registry.workflow
    async def entity(ctx: Context, generation: int) -> str:
        if generation == 2:
            return "done"
        call = ctx.activity(work)
        await ctx.listen("go")
        ctx.continue_as_new(2)
        return await call

    async with engines.open(registry) as env:
        handle = await env.start(entity, 1)
        await handle.pause()
        await env.settle()
        await handle.signal("go")
        gate.set()
        await env.advance(1)
        await handle.resume()
        await env.finish(handle.result())
        await env.advance(60)
        first = (await env.engine.store.transfer.copies(handle.entity_id))[0]
        assert "activity_completed" in [entry.type for entry in first.log]
        assert not first.inbox
        assert first.instance.deactivated


async def test_dropped_signals_leave_the_inbox(engines: Engines) -> None:
    registry = Registry()

    @registry.workflow
    async def entity(ctx: Context, generation: int) -> str:
        if generation == 2:
            return "done"
        await ctx.listen("go")
        ctx.continue_as_new(2, signals="drop")
        return ""

    async with engines.open(registry) as env:
        handle = await env.start(entity, 1)
        await handle.pause()
        for _ in range(3):
            await handle.signal("go")
        await handle.resume()
        await env.finish(handle.result())
        await env.advance(60)
        first = (await env.engine.store.transfer.copies(handle.entity_id))[0]
        assert not first.inbox
