"""Queries, which are answered in whatever state a run is, and leave no trace."""

import asyncio
from typing import Any

from resurgam.core import errors
from resurgam.core.state import Status
from resurgam.engine import Engine
from resurgam.runtime.context.context import Context
from resurgam.runtime.context.durable_loop import Break, Continue
from resurgam.runtime.registry import Registry
from resurgam.store.memory.store import MemoryStore
from resurgam.testing import Environment, ManualClock
from resurgam.testing.contract.bench import raises
from support.engines import Engines


def counter() -> Registry:
    """Return the code of a workflow that counts what it hears, and can be asked about it."""
    registry = Registry()

    @registry.workflow
    async def count(ctx: Context, first: int) -> int:
        total = first

        @ctx.on_query("total")
        def answer(times: int = 1) -> int:
            return total * times

        @ctx.on_query("raise")
        def fail() -> None:
            raise LookupError("no such thing")

        @ctx.on_query("act")
        def act() -> None:
            ctx.sleep(1)

        @ctx.on_query("wait")
        async def wait() -> None:
            await asyncio.sleep(0)

        @ctx.on_query("large")
        def large() -> str:
            return "x" * 2000

        @ctx.on_query("odd")
        def odd() -> Any:
            return object()

        ctx.set("first", first)
        while (number := await ctx.listen("add", type=int)) > 0:
            total += number
        if number < 0:
            raise ValueError("told to fail")
        return total

    return registry


async def test_a_query_is_answered_in_every_state(engines: Engines) -> None:
    """Scheduled, running, paused, completed, failed, terminated: from what is committed, and without a trace."""
    async with engines.open(counter()) as env:
        handle = await env.start("count", 1, id="a")
        await handle.signal("add", 2)
        await env.settle()
        before = await handle.history()
        assert await handle.query("total") == 3
        assert await handle.query("total", 2) == 6
        await handle.pause()
        await handle.signal("add", 4)
        await env.settle()
        assert await handle.query("total") == 3
        await handle.resume()
        await env.settle()
        assert await handle.query("total") == 7
        await handle.signal("add", 0)
        assert await env.finish(handle.result()) == 7
        after = await handle.history()
        assert await handle.query("total") == 7
        assert await handle.history() == after
        assert after[: len(before)] == before
        failed, ended, later = [await env.start("count", 5, delay=delay) for delay in (None, None, 60)]
        await failed.signal("add", -1)
        await ended.terminate("enough")
        await env.settle()
        assert (await failed.describe()).status is Status.FAILED
        assert (await failed.query("total"), await ended.query("total")) == (5, 5)
        with raises(errors.NotFound, "'total'"):
            await later.query("total")
        await env.advance(61)
        assert await later.query("total") == 5


async def test_a_query_needs_a_handler(engines: Engines) -> None:
    """An unknown name says which there are, wrong arguments what it takes; what it raises is raised."""
    async with engines.open(counter(), max_payload=1000) as env:
        handle = await env.start("count", 1)
        length = len(await handle.history())
        with raises(errors.NotFound, "'unknown'") as caught:
            await handle.query("unknown")
        for name in ("total", "raise", "act", "wait"):
            assert f"'{name}'" in str(caught[0])
        with raises(LookupError, "no such thing"):
            await handle.query("raise")
        with raises(errors.NotDeterministic, "a durable call (Timer) inside the handler of query 'act'"):
            await handle.query("act")
        with raises(errors.DefinitionError, "the handler of query 'wait' must be a plain function, got an async one"):
            await handle.query("wait")
        with raises(errors.PayloadTooLarge, "2,002 bytes exceed the limit of 1,000"):
            await handle.query("large")
        with raises(errors.SerializationError, "answer to query 'odd'"):
            await handle.query("odd")
        with raises(errors.SerializationError, "'times'"):
            await handle.query("total", "twice")
        with raises(errors.DefinitionError, "query 'total'"):
            await handle.query("total", 1, 2)
        with raises(errors.SerializationError):
            await handle.query("total", object())
        await env.settle()
        assert len(await handle.history()) == length
        assert (await handle.describe()).status is Status.RUNNING


async def test_a_query_needs_no_worker_where_the_code_is(engines: Engines) -> None:
    """A pure client that knows the workflow replays what is committed; no worker is needed."""
    async with engines.client(counter()) as (store, clock, client):
        handle = await client.start("count", 1)
        assert await handle.query("total") == 1
        async with engines.serve(store, clock, counter()) as env:
            await env.settle()
            await handle.signal("add", 2)
            await env.settle()
        await handle.signal("add", 4)
        assert await handle.query("total") == 3
        assert await handle.state("first") == 1


