"""Handlers of signals and updates, which run beside the workflow's own function."""

import asyncio
from typing import Any

from msgspec import Raw

from resurgam.core import errors
from resurgam.core import event as events
from resurgam.core.retry import RetryPolicy
from resurgam.core.state import Status
from resurgam.runtime.context.context import Context
from resurgam.runtime.registry import Registry
from resurgam.testing.contract.bench import raises
from resurgam.testing.crash import crash_everywhere
from support.engines import Engines, complaints, slip_in, types_of


async def test_signals_are_handled_as_they_come(engines: Engines) -> None:
    """Plain and async handlers, with durable calls below {0, k} for the k-th of them, beside the root."""
    registry = Registry()

    @registry.activity
    async def double(number: int) -> int:
        return 2 * number

    @registry.workflow
    async def collect(ctx: Context) -> list[Any]:
        got: list[Any] = []

        @ctx.on_signal("plain")
        def plain(text: str) -> None:
            got.append(text)

        @ctx.on_signal("durable")
        async def durable(number: int) -> None:
            doubled = await ctx.activity(double, number)
            await ctx.sleep(1)
            got.append(await ctx.activity(double, doubled))

        @ctx.on_signal("bare")
        def bare() -> None:
            got.append("bare")

        await ctx.sleep(10)
        await ctx.until(lambda: len(got) == 4)
        return sorted(got, key=str)

    async with engines.open(registry) as env:
        handle = await env.start(collect)
        for name, value in (("durable", 1), ("plain", "x"), ("durable", 2), ("bare", {"not": "asked for"})):
            await handle.signal(name, value)
        assert await env.finish(handle.result()) == [4, 8, "bare", "x"]
        history = await handle.history()
        below = [str(entry.location) for entry in history if isinstance(entry, events.ActivityScheduled)]
        assert sorted(below) == ["{0, 1, 1}", "{0, 1, 3}", "{0, 3, 1}", "{0, 3, 3}"]
        scopes = [entry.scope for entry in history if isinstance(entry, events.SignalHandled)]
        assert scopes == [1, 2, 3, 4]


async def test_handlers_run_beside_each_other(engines: Engines) -> None:
    """A handler that waits holds up neither the root, nor the next one of its own name."""
    registry = Registry()

    @registry.workflow
    async def overtake(ctx: Context) -> list[int]:
        got: list[int] = []

        @ctx.on_signal("wait")
        async def wait(seconds: int) -> None:
            await ctx.sleep(seconds)
            got.append(seconds)

        while len(got) < 3:
            await ctx.sleep(1)
        return got

    async with engines.open(registry) as env:
        handle = await env.start(overtake)
        for seconds in (30, 10, 20):
            await handle.signal("wait", seconds)
        assert await env.finish(handle.result()) == [10, 20, 30]


async def test_signals_wait_for_a_handler_that_comes_late(engines: Engines) -> None:
    """What came before its handler is handled, in order, once there is one; a listener that waits comes first."""
    registry = Registry()

    @registry.workflow
    async def late(ctx: Context) -> list[Any]:
        got: list[Any] = []
        listened = ctx.listen("news")
        await ctx.sleep(10)

        @ctx.on_signal("news")
        def news(value: int) -> None:
            got.append(value)

        await ctx.until(lambda: len(got) == 3)
        return [await listened, got]

    async with engines.open(registry) as env:
        handle = await env.start(late)
        for number in range(3):
            await handle.signal("news", number)
        await env.advance(11)
        await handle.signal("news", 3)
        assert await env.finish(handle.result()) == [0, [1, 2, 3]]


