"""Signals arrive in order, once, and only at a listener."""

import asyncio
from typing import Any

from resurgam.core import errors
from resurgam.errors import SignalTimeout
from resurgam.runtime.context.context import Context
from resurgam.runtime.context.durable_loop import Break, Continue
from resurgam.runtime.registry import Registry
from resurgam.testing.contract.bench import HOUR, raises
from support.engines import TWICE, Engines, types_of


async def test_signals_arrive_in_order(engines: Engines) -> None:
    """First in, first out, whether they come one by one or all at once."""
    registry = Registry()

    @registry.workflow
    async def collect(ctx: Context, count: int) -> list[int]:
        return [await ctx.listen("number", type=int) for _ in range(count)]

    async with engines.open(registry) as env:
        handle = await env.start(collect, 20)
        for number in range(20):
            await handle.signal("number", number)
            if number % 3 == 0:
                await env.settle()
        assert await env.finish(handle.result()) == list(range(20))


async def test_signals_arrive_in_order_though_the_clock_jumps_back(engines: Engines) -> None:
    """The order is that of sending, not that of what the senders' clocks say."""
    registry = Registry()

    @registry.workflow
    async def collect(ctx: Context, count: int) -> list[int]:
        return [await ctx.listen("number", type=int) for _ in range(count)]

    async with engines.client(registry) as (store, clock, client):
        handle = await client.start(collect, 4)
        for number in range(4):
            await handle.signal("number", number)
            if number == 1:
                clock.set_back(HOUR)
        async with engines.serve(store, clock, registry) as env:
            assert await env.finish(handle.result()) == [0, 1, 2, 3]


async def test_a_signal_waits_for_its_listener(engines: Engines) -> None:
    """What is sent before the code listens, even before the first step, is kept."""
    registry = Registry()

    @registry.workflow
    async def late_riser(ctx: Context) -> list[str]:
        await ctx.sleep(60)
        return [await ctx.listen("wake", type=str), await ctx.listen("wake", type=str)]

    async with engines.client(registry) as (store, clock, client):
        handle = await client.start(late_riser)
        await handle.signal("wake", "before the start")
        async with engines.serve(store, clock, registry) as env:
            await env.settle()
            await handle.signal("wake", "before the listener")
            assert await env.finish(handle.result()) == ["before the start", "before the listener"]


async def test_one_may_listen_for_several_names(engines: Engines) -> None:
    """A listener of several names is told which one came, and leaves the others to others."""
    registry = Registry()

    @registry.workflow
    async def choose(ctx: Context) -> list[Any]:
        first = await ctx.listen("yes", "no", type=int)
        other = await ctx.listen("other", type=int)
        second = await ctx.listen("yes", "no", type=int)
        return [first, other, second]

    async with engines.open(registry) as env:
        handle = await env.start(choose)
        for name, value in (("other", 1), ("no", 2), ("yes", 3)):
            await handle.signal(name, value)
        assert await env.finish(handle.result()) == [["no", 2], 1, ["yes", 3]]


async def test_listening_has_an_end(engines: Engines) -> None:
    """A listener whose time is over raises SignalTimeout, at its moment; one that was served does not."""
    registry = Registry()

    @registry.workflow
    async def wait(ctx: Context) -> list[Any]:
        told: list[Any] = [await ctx.listen("news", timeout=10)]
        begin = ctx.now()
        try:
            await ctx.listen("news", timeout=10)
        except errors.SignalTimeout:
            told.append((ctx.now() - begin).total_seconds())
        return told

    async with engines.open(registry) as env:
        handle = await env.start(wait)
        await env.advance(9)
        await handle.signal("news", "in time")
        await env.advance(9.5)
        assert (await types_of(handle)).count("listen_timed_out") == 0
        assert await env.finish(handle.result()) == ["in time", 10.0]


async def test_the_same_signal_counts_once(engines: Engines) -> None:
    """A signal that is sent again with the same id is dropped, whether the first is waiting or long consumed."""
    registry = Registry()

    @registry.workflow
    async def collect(ctx: Context) -> list[int]:
        got = [await ctx.listen("number", type=int)]
        await ctx.sleep(10)
        got.append(await ctx.listen("number", type=int))
        await ctx.sleep(10)
        try:
            got.append(await ctx.listen("number", type=int, timeout=10))
        except errors.SignalTimeout:
            got.append(-1)
        return got

    async with engines.open(registry) as env:
        handle = await env.start(collect)
        for number, given in ((1, "a"), (1, "a"), (2, "b")):
            await handle.signal("number", number, id=given)
        await env.settle()
        await handle.signal("number", 1, id="a")
        await env.advance(5)
        await handle.signal("number", 2, id="b")
        assert await env.finish(handle.result()) == [1, 2, -1]
        assert (await types_of(handle)).count("signal_received") == 2


async def test_signals_of_two_names_may_share_an_id(engines: Engines) -> None:
    """A signal is the same only if name and id are: also once a loop has forgotten it, and in the next generation."""
    registry = Registry()

    @registry.workflow
    async def sorts(ctx: Context, generation: int) -> list[str]:
        async def one(ctx: Context, heard: list[str]) -> Continue[list[str]] | Break[list[str]]:
            name, _ = await ctx.listen("letter", "parcel", "call")
            heard = [*heard, name]
            return Break(heard) if len(heard) == 3 else Continue(heard)

        heard = await ctx.loop(one, list[str](), forget_every=1)
        if generation == 1:
            ctx.continue_as_new(2)
        return heard

    async with engines.open(registry) as env:
        handle = await env.start(sorts, 1, id="sorts")
        for name in ("letter", "letter", "parcel", "letter", "parcel", "call"):
            await handle.signal(name, id="m1")
            await env.settle()
        assert (await handle.describe()).generation == 2
        for name, given in (("call", "m1"), ("parcel", "m1"), ("letter", "m2"), ("parcel", "m2"), ("call", "m2")):
            await handle.signal(name, id=given)
        assert await env.finish(handle.result()) == ["letter", "parcel", "call"]


