"""The result of an attempt is taken in at once, and by nothing of its own: neither its task nor its context."""

import asyncio
from contextvars import ContextVar

from resurgam import Context, Engine, Registry, RetryPolicy, activity, errors

STEPS = 20


async def test_a_step_takes_one_iteration_of_the_loop():
    registry, turns = Registry(), []

    @registry.activity
    async def count() -> int:
        return len(turns)

    @registry.workflow
    async def chain(ctx: Context) -> list[int]:
        return [await ctx.activity(count) for _ in range(STEPS)]

    async def turn():
        while True:
            turns.append(None)
            await asyncio.sleep(0)

    async with Engine("sqlite://", registry=registry) as engine:
        turning = asyncio.ensure_future(turn())
        counted = await engine.execute(chain)
        turning.cancel()
    assert counted[-1] - counted[0] < 1.5 * STEPS


async def test_an_attempt_that_cancels_its_own_task_and_returns_has_failed():
    registry = Registry()

    @registry.activity(retry=RetryPolicy(max_attempts=1))
    async def cancels_itself() -> str:
        asyncio.current_task().cancel()
        return "done"

    @registry.workflow
    async def asks(ctx: Context) -> str:
        try:
            return await ctx.activity(cancels_itself)
        except errors.ActivityFailed as error:
            return str(error)

    async with Engine(registry=registry) as engine:
        assert "was cancelled from within" in await engine.execute(asks)


async def test_what_comes_after_an_attempt_does_not_see_its_context():
    registry, colour = Registry(), ContextVar("colour", default="none")

    @registry.activity
    async def paint(first: str) -> str:
        seen = colour.get()
        colour.set(first)
        return seen

    def look() -> str:
        try:
            return activity.info().name
        except RuntimeError:
            return colour.get()

    @registry.workflow
    async def paints(ctx: Context) -> list[str]:
        return [await ctx.activity(paint, "red"), await ctx.run(look), await ctx.activity(paint, "blue")]

    async with Engine(registry=registry) as engine:
        assert await engine.execute(paints) == ["none", "none", "none"]
