"""Commits that must not overlook an answer in the inbox: they are refused, and the execution is rebuilt."""

import asyncio

import pytest

from resurgam import Context, Registry, Status, errors
from resurgam.core import event as events
from resurgam.store.memory.store import MemoryStore
from resurgam.store.records import Commit, Delivery
from resurgam.testing import Environment, ManualClock
from support.engines import Interposed


async def test_a_completed_operation_is_not_run_again() -> None:
    """Its answer was in hand when the commit was refused, and is kept for the rebuilt execution."""
    registry, ran = Registry(), []
    clock = ManualClock()
    store = MemoryStore(clock)
    told: list[str] = []

    async def before(part: Commit) -> None:
        if part.outcome.strict and not told:
            told.append(part.execution_id)
            signal = events.SignalReceived(at=clock.now(), name="any", id="1")
            await store.deliver([Delivery(event=signal, entity_id="x")])

    @registry.workflow
    async def both(ctx: Context) -> None:
        promise = ctx.promise("p")

        async def one() -> None:
            await ctx.run(lambda: ran.append("a"), name="a")
            await ctx.run(lambda: ran.append("c"), name="c")
            promise.cancel()

        async def two() -> None:
            await ctx.run(lambda: ran.append("b"), name="b")

        await asyncio.gather(one(), two())

    async with Environment(store=Interposed(store, before), registry=registry, clock=clock) as env:  # type: ignore[arg-type]
        handle = await env.start(both, id="x")
        await env.finish(handle.result())
    assert told
    assert sorted(ran) == ["a", "b", "c"]


async def test_an_update_that_waits_for_its_handler_is_answered() -> None:
    """It is in the inbox, and the rebuilt execution receives it."""
    registry = Registry()
    clock = ManualClock()
    store = MemoryStore(clock)
    told: list[str] = []

    async def before(part: Commit) -> None:
        if part.outcome.strict and not told:
            told.append(part.execution_id)
            signal = events.SignalReceived(at=clock.now(), name="any", id="1")
            await store.deliver([Delivery(event=signal, entity_id="x")])

    @registry.workflow
    async def late(ctx: Context) -> None:
        promise = ctx.promise("p")
        await ctx.listen("go")
        await ctx.run(lambda: None, name="a")
        promise.cancel()

        @ctx.on_update("add")
        def add(number: int) -> int:
            return number + 1

        await ctx.listen("end")

    async with Environment(store=Interposed(store, before), registry=registry, clock=clock) as env:  # type: ignore[arg-type]
        handle = await env.start(late, id="x")
        updating = asyncio.ensure_future(handle.update("add", 1))
        await env.settle()
        await handle.signal("go")
        await env.settle()
        assert told
        try:
            assert updating.done()
        finally:
            updating.cancel()
            await asyncio.gather(updating, return_exceptions=True)


async def test_the_operation_whose_answer_led_to_the_refused_commit_is_not_run_again() -> None:
    """A promise races an operation: the operation wins, and the settlement arrives meanwhile."""
    registry, ran = Registry(), []
    clock = ManualClock()
    store = MemoryStore(clock)
    told: list[str] = []

    async def before(part: Commit) -> None:
        if part.outcome.strict and not told:
            told.append(part.execution_id)
            resolved = events.PromiseResolved(ref=0, at=clock.now())
            await store.deliver([Delivery(event=resolved, entity_id="x", promise="p")])

    @registry.workflow
    async def racing(ctx: Context) -> None:
        await ctx.race(ctx.promise("p"), ctx.run(lambda: ran.append("a"), name="a"))

    async with Environment(store=Interposed(store, before), registry=registry, clock=clock) as env:  # type: ignore[arg-type]
        handle = await env.start(racing, id="x")
        await env.finish(handle.result())
    assert told
    assert ran == ["a"]


async def test_a_paused_run_stays_paused() -> None:
    """The rebuilt execution knows that it is paused."""
    registry, ran = Registry(), []
    clock = ManualClock()
    store = MemoryStore(clock)
    told: list[str] = []
    gate = asyncio.Event()

    async def before(part: Commit) -> None:
        if part.outcome.strict and not told:
            told.append(part.execution_id)
            signal = events.SignalReceived(at=clock.now(), name="any", id="1")
            await store.deliver([Delivery(event=signal, entity_id="x")])

    async def work() -> None:
        await gate.wait()

    @registry.workflow
    async def halted(ctx: Context) -> None:
        promise = ctx.promise("p")
        await ctx.run(work)
        promise.cancel()
        await ctx.run(lambda: ran.append("next"), name="next")

    async with Environment(store=Interposed(store, before), registry=registry, clock=clock) as env:  # type: ignore[arg-type]
        handle = await env.start(halted, id="x")
        await handle.pause()
        await env.settle()
        gate.set()
        await env.advance(1)
        assert not ran
        assert (await handle.describe()).status is Status.PAUSED


async def test_signals_do_not_keep_a_strict_commit_from_getting_through() -> None:
    """Only the settlement of the very promise matters to it."""
    registry = Registry()
    clock = ManualClock()
    store = MemoryStore(clock)
    refused: list[int] = []

    async def before(part: Commit) -> None:
        if part.outcome.strict and len(refused) < 30:
            refused.append(part.base_seq)
            signal = events.SignalReceived(at=clock.now(), name="any", id=str(len(refused)))
            await store.deliver([Delivery(event=signal, entity_id="x")])

    @registry.workflow
    async def waits(ctx: Context) -> None:
        with pytest.raises(errors.PromiseTimeout):
            await ctx.promise("p", timeout=5)

    async with Environment(store=Interposed(store, before), registry=registry, clock=clock) as env:  # type: ignore[arg-type]
        handle = await env.start(waits, id="x")
        await env.finish(handle.result())
    assert len(refused) < 5
