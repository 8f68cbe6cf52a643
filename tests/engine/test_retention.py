"""Ended runs are removed by hand and by the worker, unless another one needs them."""

from datetime import timedelta

from resurgam import errors
from resurgam.runtime.context.context import Context
from resurgam.runtime.registry import Registry
from resurgam.store.records import Purged
from resurgam.testing.contract.bench import raises
from support.engines import Engines, count_of

DAY = timedelta(days=1)


async def test_a_removed_run_is_not_found(engines: Engines) -> None:
    """Its result, its history and its description are gone; the id is free."""
    registry = Registry()

    @registry.workflow
    async def brief(ctx: Context, word: str) -> str:
        return word

    async with engines.open(registry) as env:
        handle = await env.start(brief, "a", id="o-1")
        await env.advance(1)
        assert await env.engine.purge(before=env.now()) == 1
        by_id = env.handle("o-1")
        for call in (by_id.result, by_id.history, by_id.describe, by_id.tree, lambda: env.engine.export("o-1")):
            with raises(errors.NotFound, "there is no workflow with id 'o-1'"):
                await call()
        with raises(errors.NotFound, f"run {handle.run_id!r} of workflow 'o-1' was removed from the store"):
            await handle.result()
        again = await env.start(brief, "b", id="o-1")
        assert await env.finish(again.result()) == "b"


async def test_runs_are_removed_by_age_status_and_name(engines: Engines) -> None:
    """Those that ended before the moment; an open one is never removed."""
    registry = Registry()

    @registry.workflow
    async def brief(ctx: Context, problem: str) -> None:
        if problem:
            raise ValueError(problem)

    @registry.workflow
    async def waiting(ctx: Context) -> None:
        await ctx.listen("go")

    async with engines.open(registry) as env:
        for name, problem in (("old", ""), ("failed", "no")):
            await env.start(brief, problem, id=name)
        await env.start(waiting, id="open")
        await env.start(waiting, id="gone")
        await env.handle("gone").cancel()
        await env.advance(DAY)
        then = env.now()
        await env.start(brief, "", id="young")

        assert await env.engine.purge(before=then - 2 * DAY) == 0
        assert await env.engine.purge(before=then, status="failed", name="waiting") == 0
        assert await env.engine.purge(before=then, status="failed", name="brief") == 1
        assert await env.engine.purge(before=then, name="brief") == 1
        assert await env.engine.purge(before=then) == 1
        left = (await env.engine.list()).instances
        assert sorted(one.entity_id for one in left) == ["open", "young"]


async def test_the_worker_removes_runs_when_they_have_the_age(engines: Engines) -> None:
    """Each when its own time has come."""
    registry = Registry()

    @registry.workflow
    async def brief(ctx: Context) -> None:
        return

    async with engines.open(registry, retain=30 * DAY) as env:
        await env.start(brief)
        await env.advance(20 * DAY)
        await env.start(brief)
        await env.advance(9 * DAY)
        assert await count_of(env) == 2
        await env.advance(2 * DAY)
        assert await count_of(env) == 1
        await env.advance(20 * DAY)
        assert await count_of(env) == 0


async def test_a_child_is_kept_until_its_parent_has_recorded_its_end(engines: Engines) -> None:
    """A parent that is paused has not; when it goes on it gets the result."""
    registry = Registry()

    @registry.workflow
    async def child(ctx: Context) -> str:
        await ctx.sleep(10)
        return "from the child"

    @registry.workflow
    async def parent(ctx: Context) -> str:
        got = await ctx.workflow(child)
        await ctx.sleep(10)
        return got

    async with engines.open(registry) as env:
        handle = await env.start(parent)
        await handle.pause()
        await env.advance(DAY)
        assert await env.engine.purge(before=env.now()) == 0
        await handle.resume()
        await env.advance(1)
        assert await env.engine.purge(before=env.now()) == 1
        assert await env.finish(handle.result()) == "from the child"


async def test_runs_are_listed_in_pages_and_removed_by_status(engines: Engines):
    registry = Registry()

    @registry.workflow
    async def work(ctx: Context, number: int) -> None:
        if number % 2:
            await ctx.sleep(3600)

    async with engines.open(registry) as env:
        for number in range(20):
            await env.engine.start(work, number)
        await env.settle()
        done = await env.engine.list(status="completed", limit=6)
        rest = await env.engine.list(status="completed", limit=6, cursor=done.cursor)
        listed = [*done.instances, *rest.instances]
        assert len({one.execution_id for one in listed}) == 10
        assert await env.engine.store.purge(listed) == [Purged()] * 10
        assert (await env.engine.list(status="completed")).instances == ()
        assert len((await env.engine.list()).instances) == 10
