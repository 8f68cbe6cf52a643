"""Workflows that begin others, hear of their end, and cancel or signal them."""

import asyncio
from typing import Any

import pytest

from resurgam.core import errors
from resurgam.core.state import Status
from resurgam.errors import ChildWorkflowFailed, WorkflowFailed
from resurgam.runtime.context.context import Context
from resurgam.runtime.registry import Registry
from resurgam.testing.contract.bench import LEASE, raises
from support.engines import TWICE, Engines, count_of, executions, run, settle, types_of


async def test_a_child_gives_its_result_to_its_parent(engines: Engines) -> None:
    """Start and end are events of the parent, and the child knows whose it is."""
    registry = Registry()

    @registry.workflow
    async def child(ctx: Context, number: int) -> list[Any]:
        await ctx.sleep(60)
        assert ctx.info.parent is not None
        return [number, ctx.info.parent.entity_id, str(ctx.info.parent.location)]

    @registry.workflow
    async def parent(ctx: Context) -> list[Any]:
        begun = ctx.workflow(child, 7, id="child")
        execution_id = await begun.started
        return [begun.entity_id, begun.run_id, execution_id, await begun]

    async with engines.open(registry) as env:
        handle = await env.start(parent, id="parent")
        below = env.engine.handle("child")
        seen = await below.describe()
        ids = ["child", seen.run_id, seen.execution_id]
        assert await env.finish(handle.result()) == [*ids, [7, "parent", "{1}"]]
        kinds = ["workflow_started", "child_scheduled", "child_started", "child_completed", "workflow_completed"]
        assert await types_of(handle) == [*kinds, "workflow_deactivated"]
        assert await below.result() == [7, "parent", "{1}"]
        [listed] = (await env.engine.list(parent="parent")).instances
        assert listed.entity_id == "child"


async def test_an_id_in_use_fails_the_second_child(engines: Engines) -> None:
    """Of two children with one id the second is `ChildWorkflowFailed` with `AlreadyExists`; the first goes on."""
    registry = Registry()

    @registry.workflow
    async def child(ctx: Context, number: int) -> int:
        await ctx.sleep(60)
        return number

    @registry.workflow
    async def parent(ctx: Context) -> list[Any]:
        first, second = ctx.workflow(child, 1, id="one"), ctx.workflow(child, 2, id="one")
        try:
            await second
        except errors.ChildWorkflowFailed as failed:
            return [type(failed.__cause__).__name__, second.started.exception() is failed, await first]
        return []

    async with engines.open(registry) as env:
        handle = await env.start(parent)
        assert await env.finish(handle.result()) == ["AlreadyExists", True, 1]
        stranger = await env.start(child, 5, id="two")
        other = await env.start(parent, id="one")  # its own children have its own id
        with raises(errors.WorkflowFailed) as caught:
            await env.finish(other.result())
        assert isinstance(caught[0].__cause__, errors.ChildWorkflowFailed)
        assert await env.finish(stranger.result()) == 5


async def test_the_id_of_a_finished_child_can_be_used_again(engines: Engines) -> None:
    """The second is another run and gives its own result; each handle by run shows its own."""
    registry = Registry()

    @registry.workflow
    async def child(_ctx: Context, number: int) -> int:
        return number

    @registry.workflow
    async def parent(ctx: Context) -> list[Any]:
        first = ctx.workflow(child, 1, id="one")
        results = [await first]
        second = ctx.workflow(child, 2, id="one")
        results.append(await second)
        return [results, first.run_id, second.run_id]

    async with engines.open(registry) as env:
        results, one, two = await run(env, parent)
        assert results == [1, 2]
        assert one != two
        assert await env.engine.handle("one", one).result() == 1
        assert await env.engine.handle("one", two).result() == 2


