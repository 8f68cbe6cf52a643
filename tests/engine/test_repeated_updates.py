"""Ids of updates and signals: a message is applied once, and its sender is answered however late it repeats it."""

import asyncio

import pytest

from resurgam import Context, Continue, Registry, errors
from support.engines import TWICE, Engines


async def test_an_update_that_continue_as_new_cut_off_is_answered_when_repeated(engines: Engines) -> None:
    """Its handler was running when the workflow continued as new."""
    registry = Registry()

    @registry.workflow
    async def entity(ctx: Context, generation: int) -> None:
        @ctx.on_update("slow")
        async def slow() -> int:
            if generation == 1:
                await ctx.sleep(3600)
            return generation

        await ctx.listen("next")
        if generation == 1:
            ctx.continue_as_new(2)

    async with engines.open(registry) as env:
        handle = await env.start(entity, 1)
        first = asyncio.ensure_future(handle.update("slow", id="u"))
        await env.settle()
        await handle.signal("next")
        await env.settle()
        with pytest.raises(errors.NotFound):
            await first
        again = asyncio.ensure_future(handle.update("slow", id="u"))
        await env.advance(60)
        try:
            assert again.done(), "neither run nor refused"
        finally:
            again.cancel()
            await asyncio.gather(again, return_exceptions=True)


async def test_an_update_with_the_id_of_a_signal_is_answered(engines: Engines) -> None:
    """Both are idempotent by their ids, and a signal's id is no update's."""
    registry = Registry()

    @registry.workflow
    async def entity(ctx: Context) -> None:
        @ctx.on_update("add")
        def add() -> int:
            return 1

        await ctx.listen("a")
        await ctx.listen("end")

    async with engines.open(registry) as env:
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


async def test_a_signal_with_the_id_of_an_update_is_heard(engines: Engines) -> None:
    registry = Registry()

    @registry.workflow
    async def entity(ctx: Context) -> str:
        @ctx.on_update("add")
        def add() -> int:
            return 1

        await ctx.listen("a")
        return "heard"

    async with engines.open(registry) as env:
        handle = await env.start(entity)
        await env.finish(handle.update("add", id="order-1"))
        await handle.signal("a", id="order-1")
        assert await env.finish(handle.result()) == "heard"


async def test_an_update_repeated_many_generations_later_ends(engines: Engines) -> None:
    """The engine remembers its id, and its outcome is too many executions back to be found."""
    registry = Registry()

    @registry.workflow
    async def entity(ctx: Context, generation: int) -> None:
        @ctx.on_update("add")
        def add() -> int:
            return generation

        await ctx.listen("next")
        ctx.continue_as_new(generation + 1)

    async with engines.open(registry) as env:
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


async def test_an_update_repeated_after_its_outcome_was_dropped_ends(engines: Engines) -> None:
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

    async with engines.open(registry) as env:
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


async def test_acknowledged_updates_are_run_again_by_a_retry(engines: Engines) -> None:
    """As signals are put back for the next attempt, so are updates whose senders have their answer."""
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

    async with engines.open(registry) as env:
        handle = await env.start(basket)
        assert await env.finish(handle.update("add", "milk")) == 1
        await handle.signal("check out")
        assert await env.finish(handle.result()) == ["milk"]


async def test_the_id_of_one_update_is_refused_for_another(engines: Engines) -> None:
    """The second sender does not get the answer of the first."""
    registry = Registry()

    @registry.workflow
    async def entity(ctx: Context) -> None:
        ctx.on_update("one")(lambda: 1)
        ctx.on_update("two")(lambda: 2)
        await ctx.listen("end")

    async with engines.open(registry) as env:
        handle = await env.start(entity)
        assert await env.finish(handle.update("one", id="x")) == 1
        with pytest.raises((errors.ResurgamError, ValueError)):
            await env.finish(handle.update("two", id="x"))
