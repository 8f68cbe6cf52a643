"""Side effects that take their time while the worker holds the instance, and workflows that keep it busy."""

import asyncio
from typing import Any

from resurgam.core import errors
from resurgam.core.state import Status
from resurgam.runtime.context.context import Context
from resurgam.runtime.registry import Registry
from resurgam.testing.contract.bench import raises
from support.engines import Engines, types_of


async def test_news_is_heard_while_a_side_effect_is_under_way(engines: Engines) -> None:
    """A signal reaches another strand of the workflow without waiting for the operation."""
    registry = Registry()
    gate = asyncio.Event()
    heard: list[str] = []

    async def slow() -> str:
        await gate.wait()
        return "slow"

    async def hear(text: str) -> None:
        heard.append(text)

    @registry.workflow
    async def both(ctx: Context) -> list[Any]:
        async def listener() -> str:
            text = await ctx.listen("news", type=str)
            await ctx.run(hear, text)
            return text

        return list(await asyncio.gather(ctx.run(slow), listener()))

    async with engines.open(registry) as env:
        handle = await env.start(both)
        await handle.signal("news", "quick")
        await env.settle()
        assert heard == ["quick"]
        gate.set()
        assert await env.finish(handle.result()) == ["slow", "quick"]
        assert heard == ["quick"]


async def test_a_running_side_effect_is_cancelled_with_its_workflow(engines: Engines) -> None:
    """A workflow that waits for an operation is cancelled at once, and the operation is told."""
    registry = Registry()
    told: list[str] = []

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            told.append("stopped")
            raise

    @registry.workflow
    async def wait(ctx: Context) -> None:
        await ctx.run(endless)

    async with engines.open(registry) as env:
        handle = await env.start(wait)
        await handle.cancel()
        with raises(errors.WorkflowCancelled):
            await env.finish(handle.result())
        await env.settle()
        assert told == ["stopped"]
        assert "operation_cancelled" in await types_of(handle)


async def test_a_long_side_effect_keeps_the_lease(engines: Engines) -> None:
    """An operation that runs for much longer than a lease is run once, and timers beside it fire on time."""
    registry = Registry()
    gate = asyncio.Event()
    runs: list[int] = []

    async def long() -> str:
        runs.append(1)
        await gate.wait()
        return "done"

    @registry.workflow
    async def wait(ctx: Context) -> list[Any]:
        return list(await asyncio.gather(ctx.run(long), ctx.sleep(12)))

    async with engines.client(registry) as (store, clock, client):
        handle = await client.start(wait)
        async with engines.serve(store, clock, registry) as env:
            await env.advance(30)
            assert not await store.claim("thief", ["default"], 10)
            gate.set()
            assert await env.finish(handle.result()) == ["done", None]
            assert runs == [1]


async def test_a_side_effect_that_was_interrupted_is_run_again(engines: Engines) -> None:
    """An operation whose worker went away before its result was durable is begun anew by the next."""
    registry = Registry()
    gate = asyncio.Event()
    runs: list[int] = []

    async def slow() -> int:
        runs.append(1)
        await gate.wait()
        return len(runs)

    @registry.workflow
    async def wait(ctx: Context) -> int:
        return await ctx.run(slow)

    async with engines.client(registry) as (store, clock, client):
        handle = await client.start(wait)
        async with engines.serve(store, clock, registry, grace=0) as env:
            await env.settle()
        assert runs == [1]
        gate.set()
        async with engines.serve(store, clock, registry) as env:
            before = clock.now()
            assert await env.finish(handle.result()) == 2
            assert clock.now() == before


async def test_thousands_of_steps_without_a_pause_are_taken(engines: Engines) -> None:
    """A workflow that never waits for long, and an inbox of very many signals, are worked off to the end."""
    registry = Registry()

    @registry.workflow
    async def busy(ctx: Context, steps: int) -> int:
        for _ in range(steps):
            await ctx.sleep(0)
        return steps

    @registry.workflow
    async def flooded(ctx: Context, count: int) -> list[int]:
        return [await ctx.listen("number", type=int) for _ in range(count)]

    async with engines.client(registry) as (store, clock, client):
        many, long = await client.start(busy, 1200), await client.start(flooded, 700)
        for number in range(700):
            await long.signal("number", number)
        async with engines.serve(store, clock, registry) as env:
            assert await env.finish(many.result()) == 1200
            assert await env.finish(long.result()) == list(range(700))


async def test_signals_that_cross_the_end_do_no_harm(engines: Engines) -> None:
    """What was sent in time but never listened for leaves the workflow completed, closed and at rest."""
    registry = Registry()

    @registry.workflow
    async def one(ctx: Context) -> int:
        return await ctx.listen("number", type=int)

    async with engines.client(registry) as (store, clock, client):
        handle = await client.start(one)
        for number in range(3):
            await handle.signal("number", number)
        await handle.cancel()
        async with engines.serve(store, clock, registry) as env:
            assert await env.finish(handle.result()) == 0
            await env.settle()
        found = await handle.describe()
        assert (found.status, found.deactivated) == (Status.COMPLETED, True)
        assert not await store.claim("other", ["default"], 10)


async def test_who_waits_for_a_result_may_give_up(engines: Engines) -> None:
    """After its timeout the wait is over and says what the workflow waits for; the workflow goes on."""
    registry = Registry()

    @registry.workflow
    async def wait(ctx: Context) -> str:
        return await ctx.listen("go", type=str)

    async with engines.open(registry) as env:
        handle = await env.start(wait)
        before = env.clock.now()
        with raises(errors.ResultTimeout, "signal 'go'"):
            await env.finish(handle.result(timeout=5))
        assert env.clock.now() == before + 5000
        await handle.signal("go", "went")
        assert await env.finish(handle.result(timeout=5)) == "went"
