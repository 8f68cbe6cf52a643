"""Promises, which are settled once from outside, and the races that they can be in."""

import asyncio
from typing import Any

import pytest

from resurgam import Break, Continue
from resurgam.core import errors
from resurgam.core import event as events
from resurgam.core.identity import route_of
from resurgam.core.retry import RetryPolicy
from resurgam.runtime.context.context import Context
from resurgam.runtime.registry import Registry
from resurgam.store import records as r
from resurgam.store.rules import PROMISES_KEPT
from resurgam.testing.contract.bench import raises
from support.engines import TWICE, Engines, Interposed, run, types_of, writes


def approval() -> Registry:
    """Return the code of a workflow that waits ten seconds for a promise, and says what became of it."""
    registry = Registry()

    @registry.workflow
    async def approve(ctx: Context) -> str:
        asked = ctx.promise("approval", type=str, timeout=10)
        ctx.set("id", asked.promise_id)
        try:
            return await asked
        except errors.PromiseTimeout:
            return "timeout"
        except errors.PromiseRejected as rejected:
            return f"rejected: {rejected.__cause__}"
        except asyncio.CancelledError:
            return "cancelled"

    return registry


async def test_a_promise_is_settled_by_its_id_or_its_name(engines: Engines) -> None:
    """With a value or an error; the first settlement counts, and each is told whether it was."""
    async with engines.open(approval()) as env:
        for how, expected in enumerate(("by id", "by name", "rejected: no", "rejected: a text")):
            handle = await env.start("approve")
            promise_id = await handle.state("id")
            await handle.pause()
            settled = (
                lambda: env.engine.resolve(promise_id, "by id"),
                lambda: handle.resolve("approval", "by name"),
                lambda: env.engine.reject(promise_id, ValueError("no")),
                lambda: handle.reject("approval", "a text"),
            )
            assert await settled[how]() is True
            assert await env.engine.resolve(promise_id, "second") is False
            assert await handle.resolve("approval", "third") is False
            assert await handle.reject("approval", "fourth") is False
            await handle.resume()
            assert await env.finish(handle.result()) == expected
            kinds = await types_of(handle)
            assert kinds.count("promise_resolved") + kinds.count("promise_rejected") == 1


async def test_a_promise_that_is_no_longer_open_is_not_settled(engines: Engines) -> None:
    """One that was settled or cancelled is told apart from one that never existed; an id cannot be guessed."""
    registry = Registry()

    @registry.workflow
    async def give_up(ctx: Context) -> None:
        first, second, third = (ctx.promise(name) for name in ("timed out", "cancelled", "settled"))
        ctx.set("ids", [first.promise_id, second.promise_id, third.promise_id])
        second.cancel()
        await third
        try:
            await ctx.promise("late", timeout=5)
        except errors.PromiseTimeout:
            await ctx.listen("close")

    async with engines.open(registry) as env:
        handle = await env.start(give_up)
        _, cancelled, settled = ids = await handle.state("ids")
        assert len(set(ids)) == 3
        assert await env.engine.resolve(settled, 1) is True
        await env.advance(6)
        for name, promise_id in (("cancelled", cancelled), ("settled", settled)):
            assert await env.engine.resolve(promise_id, 1) is False
            assert await handle.resolve(name, 1) is False
        assert await handle.resolve("late", 1) is False
        for guess in (cancelled[:-1] + ("0" if cancelled[-1] != "0" else "1"), "nonsense"):
            with raises(errors.NotFound, guess):
                await env.engine.resolve(guess, 1)
        with raises(errors.NotFound, "'nonsense'"):
            await handle.resolve("nonsense", 1)
        await handle.signal("close")
        await env.finish(handle.result())
        for promise_id in ids:
            assert await env.engine.resolve(promise_id, 1) is False
        for name in ("timed out", "cancelled", "settled", "late"):
            assert await handle.resolve(name, 1) is False


async def test_a_promise_can_be_settled_again_until_its_run_is_removed(engines: Engines) -> None:
    """The answer is False after the end of its workflow, and `NotFound` once the run is removed."""
    registry = Registry()

    @registry.workflow
    async def paying(ctx: Context) -> Any:
        payment = ctx.promise("pay")
        ctx.set("id", payment.promise_id)
        return await payment

    async with engines.open(registry) as env:
        handle = await env.start(paying)
        promise_id = await handle.state("id")
        assert await env.engine.resolve(promise_id, "paid") is True
        assert await env.finish(handle.result()) == "paid"
        for again in (
            env.engine.resolve(promise_id, 1),
            env.engine.reject(promise_id, "no"),
            handle.resolve("pay"),
        ):
            assert await again is False
        with raises(errors.NotFound, "has no promise 'nonsense'; it has 'pay'"):
            await handle.resolve("nonsense", 1)
        await env.advance(1)
        assert await env.engine.purge(before=env.now()) == 1
        with raises(errors.NotFound, "purged"):
            await env.engine.resolve(promise_id, 1)
        with raises(errors.NotFound, "no workflow"):
            await handle.resolve("pay", 1)


