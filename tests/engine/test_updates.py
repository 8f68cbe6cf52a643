"""Updates, which are answered by handlers, once, whatever becomes of the run meanwhile."""

import asyncio
from typing import Any, cast

from resurgam.core import errors
from resurgam.core import event as events
from resurgam.core.retry import RetryPolicy
from resurgam.core.state import Status
from resurgam.engine import Engine
from resurgam.runtime.context.context import Context
from resurgam.runtime.registry import Registry
from resurgam.store import records as r
from resurgam.store.protocol import Store
from resurgam.testing.contract.bench import raises
from support.engines import Engines, Interposed, SlowToHear, run, types_of, writes


def account() -> Registry:
    """Return the code of a workflow whose balance is changed by updates until it is told to close."""
    registry = Registry()

    @registry.workflow
    async def keep(ctx: Context) -> int:
        balance = 0

        def positive(cents: int) -> None:
            if cents <= 0:
                raise ValueError(f"{cents} is not positive")

        @ctx.on_update("add", validator=positive)
        async def add(cents: int) -> int:
            nonlocal balance
            await ctx.sleep(1)
            balance += cents
            return balance

        @ctx.on_update("fail")
        def fail() -> None:
            raise LookupError("no such thing")

        await ctx.listen("close")
        return balance

    return registry


async def test_an_update_is_answered(engines: Engines) -> None:
    """Accepted, with durable calls inside, and completed; two of them run beside each other."""
    async with engines.open(account()) as env:
        handle = await env.start("keep")
        both = asyncio.gather(handle.update("add", 5), handle.update("add", 7))
        assert list(await env.finish(both)) == [5, 12]
        assert [kind for kind in await types_of(handle) if "update" in kind] == [
            *("update_accepted", "update_accepted", "update_completed", "update_completed"),
        ]
        await handle.signal("close")
        assert await env.finish(handle.result()) == 12


async def test_an_update_may_be_refused(engines: Engines) -> None:
    """By its validator, by its arguments, or by its handler: the sender hears why, and nothing else happens."""
    async with engines.open(account()) as env:
        handle = await env.start("keep")
        for args, text in (((-1,), "-1 is not positive"), (("x",), "'cents'"), ((), "cents"), ((1, 2), "add")):
            with raises(errors.UpdateRejected, "add") as caught:
                await env.finish(handle.update("add", *args))
            assert text in str(caught[0].__cause__), caught[0].__cause__
        with raises(errors.UpdateRejected) as caught:
            await env.finish(handle.update("fail"))
        assert isinstance(caught[0].__cause__, LookupError)
        kinds = await types_of(handle)
        assert (kinds.count("update_rejected"), kinds.count("update_accepted")) == (5, 1)
        assert (await handle.describe()).status is Status.RUNNING
        assert await env.finish(handle.update("add", 1)) == 1


async def test_the_same_update_counts_once(engines: Engines) -> None:
    """Repeated by its id: while it waits, while it runs, and after it has completed or was refused."""
    async with engines.open(account()) as env:
        handle = await env.start("keep")
        both = asyncio.gather(handle.update("add", 5, id="u-1"), handle.update("add", 5, id="u-1"))
        assert list(await env.finish(both)) == [5, 5]
        assert await env.finish(handle.update("add", 5, id="u-1")) == 5
        for _ in range(2):
            with raises(errors.UpdateRejected):
                await env.finish(handle.update("add", -5, id="u-2"))
        kinds = await types_of(handle)
        assert (kinds.count("update_accepted"), kinds.count("update_rejected")) == (1, 1)
        await handle.signal("close")
        assert await env.finish(handle.result()) == 5
        assert await env.finish(handle.update("add", 5, id="u-1")) == 5
        with raises(errors.NotFound, "closed"):
            await env.finish(handle.update("add", 5, id="u-3"))


async def test_an_update_waits_for_its_handler(engines: Engines) -> None:
    """One whose handler is registered later is begun then; it is in no history before, and others are served."""
    registry = Registry()

    @registry.workflow
    async def patient(ctx: Context) -> list[str]:
        got: list[str] = []

        @ctx.on_update("early")
        def early(text: str) -> str:
            got.append(text)
            return text

        await ctx.sleep(10)

        @ctx.on_update("late")
        def later(text: str) -> str:
            got.append(text)
            return text

        await ctx.until(lambda: len(got) == 4)
        return got

    async with engines.open(registry) as env:
        handle = await env.start(patient)
        waiting = [asyncio.ensure_future(handle.update("late", text)) for text in ("a", "b")]
        await env.settle()
        assert await env.finish(handle.update("early", "first")) == "first"
        assert "late" not in {getattr(entry, "name", "") for entry in await handle.history()}
        with raises(errors.ResultTimeout, "'late'"):
            await env.finish(handle.update("late", "c", id="c", timeout=5))
        assert await env.finish(asyncio.gather(*waiting)) == ["a", "b"]
        assert await env.finish(handle.result()) == ["first", "a", "b", "c"]


