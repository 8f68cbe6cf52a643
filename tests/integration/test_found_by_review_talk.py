"""Findings of a review, of ids and of what is said to others: each test is named after what was wrong."""

import asyncio
from typing import Any

import pytest

from resurgam import Context, Continue, Registry, errors
from support.environments import ONCE, TWICE, world


async def test_an_update_with_the_id_of_a_signal_is_never_answered(url: str, cache: int) -> None:
    """Both are idempotent by their ids, but a signal's id is no update's."""
    registry = Registry()

    @registry.workflow
    async def entity(ctx: Context) -> None:
        @ctx.on_update("add")
        def add() -> int:
            return 1

        await ctx.listen("a")
        await ctx.listen("end")

    async with world(url, cache, registry) as env:
        handle = await env.start(entity)
        await handle.signal("a", id="order-1")
        await env.settle()
        updating = asyncio.ensure_future(handle.update("add", id="order-1"))
        await env.advance(5)
        try:
            assert updating.done()
        finally:
            updating.cancel()
            await asyncio.gather(updating, return_exceptions=True)


async def test_a_signal_with_the_id_of_an_update_is_lost(url: str, cache: int) -> None:
    registry = Registry()

    @registry.workflow
    async def entity(ctx: Context) -> str:
        @ctx.on_update("add")
        def add() -> int:
            return 1

        await ctx.listen("a")
        return "heard"

    async with world(url, cache, registry) as env:
        handle = await env.start(entity)
        await env.finish(handle.update("add", id="order-1"))
        await handle.signal("a", id="order-1")
        assert await env.finish(handle.result()) == "heard"


async def test_an_update_repeated_many_generations_later_hangs(url: str) -> None:
    """The engine remembers its id, the client looks for its outcome four executions back, and nobody says so."""
    registry = Registry()

    @registry.workflow
    async def entity(ctx: Context, generation: int) -> None:
        @ctx.on_update("add")
        def add() -> int:
            return generation

        await ctx.listen("next")
        ctx.continue_as_new(generation + 1)

    async with world(url, 1000, registry) as env:
        handle = await env.start(entity, 1)
        await env.finish(handle.update("add", id="u"))
        for _ in range(6):
            await handle.signal("next")
            await env.settle()
        again = asyncio.ensure_future(handle.update("add", id="u"))
        await env.advance(5)
        try:
            assert again.done()
        finally:
            again.cancel()
            await asyncio.gather(again, return_exceptions=True)


async def test_an_update_repeated_when_its_outcome_is_dropped_hangs(url: str) -> None:
    registry = Registry()

    @registry.workflow
    async def entity(ctx: Context) -> None:
        @ctx.on_update("add")
        def add() -> int:
            ctx.set("n", 1)
            return 1

        async def body(ctx: Context, n: int) -> Continue[int]:
            await ctx.listen("tick")
            return Continue(n + 1)

        await ctx.loop(body, 0, forget_every=1, keep_forgotten=1)

    async with world(url, 1000, registry) as env:
        handle = await env.start(entity)
        for number in range(5):
            await env.finish(handle.update("add", id=f"u{number}"))
            await handle.signal("tick")
            await env.settle()
        again = asyncio.ensure_future(handle.update("add", id="u0"))
        await env.advance(5)
        try:
            assert again.done()
        finally:
            again.cancel()
            await asyncio.gather(again, return_exceptions=True)


async def test_updates_that_were_acknowledged_are_lost_by_a_retry(url: str, cache: int) -> None:
    """Signals are put back for the next attempt; an update whose sender was told that it is done is not."""
    registry = Registry()

    @registry.workflow(retry=TWICE)
    async def basket(ctx: Context) -> list[str]:
        items: list[str] = []

        @ctx.on_update("add")
        def add(item: str) -> int:
            items.append(item)
            return len(items)

        await ctx.listen("check out")
        if ctx.info.attempt == 1:
            raise LookupError("once")
        return items

    async with world(url, cache, registry) as env:
        handle = await env.start(basket)
        assert await env.finish(handle.update("add", "milk")) == 1
        await handle.signal("check out")
        assert await env.finish(handle.result()) == ["milk"]