async def test_a_second_open_promise_of_a_name_is_refused(engines: Engines) -> None:
    """A name refers to one open promise; once it is settled, the name is free."""
    registry = Registry()

    @registry.workflow
    async def twice(ctx: Context) -> list[Any]:
        first = ctx.promise("p")
        ctx.promise("q").cancel()
        ctx.promise("q").cancel()
        try:
            ctx.promise("p")
        except errors.AlreadyExists as error:
            told = str(error)
        return [await first, await ctx.promise("p"), "'p'" in told]

    async with engines.open(registry) as env:
        handle = await env.start(twice)
        assert await handle.resolve("p", 1) is True
        await env.settle()
        assert await handle.resolve("p", 2) is True
        assert await env.finish(handle.result()) == [1, 2, True]


async def test_a_workflow_settles_promises(engines: Engines) -> None:
    """Its own, another's, one that is settled already, and one that does not exist."""
    registry = Registry()

    @registry.workflow
    async def waits(ctx: Context) -> Any:
        asked = ctx.promise("p")
        ctx.set("id", asked.promise_id)
        value = await asked
        await ctx.listen("close")
        return value

    @registry.workflow
    async def settles(ctx: Context, other: str) -> list[Any]:
        own = ctx.promise("own", type=int)
        told: list[Any] = [await ctx.resolve(own.promise_id, 5), await own]
        told += [await ctx.resolve(other, {"a": 1}), await ctx.resolve(other, 2)]
        try:
            await ctx.resolve("not created", 1)
        except errors.NotFound as error:
            told.append("'not created'" in str(error))
        return told

    async with engines.open(registry) as env:
        handle = await env.start(waits)
        promise_id = await handle.state("id")
        assert await run(env, settles, promise_id) == [True, 5, True, False, True]
        await handle.signal("close")
        assert await env.finish(handle.result()) == {"a": 1}


async def test_a_value_that_does_not_fit_is_refused_and_settles_nothing(engines: Engines) -> None:
    """By id and by name, and by the run's own code; the sender is told the field, and may send it right."""
    registry = Registry()

    @registry.workflow
    async def careful(ctx: Context) -> dict[str, int]:
        promise = ctx.promise("p", type=dict[str, int])
        ctx.set("id", promise.promise_id)
        try:
            await ctx.resolve(promise.promise_id, ["x"])
        except errors.SerializationError as error:
            ctx.set("told", str(error))
        return await promise

    async with engines.open(registry) as env:
        handle = await env.start(careful)
        assert "value of promise 'p'" in await handle.state("told")
        promise_id = await handle.state("id")
        for resolve in (
            handle.resolve("p", {"a": "x"}),
            env.engine.handle(handle.entity_id, handle.run_id).resolve("p", {"a": "x"}),
            env.engine.resolve(promise_id, {"a": "x"}),
        ):
            with raises(errors.SerializationError, "promise 'p'['a']") as caught:
                await resolve
            assert "was not settled" in str(caught[0])
        assert await env.engine.resolve(promise_id, {"a": 1})
        assert not await env.engine.resolve(promise_id, ["too late to be looked at"])
        assert await env.finish(handle.result()) == {"a": 1}
        assert not await handle.resolve("p", "too late")


async def test_a_value_is_held_against_the_newest_code_that_is_at_hand(engines: Engines) -> None:
    """A promise was made as one type, and the code that is deployed now reads another."""

    def deployed(kind: Any) -> Registry:
        registry = Registry()

        @registry.workflow
        async def typed(ctx: Context) -> Any:
            return await ctx.promise("p", type=kind)

        return registry

    async with engines.client(deployed(str)) as (store, clock, client):
        handle = await client.start("typed")
        async with engines.serve(store, clock, deployed(int)) as env:
            await env.settle()
            with raises(errors.SerializationError):
                await env.engine.handle(handle.entity_id).resolve("p", "text")
            assert await handle.resolve("p", "text")
        async with engines.serve(store, clock, deployed(str)) as env:
            assert await env.finish(handle.result()) == "text"


