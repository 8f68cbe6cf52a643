"""Signals of a wrong type are refused to their sender, and change nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from resurgam.core import errors
from resurgam.runtime.context.context import Context
from resurgam.runtime.context.durable_loop import Break, Continue
from resurgam.runtime.registry import Registry
from resurgam.testing.contract.bench import raises
from support.engines import Engines, types_of


@dataclass
class Line:
    """A line of a parcel."""

    sku: str
    count: int


@dataclass
class Parcel:
    """What a signal may hold."""

    lines: list[Line]


async def test_a_value_that_does_not_fit_is_refused_to_its_sender(engines: Engines) -> None:
    """The error names the signal and what was expected; history, inbox and what comes later are as before."""
    registry = Registry()

    @registry.workflow
    async def approval(ctx: Context) -> bool:
        return await ctx.listen("approve", type=bool)

    async with engines.open(registry) as env:
        handle = await env.start(approval, id="o-1")
        before = await env.engine.export("o-1")
        for value in ("yes", 1, None, [True]):
            with raises(errors.SerializationError, "signal 'approve': Expected bool, got "):
                await handle.signal("approve", value)
            with raises(errors.SerializationError):
                await env.engine.handle("o-1", handle.run_id).signal("approve", value)
            with raises(errors.SerializationError):
                await env.engine.signal_with_start(approval, id="o-1", signal="approve", value=value)
        await env.settle()
        assert await env.engine.export("o-1") == before
        await handle.signal("approve", True)
        assert await env.finish(handle.result()) is True
        assert (await types_of(handle)).count("signal_received") == 1


async def test_a_handle_checks_by_what_the_code_takes_now_not_by_what_it_has_seen(engines: Engines) -> None:
    """A value that fits only what was taken before is refused; one that fits only what is taken now is sent."""
    registry = Registry()

    @registry.workflow
    async def approval(ctx: Context) -> list[object]:
        return [await ctx.listen("approve", type=bool), await ctx.listen("approve", type=str)]

    async with engines.open(registry) as env:
        handle = await env.start(approval, id="o-1")
        await handle.describe()
        await env.engine.handle("o-1").signal("approve", True)
        await env.settle()
        with raises(errors.SerializationError, "signal 'approve': Expected str, got "):
            await handle.signal("approve", True)
        handle = env.engine.handle("o-1")
        await handle.describe()
        await handle.signal("approve", "yes")
        assert await env.finish(handle.result()) == [True, "yes"]


async def test_the_error_names_the_field(engines: Engines) -> None:
    """However deep it is; and what is missing."""
    registry = Registry()

    @registry.workflow
    async def pack(ctx: Context) -> int:
        parcel = await ctx.listen("parcel", type=Parcel)
        return sum(line.count for line in parcel.lines)

    async with engines.open(registry) as env:
        handle = await env.start(pack)
        wrong: list[tuple[Any, str]] = [
            ({"lines": [{"sku": "a", "count": 1}, {"sku": "b", "count": "2"}]}, "signal 'parcel'.lines[1].count"),
            ({"lines": [{"sku": "a"}]}, "signal 'parcel'.lines[0]"),
            (Parcel([Line(7, 1)]), "signal 'parcel'.lines[0].sku"),  # type: ignore[arg-type]  # the mistake
        ]
        for value, path in wrong:
            with raises(errors.SerializationError) as caught:
                await handle.signal("parcel", value)
            assert caught[0].args[0] == path
        await handle.signal("parcel", Parcel([Line("a", 1), Line("b", 2)]))
        assert await env.finish(handle.result()) == 3


async def test_what_is_sent_before_the_code_has_said_anything_is_the_listeners_to_handle(engines: Engines) -> None:
    """It is sent, and the listener gets the error, as it does with what another workflow sends."""
    registry = Registry()

    @registry.workflow
    async def careful(ctx: Context) -> list[Any]:
        await ctx.sleep(10)
        told: list[Any] = []
        while len(told) < 3:
            try:
                told.append(await ctx.listen("number", type=int))
            except errors.SerializationError as error:
                told.append(error.path)
        return told

    @registry.workflow
    async def sender(ctx: Context, to: str) -> None:
        await ctx.signal(to, "number", "two")

    async with engines.open(registry) as env:
        handle = await env.start(careful, id="careful")
        await handle.signal("number", "one")
        await env.advance(10)
        await env.start(sender, "careful")
        with raises(errors.SerializationError):
            await handle.signal("number", "three")
        await handle.signal("number", 3)
        assert await env.finish(handle.result()) == ["signal 'number'", "signal 'number'", 3]


async def test_a_type_holds_while_no_listener_waits(engines: Engines) -> None:
    """What was declared for a name last is what is taken, also between two listeners; for several names at once."""
    registry = Registry()

    @registry.workflow
    async def wait(ctx: Context) -> list[Any]:
        told: list[Any] = [await ctx.listen("yes", "no", type=int)]
        await ctx.sleep(10)
        told += await ctx.listen_many("yes", limit=9, type=str)
        await ctx.sleep(10)
        return [*told, await ctx.listen("yes"), await ctx.listen("no")]

    async with engines.open(registry) as env:
        handle = await env.start(wait)
        for name in ("yes", "no"):
            with raises(errors.SerializationError):
                await handle.signal(name, "1")
        await handle.signal("no", 1)
        await env.settle()
        for name in ("yes", "no"):
            with raises(errors.SerializationError):
                await handle.signal(name, "2")
        await env.advance(10)
        with raises(errors.SerializationError):
            await handle.signal("yes", 2)
        await handle.signal("yes", "two")
        await env.advance(10)
        await handle.signal("yes", [3])  # the newest listener takes anything
        await env.settle()
        await handle.signal("no", {})
        assert await env.finish(handle.result()) == [["no", 1], "two", [3], {}]


async def test_handlers_say_what_they_take(engines: Engines) -> None:
    """By the annotation of their parameter; one without takes anything, as does one that takes nothing."""
    registry = Registry()

    @registry.workflow
    async def tally(ctx: Context) -> list[Any]:
        told: list[Any] = []

        @ctx.on_signal("add")
        async def add(amount: int) -> None:
            told.append(amount)

        @ctx.on_signal("note")
        def note(what):  # type: ignore[no-untyped-def]
            told.append(what)

        @ctx.on_signal("ping")
        def ping() -> None:
            told.append("ping")

        await ctx.listen("end")
        return told

    async with engines.open(registry) as env:
        handle = await env.start(tally)
        with raises(errors.SerializationError, "signal 'add': Expected int, got str"):
            await handle.signal("add", "1")
        for name, value in (("add", 1), ("note", "x"), ("ping", "ignored"), ("end", None)):
            await handle.signal(name, value)
        assert await env.finish(handle.result()) == [1, "x", "ping"]


async def test_a_run_that_has_ended_or_goes_on_elsewhere(engines: Engines) -> None:
    """What has ended is not found, whatever is sent; a continuation begins with what its own code has said."""
    registry = Registry()

    @registry.workflow
    async def twice(ctx: Context, again: bool) -> Any:
        if again:
            await ctx.listen("go", type=bool)
            ctx.continue_as_new(False)
        return await ctx.listen("go", type=str)

    async with engines.open(registry) as env:
        handle = await env.start(twice, True, id="twice")
        pinned = env.engine.handle("twice", handle.run_id)
        with raises(errors.SerializationError):
            await handle.signal("go", "text")
        await handle.signal("go", True)
        await env.settle()
        with raises(errors.NotFound):
            await pinned.signal("go", "text")
        with raises(errors.SerializationError):
            await handle.signal("go", True)
        await handle.signal("go", "text")
        assert await env.finish(handle.result()) == "text"
        with raises(errors.NotFound):
            await handle.signal("go", 7)
        new = await env.engine.signal_with_start(twice, False, id="twice", signal="go", value="new")
        assert await env.finish(new.result()) == "new"


async def test_another_attempt_begins_with_nothing(engines: Engines) -> None:
    """What the one before has said was said by that one."""
    registry = Registry()

    @registry.workflow
    async def stubborn(ctx: Context) -> str:
        if ctx.info.attempt == 1:
            await ctx.listen("go", type=bool, timeout=5)
        await ctx.sleep(10)
        return await ctx.listen("go", type=str)

    async with engines.open(registry) as env:
        handle = await env.start(stubborn)
        with raises(errors.SerializationError):
            await handle.signal("go", "text")
        await env.advance(5)
        await handle.retry()
        await env.settle()
        await handle.signal("go", "text")
        assert await env.finish(handle.result()) == "text"


async def test_it_outlives_what_is_forgotten(engines: Engines) -> None:
    """A type that was declared in an iteration that is not replayed any more still holds."""
    registry = Registry()

    async def body(ctx: Context, state: int) -> Continue[int] | Break[int]:
        if state == 0:
            await ctx.listen("early", type=int)
        await ctx.listen("next", type=bool)
        return Continue(state + 1) if state < 5 else Break(state)

    @registry.workflow
    async def loop(ctx: Context) -> int:
        return await ctx.loop(body, 0, forget_every=1, keep_forgotten=0)

    async with engines.open(registry) as env:
        handle = await env.start(loop)
        await handle.signal("early", 1)
        for _ in range(3):
            await handle.signal("next", True)
            await env.settle()
        with raises(errors.SerializationError):
            await handle.signal("early", "x")
        with raises(errors.SerializationError):
            await handle.signal("next", "x")


async def test_code_that_was_changed_to_take_another_type_can_be_reached(engines: Engines) -> None:
    """Nothing wakes a run that waits for a signal but the signal: the code that is here is asked before one is refused."""

    def build(kind: type) -> tuple[Registry, Callable[..., Any]]:
        registry = Registry()

        @registry.workflow(name="approval")
        async def approval(ctx: Context) -> Any:
            return await ctx.listen("approve", type=kind)

        return registry, approval

    old, approval = build(bool)
    new, _ = build(str)
    async with engines.client(Registry()) as (store, clock, stranger):
        async with engines.serve(store, clock, old) as env:
            await env.start(approval, id="o-1")
        with raises(errors.SerializationError):
            await stranger.handle("o-1").signal("approve", "yes")
        async with engines.serve(store, clock, new) as env:
            with raises(errors.SerializationError):
                await env.handle("o-1").signal("approve", 7)
            await env.handle("o-1").signal("approve", "yes")
            assert await env.finish(env.handle("o-1").result()) == "yes"


async def test_what_was_moved_is_checked_where_it_is(engines: Engines) -> None:
    """What the code takes moves along with the run."""
    registry = Registry()

    @registry.workflow
    async def approval(ctx: Context) -> bool:
        return await ctx.listen("approve", type=bool)

    async with engines.open(registry) as env:
        await env.start(approval, id="o-1")
        exported = await env.engine.export("o-1")
    async with engines.client(Registry()) as (_, _, engine):
        await engine.import_(exported)
        with raises(errors.SerializationError):
            await engine.handle("o-1").signal("approve", "yes")
        await engine.handle("o-1").signal("approve", True)