# Compensation by hand, its rules.


async def test_a_compensation_by_hand_ignores_how_its_activity_wants_to_be_run(url: str) -> None:
    """The undo says one attempt; by hand it gets five."""
    registry, ran = Registry(), []

    @registry.activity
    async def book() -> str:
        return "b"

    @registry.activity(retry=ONCE)
    async def unbook(number: str) -> None:
        ran.append(number)
        raise ValueError("cannot")

    @registry.workflow
    async def trip(ctx: Context) -> None:
        async with ctx.saga() as saga:
            await saga.step(book, undo=unbook)
            raise LookupError("full")

    async with world(url, 1000, registry) as env:
        handle = await env.start(trip)
        with pytest.raises(errors.WorkflowFailed):
            await env.finish(handle.result())
        with pytest.raises(errors.WorkflowFailed):
            await env.finish((await handle.compensate("{1}")).result())
    assert len(ran) == 2


# Senders.


async def test_a_message_is_published_again_by_a_retry(url: str) -> None:
    """At most once, and nobody is told twice."""
    registry = Registry()

    @registry.workflow(retry=TWICE)
    async def speaker(ctx: Context) -> None:
        await ctx.publish("news", 1)
        if ctx.info.attempt == 1:
            raise LookupError("once")

    async with world(url, 1000, registry) as env:
        heard: list[Any] = []

        async def hear() -> None:
            async for value in env.engine.subscribe("news"):
                heard.append(value)

        hearing = asyncio.ensure_future(hear())
        await env.settle()
        handle = await env.start(speaker)
        await env.finish(handle.result())
        await env.settle()
        hearing.cancel()
        await asyncio.gather(hearing, return_exceptions=True)
        assert len(heard) == 1


# Children, once more.


async def test_a_signal_to_a_child_goes_to_a_stranger_that_has_its_id(url: str, cache: int) -> None:
    """The request is refused, since the id is in use; what was said to the child reaches the other workflow."""
    registry = Registry()

    @registry.workflow
    async def stranger(ctx: Context) -> object:
        return await ctx.listen("go", timeout=60)

    @registry.workflow
    async def child(ctx: Context) -> None:
        await ctx.listen("go")

    @registry.workflow
    async def parent(ctx: Context) -> None:
        kid = ctx.workflow(child, id="kid")
        sent = kid.signal("go", "for the child only")
        await asyncio.gather(kid, sent, return_exceptions=True)

    async with world(url, cache, registry) as env:
        handle = await env.start(stranger, id="kid")
        await env.start(parent)
        with pytest.raises(errors.WorkflowFailed) as caught:
            await env.finish(handle.result())
        assert isinstance(caught.value.__cause__, errors.SignalTimeout)


async def test_a_carried_child_has_started_as_nobody(url: str, cache: int) -> None:
    """`started` gives the execution of the child; where its answer is carried over it gives an empty text."""
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

    async with world(url, cache, registry) as env:
        handle = await env.start(parent)
        begun, result = await env.finish(handle.result())
        assert begun == result


async def test_a_step_that_was_taken_back_by_hand_counts_as_done_in_a_retry(url: str, cache: int) -> None:
    """The next attempt is handed the result of what is not there any more."""
    registry, booked, fails = Registry(), [0], [True]

    @registry.activity
    async def book() -> str:
        booked[0] += 1
        return "b"

    @registry.activity
    async def unbook(number: str) -> None:
        booked[0] -= 1

    @registry.workflow
    async def trip(ctx: Context) -> None:
        async with ctx.saga() as saga:
            await saga.step(book, undo=unbook)
        if fails:
            raise LookupError("after the saga")

    async with world(url, cache, registry) as env:
        handle = await env.start(trip)
        await env.finish((await handle.compensate("{1}")).result())
        assert booked == [0]
        fails.clear()
        await handle.retry()
        await env.finish(env.handle(handle.entity_id).result())
        assert booked == [1]