async def test_a_value_of_another_workflow_that_does_not_fit_is_the_codes_to_handle(engines: Engines) -> None:
    """The settlement counts; the code that awaits the promise gets an error that can be caught."""
    registry = Registry()

    @registry.workflow
    async def careful(ctx: Context) -> list[Any]:
        promise = ctx.promise("p", type=int)
        ctx.set("id", promise.promise_id)
        try:
            return [await promise]
        except errors.SerializationError as error:
            return [str(error)]

    @registry.workflow
    async def careless(ctx: Context, promise_id: str) -> bool:
        return await ctx.resolve(promise_id, "text")

    async with engines.open(registry) as env:
        handle = await env.start(careful)
        assert await run(env, careless, await handle.state("id")) is True
        [told] = await env.finish(handle.result())
        assert "value of promise 'p'" in told


async def test_a_promise_is_the_same_in_the_next_attempt(engines: Engines) -> None:
    """Its id stays; one that was settled is not asked for again, wherever the settlement came, others are open."""
    registry = Registry()

    @registry.workflow(retry=RetryPolicy(max_attempts=3, initial_interval=10, jitter=0))
    async def flaky(ctx: Context) -> list[Any]:
        asked = {name: ctx.promise(name) for name in ("before", "between", "after")}
        ctx.set("ids", {name: promise.promise_id for name, promise in asked.items()})
        got = [await asked["before"]]
        if ctx.info.attempt == 1:
            raise LookupError("the first time")
        got += [await asked["between"], await asked["after"]]
        try:
            await ctx.promise("late", timeout=5)
        except errors.PromiseTimeout:
            if ctx.info.attempt == 2:
                raise
        return [*got, await ctx.promise("last", timeout=100)]

    async with engines.open(registry) as env:
        handle = await env.start(flaky)
        ids = await handle.state("ids")
        assert await env.engine.resolve(ids["before"], 1) is True
        await env.advance(5)
        assert await env.engine.resolve(ids["between"], 2) is True
        assert await env.engine.resolve(ids["between"], 0) is False
        await env.advance(6)
        assert await handle.state("ids") == ids
        for name in ("before", "between"):
            assert await env.engine.resolve(ids[name], 0) is False
        assert await env.engine.resolve(ids["after"], 3) is True
        await env.advance(32)
        assert (await handle.describe()).attempt == 3
        assert await handle.resolve("last", 4) is True
        assert await env.finish(handle.result()) == [1, 2, 3, 4]


async def test_a_promise_that_timed_out_is_open_again_in_the_next_attempt(engines: Engines) -> None:
    """It was not settled, so the next attempt asks for it anew, by the same id."""
    registry = Registry()

    @registry.workflow(retry=RetryPolicy(max_attempts=2, initial_interval=10, jitter=0))
    async def flaky(ctx: Context) -> Any:
        asked = ctx.promise("p", timeout=10)
        ctx.set("id", asked.promise_id)
        return await asked

    async with engines.open(registry) as env:
        handle = await env.start(flaky)
        promise_id = await handle.state("id")
        await env.advance(21)
        assert (await handle.describe()).attempt == 2
        assert await env.engine.resolve(promise_id, "at last") is True
        assert await env.finish(handle.result()) == "at last"


async def test_a_settlement_that_crosses_the_timeout_is_heard_if_it_was_told_so(engines: Engines) -> None:
    """Between the claim and the commit of the timeout: the sender that is told to be first finds its value in the result."""
    told: list[bool] = []
    async with engines.client(approval()) as (store, clock, client):
        handle = await client.start("approve")

        async def before(part: r.Commit) -> None:
            if writes(part, events.PromiseTimedOut) and not told:
                told.append(await handle.resolve("approval", "just in time"))

        async with engines.serve(Interposed(store, before), clock, approval()) as env:
            result = await env.finish(handle.result())
        assert (told, result) == ([True], "just in time")


async def test_a_settlement_while_no_worker_runs_counts_after_the_timeout(engines: Engines) -> None:
    """A promise is open until its timeout is recorded: an accepted settlement is not taken back."""
    async with engines.client(approval()) as (store, clock, client):
        handle = await client.start("approve")
        async with engines.serve(store, clock, approval()) as env:
            await env.settle()
        clock.move_to(clock.now() + 60_000)
        assert await handle.resolve("approval", "late") is True
        async with engines.serve(store, clock, approval()) as env:
            assert await env.finish(handle.result()) == "late"