async def test_a_listener_that_timed_out_eats_no_signal(engines: Engines) -> None:
    """What comes after the timeout goes to the next listener, even if the worker was away at that moment."""
    registry = Registry()

    @registry.workflow
    async def wait(ctx: Context) -> list[str]:
        told: list[str] = []
        try:
            told.append(await ctx.listen("news", type=str, timeout=5))
        except errors.SignalTimeout:
            told.append("timeout")
        told.append(await ctx.listen("news", type=str))
        return told

    async with engines.client(registry) as (store, clock, client):
        handle = await client.start(wait)
        async with engines.serve(store, clock, registry) as env:
            await env.settle()
        clock.move_to(clock.now() + 6000)
        await handle.signal("news", "late")
        async with engines.serve(store, clock, registry) as env:
            assert await env.finish(handle.result()) == ["timeout", "late"]


async def test_a_signal_that_came_in_time_is_heard_though_the_worker_was_late(engines: Engines) -> None:
    """What was sent before the deadline counts, even if no worker ran until after it."""
    registry = Registry()

    @registry.workflow
    async def wait(ctx: Context) -> str:
        try:
            return await ctx.listen("news", type=str, timeout=5)
        except errors.SignalTimeout:
            return "timeout"

    async with engines.client(registry) as (store, clock, client):
        handle = await client.start(wait)
        async with engines.serve(store, clock, registry) as env:
            await env.settle()
        clock.move_to(clock.now() + 4000)
        await handle.signal("news", "in time")
        clock.move_to(clock.now() + 4000)
        async with engines.serve(store, clock, registry) as env:
            assert await env.finish(handle.result()) == "in time"


async def test_a_listener_that_was_cancelled_eats_no_signal(engines: Engines) -> None:
    """A listener that lost a race, or was called off, leaves the signal to the next one."""
    registry = Registry()

    @registry.workflow
    async def wait(ctx: Context) -> list[str]:
        winner, _ = await ctx.race(ctx.listen("news"), ctx.sleep(1))
        ctx.listen("news").cancel()
        try:
            await asyncio.wait_for(ctx.listen("news"), 1)
        except TimeoutError:
            return [str(winner), await ctx.listen("news", type=str)]
        return []

    async with engines.open(registry) as env:
        handle = await env.start(wait)
        await env.advance(3)
        await handle.signal("news", "kept")
        assert await env.finish(handle.result()) == ["1", "kept"]


async def test_two_listeners_share_the_signals(engines: Engines) -> None:
    """Each signal goes to one listener, the one that has waited longest."""
    registry = Registry()

    @registry.workflow
    async def split(ctx: Context) -> list[list[int]]:
        first, second = ctx.listen("number"), ctx.listen("number")
        return [[0, await first], [1, await second]]

    async with engines.open(registry) as env:
        handle = await env.start(split)
        await handle.signal("number", 10)
        await handle.signal("number", 20)
        assert await env.finish(handle.result()) == [[0, 10], [1, 20]]


async def test_a_signal_of_a_wrong_type_is_the_listeners_to_handle(engines: Engines) -> None:
    """A value that does not fit is an error that code can catch, and the next signal is heard."""
    registry = Registry()

    @registry.workflow
    async def careful(ctx: Context) -> int:
        while True:
            try:
                return await ctx.listen("number", type=int)
            except errors.SerializationError:
                await ctx.sleep(1)

    async with engines.client(registry) as (store, clock, client):
        handle = await client.start(careful)
        with raises(errors.SerializationError):
            await handle.signal("number", object())
        for value in ("one", None, 3):
            await handle.signal("number", value)  # it has not said yet what it takes
        async with engines.serve(store, clock, registry) as env:
            assert await env.finish(handle.result()) == 3


async def test_a_retry_may_send_another_value_from_the_same_place(engines: Engines) -> None:
    """The id of the signal depends on its value, so that the target does not take it for a duplicate."""
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

    async with engines.open(registry) as env:
        receiving = await env.start(target, id="t")
        await env.finish((await env.start(sender)).result())
        assert await env.finish(receiving.result()) == [1, 2]


async def test_a_signal_goes_to_the_workflow_it_was_sent_to(engines: Engines):
    """However many listen for its name; a listener that timed out takes nothing, and a signal that comes early is kept."""
    registry = Registry()

    @registry.workflow
    async def work(ctx: Context) -> str:
        try:
            await ctx.listen("word", timeout=10)
        except SignalTimeout:
            await ctx.sleep(10)
        return await ctx.listen("word", type=str)

    async with engines.open(registry) as env:
        handles = [await env.start(work, id=f"w{number}") for number in range(3)]
        await env.advance(15)
        for number in (0, 2, 1):
            await env.engine.handle(f"w{number}").signal("word", f"for {number}")
        assert [await env.finish(one.result()) for one in handles] == ["for 0", "for 1", "for 2"]