async def test_a_listener_comes_before_a_handler(engines: Engines) -> None:
    """Of one signal that both want, whatever else waits: an update that has no handler yet does not change it."""
    registry = Registry()

    @registry.workflow
    async def both(ctx: Context) -> list[str]:
        got: list[str] = []

        @ctx.on_signal("b")
        async def handle(value: int) -> None:
            got.append(f"handler {value}")

        @ctx.on_update("known")
        def known() -> None: ...

        async def listen() -> None:
            _, value = await ctx.listen("a", "b")
            got.append(f"listener {value}")

        listening = asyncio.create_task(listen())
        await ctx.sleep(10)
        await listening
        return got

    async with engines.open(registry) as env:
        for waits in (False, True):
            handle = await env.start(both)
            await env.settle()
            update = asyncio.ensure_future(handle.update("other")) if waits else None
            await env.settle()
            for number in (1, 2):
                await handle.signal("b", number)
            assert await env.finish(handle.result()) == ["listener 1", "handler 2"]
            if update is not None:
                with raises(errors.NotFound):
                    await env.finish(update)


async def test_a_workflow_may_wait_until_its_handlers_are_finished(engines: Engines) -> None:
    """Of signals and updates, those begun meanwhile and signals that came before their handler included."""
    registry = Registry()

    @registry.workflow
    async def tidy(ctx: Context) -> list[str]:
        got: list[str] = []
        await ctx.handlers_finished()
        await ctx.sleep(1)

        @ctx.on_signal("note")
        async def note(text: str) -> None:
            await ctx.sleep(10)
            got.append(text)

        @ctx.on_update("ask")
        async def ask(text: str) -> str:
            await ctx.sleep(20)
            got.append(text)
            return text

        await ctx.handlers_finished()
        got.append("first time")
        await ctx.listen("close")
        await ctx.handlers_finished()
        await ctx.handlers_finished()
        return got

    async with engines.open(registry) as env:
        handle = await env.start(tidy)
        for text in ("a", "b"):
            await handle.signal("note", text)
        await env.advance(12)
        asked = asyncio.ensure_future(handle.update("ask", "c"))
        await env.settle()
        await handle.signal("close")
        await env.advance(15)
        await handle.signal("note", "d")
        assert await env.finish(handle.result()) == ["a", "b", "first time", "c", "d"]
        assert await env.finish(asked) == "c"


async def test_a_handler_may_not_wait_for_itself(engines: Engines) -> None:
    """`handlers_finished` in a handler, or in what it begins, is refused."""
    registry = Registry()

    @registry.workflow
    async def knot(ctx: Context) -> None:
        @ctx.on_update("directly")
        async def directly() -> None:
            await ctx.handlers_finished()

        @ctx.on_update("below")
        async def below() -> None:
            await asyncio.gather(asyncio.create_task(directly()))

        await ctx.listen("close")

    async with engines.open(registry) as env:
        handle = await env.start(knot)
        for name in ("directly", "below"):
            with raises(errors.UpdateRejected, "would wait for itself"):
                await env.finish(handle.update(name))


async def test_updates_may_be_handled_one_at_a_time(engines: Engines) -> None:
    """In the order of acceptance, each after the one before has ended, also by failing; other handlers do not wait."""
    registry = Registry()

    @registry.workflow
    async def serial(ctx: Context) -> list[str]:
        got: list[str] = []

        @ctx.on_update("move", one_at_a_time=True)
        async def move(name: str, seconds: int) -> str:
            got.append(f"+{name}")
            await ctx.sleep(seconds)
            got.append(f"-{name}")
            if name == "b":
                raise ValueError("b fails")
            return name

        @ctx.on_update("look")
        def look() -> list[str]:
            return got

        await ctx.listen("close")
        await ctx.handlers_finished()
        return got

    async with engines.open(registry) as env:
        handle = await env.start(serial)
        moves = (("a", 30), ("b", 1), ("c", 20), ("d", 1))
        sent = [asyncio.ensure_future(handle.update("move", *move)) for move in moves]
        await env.settle()
        assert await env.finish(handle.update("look")) == ["+a"]
        assert (await types_of(handle)).count("update_accepted") == 5
        await handle.signal("close")
        assert await env.finish(handle.result()) == ["+a", "-a", "+b", "-b", "+c", "-c", "+d", "-d"]
        answers = await env.finish(asyncio.gather(*sent, return_exceptions=True))
        assert [answers[0], *answers[2:]] == ["a", "c", "d"]
        assert isinstance(answers[1], errors.UpdateRejected)


