"""Findings of a review of the whole vocabulary: each test is named after what was wrong."""

import asyncio

import pytest

from resurgam import Break, Context, Continue, Registry, RetryPolicy, Status, activity, errors
from resurgam.core import event as events
from resurgam.store.memory.store import MemoryStore
from resurgam.store.protocol import PROMISES_KEPT
from resurgam.store.records import Commit, Delivery
from resurgam.testing import Environment, ManualClock
from support.engines import Interposed
from support.environments import ONCE, TWICE, world

# A strict commit that is refused: the execution is built anew, and what only the old one held is gone.


async def test_an_operation_that_is_done_runs_again_after_a_strict_refusal() -> None:
    """Its answer was left over from the advance before, in the execution that is thrown away."""
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


async def test_an_update_that_waits_for_its_handler_is_forgotten_after_a_strict_refusal() -> None:
    """It lies in the inbox, but nobody tells it to the execution that is built anew."""
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


async def test_a_child_under_way_with_other_input_is_taken_for_the_one_that_is_asked_for(url: str, cache: int) -> None:
    """Reused is what has the same location, name *and input*."""
    registry = Registry()

    @registry.workflow
    async def child(ctx: Context, number: int) -> int:
        await ctx.sleep(60)
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
        try:
            assert await env.finish(handle.result()) == 2
        except errors.WorkflowFailed as refused:  # a clear refusal would do as well
            assert isinstance(refused.__cause__, errors.ChildWorkflowFailed)  # noqa: PT017


async def test_a_detached_child_that_has_ended_is_begun_again_by_a_retry(url: str, cache: int) -> None:
    registry, ran = Registry(), []

    @registry.workflow
    async def child(ctx: Context) -> None:
        await ctx.run(lambda: ran.append("child"), name="effect")

    @registry.workflow(retry=TWICE)
    async def parent(ctx: Context) -> None:
        await ctx.workflow(child, detach=True).started
        await ctx.sleep(1)
        if ctx.info.attempt == 1:
            raise LookupError("once")

    async with world(url, cache, registry) as env:
        handle = await env.start(parent)
        await env.finish(handle.result())
    assert ran == ["child"]


async def test_a_retry_is_told_that_its_own_settlement_was_not_the_first(url: str, cache: int) -> None:
    """The settlement of attempt 1 was the first; attempt 2 settles again and is told that it was not."""
    registry = Registry()

    @registry.workflow
    async def waits(ctx: Context) -> str:
        promise = ctx.promise("p", type=str)
        ctx.set("id", promise.promise_id)
        value = await promise
        await ctx.listen("end")
        return value

    @registry.workflow(retry=TWICE)
    async def settles(ctx: Context, promise_id: str) -> bool:
        first = await ctx.resolve(promise_id, "x")
        if ctx.info.attempt == 1:
            raise LookupError("once")
        return first

    async with world(url, cache, registry) as env:
        waiting = await env.start(waits)
        handle = await env.start(settles, await waiting.state("id"))
        assert await env.finish(handle.result()) is True


# Updates.


async def test_an_update_repeated_after_continue_as_new_cut_it_off_hangs(url: str, cache: int) -> None:
    """Its handler was at work when the workflow continued: the id counts as had, so nobody ever answers it."""
    registry = Registry()

    @registry.workflow
    async def entity(ctx: Context, generation: int) -> None:
        @ctx.on_update("slow")
        async def slow() -> int:
            if generation == 1:
                await ctx.sleep(3600)
            return generation

        await ctx.listen("next")
        if generation == 1:
            ctx.continue_as_new(2)

    async with world(url, cache, registry) as env:
        handle = await env.start(entity, 1)
        first = asyncio.ensure_future(handle.update("slow", id="u"))
        await env.settle()
        await handle.signal("next")
        await env.settle()
        with pytest.raises(errors.NotFound):
            await first
        again = asyncio.ensure_future(handle.update("slow", id="u"))
        await env.advance(60)
        try:
            assert again.done(), "neither run nor refused"
        finally:
            again.cancel()
            await asyncio.gather(again, return_exceptions=True)


async def test_refused_updates_stay_in_the_history_of_a_loop_for_ever(url: str, cache: int) -> None:
    """The history of a loop that runs for ever stays bounded."""
    registry = Registry()

    @registry.workflow
    async def entity(ctx: Context) -> None:
        def never(number: int) -> None:
            raise ValueError("no")

        @ctx.on_update("set", validator=never)
        def set_(number: int) -> None:
            ctx.set("number", number)

        async def body(ctx: Context, n: int) -> Continue[int]:
            await ctx.listen("tick")
            return Continue(n + 1)

        await ctx.loop(body, 0, forget_every=1)

    async with world(url, cache, registry) as env:
        handle = await env.start(entity)
        lengths = []
        for number in range(12):
            with pytest.raises(errors.UpdateRejected):
                await handle.update("set", number)
            await handle.signal("tick")
            await env.settle()
            lengths.append(len(await handle.history()))
        assert lengths[-1] <= lengths[2] + 1, lengths


# Promises.


