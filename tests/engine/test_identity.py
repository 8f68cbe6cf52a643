"""Every id, wherever it is shown, is the same thing under the same name."""

from typing import Any

from resurgam.core import errors
from resurgam.core import event as events
from resurgam.core.identity import entity_of, execution_of
from resurgam.core.retry import RetryPolicy
from resurgam.runtime.context.context import Context
from resurgam.runtime.definitions.info import activity_info
from resurgam.runtime.registry import Registry
from resurgam.testing.contract.bench import raises
from support.engines import Engines, of_kind, run

IDS = ("entity_id", "execution_id", "run_id", "tree_id", "generation", "attempt", "name", "queue")


async def test_an_execution_says_who_it_is(engines: Engines) -> None:
    """Its own code, its history, its description, the list, and its handle agree."""
    registry = Registry()

    @registry.workflow(retry=RetryPolicy(max_attempts=2, initial_interval=1, jitter=0))
    async def work(ctx: Context, seen: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if ctx.info.attempt == 1:
            raise LookupError("once in each generation")
        seen = [*seen, {name: getattr(ctx.info, name) for name in IDS}]
        await ctx.sleep(60)
        if ctx.info.generation == 1:
            ctx.continue_as_new(seen)
        return seen

    async with engines.open(registry) as env:
        handle = await env.start(work, [], id="me", tags={"colour": "red"})
        for expected in ((1, 2), (2, 2)):
            await env.advance(2)
            found, [started] = await handle.describe(), of_kind(await handle.history(), events.WorkflowStarted)
            [listed] = (await env.engine.list(status="running")).instances
            shown = [{name: getattr(one, name) for name in IDS} for one in (found, started, listed)]
            assert shown[0] == shown[1] == shown[2]
            assert (found.generation, found.attempt) == expected
            assert (handle.entity_id, handle.execution_id) == ("me", found.execution_id)
            assert found.tags == listed.tags == {"colour": "red"}
            last = shown[0]
            await env.advance(60)
        assert (await env.finish(handle.result()))[-1] == last


async def test_a_child_says_whose_it_is(engines: Engines) -> None:
    """Its code, its description and the list name the call: entity, run, execution and place."""
    registry = Registry()

    @registry.workflow
    async def child(ctx: Context) -> list[str]:
        parent = ctx.info.parent
        assert parent is not None
        return [parent.entity_id, parent.run_id, parent.execution_id, str(parent.location)]

    @registry.workflow
    async def parent(ctx: Context) -> list[list[str]]:
        await ctx.sleep(1)
        told = await ctx.workflow(child, id="child")
        return [told, [ctx.info.entity_id, ctx.info.run_id, ctx.info.execution_id, "{2}"]]

    async with engines.open(registry) as env:
        told, expected = await run(env, parent)
        found = (await env.engine.handle("child").describe()).parent
        assert found is not None
        assert told == expected == [found.entity_id, found.run_id, found.execution_id, str(found.location)]
        [listed] = (await env.engine.list(parent=found.entity_id)).instances
        assert listed.entity_id == "child"


async def test_what_a_workflow_asks_for_is_known_by_run_and_place(engines: Engines) -> None:
    """Activities, children without an id, signals and promises; each attempt of an activity by its number."""
    registry = Registry()

    @registry.activity(retry=RetryPolicy(max_attempts=2, initial_interval=1, jitter=0))
    async def act() -> list[Any]:
        info = activity_info()
        if info.attempt == 1:
            raise LookupError("once")
        return [info.entity_id, info.execution_id, info.idempotency_key, info.workflow_id, info.attempt, info.queue]

    @registry.workflow
    async def child(_ctx: Context) -> None:
        return None

    @registry.workflow
    async def work(ctx: Context) -> list[Any]:
        below = ctx.workflow(child)
        promises = [ctx.promise("one"), ctx.promise("two")]
        return [await ctx.activity(act), below.entity_id, [promise.promise_id for promise in promises]]

    async with engines.open(registry) as env:
        one, two = await env.start(work, id="one"), await env.start(work, id="two")
        seen = []
        for handle in (one, two):
            told, entity_id, promises = await env.finish(handle.result())
            scheduled = of_kind(await handle.history(), events.ActivityScheduled)
            entity = entity_of(handle.run_id, scheduled[0].location)
            assert told == [entity, execution_of(entity, 2), entity, handle.entity_id, 2, "default"]
            seen += [entity, entity_id, *promises]
            assert not any(handle.run_id in promise for promise in promises)  # nobody can guess them
        assert len(set(seen)) == len(seen)


async def test_an_id_that_is_used_again_is_another_tree(engines: Engines) -> None:
    """Nothing of the new one is that of the old one but the name that it was given."""
    registry = Registry()
    keys: list[str] = []

    @registry.activity
    async def act() -> None:
        keys.append(activity_info().idempotency_key)

    @registry.workflow
    async def work(ctx: Context) -> list[str]:
        await ctx.activity(act)
        return [ctx.info.run_id, ctx.info.execution_id, ctx.info.tree_id]

    async with engines.open(registry) as env:
        first, second = [await env.finish((await env.start(work, id="me")).result()) for _ in range(2)]
        assert set(first).isdisjoint(second)
        assert len(set(keys)) == 2
        assert await env.finish(env.engine.handle("me", first[0]).result()) == first
        assert await env.finish(env.engine.handle("me").result()) == second


async def test_ids_that_are_none_are_refused(engines: Engines) -> None:
    """One clear error, and nothing is begun."""
    registry = Registry()

    @registry.workflow
    async def work(_ctx: Context) -> None:
        return None

    async with engines.open(registry) as env:
        bad: Any
        for bad in ("", 5, b"x"):
            for option in ("id", "queue"):
                with raises(ValueError, option):
                    await env.start(work, **{option: bad})
            with raises(errors.NotFound):
                await env.engine.handle(bad).describe()
        for bad in ({"a": 1}, {1: "a"}, "colour", ["a"]):
            with raises(TypeError, "tag"):
                await env.start(work, tags=bad)
        assert (await env.engine.list()).instances == ()
        with raises(errors.NotFound, "no such run"):
            await env.engine.handle("me", "no such run").describe()