async def test_no_update_is_lost_by_continuing_as_new_after_the_handlers_have_finished(engines: Engines) -> None:
    """What was accepted is answered in its generation, what was not in the next one."""
    registry = Registry()

    @registry.workflow
    async def counter(ctx: Context, count: int) -> None:
        @ctx.on_update("add", one_at_a_time=True)
        async def add() -> int:
            nonlocal count
            before = count
            await ctx.sleep(1)
            count = before + 1
            return count

        begun = count
        await ctx.until(lambda: count > begun)
        await ctx.handlers_finished()
        ctx.continue_as_new(count)

    async with engines.open(registry) as env:
        handle = await env.start(counter, 0)
        answers: list[int] = []
        for _ in range(3):
            sent = [handle.update("add") for _ in range(5)]
            answers += await env.finish(asyncio.gather(*sent))
        assert answers == list(range(1, 16))
        assert (await handle.describe()).generation > 2


async def test_a_handler_that_fails_fails_the_workflow(engines: Engines) -> None:
    """What leaves the handler of a signal, at once or after a durable call, is how the workflow ends."""
    registry = Registry()

    @registry.workflow
    async def fragile(ctx: Context) -> None:
        @ctx.on_signal("at once")
        def at_once() -> None:
            raise LookupError("at once")

        @ctx.on_signal("later")
        async def later() -> None:
            await ctx.sleep(5)
            raise LookupError("later")

        await ctx.sleep(3600)

    async with engines.open(registry) as env:
        for name in ("at once", "later"):
            handle = await env.start(fragile)
            await handle.signal(name)
            with raises(errors.WorkflowFailed, name) as caught:
                await env.finish(handle.result())
            assert isinstance(caught[0].__cause__, LookupError)


async def test_a_signal_that_does_not_fit_its_handler_is_dropped(engines: Engines) -> None:
    """It is the sender's mistake: a warning says so, once, and the workflow goes on."""
    registry = Registry()

    @registry.workflow
    async def typed(ctx: Context) -> list[int]:
        got: list[int] = []

        @ctx.on_signal("number")
        async def number(value: int) -> None:
            got.append(value)

        await ctx.sleep(10)
        await ctx.sleep(10)
        return got

    async with engines.open(registry) as env:
        with complaints("resurgam.runtime") as said:
            handle = await env.start(typed)
            for value in (1, "two", None, 3):
                await slip_in(env, handle, "number", value)
            assert await env.finish(handle.result()) == [1, 3]
        assert [text for text in said if "is dropped" in text] == said
        assert len(said) == 2
        assert "'number'" in said[0]


async def test_the_root_may_end_while_handlers_run(engines: Engines) -> None:
    """What they wait for is called off with the workflow; nothing is left, and nothing of theirs is recorded."""
    registry = Registry()
    begun: list[int] = []

    @registry.activity
    async def never() -> None:
        begun.append(1)

    @registry.workflow
    async def quit_early(ctx: Context) -> str:
        @ctx.on_signal("go")
        async def go() -> None:
            try:
                await ctx.sleep(100)
            finally:
                await ctx.activity(never)

        await ctx.sleep(10)
        return "done"

    async with engines.open(registry) as env:
        handle = await env.start(quit_early)
        await handle.signal("go")
        assert await env.finish(handle.result()) == "done"
        await env.advance(200)
        assert begun == []
        assert (await types_of(handle))[-1] == "workflow_deactivated"