async def test_promises_that_were_resolved_are_kept_for_ever(url: str) -> None:
    """Only those that time out or are called off make room; PROMISES_KEPT is for all."""
    registry = Registry()

    @registry.workflow
    async def entity(ctx: Context) -> None:
        async def body(ctx: Context, n: int) -> Continue[int] | Break[None]:
            await ctx.promise(f"p{n}")
            return Continue(n + 1)

        await ctx.loop(body, 0, forget_every=20)

    async with world(url, 1000, registry) as env:
        handle = await env.start(entity)
        for number in range(PROMISES_KEPT + 40):
            await handle.resolve(f"p{number}")
            await env.settle()
        [copy] = await env.engine.store.transfer.copies(handle.entity_id)
        assert len(copy.promises) <= PROMISES_KEPT + 2


# Sagas.


async def test_a_compensation_by_hand_that_failed_cannot_be_begun_again(url: str, cache: int) -> None:
    """The second call returns the handle of the first, which has failed, and does nothing."""
    registry, broken = Registry(), [True]

    @registry.activity
    async def book() -> str:
        return "b"

    @registry.activity(retry=ONCE)
    async def unbook(number: str) -> None:
        if broken:
            raise ValueError("cannot")

    @registry.workflow
    async def trip(ctx: Context) -> None:
        async with ctx.saga() as saga:
            await saga.step(book, undo=unbook)
            raise LookupError("full")

    async with world(url, cache, registry) as env:
        handle = await env.start(trip)
        with pytest.raises(errors.WorkflowFailed):
            await env.finish(handle.result())
        with pytest.raises(errors.WorkflowFailed):
            await env.finish((await handle.compensate("{1}")).result())
        broken.clear()
        await env.advance(1)
        await env.finish((await handle.compensate("{1}")).result())


async def test_a_compensation_by_hand_of_a_retried_saga_has_the_key_of_another(url: str, cache: int) -> None:
    """It has the idempotency key that the saga's own compensation has; here it has that of the attempt before."""
    registry, keys, broken = Registry(), [], []

    @registry.activity
    async def book() -> str:
        return "b"

    @registry.activity(retry=ONCE)
    async def unbook(number: str) -> None:
        keys.append(activity.info().idempotency_key)
        if broken:
            raise ValueError("cannot")

    @registry.workflow(retry=TWICE)
    async def trip(ctx: Context) -> None:
        if ctx.info.attempt == 2:
            broken.append(True)
        async with ctx.saga() as saga:
            await saga.step(book, undo=unbook)
            raise LookupError("full")

    async with world(url, cache, registry) as env:
        handle = await env.start(trip)
        with pytest.raises(errors.WorkflowFailed):
            await env.finish(handle.result())
        broken.clear()
        await env.finish((await handle.compensate("{1}")).result())
    assert keys[0] != keys[1]
    assert keys[2] == keys[1]


# Ends.


async def test_children_of_an_earlier_attempt_live_on_when_the_next_fails_by_divergence() -> None:
    """Closing tells children that this attempt has begun, and not those that it found."""
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
    other.workflow(name="child")(child.function)

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


# Handlers beside loops.


async def test_a_handler_registered_in_a_forgotten_iteration_is_gone_after_a_replay(url: str, cache: int) -> None:
    """Hot it answers, cold it does not: it should be refused, as other things that a body shares are."""
    registry = Registry()

    @registry.workflow
    async def entity(ctx: Context) -> None:
        async def body(ctx: Context, n: int) -> Continue[int]:
            if n == 0:

                @ctx.on_update("ping")
                def ping() -> str:
                    return "pong"

            await ctx.listen("tick")
            return Continue(n + 1)

        await ctx.loop(body, 0, forget_every=1)

    async with world(url, cache, registry) as env:
        handle = await env.start(entity)
        for _ in range(3):
            if (await handle.describe()).status is Status.FAILED:
                return  # refused: it is fine
            await handle.signal("tick")
            await env.settle()
        again = asyncio.ensure_future(handle.update("ping"))
        await env.advance(5)
        try:
            assert again.done()
        finally:
            again.cancel()
            await asyncio.gather(again, return_exceptions=True)


# More of strict refusals.


async def test_the_operation_whose_answer_led_to_a_refused_commit_runs_again() -> None:
    """A race of a promise and an operation: the operation wins, and the settlement that came meanwhile is news."""
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


# Cancellation.


@pytest.mark.parametrize("how", ["cancel", "timeout"])
async def test_a_cancel_that_comes_while_a_saga_compensates_is_lost(url: str, cache: int, how: str) -> None:
    """The compensation is rightly not called off; but afterwards the workflow goes on as if nobody had asked."""
    registry = Registry()

    @registry.activity
    async def book() -> str:
        return "b"

    @registry.activity(retry=RetryPolicy(max_attempts=2, initial_interval=60, jitter=0))
    async def unbook(number: str) -> None:
        if activity.info().attempt == 1:
            raise ValueError("try again")

    @registry.workflow(timeout=30 if how == "timeout" else None)
    async def trip(ctx: Context) -> str:
        try:
            async with ctx.saga() as saga:
                await saga.step(book, undo=unbook)
                raise LookupError("full")
        except LookupError:
            await ctx.sleep(86400)
        return "went on"

    async with world(url, cache, registry) as env:
        handle = await env.start(trip)
        await env.advance(10)
        if how == "cancel":
            await handle.cancel()
        await env.advance(3600)
        assert (await handle.describe()).status in (Status.CANCELLED, Status.FAILED)
