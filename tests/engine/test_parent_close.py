"""What becomes of children when their parent ends, and of those that are detached or deferred."""

import asyncio
from typing import Any, Final

from resurgam.client.handle import Handle
from resurgam.core import errors
from resurgam.core.state import Status
from resurgam.runtime.context.context import Context
from resurgam.runtime.registry import Registry
from resurgam.store.memory.store import MemoryStore
from resurgam.testing import ManualClock
from resurgam.testing.contract.bench import raises
from resurgam.testing.environment import Environment
from support.engines import TWICE, Engines, count_of, run, types_of

POLICIES: Final = ("cancel", "terminate", "abandon")
LEFT: Final = {"cancel": Status.CANCELLED, "terminate": Status.TERMINATED, "abandon": Status.RUNNING}


def family() -> Registry:
    """Return a parent that ends in the way it is told to, with one child of each policy."""
    registry = Registry()

    @registry.workflow
    async def child(ctx: Context) -> str:
        return await ctx.listen("word", type=str)

    @registry.workflow
    async def parent(ctx: Context, generation: int = 1) -> str:
        if generation > 1:
            await ctx.sleep(3600)
        for policy in POLICIES:
            await ctx.workflow(child, id=policy, on_parent_close=policy).started
        match await ctx.listen("end", type=str):
            case "fail":
                raise LookupError("as I was told")
            case "continue":
                ctx.continue_as_new(2)
            case "cancel":
                await ctx.sleep(3600)
        return "done"

    return registry


async def _end(env: Environment, how: str) -> Handle[Any]:
    handle = await env.start("parent", id="parent")
    if how == "terminate":
        await handle.terminate("enough")
    else:
        await handle.signal("end", how)
    await env.settle()
    if how == "cancel":
        await handle.cancel()
        await env.settle()
    return handle


async def test_each_child_is_closed_by_its_policy_however_its_parent_ends(engines: Engines) -> None:
    """Completed, failed, cancelled, terminated, continued as new: one is cancelled, one terminated, one left alone."""
    ends = {
        "complete": Status.COMPLETED,
        "fail": Status.FAILED,
        "cancel": Status.CANCELLED,
        "terminate": Status.TERMINATED,
        "continue": Status.CONTINUED,
    }
    for how, status in ends.items():
        async with engines.open(family()) as env:
            handle = await _end(env, how)
            first = env.engine.handle("parent", handle.run_id)
            assert (await first.describe()).status is status, how
            left = {policy: (await env.engine.handle(policy).describe()).status for policy in POLICIES}
            assert left == LEFT, how
            await env.engine.handle("abandon").signal("word", "on my own")
            assert await env.finish(env.engine.handle("abandon").result()) == "on my own"


async def test_a_child_that_its_parent_never_saw_begin_is_not_begun(engines: Engines) -> None:
    """Asked for in the very step in which the parent ends, it does not exist; only one that is left alone does."""
    registry = Registry()

    @registry.workflow
    async def child(_ctx: Context) -> None:
        return None

    @registry.workflow
    async def parent(ctx: Context) -> None:
        for policy in POLICIES:
            ctx.workflow(child, id=policy, on_parent_close=policy)

    async with engines.open(registry) as env:
        handle = await env.start(parent)
        found = {one.entity_id for one in (await env.engine.list(name="child")).instances}
        assert found == {"abandon"}
        assert (await types_of(handle)).count("child_cancelled") == 2
        assert await env.finish(env.engine.handle("abandon").result()) is None


async def test_the_end_of_a_child_after_its_parent_is_recorded_and_does_no_harm(engines: Engines) -> None:
    """The child was left alone; its end finds a parent that has ended, or another run of its id."""
    async with engines.open(family()) as env:
        first = await _end(env, "complete")
        again = await env.start("parent", id="parent")
        with raises(errors.NotFound):
            await env.engine.handle("cancel", "no such run").describe()
        await env.engine.handle("abandon").signal("word", "late")
        await env.settle()
        assert await env.finish(first.result()) == "done"
        told = await types_of(again)
        # Its own child of that id could not be begun while the old one was open.
        assert "child_failed" in told
        assert "child_completed" not in told


async def test_a_detached_child_is_on_its_own(engines: Engines) -> None:
    """Awaiting it waits for its start; it has a tree of its own, knows who began it, and outlives its parent."""
    registry = Registry()

    @registry.workflow
    async def child(ctx: Context) -> list[Any]:
        assert ctx.info.parent is not None
        return [ctx.info.tree_id == ctx.info.run_id, ctx.info.parent.entity_id, await ctx.listen("word")]

    @registry.workflow
    async def parent(ctx: Context) -> list[Any]:
        begun = ctx.workflow(child, id="free", detach=True)
        return [await begun, await begun.started == "", ctx.info.tree_id]

    async with engines.open(registry) as env:
        handle = await env.start(parent, id="parent")
        nothing, _, tree = await env.finish(handle.result())
        free = await env.engine.handle("free").describe()
        assert nothing is None
        assert (free.status, free.tree_id) == (Status.RUNNING, free.run_id)
        assert free.tree_id != tree
        await env.engine.handle("free").signal("word", "hello")
        assert await env.finish(env.engine.handle("free").result()) == [True, "parent", "hello"]
        assert "child_completed" not in await types_of(handle)