async def test_a_query_is_answered_by_a_worker_where_the_code_is_not(engines: Engines) -> None:
    """Through the store, by a worker of the queue; an error there is raised here."""
    async with engines.client(Registry()) as (store, clock, client):
        handle = await client.start("count", 1)
        with raises(errors.ResultTimeout, "no worker of queue 'default'"):
            waiting = asyncio.ensure_future(handle.query("total", timeout=5))
            await asyncio.sleep(0)
            while not waiting.done():
                clock.move_to(clock.now() + 1000)
                await asyncio.sleep(0)
            await waiting
        async with engines.serve(store, clock, counter()) as env:
            await env.settle()
            length = len(await handle.history())
            assert await env.finish(handle.query("total", 3)) == 3
            with raises(errors.NotFound, "'total'"):
                await env.finish(handle.query("unknown"))
            with raises(LookupError, "no such thing"):
                await env.finish(handle.query("raise"))
            with raises(errors.NotDeterministic, "query 'act'"):
                await env.finish(handle.query("act"))
            with raises(errors.DefinitionError, "got an async one"):
                await env.finish(handle.query("wait"))
            assert len(await handle.history()) == length
            await handle.signal("add", 0)
            await env.finish(handle.result())
            assert await env.finish(handle.query("total")) == 1


async def test_a_query_of_a_parked_run_is_answered_by_code_that_fits(engines: Engines) -> None:
    """Other code says that it does not fit; the run stays as it is."""

    def deployed(seconds: int, *, more: bool) -> Registry:
        registry = Registry()

        @registry.workflow
        async def changed(ctx: Context) -> None:
            @ctx.on_query("told")
            def told() -> int:
                return seconds

            if more:
                ctx.promise("new")
            await ctx.sleep(60)
            await ctx.listen("x")

        return registry

    old, new = deployed(1, more=False), deployed(2, more=True)
    async with engines.client(old) as (store, clock, client):
        handle = await client.start("changed")
        async with engines.serve(store, clock, old) as env:
            await env.settle()
        await handle.signal("y")
        async with (
            engines.serve(store, clock, new) as env,
            Engine(store, registry=new, clock=clock, worker=False) as other,
        ):
            await env.settle()
            assert (await handle.describe()).status is Status.DIVERGED
            assert await handle.query("told") == 1
            with raises(errors.StoreError, "does not fit"):
                await other.handle(handle.entity_id).query("told")
            assert (await handle.describe()).status is Status.DIVERGED


async def test_a_query_is_answered_beside_loops_that_have_forgotten(engines: Engines) -> None:
    """From what the loop keeps in the durable state, though its bodies are not run again."""
    registry = Registry()

    @registry.workflow
    async def endless(ctx: Context) -> str:
        @ctx.on_query("done")
        def done() -> list[Any]:
            return [ctx.get("done"), ctx.get("nothing", "none")]

        async def body(ctx: Context, number: int) -> Continue[int] | Break[str]:
            await ctx.sleep(1)
            ctx.set("done", number)
            return Break("over") if number == 50 else Continue(number + 1)

        return await ctx.loop(body, 1, forget_every=5)

    async with engines.open(registry) as env:
        handle = await env.start(endless)
        for expected in (17, 34):
            await env.advance(17)
            length = (await handle.describe()).history_length
            assert await handle.query("done") == [expected, "none"]
            assert await handle.state("done") == expected
            assert (await handle.describe()).history_length == length
        assert await env.finish(handle.result()) == "over"
        assert await handle.query("done") == [50, "none"]
        assert await handle.state("done") == 50


async def test_a_query_before_the_first_commit_gives_the_promise_id_that_is_recorded_later() -> None:

    registry = Registry()

    @registry.workflow
    async def waits(ctx: Context) -> object:
        @ctx.on_query("id")
        def id_() -> str:
            return promise.promise_id

        promise = ctx.promise("p")
        return await promise

    clock = ManualClock()
    store = MemoryStore(clock)
    from resurgam import Engine

    async with Engine(store, registry=registry, clock=clock, worker=False) as engine:
        handle = await engine.start(waits, id="x")
        early = await handle.query("id")
    async with Environment(store=store, registry=registry, clock=clock) as env:
        await env.settle()
        assert await env.handle("x").query("id") == early
