"""Findings of a review, of retries, ends and pauses: each test is named after what was wrong."""

import asyncio

import pytest

from resurgam import Context, Registry, Status, activity, errors
from resurgam.core import event as events
from resurgam.store.memory.store import MemoryStore
from resurgam.store.records import Commit, Delivery
from resurgam.testing import Environment, ManualClock
from support.engines import Interposed
from support.environments import ONCE, TWICE, world


async def test_a_query_before_the_first_commit_gives_a_wrong_promise_id() -> None:
    """It is answered by a replay that has not got the store's secret, and asks for what is not recorded yet."""
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


async def test_a_pause_is_forgotten_by_a_strict_refusal() -> None:
    """The execution that is built anew does not know that it is paused."""
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


async def test_an_answer_that_lies_unread_when_an_attempt_fails_is_neither_recorded_nor_carried(
    url: str, cache: int
) -> None:
    """It came after the signal that made the code fail: it stays in the inbox of the attempt that has ended, for ever."""
    registry, ran = Registry(), []
    gate = asyncio.Event()

    @registry.activity
    async def work() -> str:
        ran.append("work")
        await gate.wait()
        return "done"

    @registry.workflow(retry=TWICE)
    async def entity(ctx: Context) -> str:
        call = ctx.activity(work)
        if ctx.info.attempt == 1:
            await ctx.listen("go")
            raise LookupError("once")
        return await call

    async with world(url, cache, registry) as env:
        handle = await env.start(entity)
        await handle.pause()
        await env.settle()
        await handle.signal("go")
        gate.set()
        await env.advance(1)
        await handle.resume()
        await env.finish(handle.result())
        first = (await env.engine.store.transfer.copies(handle.entity_id))[0]
        assert not first.inbox
        assert first.instance.deactivated
    assert ran == ["work"]


async def test_an_answer_that_lies_unread_at_continue_as_new_keeps_the_old_execution_from_being_deactivated(
    url: str, cache: int
) -> None:
    """Recording is unconditional; deactivated is what is terminal and has no work outstanding."""
    registry = Registry()
    gate = asyncio.Event()

    @registry.activity
    async def work() -> str:
        await gate.wait()
        return "done"

    @registry.workflow
    async def entity(ctx: Context, generation: int) -> str:
        if generation == 2:
            return "done"
        call = ctx.activity(work)
        await ctx.listen("go")
        ctx.continue_as_new(2)
        return await call

    async with world(url, cache, registry) as env:
        handle = await env.start(entity, 1)
        await handle.pause()
        await env.settle()
        await handle.signal("go")
        gate.set()
        await env.advance(1)
        await handle.resume()
        await env.finish(handle.result())
        await env.advance(60)
        first = (await env.engine.store.transfer.copies(handle.entity_id))[0]
        assert "activity_completed" in [entry.type for entry in first.log]
        assert not first.inbox
        assert first.instance.deactivated


async def test_signals_that_were_dropped_stay_in_the_inbox_for_ever(url: str, cache: int) -> None:
    registry = Registry()

    @registry.workflow
    async def entity(ctx: Context, generation: int) -> str:
        if generation == 2:
            return "done"
        await ctx.listen("go")
        ctx.continue_as_new(2, signals="drop")
        return ""

    async with world(url, cache, registry) as env:
        handle = await env.start(entity, 1)
        await handle.pause()
        for _ in range(3):
            await handle.signal("go")
        await handle.resume()
        await env.finish(handle.result())
        await env.advance(60)
        first = (await env.engine.store.transfer.copies(handle.entity_id))[0]
        assert not first.inbox


async def test_a_child_that_a_retry_takes_up_has_another_run_id_than_its_future_says(url: str, cache: int) -> None:
    """`run_id` of the future, and of `child_scheduled`, is of a run that never was."""
    registry = Registry()

    @registry.workflow
    async def child(ctx: Context) -> str:
        await ctx.sleep(60)
        return ctx.info.run_id

    @registry.workflow(retry=TWICE)
    async def parent(ctx: Context) -> list[str]:
        call = ctx.workflow(child)
        await call.started
        if ctx.info.attempt == 1:
            raise LookupError("once")
        return [call.run_id, await call]

    async with world(url, cache, registry) as env:
        handle = await env.start(parent)
        said, real = await env.finish(handle.result())
        assert said == real


