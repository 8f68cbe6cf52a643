"""Loops that forget, with handlers beside them: the history stays bounded."""

import asyncio

import pytest

from resurgam import Break, Context, Continue, Registry, Status, errors
from support.engines import Engines


async def test_rejected_updates_do_not_make_the_history_of_a_loop_grow(engines: Engines) -> None:
    """The history of a loop that runs for ever stays bounded."""
    registry = Registry()

    @registry.workflow
    async def entity(ctx: Context) -> None:
        def never(number: int) -> None:
            raise ValueError("no")

        @ctx.on_update("set", validator=never)
        def set_(number: int) -> None:
            ctx.set("number", number)

        async def body(ctx: Context, n: int) -> Continue[int]:
            await ctx.listen("tick")
            return Continue(n + 1)

        await ctx.loop(body, 0, forget_every=1)

    async with engines.open(registry) as env:
        handle = await env.start(entity)
        lengths = []
        for number in range(12):
            with pytest.raises(errors.UpdateRejected):
                await handle.update("set", number)
            await handle.signal("tick")
            await env.settle()
            lengths.append(len(await handle.history()))
        assert lengths[-1] <= lengths[2] + 1, lengths


async def test_a_handler_registered_in_the_body_of_a_loop_is_refused_or_answers(engines: Engines) -> None:
    """Cached and replayed alike: an update of it never waits for ever."""
    registry = Registry()

    @registry.workflow
    async def entity(ctx: Context) -> None:
        async def body(ctx: Context, n: int) -> Continue[int]:
            if n == 0:

                @ctx.on_update("ping")
                def ping() -> str:
                    return "pong"

            await ctx.listen("tick")
            return Continue(n + 1)

        await ctx.loop(body, 0, forget_every=1)

    async with engines.open(registry) as env:
        handle = await env.start(entity)
        for _ in range(3):
            if (await handle.describe()).status is Status.FAILED:
                return  # refused: it is fine
            await handle.signal("tick")
            await env.settle()
        again = asyncio.ensure_future(handle.update("ping"))
        await env.advance(5)
        try:
            assert again.done()
        finally:
            again.cancel()
            await asyncio.gather(again, return_exceptions=True)


async def test_entries_of_handlers_beside_a_loop_are_forgotten(engines: Engines):
    """However long the run lives, and however many messages it gets, the history stays bounded."""
    registry = Registry()

    @registry.activity
    async def double(number: int) -> int:
        return 2 * number

    async def body(ctx: Context, rounds: int) -> Continue[int] | Break[int]:
        return Break(rounds) if await ctx.listen("tick", type=bool) else Continue(rounds + 1)

    @registry.workflow
    async def actor(ctx: Context) -> int:
        ctx.set("total", 0)

        @ctx.on_signal("add")
        async def add(number: int) -> None:
            doubled = await ctx.activity(double, number)
            ctx.set("total", ctx.get("total") + doubled)

        @ctx.on_update("more")
        async def more(number: int) -> int:
            ctx.set("total", ctx.get("total") + number)
            return ctx.get("total")

        @ctx.on_query("total")
        def total() -> int:
            return ctx.get("total")

        return await ctx.loop(body, 0, forget_every=5, keep_forgotten=3)

    async with engines.open(registry) as env:
        handle = await env.start(actor)
        lengths = []
        for number in range(1, 31):
            await handle.signal("add", 1)
            await env.settle()
            assert await env.finish(handle.update("more", 1, id=f"u{number}")) == 3 * number
            await handle.signal("tick", False)
            await env.settle()
            lengths.append(len(await handle.history()))
        assert max(lengths[5:]) == max(lengths[:10])
        assert len(await handle.history(forgotten=True)) < 2 * max(lengths)
        assert await handle.query("total") == 90
        # One that is repeated long after it was forgotten is not run again.
        assert await env.finish(handle.update("more", 1, id="u29")) in (87, 90)
        assert await handle.query("total") == 90
        await handle.signal("tick", True)
        assert await env.finish(handle.result()) == 30