async def test_an_update_without_a_handler_is_refused_once_the_workflow_waits_for_messages_only(
    engines: Engines,
) -> None:
    """While an activity, a timer or a timeout is under way it waits, and is shown; then its sender is told."""
    registry = Registry()

    @registry.workflow
    async def basket(ctx: Context) -> None:
        @ctx.on_update("put")
        def put() -> int:
            return 1

        await ctx.sleep(10)
        await ctx.listen("go", timeout=10)
        await ctx.promise("go", timeout=10)
        await ctx.listen("end")

        @ctx.on_update("late")
        def late() -> str:
            return "here"

        await ctx.promise("end")

    async with engines.open(registry) as env:
        handle = await env.start(basket)
        sent = asyncio.ensure_future(handle.update("putt", id="u"))
        for go_on in (lambda: env.advance(11), lambda: handle.signal("go"), lambda: handle.resolve("go")):
            await env.settle()
            assert not sent.done()
            assert any("update 'putt'" in text for text in (await handle.describe()).waiting_for)
            await go_on()
        with raises(errors.UpdateRejected, "has no handler for update 'putt'; it has 'put'"):
            await env.finish(sent)
        assert not any("update" in text for text in (await handle.describe()).waiting_for)
        for _ in range(2):
            with raises(errors.UpdateRejected, "it has 'put'"):
                await env.finish(handle.update("late", id="too early"))
        assert (await types_of(handle)).count("update_rejected") == 2
        await handle.signal("end")
        assert await env.finish(handle.update("late")) == "here"
        with raises(errors.UpdateRejected, "it has 'late', 'put'"):
            await env.finish(handle.update("putt"))


async def test_an_update_waits_a_minute_for_its_handler_at_most(engines: Engines) -> None:
    """Counted from when it was sent, or from a start that was put off; the next generation does not count anew."""
    registry = Registry()

    @registry.workflow
    async def sleeper(ctx: Context, nights: list[int]) -> None:
        await ctx.sleep(nights[0])
        if nights[1:]:
            ctx.continue_as_new(nights[1:])

    async with engines.open(registry) as env:
        for nights, delay, expected in (
            ([3600], 0, 60),
            ([3600], 100, 160),
            ([40, 3600], 0, 60),
            ([70, 70], 90, 150),
        ):
            begun = env.clock.now()
            handle = await env.start(sleeper, nights, delay=delay)
            with raises(errors.UpdateRejected, "it has none"):
                await env.finish(handle.update("wake"))
            assert env.clock.now() - begun == expected * 1000
            await handle.terminate()


async def test_an_update_in_the_tick_that_ends_the_workflow_is_answered(engines: Engines) -> None:
    """What the workflow waited for was the update itself; its sender gets the result all the same."""
    registry = Registry()

    @registry.workflow
    async def until_told(ctx: Context) -> str:
        said: list[str] = []

        @ctx.on_update("say")
        def say(text: str) -> str:
            said.append(text)
            return f"heard {text}"

        await ctx.until(lambda: bool(said))
        return said[0]

    async with engines.open(registry) as env:
        handle = await env.start(until_told)
        assert await env.finish(handle.update("say", "it")) == "heard it"
        assert await env.finish(handle.result()) == "it"


async def test_an_update_whose_handler_runs_when_the_workflow_ends_is_refused(engines: Engines) -> None:
    """And so is one whose handler never started."""
    registry = Registry()

    @registry.workflow
    async def short(ctx: Context) -> None:
        @ctx.on_update("slow")
        async def slow() -> None:
            await ctx.sleep(100)

        await ctx.sleep(10)

    async with engines.open(registry) as env:
        handle = await env.start(short)
        begun = asyncio.ensure_future(handle.update("slow"))
        waits = asyncio.ensure_future(handle.update("not handled"))
        await env.finish(handle.result())
        with raises(errors.NotFound, "before its handler returned"):
            await env.finish(begun)
        with raises(errors.NotFound, "before its handler started"):
            await env.finish(waits)