async def test_a_settlement_that_crosses_a_request_to_stop_is_heard_if_it_was_told_so(engines: Engines) -> None:
    """Sent before the request, after it, and between the claim and the commit of what the request led to."""
    for moment in ("before", "after", "between"):
        await _cross_a_request_to_stop(engines, moment)


async def _cross_a_request_to_stop(engines: Engines, moment: str) -> None:
    told: list[bool] = []
    async with engines.client(approval()) as (store, clock, client):
        handle = await client.start("approve")

        async def before(part: r.Commit) -> None:
            if moment == "between" and writes(part, events.PromiseCancelled) and not told:
                told.append(await handle.resolve("approval", "value"))

        async with engines.serve(store, clock, approval()) as env:
            await env.settle()
        if moment == "before":
            told.append(await handle.resolve("approval", "value"))
        await handle.cancel()
        if moment == "after":
            told.append(await handle.resolve("approval", "value"))
        async with engines.serve(Interposed(store, before), clock, approval()) as env:
            result = await env.finish(handle.result())
        assert (moment, told, result) == (moment, [True], "value")


async def test_a_settlement_after_the_end_of_waiting_is_told_that_it_is_too_late(engines: Engines) -> None:
    """The other order: once the timeout or the cancellation is recorded, no settlement is the first."""
    registry = Registry()

    @registry.workflow
    async def patient(ctx: Context) -> str:
        try:
            return await ctx.promise("p", type=str, timeout=10)
        except (errors.PromiseTimeout, asyncio.CancelledError) as error:
            await ctx.sleep(60)
            return type(error).__name__

    async with engines.open(registry) as env:
        handle = await env.start(patient)
        await env.advance(10)
        assert await handle.resolve("p", "late") is False
        assert await env.finish(handle.result()) == "PromiseTimeout"
        handle = await env.start(patient)
        await handle.cancel()
        await env.settle()
        assert await handle.resolve("p", "late") is False
        assert await env.finish(handle.result()) == "CancelledError"


async def test_only_one_of_many_settlements_is_first(engines: Engines) -> None:
    """Twenty at once, by id and by name, from two clients: one is first, and it is that one that counts."""
    async with engines.client(approval()) as (store, clock, client):
        handle = await client.start("approve")
        async with engines.serve(store, clock, approval()) as env:
            await env.settle()
            promise_id = await handle.state("id")
            told = await asyncio.gather(
                *(env.engine.resolve(promise_id, str(number)) for number in range(10)),
                *(handle.resolve("approval", str(number)) for number in range(10, 20)),
            )
            assert sum(told) == 1
            assert await env.finish(handle.result()) == str(told.index(True))


async def test_a_retry_learns_that_its_own_settlement_was_the_first(engines: Engines) -> None:
    """The first attempt settled the promise; the second settles it again and gets the same answer."""
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

    async with engines.open(registry) as env:
        waiting = await env.start(waits)
        handle = await env.start(settles, await waiting.state("id"))
        assert await env.finish(handle.result()) is True


@pytest.mark.engines("memory-cached", "sqlite-cached")
async def test_the_number_of_promises_kept_is_bounded(engines: Engines) -> None:
    """PROMISES_KEPT counts resolved promises too, not only those that timed out or were cancelled."""
    registry = Registry()

    @registry.workflow
    async def entity(ctx: Context) -> None:
        async def body(ctx: Context, n: int) -> Continue[int] | Break[None]:
            await ctx.promise(f"p{n}")
            return Continue(n + 1)

        await ctx.loop(body, 0, forget_every=20)

    async with engines.open(registry) as env:
        handle = await env.start(entity)
        for number in range(PROMISES_KEPT + 40):
            await handle.resolve(f"p{number}")
            await env.settle()
        [copy] = await env.engine.store.transfer.copies(handle.entity_id)
        assert len(copy.promises) <= PROMISES_KEPT + 2


async def test_the_id_of_a_promise_begins_with_the_route_of_its_workflow(engines: Engines) -> None:
    """A store with partitions settles it without knowing the workflow."""
    registry = Registry()

    @registry.workflow
    async def waits(ctx: Context) -> str:
        made = ctx.promise("word", type=str)
        ctx.set("id", made.promise_id)
        return str(await made)

    async with engines.open(registry) as env:
        handle = await env.start(waits, id="order-1")
        assert str(await handle.state("id")).startswith(route_of("order-1"))
