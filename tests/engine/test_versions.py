"""Versions: every history keeps the answers of its own version checks."""

from resurgam import Context, Registry
from resurgam.testing import ManualClock
from support.engines import Engines


async def test_every_history_has_its_own_versions(engines: Engines):
    """A parent that is older than a check keeps its answer; its child, which starts now, has the new one."""
    old, new = Registry(), Registry()

    @old.workflow(name="parent")
    async def before(ctx: Context) -> list[int]:
        await ctx.sleep(60)
        return []

    @new.workflow
    async def child(ctx: Context) -> int:
        return await ctx.check_version(2)

    @new.workflow(name="parent")
    async def after(ctx: Context) -> list[int]:
        mine = await ctx.check_version(2)
        await ctx.sleep(60)
        return [mine, await ctx.workflow(child)]

    clock = ManualClock()
    async with engines.open(old, clock=clock) as env:
        await env.start("parent", id="me")
        exported = await env.engine.export("me")
    async with engines.open(new, clock=clock) as env:
        await env.engine.import_(exported)
        assert await env.finish(env.engine.handle("me").result()) == [1, 2]


async def test_a_continuation_has_the_newest_version(engines: Engines):
    """A generation that was under way when the code changed keeps its version."""
    old, new = Registry(), Registry()

    @old.workflow(name="work")
    async def before(ctx: Context, seen: list[int]) -> list[int]:
        await ctx.sleep(60)
        return seen

    @new.workflow(name="work")
    async def after(ctx: Context, seen: list[int]) -> list[int]:
        seen = [*seen, await ctx.check_version(2)]
        await ctx.sleep(60)
        if len(seen) < 2:
            ctx.continue_as_new(seen)
        return seen

    async with engines.open(old) as first:
        handle = await first.start("work", [], id="me")
        exported = await first.engine.export("me")
        clock = first.clock
    async with engines.open(new, clock=clock) as second:
        await second.engine.import_(exported)
        assert await second.finish(second.engine.handle("me").result()) == [1, 2]
    assert handle.entity_id == "me"