async def test_cancelling_the_parent_cancels_its_children(engines: Engines) -> None:
    """Both see it, may clean up by durable calls, and their ends reach the parent before its own."""
    registry = Registry()
    seen: list[str] = []

    @registry.activity
    async def clean(who: str) -> None:
        seen.append(who)

    @registry.workflow
    async def child(ctx: Context, who: str) -> str:
        try:
            await ctx.sleep(3600)
        except asyncio.CancelledError:
            await ctx.activity(clean, who)
            if who == "second":
                raise
        return who

    @registry.workflow
    async def parent(ctx: Context) -> str:
        children = [ctx.workflow(child, who) for who in ("first", "second")]
        try:
            await asyncio.gather(*children)
        finally:
            await asyncio.wait(children)
            await ctx.activity(clean, "parent")
        return "never"

    async with engines.open(registry) as env:
        handle = await env.start(parent, id="parent")
        await handle.cancel()
        with raises(errors.WorkflowCancelled):
            await env.finish(handle.result(), limit=60)
        assert [sorted(seen[:2]), seen[2:]] == [["first", "second"], ["parent"]]
        ends = {found.status for found in (await env.engine.list(parent="parent")).instances}
        assert ends == {Status.COMPLETED, Status.CANCELLED}
        told = await types_of(handle)
        assert told.count("child_cancel_requested") == 2
        assert {"child_completed", "child_cancelled"} <= set(told)


async def test_a_child_that_is_cancelled_at_once_is_never_begun(engines: Engines) -> None:
    """Called off in the step that asked for it, it does not exist, and its future is cancelled."""
    registry = Registry()
    ran: list[int] = []

    @registry.workflow
    async def child(_ctx: Context) -> None:
        ran.append(1)

    @registry.workflow
    async def parent(ctx: Context) -> list[bool]:
        called_off = ctx.workflow(child, id="unborn")
        called_off.cancel()
        if called_off.cancelled():
            await ctx.sleep(1)
        try:
            await called_off
        except asyncio.CancelledError:
            await ctx.sleep(1)
            return [called_off.cancelled(), called_off.started.done()]
        return []

    async with engines.open(registry) as env:
        handle = await env.start(parent)
        assert await env.finish(handle.result()) == [True, True]
        assert ran == []
        with raises(errors.NotFound):
            await env.engine.handle("unborn").describe()
        assert (await types_of(handle)).count("child_cancelled") == 1


async def test_a_parent_signals_its_child(engines: Engines) -> None:
    """By its future, and by its id."""
    registry = Registry()

    @registry.workflow
    async def child(ctx: Context) -> list[str]:
        return [await ctx.listen("word", type=str) for _ in range(2)]

    @registry.workflow
    async def parent(ctx: Context) -> list[str]:
        begun = ctx.workflow(child, id="listener")
        await begun.signal("word", "by its future")
        await ctx.signal("listener", "word", "by its id")
        return await begun

    async with engines.open(registry) as env:
        assert await run(env, parent) == ["by its future", "by its id"]


async def test_a_child_on_another_queue_of_the_same_worker(engines: Engines) -> None:
    """It is shown with its own queue, runs, and takes signals."""
    registry = Registry()

    @registry.workflow
    async def child(ctx: Context) -> list[str]:
        return [ctx.info.queue, await ctx.listen("word", type=str)]

    @registry.workflow
    async def parent(ctx: Context) -> list[str]:
        begun = ctx.workflow(child, queue="other")
        await begun.signal("word", "hello")
        return await begun

    async with engines.open(registry, queues=["default", "other"]) as env:
        assert await run(env, parent) == ["other", "hello"]


async def test_a_signal_to_a_child_that_does_not_exist_fails(engines: Engines) -> None:
    """E17: `SignalFailed`, because there is no such workflow; one that has ended is as bad."""
    registry = Registry()

    @registry.workflow
    async def child(_ctx: Context) -> None:
        return None

    @registry.workflow
    async def parent(ctx: Context) -> list[str]:
        told = []
        over = ctx.workflow(child, id="over")
        await over
        for target in ("unknown", "over"):
            try:
                await ctx.signal(target, "word")
            except errors.SignalFailed as failed:
                told.append(str(failed.__cause__))
        return told

    async with engines.open(registry) as env:
        missing, ended = await run(env, parent)
        assert "there is no workflow 'unknown'" in missing
        assert "'over' is closed and accepts no more signals" in ended