async def test_an_update_that_crosses_the_end_is_told_so(engines: Engines) -> None:
    """It is in the inbox when the commit of the end is written, which has not seen it: nothing is lost silently."""
    sent: list[asyncio.Future[Any]] = []
    async with engines.client(account()) as (store, clock, client):
        handle = await client.start("keep")

        async def before(part: r.Commit) -> None:
            if writes(part, events.WorkflowCompleted) and not sent:
                sent.append(asyncio.ensure_future(handle.update("add", 1)))
                for _ in range(20):
                    await asyncio.sleep(0)

        async with engines.serve(Interposed(store, before), clock, account()) as env:
            await env.settle()
            await handle.signal("close")
            assert await env.finish(handle.result()) == 0
            with raises(errors.NotFound, "closed"):
                await env.finish(sent[0])
            await env.settle()
            assert (await types_of(handle))[-1] == "workflow_deactivated"


async def test_an_update_goes_on_to_the_next_generation(engines: Engines) -> None:
    """One that waits for its handler when the workflow continues as new is begun there; its sender follows."""
    registry = Registry()

    @registry.workflow
    async def generations(ctx: Context, number: int) -> str:
        if number < 3:
            await ctx.sleep(10)
            ctx.continue_as_new(number + 1)
        got: list[str] = []

        @ctx.on_update("say")
        async def say(text: str) -> int:
            await ctx.sleep(1)
            got.append(text)
            return number

        await ctx.until(lambda: bool(got))
        return got[0]

    async with engines.open(registry) as env:
        handle = await env.start(generations, 1, id="gen")
        sent = asyncio.ensure_future(handle.update("say", "hello", id="u"))
        assert await env.finish(sent) == 3
        assert await env.finish(handle.result()) == "hello"
        assert await env.finish(handle.update("say", "hello", id="u")) == 3


async def test_the_sender_reads_every_execution_of_the_chain_in_turn(engines: Engines) -> None:
    """An update is handed on and handled, and its execution has ended too, before its sender hears of any of it."""
    registry = Registry()

    @registry.workflow(retry=RetryPolicy(max_attempts=2, initial_interval=0))
    async def relay(ctx: Context, number: int) -> str:
        if number == 1 and ctx.info.attempt == 1:
            raise ValueError("the first attempt fails")
        if number > 1:

            @ctx.on_update("say")
            def say() -> str:
                return f"generation {number}"

        await ctx.sleep(10)
        if number < 4:
            ctx.continue_as_new(number + 1)
        return "done"

    async with engines.client(registry) as (store, clock, near):
        slow = SlowToHear(store)
        async with Engine(cast("Store", slow), registry=registry, clock=clock, worker=False) as far:
            await near.start(relay, 1, id="relay")
            sent = asyncio.ensure_future(far.handle("relay").update("say", id="u"))
            async with engines.serve(store, clock, registry) as env:
                await env.advance(100)
                assert (await near.handle("relay").describe()).status is Status.COMPLETED
                slow.told.set()
                assert await env.finish(sent) == "generation 2"
                assert await env.finish(far.handle("relay").update("say", id="u")) == "generation 2"


async def test_the_sender_follows_a_retry_by_hand(engines: Engines) -> None:
    """The next attempt of a failed run is sent the update again, and holds the answer."""
    registry = Registry()

    @registry.workflow
    async def second_time(ctx: Context) -> str:
        @ctx.on_update("say")
        async def say() -> str:
            await ctx.sleep(1 if ctx.info.attempt == 2 else 100)
            return f"attempt {ctx.info.attempt}"

        await ctx.sleep(10)
        if ctx.info.attempt < 3:
            raise ValueError("too early")
        return "done"

    async with engines.client(registry) as (store, clock, near):
        slow = SlowToHear(store)
        async with Engine(cast("Store", slow), registry=registry, clock=clock, worker=False) as far:
            handle = await near.start(second_time, id="twice")
            sent = asyncio.ensure_future(far.handle("twice").update("say"))
            async with engines.serve(store, clock, registry) as env:
                for _ in range(2):
                    await env.advance(20)
                    await handle.retry()
                await env.settle()
                slow.told.set()
                assert await env.finish(sent) == "attempt 2"


