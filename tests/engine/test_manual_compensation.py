"""Compensating a saga step by hand, through a handle."""

import asyncio

import pytest

from resurgam import Context, Registry, RetryPolicy, activity, errors
from resurgam.testing import Environment
from support.engines import ONCE, TWICE, Engines


async def test_a_compensation_that_failed_can_be_started_again(engines: Engines) -> None:
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

    async with engines.open(registry) as env:
        handle = await env.start(trip)
        with pytest.raises(errors.WorkflowFailed):
            await env.finish(handle.result())
        with pytest.raises(errors.WorkflowFailed):
            await env.finish((await handle.compensate("{1}")).result())
        broken.clear()
        await env.advance(1)
        await env.finish((await handle.compensate("{1}")).result())


async def test_a_compensation_has_the_idempotency_key_of_the_sagas_own(engines: Engines) -> None:
    """In a saga that was retried, the key is that of the last attempt."""
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

    async with engines.open(registry) as env:
        handle = await env.start(trip)
        with pytest.raises(errors.WorkflowFailed):
            await env.finish(handle.result())
        broken.clear()
        await env.finish((await handle.compensate("{1}")).result())
    assert keys[0] != keys[1]
    assert keys[2] == keys[1]


async def test_each_compensation_has_an_execution_id_of_its_own(engines: Engines) -> None:

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

    async with engines.open(registry) as env:
        handle = await env.start(trip)
        with pytest.raises(errors.WorkflowFailed):
            await env.finish(handle.result())
        broken.clear()
        await env.finish((await handle.compensate("{1}")).result())
    assert len(set(ids)) == 2


async def test_a_compensation_follows_the_retry_policy_of_its_activity(engines: Engines) -> None:

    registry, ran = Registry(), []

    @registry.activity
    async def book() -> str:
        return "b"

    @registry.activity(retry=ONCE)
    async def unbook(number: str) -> None:
        ran.append(number)
        raise ValueError("cannot")

    @registry.workflow
    async def trip(ctx: Context) -> None:
        async with ctx.saga() as saga:
            await saga.step(book, undo=unbook)
            raise LookupError("full")

    async with engines.open(registry) as env:
        handle = await env.start(trip)
        with pytest.raises(errors.WorkflowFailed):
            await env.finish(handle.result())
        with pytest.raises(errors.WorkflowFailed):
            await env.finish((await handle.compensate("{1}")).result())
    assert len(ran) == 2


async def test_a_step_that_was_compensated_is_run_again_by_a_retry(engines: Engines) -> None:

    registry, booked, fails = Registry(), [0], [True]

    @registry.activity
    async def book() -> str:
        booked[0] += 1
        return "b"

    @registry.activity
    async def unbook(number: str) -> None:
        booked[0] -= 1

    @registry.workflow
    async def trip(ctx: Context) -> None:
        async with ctx.saga() as saga:
            await saga.step(book, undo=unbook)
        if fails:
            raise LookupError("after the saga")

    async with engines.open(registry) as env:
        handle = await env.start(trip)
        await env.finish((await handle.compensate("{1}")).result())
        assert booked == [0]
        fails.clear()
        await handle.retry()
        await env.finish(env.handle(handle.entity_id).result())
        assert booked == [1]


@pytest.mark.parametrize("end", ["terminate", "continue"])
async def test_a_step_that_was_not_compensated_is_shown(end):
    """The saga was cut off, and its step can be compensated by hand."""
    registry = Registry()

    @registry.activity
    async def book() -> str:
        return "b"

    @registry.activity
    async def unbook(booking: str) -> None: ...

    @registry.workflow
    async def trip(ctx: Context) -> str:
        if ctx.info.generation == 2:
            return "done"
        async with ctx.saga() as saga:
            await saga.step(book, undo=unbook)
            if end == "continue":
                ctx.continue_as_new()
            await ctx.listen("never")
        return "never"

    async with Environment(registry=registry) as env:
        handle = await env.start(trip, id="t")
        run = handle.run_id
        await env.advance(1)
        if end == "terminate":
            await handle.terminate()
        await env.advance(1)
        first = env.engine.handle("t", run)
        assert (await first.describe()).uncompensated


async def test_a_compensation_that_failed_is_shown_and_can_be_made_up_for(engines: Engines):
    """It has the idempotency key of the saga's own compensation; the other steps were compensated all the same."""
    registry = Registry()
    undone, broken = [], [True]

    @registry.activity
    async def book(what: str) -> str:
        return f"a {what}"

    @registry.activity(retry=RetryPolicy(max_attempts=2, initial_interval=1))
    async def undo(what: str) -> None:
        undone.append((what, registry.activity.info().idempotency_key))
        if what == "a flight" and broken:
            raise ConnectionError("no answer")

    @registry.activity(retry=RetryPolicy(max_attempts=1))
    async def fail() -> None:
        raise ValueError("sold out")

    @registry.workflow
    async def trip(ctx: Context) -> None:
        async with ctx.saga() as saga:
            await asyncio.gather(*[saga.step(book, what, undo=undo) for what in ("flight", "hotel")])
            await saga.step(fail)

    async with engines.open(registry) as env:
        handle = await env.start(trip)
        with pytest.raises(errors.WorkflowFailed, match="sold out"):
            await env.finish(handle.result())
        assert [what for what, _ in undone] == ["a hotel", "a flight", "a flight"]
        [left] = (await handle.describe()).uncompensated
        place = left.rsplit("(", 1)[1].strip("')")
        broken.clear()
        by_hand = await handle.compensate(place)
        await env.finish(by_hand.result())
        assert undone[-1] == undone[1]
        assert (await handle.describe()).uncompensated == ()
        with pytest.raises(errors.AlreadyExists, match="is already compensated"):
            await handle.compensate(place)
        with pytest.raises(errors.NotFound, match=r"no saga step at \{9\}"):
            await handle.compensate("{9}")


async def test_a_step_that_a_termination_interrupts_is_listed_if_its_effect_is_unknown(engines: Engines) -> None:
    """It may have booked something; one without ``undo_on_unknown`` counts as not done."""
    registry, booking, undone = Registry(), asyncio.Event(), list[str | None]()

    @registry.activity
    async def book(what: str) -> str:
        await booking.wait()
        return what

    @registry.activity
    async def undo(what: str | None) -> None:
        undone.append(what)

    @registry.workflow
    async def trip(ctx: Context) -> None:
        async with ctx.saga() as saga:
            flight = saga.step(book, "flight", undo=undo, undo_on_unknown=True)
            await asyncio.gather(flight, saga.step(book, "hotel", undo=undo))

    async with engines.open(registry) as env:
        handle = await env.start(trip)
        await env.settle()
        await handle.terminate("enough")
        [left] = (await handle.describe()).uncompensated
        assert left == "saga step 'book' at {1}: handle.compensate('{1}')"
        await env.finish((await handle.compensate("{1}")).result())
        assert undone == [None]
        assert (await handle.describe()).uncompensated == ()
        booking.set()