async def test_a_handler_that_is_gone_from_the_code_is_a_divergence(engines: Engines) -> None:
    """The run is parked and says which; the code that has it takes it up again."""

    def deployed(*names: str) -> Registry:
        registry = Registry()

        @registry.workflow
        async def changed(ctx: Context) -> list[str]:
            got: list[str] = []

            def hear(text: str) -> None:
                got.append(text)

            for name in names:
                ctx.on_signal(name)(hear)
            await ctx.sleep(10)
            return got

        return registry

    async with engines.client(deployed("news")) as (store, clock, client):
        handle = await client.start("changed")
        async with engines.serve(store, clock, deployed("news")) as env:
            await handle.signal("news", "heard")
            await env.settle()
        clock.move_to(clock.now() + 20_000)
        async with engines.serve(store, clock, deployed("other")) as env:
            await env.settle()
            found = await handle.describe()
            assert found.status is Status.DIVERGED
            assert "'news'" in str(found.error)
        async with engines.serve(store, clock, deployed("news", "other")) as env:
            assert await env.finish(handle.result()) == ["heard"]


async def test_a_recorded_value_that_no_longer_fits_its_handler_is_a_divergence(engines: Engines) -> None:
    """An update whose arguments the new code cannot read is parked, and neither failed nor tried for ever."""

    def deployed(kind: type) -> Registry:
        registry = Registry()

        @registry.workflow
        async def typed(ctx: Context) -> None:
            @ctx.on_update("put")
            async def put(value: kind) -> str:  # type: ignore[valid-type]  # chosen by the case
                await ctx.sleep(20)
                return str(value)

            await ctx.sleep(10)
            await ctx.sleep(100)

        return registry

    async with engines.client(deployed(str)) as (store, clock, client):
        handle = await client.start("typed")
        async with engines.serve(store, clock, deployed(str)) as env:
            updated = asyncio.ensure_future(handle.update("put", "text"))
            await env.settle()
        clock.move_to(clock.now() + 11_000)
        async with engines.serve(store, clock, deployed(int)) as env:
            await env.settle()
            found = await handle.describe()
            assert found.status is Status.DIVERGED, found
            assert "'put'" in str(found.error)
        async with engines.serve(store, clock, deployed(str)) as env:
            assert await env.finish(updated) == "text"


async def test_handlers_go_on_after_a_crash_at_any_point(engines: Engines) -> None:
    """Killed after every entry, with handlers at work in several places, the run comes to the same end."""
    registry = Registry()

    @registry.activity
    async def double(number: int) -> int:
        return 2 * number

    @registry.workflow
    async def collect(ctx: Context) -> list[int]:
        got: list[int] = []
        await ctx.sleep(1)

        @ctx.on_signal("number")
        async def number(value: int) -> None:
            doubled = await ctx.activity(double, value)
            await ctx.sleep(1)
            got.append(await ctx.activity(double, doubled))

        await ctx.until(lambda: len(got) == 3)
        return got

    sent = [events.SignalReceived(name="number", id=str(n), value=Raw(b"%d" % n)) for n in range(3)]
    found = await crash_everywhere(collect, messages=sent, registry=registry)
    assert found.points > 20


async def test_what_signals_did_in_a_failed_attempt_is_done_again(engines: Engines) -> None:
    """A retry begins with all signals in order, those that were handled or taken before included."""
    registry = Registry()

    @registry.workflow(retry=RetryPolicy(max_attempts=2, initial_interval=5, jitter=0))
    async def flaky(ctx: Context) -> list[Any]:
        got: list[Any] = []

        @ctx.on_signal("handled")
        def handled(value: int) -> None:
            got.append(value)

        taken = await ctx.listen("taken")
        await ctx.sleep(1)
        if ctx.info.attempt == 1:
            raise LookupError("the first time")
        return [*got, taken]

    async with engines.open(registry) as env:
        handle = await env.start(flaky)
        for name, value in (("handled", 1), ("handled", 2), ("taken", "x")):
            await handle.signal(name, value)
        assert await env.finish(handle.result()) == [1, 2, "x"]