async def test_a_child_is_run_by_a_worker_of_its_queue(engines: Engines) -> None:
    """Two engines on one store, each with one queue and its own code: the child waits for the other one."""
    here, there = Registry(), Registry()
    child = here.workflow.ref("child", returns=str)

    @there.workflow(name="child")
    async def other(ctx: Context, word: str) -> str:
        return f"{word} from {ctx.info.queue}"

    @here.workflow
    async def parent(ctx: Context) -> str:
        return await ctx.workflow(child, "hello", id="child", queue="far")

    async with engines.client(here) as (store, clock, client):
        handle = await client.start(parent)
        async with engines.serve(store, clock, here) as near:
            await near.settle()
            assert (await client.handle("child").describe()).status is Status.RUNNING
            assert await types_of(client.handle("child")) == ["workflow_started"]
            async with engines.serve(store, clock, there, queues=["far"]) as far:
                await settle(near, far)
                assert await near.finish(handle.result()) == "hello from far"


async def test_a_failed_child_is_an_error_that_its_parent_can_handle(engines: Engines) -> None:
    """`ChildWorkflowFailed` names the child, and its cause is what the child raised."""
    registry = Registry()

    @registry.workflow
    async def child(_ctx: Context) -> None:
        raise LookupError("nothing there")

    @registry.workflow
    async def parent(ctx: Context, careful: int) -> list[str]:
        try:
            await ctx.workflow(child, id="child")
        except errors.ChildWorkflowFailed as failed:
            if not careful:
                raise
            return [failed.entity_id, type(failed.__cause__).__name__, str(failed.__cause__)]
        return []

    async with engines.open(registry) as env:
        assert await run(env, parent, 1) == ["child", "LookupError", "nothing there"]
        with raises(errors.WorkflowFailed) as caught:
            await run(env, parent, 0)
        assert isinstance(caught[0].__cause__, errors.ChildWorkflowFailed)
        assert isinstance(caught[0].__cause__.__cause__, LookupError)


async def test_a_child_that_is_cancelled_or_terminated_from_outside(engines: Engines) -> None:
    """`ChildWorkflowCancelled`, or `ChildWorkflowFailed` with `WorkflowTerminated` and its reason."""
    registry = Registry()

    @registry.workflow
    async def child(ctx: Context) -> None:
        await ctx.sleep(3600)

    @registry.workflow
    async def parent(ctx: Context) -> list[str]:
        called_off, ended = ctx.workflow(child, id="cancelled"), ctx.workflow(child, id="terminated")
        told = await asyncio.gather(called_off, ended, return_exceptions=True)
        failed = [error for error in told if error is not None]
        return [f"{type(error).__name__} {type(error.__cause__).__name__} {error.__cause__}" for error in failed]

    async with engines.open(registry) as env:
        handle = await env.start(parent)
        await env.engine.handle("cancelled").cancel()
        await env.engine.handle("terminated").terminate("enough")
        first, second = await env.finish(handle.result(), limit=60)
        assert first == "ChildWorkflowCancelled NoneType None"
        assert second.startswith("ChildWorkflowFailed WorkflowTerminated")
        assert "enough" in second


async def test_a_hundred_children_at_once(engines: Engines) -> None:
    """Each gives its own result, in the order of the calls, and each was begun once."""
    registry = Registry()
    ran: list[int] = []

    @registry.workflow
    async def child(ctx: Context, number: int) -> int:
        await ctx.sleep(number % 7)
        ran.append(number)
        return 2 * number

    @registry.workflow
    async def parent(ctx: Context, count: int) -> list[int]:
        return list(await asyncio.gather(*(ctx.workflow(child, number) for number in range(count))))

    async with engines.open(registry) as env:
        assert await run(env, parent, 100) == [2 * number for number in range(100)]
        assert sorted(ran) == list(range(100))
        assert await count_of(env, name="child") == 100


