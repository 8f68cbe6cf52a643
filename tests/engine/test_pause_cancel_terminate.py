"""Workflows that are paused and resumed, alone or with their tree; cancelled; terminated."""

import asyncio
from typing import Any

import pytest

from resurgam import activity
from resurgam.core import errors
from resurgam.core.state import Status
from resurgam.errors import WorkflowFailed
from resurgam.runtime.context.context import Context
from resurgam.runtime.registry import Registry
from resurgam.store.memory.store import MemoryStore
from resurgam.testing import Environment, ManualClock
from resurgam.testing.contract.bench import raises
from support.engines import TWICE, Engines, count_of, executions, settle, types_of
from support.limits import HANGS


async def test_a_paused_workflow_waits_until_it_is_resumed(engines: Engines) -> None:
    """Timers that come due, signals and answers of children wait; nothing is lost, and it is later then."""
    registry = Registry()
    begun: list[str] = []

    @registry.activity
    async def act(what: str) -> str:
        begun.append(what)
        return what

    @registry.workflow
    async def child(ctx: Context) -> str:
        await ctx.sleep(30)
        return "child"

    @registry.workflow
    async def work(ctx: Context) -> list[Any]:
        below = ctx.workflow(child)
        await ctx.sleep(60)
        woken = ctx.now().timestamp()
        return [woken, await ctx.activity(act, "act"), await ctx.listen("word"), await below]

    async with engines.open(registry) as env:
        begin = env.now().timestamp()
        handle = await env.start(work)
        await handle.pause(reason="lunch")
        await env.settle()
        await handle.signal("word", "while paused")
        await env.advance(3600)
        found = await handle.describe()
        assert (found.status, found.paused) == (Status.PAUSED, True)
        assert any("resume" in text for text in found.waiting_for)
        assert begun == []
        assert await count_of(env, status="paused") == 1
        await handle.resume()
        assert await env.finish(handle.result(), limit=60) == [begin + 3600, "act", "while paused", "child"]
        told = await types_of(handle)
        assert (told.count("workflow_paused"), told.count("workflow_resumed")) == (1, 1)


async def test_an_activity_that_runs_comes_to_its_end_while_its_workflow_is_paused(engines: Engines) -> None:
    """Its result is kept and not got again; the next one is not begun."""
    registry = Registry()
    ran: list[str] = []
    go = asyncio.Event()

    @registry.activity
    async def act(what: str) -> str:
        ran.append(what)
        await go.wait()
        return what

    @registry.workflow
    async def work(ctx: Context) -> list[str]:
        return [await ctx.activity(act, "first"), await ctx.activity(act, "second")]

    async with engines.open(registry) as env:
        handle = await env.start(work)
        await handle.pause()
        await env.settle()
        go.set()
        await env.settle()
        assert ran == ["first"]
        assert (await handle.describe()).status is Status.PAUSED
        await handle.resume()
        assert await env.finish(handle.result(), limit=60) == ["first", "second"]
        assert ran == ["first", "second"]


async def test_an_operation_that_runs_comes_to_its_end_while_its_workflow_is_paused(engines: Engines) -> None:
    """Its result is kept; the next one, and one that was waiting for its turn, is not begun."""
    registry = Registry()
    ran: list[str] = []
    go = asyncio.Event()

    async def effect(what: str) -> str:
        ran.append(what)
        await go.wait()
        return what

    @registry.workflow
    async def work(ctx: Context) -> list[str]:
        return [await ctx.run(effect, "first"), await ctx.run(effect, "second")]

    async with engines.open(registry) as env:
        handle = await env.start(work)
        await handle.pause()
        await env.settle()
        go.set()
        await env.settle()
        assert ran == ["first"]
        assert (await handle.describe()).status is Status.PAUSED
        await handle.resume()
        assert await env.finish(handle.result(), limit=60) == ["first", "second"]
        assert ran == ["first", "second"]


async def test_a_paused_workflow_is_not_run_by_another_worker_either(engines: Engines) -> None:
    """The next worker leaves it alone until it is resumed."""
    registry = Registry()

    @registry.workflow
    async def work(ctx: Context) -> str:
        return await ctx.listen("word", type=str)

    async with engines.client(registry) as (store, clock, client):
        handle = await client.start(work)
        await handle.pause()
        await handle.signal("word", "kept")
        for _ in range(2):
            async with engines.serve(store, clock, registry) as env:
                await env.advance(60)
        assert (await handle.describe()).status is Status.PAUSED
        await handle.resume()
        async with engines.serve(store, clock, registry) as env:
            assert await env.finish(handle.result(), limit=60) == "kept"