async def test_a_result_that_cannot_be_recorded_rejects_the_update(engines: Engines) -> None:
    """Unserialisable, of the wrong type or too large: the sender is told which, and the workflow goes on."""
    registry = Registry()

    @registry.workflow
    async def odd(ctx: Context) -> str:
        @ctx.on_update("object")
        def give_object() -> Any:
            return object()

        @ctx.on_update("wrong")
        def give_wrong() -> int:
            return "text"  # type: ignore[return-value]  # the case

        @ctx.on_update("large")
        def give_large() -> str:
            return "x" * 2000

        await ctx.listen("close")
        return "fine"

    async with engines.open(registry, max_payload=1000) as env:
        handle = await env.start(odd)
        for name, kind, text in (
            ("object", errors.SerializationError, "result of update 'object'"),
            ("wrong", errors.SerializationError, "result of update 'wrong'"),
            ("large", errors.PayloadTooLarge, "2,002 bytes exceed the limit of 1,000"),
        ):
            with raises(errors.UpdateRejected, name) as caught:
                await env.finish(handle.update(name))
            assert isinstance(caught[0].__cause__, kind)
            assert text in str(caught[0].__cause__)
        await handle.signal("close")
        assert await env.finish(handle.result()) == "fine"


async def test_a_validator_may_look_but_not_act(engines: Engines) -> None:
    """Durable calls in a validator are refused, which refuses the update; durable state may be read."""
    registry = Registry()

    @registry.workflow
    async def guarded(ctx: Context) -> str:
        ctx.set("open", "yes")

        def acts() -> None:
            ctx.sleep(1)

        def looks() -> None:
            if ctx.get("open") != "yes":
                raise ValueError("closed")

        for name, validator in (("acts", acts), ("looks", looks)):

            @ctx.on_update(name, validator=validator)
            def done() -> str:
                return "done"

        await ctx.listen("close")
        return "fine"

    async with engines.open(registry) as env:
        handle = await env.start(guarded)
        with raises(errors.UpdateRejected) as caught:
            await env.finish(handle.update("acts"))
        assert "a durable call (Timer) inside the validator of update 'acts'" in str(caught[0].__cause__)
        assert await env.finish(handle.update("looks")) == "done"
        assert "timer_started" not in await types_of(handle)
        await handle.signal("close")
        assert await env.finish(handle.result()) == "fine"


async def test_a_handler_that_is_cancelled_rejects_its_update(engines: Engines) -> None:
    """A CancelledError that leaves it is an answer too; that of a signal's handler fails the workflow."""
    registry = Registry()

    @registry.workflow
    async def calls_off(ctx: Context) -> None:
        async def wait() -> None:
            timer = ctx.sleep(10)
            timer.cancel()
            await timer

        ctx.on_update("wait")(wait)
        ctx.on_signal("wait")(wait)
        await ctx.sleep(3600)

    async with engines.open(registry) as env:
        handle = await env.start(calls_off)
        with raises(errors.UpdateRejected) as caught:
            await env.finish(handle.update("wait"))
        assert "CancelledError" in repr(caught[0].__cause__)
        await handle.signal("wait")
        with raises(errors.WorkflowFailed, "CancelledError"):
            await env.finish(handle.result())


async def test_a_validator_that_would_never_run_is_refused(engines: Engines) -> None:
    """An async one could only be called and not awaited; so could one that is no function."""
    registry = Registry()

    @registry.workflow
    async def guarded(ctx: Context) -> list[str]:
        async def later() -> None:
            raise ValueError("never heard")

        def done() -> None:
            return None

        told: list[str] = []
        validators: list[Any] = [later, "done"]
        for validator in validators:
            try:
                ctx.on_update("u", validator=validator)(done)
            except errors.DefinitionError as error:
                told.append(str(error))
        return told

    async with engines.open(registry) as env:
        first, second = await run(env, guarded)
        assert "got an async one" in first
        assert "its validator must be a function" in second


async def test_an_update_waits_while_the_workflow_is_put_off_or_paused(engines: Engines) -> None:
    """To a scheduled run it comes when it begins, to a paused one when it is resumed."""
    async with engines.open(account()) as env:
        handle = await env.start("keep", delay=60)
        first = asyncio.ensure_future(handle.update("add", 1))
        await env.advance(30)
        assert not first.done()
        assert await env.finish(first) == 1
        await handle.pause()
        second = asyncio.ensure_future(handle.update("add", 2))
        await env.advance(30)
        assert not second.done()
        await handle.resume()
        assert await env.finish(second) == 3