async def test_a_compensation_by_hand_has_the_execution_id_of_the_one_that_failed(url: str) -> None:
    """Execution ids are one per attempt."""
    registry, ids, broken = Registry(), [], [True]

    @registry.activity
    async def book() -> str:
        return "b"

    @registry.activity(retry=ONCE)
    async def unbook(number: str) -> None:
        ids.append(activity.info().execution_id)
        if broken:
            raise ValueError("cannot")

    @registry.workflow
    async def trip(ctx: Context) -> None:
        async with ctx.saga() as saga:
            await saga.step(book, undo=unbook)
            raise LookupError("full")

    async with world(url, 1000, registry) as env:
        handle = await env.start(trip)
        with pytest.raises(errors.WorkflowFailed):
            await env.finish(handle.result())
        broken.clear()
        await env.finish((await handle.compensate("{1}")).result())
    assert len(set(ids)) == 2


async def test_a_signal_with_another_value_is_lost_if_an_earlier_attempt_sent_one_from_the_same_place(
    url: str, cache: int
) -> None:
    """Its id is of its place only, so the target takes it for a double; the sender is told that it is delivered."""
    registry = Registry()

    @registry.workflow
    async def target(ctx: Context) -> list[int]:
        heard: list[int] = []
        while 2 not in heard:
            heard.append(await ctx.listen("n", type=int, timeout=600))
        return heard

    @registry.workflow(retry=TWICE)
    async def sender(ctx: Context) -> None:
        await ctx.signal("t", "n", ctx.info.attempt)
        if ctx.info.attempt == 1:
            raise LookupError("once")

    async with world(url, cache, registry) as env:
        receiving = await env.start(target, id="t")
        await env.finish((await env.start(sender)).result())
        assert await env.finish(receiving.result()) == [1, 2]


@pytest.mark.parametrize("how", ["cancel", "terminate", "complete"])
async def test_a_saga_of_a_handler_is_left_half_done_and_out_of_sight_when_the_workflow_ends(
    url: str, cache: int, how: str
) -> None:
    """What it did is neither taken back nor told of: describe says that nothing is left to be seen to."""
    registry, booked = Registry(), []

    @registry.activity
    async def book() -> str:
        booked.append("b")
        return "b"

    @registry.activity
    async def unbook(number: str) -> None:
        booked.remove(number)

    @registry.workflow
    async def entity(ctx: Context) -> None:
        @ctx.on_signal("trip")
        async def trip() -> None:
            async with ctx.saga() as saga:
                await saga.step(book, undo=unbook)
                await ctx.sleep(3600)

        await ctx.listen("end")

    async with world(url, cache, registry) as env:
        handle = await env.start(entity)
        await handle.signal("trip")
        await env.advance(1)
        assert booked
        if how == "complete":
            await handle.signal("end")
        else:
            await getattr(handle, how)()
        await env.advance(7200)
        assert not booked or (await handle.describe()).uncompensated


async def test_children_stay_paused_for_ever_when_their_paused_root_is_terminated(url: str, cache: int) -> None:
    """They are asked to stop, as their close policy says, and never come to hear of it."""
    registry = Registry()

    @registry.workflow
    async def child(ctx: Context) -> None:
        await ctx.sleep(10**6)

    @registry.workflow
    async def parent(ctx: Context) -> None:
        await ctx.workflow(child, id="kid")

    async with world(url, cache, registry) as env:
        handle = await env.start(parent)
        await handle.pause(tree=True)
        await env.settle()
        await handle.terminate()
        await env.advance(60)
        assert (await env.handle("kid").describe()).status is Status.CANCELLED


async def test_a_child_that_completed_while_held_answers_another_input(url: str, cache: int) -> None:
    """The child of the attempt before completes between the attempts; the call has other input, and gets its result."""
    registry = Registry()

    @registry.workflow
    async def child(ctx: Context, number: int) -> int:
        await ctx.sleep(5)
        return number

    @registry.workflow(retry=TWICE)
    async def parent(ctx: Context) -> int:
        call = ctx.workflow(child, ctx.info.attempt)
        if ctx.info.attempt == 1:
            await call.started
            raise LookupError("once")
        return await call

    async with world(url, cache, registry) as env:
        handle = await env.start(parent)
        assert await env.finish(handle.result()) == 2


async def test_a_strict_commit_never_gets_through_while_signals_keep_coming() -> None:
    """Anything in the inbox refuses it, though only the settlement of that very promise matters; each time it replays."""
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