async def test_a_paused_workflow_answers_queries(engines: Engines) -> None:
    """And its state is read, as ever; an update waits."""
    registry = Registry()

    @registry.workflow
    async def work(ctx: Context) -> list[str]:
        got: list[str] = []
        ctx.on_query("got")(lambda: got)

        @ctx.on_update("add")
        def add(what: str) -> int:
            got.append(what)
            return len(got)

        ctx.set("key", "value")
        await ctx.listen("end")
        return got

    async with engines.open(registry) as env:
        handle = await env.start(work)
        await handle.update("add", "before")
        await handle.pause()
        sent = asyncio.ensure_future(handle.update("add", "while paused"))
        await env.settle()
        assert await handle.query("got") == ["before"]
        assert await handle.state("key") == "value"
        assert not sent.done()
        await handle.resume()
        assert await env.finish(sent) == 2
        await handle.signal("end")
        assert await env.finish(handle.result(), limit=60) == ["before", "while paused"]


async def test_a_tree_is_paused_and_resumed_as_one(engines: Engines) -> None:
    """Descendants too, and what is begun meanwhile; one that was paused by itself stays so."""
    registry = Registry()

    @registry.workflow
    async def leaf(ctx: Context) -> str:
        return await ctx.listen("word", type=str)

    @registry.workflow
    async def middle(ctx: Context) -> list[str]:
        return list(await asyncio.gather(ctx.workflow(leaf, id="one"), ctx.workflow(leaf, id="two")))

    @registry.workflow
    async def top(ctx: Context) -> list[str]:
        return await ctx.workflow(middle, id="middle")

    async with engines.open(registry) as env:
        handle = await env.start(top, id="top")
        await env.engine.handle("two").pause()
        await handle.pause(tree=True)
        await env.settle()
        names = ("top", "middle", "one", "two")
        for name in names:
            assert (await env.engine.handle(name).describe()).status is Status.PAUSED, name
        for name in ("one", "two"):
            await env.engine.handle(name).signal("word", name)
        await handle.resume()
        await env.settle()
        left = {name: str((await env.engine.handle(name).describe()).status) for name in names}
        assert left == {"top": "running", "middle": "running", "one": "completed", "two": "paused"}
        await env.engine.handle("two").resume()
        assert await env.finish(handle.result(), limit=60) == ["one", "two"]


async def test_a_child_of_a_paused_tree_is_born_paused(engines: Engines) -> None:
    """The parent was at a step that could not be stopped any more; the child it started waits with it."""
    registry = Registry()
    go = asyncio.Event()

    async def effect() -> None:
        await go.wait()

    @registry.workflow
    async def child(_ctx: Context) -> str:
        return "child"

    @registry.workflow
    async def parent(ctx: Context) -> str:
        await ctx.run(effect)
        return await ctx.workflow(child, id="child")

    async with engines.open(registry) as env:
        handle = await env.start(parent)
        await handle.pause(tree=True)
        await env.settle()
        go.set()
        await env.settle()
        begun = (await env.engine.list(name="child")).instances
        assert [one.status for one in begun] in ([], [Status.PAUSED])
        await handle.resume()
        assert await env.finish(handle.result(), limit=60) == "child"


async def test_a_pause_outlasts_retries_and_continuations(engines: Engines) -> None:
    """The next execution of a paused one is paused, until it is resumed."""
    registry = Registry()
    go = asyncio.Event()

    async def effect() -> None:
        await go.wait()

    @registry.workflow
    async def work(ctx: Context, number: int) -> int:
        if number == 1:
            await ctx.run(effect)
            ctx.continue_as_new(2)
        return number

    async with engines.open(registry) as env:
        handle = await env.start(work, 1)
        await handle.pause()
        await env.settle()
        go.set()
        await env.settle()
        assert (await handle.describe()).status is Status.PAUSED
        await handle.resume()
        assert await env.finish(handle.result(), limit=60) == 2


async def test_a_scheduled_workflow_can_be_paused(engines: Engines) -> None:
    """Its moment comes and goes; resumed after it, it begins at once, before it, it waits on."""
    registry = Registry()

    @registry.workflow
    async def later(ctx: Context) -> float:
        return ctx.now().timestamp()

    async with engines.open(registry) as env:
        for pause, began in ((30, 60), (90, 90)):
            begin = env.now().timestamp()
            handle = await env.start(later, delay=60)
            await handle.pause()
            await env.advance(pause)
            assert (await handle.describe()).status is Status.PAUSED
            await handle.resume()
            await env.settle()
            assert (await handle.describe()).status is (Status.SCHEDULED if pause < 60 else Status.COMPLETED)
            assert await env.finish(handle.result()) == begin + began