async def test_grandchildren(engines: Engines) -> None:
    """A result, and a failure, come up through all generations, and the whole family is one tree."""
    registry = Registry()

    @registry.workflow
    async def family(ctx: Context, depth: int, fails: int) -> list[str]:
        if depth == 0 and fails:
            raise LookupError("at the bottom")
        below = await ctx.workflow(family, depth - 1, fails, id=f"{ctx.info.entity_id}/x") if depth else []
        return [ctx.info.tree_id, *below]

    async with engines.open(registry) as env:
        handle = await env.start(family, 4, 0, id="top")
        trees = await env.finish(handle.result())
        assert trees == [handle.run_id] * 5
        with raises(errors.WorkflowFailed) as caught:
            await run(env, family, 3, 1)
        cause, depth = caught[0].__cause__, 0
        while isinstance(cause, errors.ChildWorkflowFailed):
            cause, depth = cause.__cause__, depth + 1
        assert (depth, str(cause)) == (3, "at the bottom")


async def test_a_child_is_begun_once_however_often_its_parent_dies(engines: Engines) -> None:
    """A worker dies with the parent in hand, before and after the child is there; the next one goes on with it."""
    registry = Registry()

    @registry.workflow
    async def child(ctx: Context) -> str:
        return await ctx.listen("word", type=str)

    @registry.workflow
    async def parent(ctx: Context) -> str:
        begun = ctx.workflow(child, id="child")
        await ctx.sleep(60)
        return await begun

    async with engines.client(registry) as (store, clock, client):
        handle = await client.start(parent, id="parent")
        for _ in range(4):
            await store.claim("dead", ["default"], 10)  # whatever is ready now is in dead hands
            clock.move_to(clock.now() + LEASE + 1)
            async with engines.serve(store, clock, registry) as env:
                await env.advance(15)
        await client.handle("child").signal("word", "heard")
        async with engines.serve(store, clock, registry) as env:
            assert await env.finish(handle.result()) == "heard"
            assert await count_of(env, name="child") == 1
        assert (await types_of(handle)).count("child_scheduled") == 1


async def test_a_parent_waits_for_the_last_generation_of_its_child(engines: Engines) -> None:
    """The child continues as new; its parent hears of its last result only, and cancelling reaches it."""
    registry = Registry()

    @registry.workflow
    async def child(ctx: Context, number: int) -> int:
        await ctx.sleep(1)
        if number < 3:
            ctx.continue_as_new(number + 1)
        if number > 5:
            await ctx.sleep(3600)
        return number

    @registry.workflow
    async def parent(ctx: Context, number: int) -> list[Any]:
        begun = ctx.workflow(child, number, id=f"child {number}")
        _, got = await ctx.race(begun, ctx.sleep(60))
        return [got, begun.cancelled()]

    async with engines.open(registry) as env:
        assert await run(env, parent, 0) == [3, False]
        assert (await env.engine.handle("child 0").describe()).generation == 4


async def test_cancelling_reaches_the_newest_generation_of_a_child(engines: Engines) -> None:
    """A child that has continued as new is the one that is called off, and its parent waits until it has ended."""
    registry = Registry()

    @registry.workflow
    async def child(ctx: Context, number: int) -> None:
        await ctx.sleep(1 if number < 3 else 3600)
        ctx.continue_as_new(number + 1)

    @registry.workflow
    async def parent(ctx: Context) -> list[Any]:
        begun = ctx.workflow(child, 0, id="child")
        await ctx.sleep(60)
        begun.cancel()
        await asyncio.wait([begun])
        return [begun.cancelled(), ctx.now().timestamp() - begun.command.at / 1000]

    async with engines.open(registry) as env:
        assert await run(env, parent) == [True, 60.0]
        found = await env.engine.handle("child").describe()
        assert (found.status, found.generation) == (Status.CANCELLED, 4)


async def test_a_child_that_is_not_known_where_it_would_run(engines: Engines) -> None:
    """It is parked like any other, its parent waits, and both say what for; code that knows it ends the waiting."""
    registry, later = Registry(), Registry()

    @registry.workflow
    async def parent(ctx: Context) -> Any:
        return await ctx.workflow("child", 3, id="child")

    @later.workflow
    async def child(_ctx: Context, number: int) -> int:
        return number + 1

    later.workflow(name="parent")(parent.function)  # type: ignore[arg-type]
    async with engines.client(registry) as (store, clock, client):
        handle = await client.start(parent)
        async with engines.serve(store, clock, registry) as env:
            await env.settle()
            assert (await client.handle("child").describe()).status is Status.DIVERGED
            waits = (await handle.describe()).waiting_for
            assert any("child workflow 'child'" in text for text in waits)
        async with engines.serve(store, clock, later) as env:
            assert await env.finish(handle.result()) == 4