async def test_a_detached_child_hears_nothing_of_its_parent(engines: Engines) -> None:
    """Neither its cancellation, nor its termination, nor its pause with the whole tree."""
    registry = Registry()

    @registry.workflow
    async def child(ctx: Context) -> str:
        return await ctx.listen("word", type=str)

    @registry.workflow
    async def parent(ctx: Context) -> None:
        await ctx.workflow(child, id=f"free {ctx.info.entity_id}", detach=True)
        await ctx.sleep(3600)

    async with engines.open(registry) as env:
        for verb in ("cancel", "terminate", "pause"):
            handle = await env.start(parent, id=verb)
            await (handle.pause(tree=True) if verb == "pause" else getattr(handle, verb)())
            await env.settle()
            free = env.engine.handle(f"free {verb}")
            await free.signal("word", verb)
            assert await env.finish(free.result(), limit=60) == verb


async def test_a_deferred_child_waits_until_it_is_begun(engines: Engines) -> None:
    """It is scheduled, its code is not run; once begun its result reaches its parent."""
    registry = Registry()
    ran: list[int] = []

    @registry.workflow
    async def child(_ctx: Context, number: int) -> int:
        ran.append(number)
        return number

    @registry.workflow
    async def parent(ctx: Context) -> int:
        begun = ctx.workflow(child, 7, id="later", deferred=True)
        await begun.started
        return await begun

    async with engines.open(registry) as env:
        handle = await env.start(parent)
        await env.advance(3600)
        later = env.engine.handle("later")
        assert (await later.describe()).status is Status.SCHEDULED
        assert ran == []
        assert any("deferred until handle.begin()" in text for text in (await handle.describe()).waiting_for)
        await later.begin()
        assert await env.finish(handle.result(), limit=60) == 7
        with raises(errors.StoreError, "only a scheduled workflow"):
            await later.begin()
        assert ran == [7]


async def test_a_deferred_child_outlives_its_parent_unless_it_is_said(engines: Engines) -> None:
    """It is left to be begun later; with a policy it is closed with its parent, without having started."""
    registry = Registry()
    ran: list[str] = []

    @registry.workflow
    async def child(ctx: Context) -> str:
        ran.append(ctx.info.entity_id)
        return ctx.info.entity_id

    @registry.workflow
    async def parent(ctx: Context) -> list[str]:
        await ctx.workflow(child, id="left", deferred=True).started
        for policy in POLICIES:
            await ctx.workflow(child, id=policy, deferred=True, on_parent_close=policy).started
        return ["left", *POLICIES]

    async with engines.open(registry) as env:
        names = await run(env, parent)
        await env.settle()
        found = {name: (await env.engine.handle(name).describe()).status for name in names}
        expected = {"left": Status.SCHEDULED, **LEFT, "abandon": Status.SCHEDULED}
        assert found == expected
        await env.engine.handle("left").begin()
        assert await env.finish(env.engine.handle("left").result()) == "left"
        assert ran == ["left"]


async def test_a_parent_that_is_told_to_stop_calls_its_deferred_child_off(engines: Engines) -> None:
    """Cancelling the future ends a child that has not begun, and the parent goes on at once."""
    registry = Registry()

    @registry.workflow
    async def child(_ctx: Context) -> None:
        raise AssertionError("never")

    @registry.workflow
    async def parent(ctx: Context) -> bool:
        begun = ctx.workflow(child, id="later", deferred=True)
        await begun.started
        begun.cancel()
        await asyncio.wait([begun])
        return begun.cancelled()

    async with engines.open(registry) as env:
        handle = await env.start(parent)
        assert await env.finish(handle.result(), limit=60) is True
        assert (await env.engine.handle("later").describe()).status is Status.CANCELLED


async def test_a_hundred_deferred_children(engines: Engines) -> None:
    """C40, C41: their ids are returned; those that are begun run, the others wait."""
    registry = Registry()
    ran: list[str] = []

    @registry.workflow
    async def child(ctx: Context) -> None:
        ran.append(ctx.info.entity_id)

    @registry.workflow
    async def parent(ctx: Context, count: int) -> list[str]:
        children = [ctx.workflow(child, deferred=True) for _ in range(count)]
        await asyncio.gather(*(one.started for one in children))
        return [one.entity_id for one in children]

    async with engines.open(registry, max_activities=5) as env:
        ids = await run(env, parent, 100)
        assert len(set(ids)) == 100
        chosen = ids[::10]
        for entity_id in chosen:
            await env.engine.handle(entity_id).begin()
        await env.settle()
        assert sorted(ran) == sorted(chosen)
        assert await count_of(env, status="scheduled") == 90


async def test_children_of_an_earlier_attempt_are_closed_when_the_next_fails_by_divergence() -> None:
    """The failing attempt closes the children that it found as well as its own."""
    registry = Registry()

    @registry.workflow
    async def child(ctx: Context) -> None:
        await ctx.sleep(10**6)

    @registry.workflow(name="parent", retry=TWICE, on_divergence="fail")
    async def parent(ctx: Context) -> None:
        if ctx.info.attempt == 1:
            await ctx.workflow(child, id="kid").started
            raise LookupError("once")
        await ctx.sleep(30)
        await ctx.sleep(30)

    other = Registry()
    other.workflow(name="child")(child.function)  # type: ignore[arg-type]

    @other.workflow(name="parent", retry=TWICE, on_divergence="fail")
    async def changed(ctx: Context) -> None:
        await ctx.listen("other")

    clock = ManualClock()
    store = MemoryStore(clock)
    async with Environment(store=store, registry=registry, clock=clock, cache_size=0) as env:
        await env.start(parent, id="p")
        await env.advance(20)
        copies = await store.transfer.copies("p")
        assert copies[-1].instance.attempt == 2
    async with Environment(store=store, registry=other, clock=clock, cache_size=0) as env:
        await env.advance(60)
        assert (await env.handle("p").describe()).status is Status.FAILED
        assert (await env.handle("kid").describe()).status is Status.CANCELLED