async def test_a_paused_workflow_can_be_cancelled_and_terminated(engines: Engines) -> None:
    """Terminated it ends at once; cancelled when it is resumed, for its code has to hear of it."""
    registry = Registry()

    @registry.workflow
    async def work(ctx: Context) -> None:
        await ctx.sleep(3600)

    async with engines.open(registry) as env:
        first, second = await env.start(work), await env.start(work)
        for handle in (first, second):
            await handle.pause()
        await first.terminate("enough")
        await second.cancel()
        await env.settle()
        assert (await first.describe()).status is Status.TERMINATED
        assert (await second.describe()).status is Status.PAUSED
        await second.resume()
        with raises(errors.WorkflowCancelled):
            await env.finish(second.result(), limit=60)


async def test_pause_and_resume_where_they_mean_nothing(engines: Engines) -> None:
    """To resume what is not paused, or either of what has ended or does not exist, is an error; nothing changes."""
    registry = Registry()

    @registry.workflow
    async def work(ctx: Context) -> None:
        await ctx.listen("end")

    async with engines.open(registry) as env:
        handle = await env.start(work)
        with raises(errors.StoreError, "not paused"):
            await handle.resume()
        await handle.pause()
        await handle.pause()
        await env.settle()
        await handle.resume()
        await env.settle()
        assert (await types_of(handle)).count("workflow_paused") == 1
        await handle.signal("end")
        await env.settle()
        history = await handle.history()
        for verb in ("pause", "resume", "begin", "cancel", "terminate", "retry"):
            with raises(errors.ResurgamError):
                await getattr(handle, verb)()
            with raises(errors.NotFound, "unknown"):
                await getattr(env.engine.handle("unknown"), verb)()
        assert await handle.history() == history


async def test_a_terminated_workflow_is_not_asked(engines: Engines) -> None:
    """No clean-up, no retry; its result says so, with the reason, and its holder loses the lease."""
    registry = Registry()
    cleaned: list[int] = []

    @registry.activity
    async def clean() -> None:
        cleaned.append(1)

    @registry.workflow
    async def work(ctx: Context) -> None:
        try:
            await ctx.sleep(3600)
        finally:
            await ctx.activity(clean)

    async with engines.open(registry) as env:
        handle = await env.start(work)
        await handle.terminate("enough")
        await env.settle()
        with raises(errors.WorkflowTerminated, "enough"):
            await handle.result()
        assert cleaned == []
        kinds = ["workflow_started", "timer_started", "workflow_terminated", "workflow_deactivated"]
        assert await types_of(handle) == kinds


async def test_a_start_that_replaces_ends_the_one_before_in_one_step(engines: Engines) -> None:
    """The old one is terminated, with its children by their policy; its handle says so, the new one is another run."""
    registry = Registry()

    @registry.workflow
    async def child(ctx: Context) -> None:
        await ctx.sleep(3600)

    @registry.workflow
    async def work(ctx: Context, number: int) -> int:
        if number == 1:
            await ctx.workflow(child, id="child")
        return number

    async with engines.open(registry) as env:
        old = await env.start(work, 1, id="work")
        new = await env.start(work, 2, id="work", if_exists="replace")
        assert await env.finish(new.result()) == 2
        with raises(errors.WorkflowTerminated, "replaced"):
            await old.result()
        await env.settle()
        assert (await env.engine.handle("child").describe()).status is Status.CANCELLED
        attached = await env.start(work, 3, id="work", if_exists="attach")
        assert await env.finish(attached.result()) == 2
        assert attached.run_id == new.run_id
        given: Any = "explode"
        with raises(ValueError, "if_exists"):
            await env.start(work, 3, id="work", if_exists=given)
        assert await count_of(env, name="work") == 2


async def test_status_has_the_values_of_the_documentation(engines: Engines) -> None:
    """Nine words, and each is what `describe` says at some moment of some life."""
    words = "scheduled running paused completed failed cancelled terminated continued diverged"
    assert [str(status) for status in Status] == words.split()
    registry = Registry()

    @registry.workflow
    async def work(ctx: Context) -> None:
        await ctx.sleep(3600)

    async with engines.client(registry) as (store, clock, client):
        handle = await client.start(work)
        assert (await handle.describe()).status is Status.RUNNING  # no worker has claimed it
        async with (
            engines.serve(store, clock, registry) as one,
            engines.serve(store, clock, registry) as two,
        ):
            await settle(one, two)
            assert (await handle.describe()).status is Status.RUNNING