async def test_what_a_child_cannot_be_begun_with_is_refused_where_it_is_called(engines: Engines) -> None:
    """One clear error in the parent's code, and nothing is begun or written for it."""
    registry = Registry()

    @registry.workflow
    async def child(_ctx: Context, number: int) -> int:
        return number

    @registry.workflow
    async def parent(ctx: Context) -> list[str]:
        told = []
        for args, options in wrong_calls(child):
            try:
                begin(ctx, *args, **options)
            except (errors.ResurgamError, TypeError, ValueError) as error:
                told.append(type(error).__name__)
            else:
                told.append(f"nothing is wrong with {options}")
        return told

    async with engines.open(registry) as env:
        handle = await env.start(parent)
        told = await env.finish(handle.result())
        assert not [one for one in told if one.startswith("nothing")], told
        kinds = ["workflow_started", "workflow_completed", "workflow_deactivated"]
        assert await types_of(handle) == kinds
        assert await count_of(env) == 1


def begin(ctx: Context, *args: Any, **options: Any) -> Any:
    """Begin a child with what no type checker would let pass."""
    return ctx.workflow(*args, **options)


def wrong_calls(child: Any) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Return arguments and options by which a child cannot be begun."""
    return [
        ((child, "x"), {}),
        ((child,), {}),
        ((child, 1, 2), {}),
        ((child, 1), {"id": ""}),
        ((child, 1), {"id": 5}),
        ((child, 1), {"queue": ""}),
        ((child, 1), {"on_parent_close": "explode"}),
        ((child, 1), {"colour": "red"}),
        ((len, 1), {}),
        (("", 1), {}),
        ((child, 1), {"detach": "yes"}),
        ((child, 1), {"deferred": 1}),
        ((child, 1), {"detach": True, "on_parent_close": "terminate"}),
    ]


async def test_a_signal_to_a_child_whose_id_is_in_use_does_not_reach_the_other_workflow(engines: Engines) -> None:

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

    async with engines.open(registry) as env:
        handle = await env.start(stranger, id="kid")
        await env.start(parent)
        with pytest.raises(errors.WorkflowFailed) as caught:
            await env.finish(handle.result())
        assert isinstance(caught.value.__cause__, errors.SignalTimeout)


def crash():
    empty = []
    return empty[1]


@pytest.mark.parametrize("queue", [None, "far"], ids=["same queue", "other queue"])
@pytest.mark.parametrize("how", ["error", "crash"])
async def test_a_child_that_fails_on_any_queue_fails_its_parent(engines: Engines, how, queue):
    registry = Registry()

    @registry.workflow(retry=TWICE)
    async def child(_ctx: Context) -> None:
        if how == "crash":
            crash()
        raise LookupError("no")

    @registry.workflow
    async def parent(ctx: Context) -> None:
        await ctx.workflow(child, id="child", queue=queue)

    async with engines.open(registry, queues=["default", "far"]) as env:
        with pytest.raises(WorkflowFailed) as caught:
            await run(env, parent)
        assert isinstance(caught.value.__cause__, ChildWorkflowFailed)
        assert isinstance(caught.value.__cause__.__cause__, LookupError)
        assert [one.instance.attempt for one in await executions(env, "child")] == [1, 2]


async def test_a_failed_child_is_an_error_of_the_parent_and_nothing_else(engines: Engines):
    """A tree has no status beyond those of its members."""
    registry = Registry()

    @registry.workflow
    async def child(_ctx: Context) -> None:
        raise LookupError("no")

    @registry.workflow
    async def parent(ctx: Context) -> str:
        try:
            await ctx.workflow(child, id="child")
        except ChildWorkflowFailed:
            return "went on"
        return ""

    async with engines.open(registry) as env:
        assert await run(env, parent) == "went on"
        assert str((await env.engine.handle("child").describe()).status) == "failed"