async def test_paused_children_are_cancelled_when_their_paused_root_is_terminated(engines: Engines) -> None:
    """By their close policy."""
    registry = Registry()

    @registry.workflow
    async def child(ctx: Context) -> None:
        await ctx.sleep(10**6)

    @registry.workflow
    async def parent(ctx: Context) -> None:
        await ctx.workflow(child, id="kid")

    async with engines.open(registry) as env:
        handle = await env.start(parent)
        await handle.pause(tree=True)
        await env.settle()
        await handle.terminate()
        await env.advance(60)
        assert (await env.handle("kid").describe()).status is Status.CANCELLED


async def test_cancel_reaches_a_running_activity(engines: Engines):
    registry = Registry()
    seen = []

    @registry.activity(heartbeat_timeout=60)
    async def act() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            seen.append(activity.cancelled())
            raise

    @registry.workflow
    async def work(ctx: Context) -> None:
        await ctx.activity(act)

    async with engines.open(registry) as env:
        handle = await env.start(work)
        await handle.cancel()
        await env.settle()
        assert (await handle.describe()).status is Status.CANCELLED
        assert len(await executions(env, handle.entity_id)) == 1
    assert seen == [True]


async def test_activities_run_once_whenever_a_pause_comes(engines: Engines):

    for stop in range(4):
        registry, ran = Registry(), []
        at_work, go = asyncio.Event(), asyncio.Event()

        @registry.activity
        async def act(number: int, stop=stop, ran=ran, at_work=at_work, go=go) -> int:
            ran.append(number)
            if number == stop:
                at_work.set()
                await go.wait()
            return number

        @registry.workflow
        async def work(ctx: Context, act=act) -> list[int]:
            return [await ctx.activity(act, number) for number in range(4)]

        async with engines.open(registry) as env:
            handle = await env.start(work)
            assert at_work.is_set()
            await handle.pause()
            await env.settle()
            go.set()
            await env.advance(60)
            assert (await handle.describe()).status is Status.PAUSED
            await handle.resume()
            assert await env.finish(handle.result()) == [0, 1, 2, 3]
        assert ran == [0, 1, 2, 3]


def crash():
    empty = []
    return empty[1]


async def test_signals_around_a_pause_and_a_failure_are_heard(engines: Engines):
    registry = Registry()

    @registry.workflow
    async def work(ctx: Context) -> None:
        assert await ctx.listen("word") == "while paused"
        crash()

    async with engines.open(registry) as env:
        handle = await env.start(work)
        await handle.pause()
        await handle.signal("word", "while paused")
        await env.advance(60)
        assert (await handle.describe()).status is Status.PAUSED
        await handle.resume()
        with pytest.raises(WorkflowFailed, match="IndexError"):
            await env.finish(handle.result())
        told = [entry.type for entry in await handle.history()]
    assert (told.count("listen_started"), told.count("signals_consumed")) == (1, 1)


@pytest.mark.parametrize("how", ["ok", "error", "crash"])
async def test_a_tree_that_was_paused_ends_as_it_would_have(engines: Engines, how):
    registry = Registry()

    @registry.activity(retry=TWICE)
    async def act() -> str:
        return "done"

    @registry.workflow
    async def child(ctx: Context) -> str:
        got = await ctx.activity(act)
        await ctx.listen("go")
        if how == "error":
            raise LookupError("no")
        if how == "crash":
            crash()
        return got

    @registry.workflow
    async def parent(ctx: Context) -> str:
        return await ctx.workflow(child, id="child")

    async with engines.open(registry) as env:
        handle = await env.start(parent)
        await handle.pause(tree=True)
        await env.engine.handle("child").signal("go")
        await env.advance(60)
        await handle.resume()
        await env.settle()
        ended = (await handle.describe()).status, (await env.engine.handle("child").describe()).status
    assert set(ended) == {Status.COMPLETED if how == "ok" else Status.FAILED}


async def test_resume_needs_no_worker():
    """It returns at once; the next worker goes on."""
    registry, clock = Registry(), ManualClock()

    @registry.workflow
    async def work(ctx: Context) -> str:
        return await ctx.listen("word", type=str)

    store = MemoryStore(clock, lease=10_000)
    async with Environment(store=store, registry=registry, clock=clock, worker=False) as client:
        handle = await client.engine.start(work)
        await handle.pause()
        await asyncio.wait_for(handle.resume(), HANGS)
        await handle.signal("word", "resumed")
        assert (await handle.describe()).status is Status.RUNNING
        async with Environment(store=store, registry=registry, clock=clock) as env:
            assert await env.finish(handle.result()) == "resumed"
