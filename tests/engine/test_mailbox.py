"""The mailbox: signals wait for their listener, in order, across everything that happens to a run."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Raw

from resurgam.core import errors
from resurgam.core import event as events
from resurgam.core.retry import RetryPolicy
from resurgam.core.state import Status
from resurgam.runtime.context.context import Context
from resurgam.runtime.registry import Registry
from resurgam.store import records as r
from resurgam.testing.contract.bench import raises
from support.engines import Engines, Interposed, complaints, run, slip_in, types_of, writes

MANY = 10_000


def collector() -> Registry:
    """Return the code of workflows that collect signals: by listening, by batches, by a handler."""
    registry = Registry()

    @registry.workflow
    async def listening(ctx: Context, count: int) -> int:
        for expected in range(count):
            assert await ctx.listen("number") == expected
        return count

    @registry.workflow
    async def batching(ctx: Context, count: int) -> int:
        got: list[int] = []
        while len(got) < count:
            got += await ctx.listen_many("number", limit=100, type=int)
        assert got == list(range(count))
        return count

    @registry.workflow
    async def handling(ctx: Context, count: int) -> int:
        got: list[int] = []

        @ctx.on_signal("number")
        def number(value: int) -> None:
            got.append(value)

        await ctx.until(lambda: len(got) == count)
        assert got == list(range(count))
        return count

    return registry


@pytest.mark.engines("memory-cached", "sqlite-replayed")
async def test_ten_thousand_signals_that_wait_are_handled_in_few_commits(engines: Engines) -> None:
    """The entries grow with the signals and no faster, the commits far slower; nothing is read again and again."""
    for name, entries in (("listening", 3), ("batching", 1.02), ("handling", 2)):
        commits: list[int] = []
        async with engines.client(collector()) as (store, clock, client):

            async def before(part: r.Commit, commits: list[int] = commits) -> None:
                commits.append(len(part.outcome.events))

            handle = await client.start(name, MANY)
            sent = [
                r.Delivery(
                    event=events.SignalReceived(at=clock.now(), name="number", id=str(n), value=Raw(b"%d" % n)),
                    entity_id=handle.entity_id,
                )
                for n in range(MANY)
            ]
            await store.deliver(sent)
            async with engines.serve(Interposed(store, before), clock, collector()) as env:
                assert await env.finish(handle.result()) == MANY
        assert sum(commits) <= MANY * entries + 10, name
        assert len(commits) <= MANY * entries / 400, (name, len(commits))


async def test_signals_come_in_batches(engines: Engines) -> None:
    """At most so many at once, as soon as there is one; none in time is an empty list; several names are told."""
    registry = Registry()

    @registry.workflow
    async def batches(ctx: Context) -> list[Any]:
        await ctx.listen("go")
        got: list[Any] = [await ctx.listen_many("a", limit=2), await ctx.listen_many("a", "b", limit=10)]
        begin = ctx.now()
        got.append(await ctx.listen_many("a", "b", limit=10, timeout=5))
        got.append((ctx.now() - begin).total_seconds())
        got.append(await ctx.listen_many("a", limit=10, timeout=5))
        return got

    async with engines.open(registry) as env:
        handle = await env.start(batches)
        for name, value in (("a", 1), ("b", 2), ("a", 3), ("c", 4), ("a", 5), ("go", None)):
            await handle.signal(name, value)
        await env.advance(7)
        await handle.signal("a", 6)
        assert await env.finish(handle.result()) == [[1, 3], [["b", 2], ["a", 5]], [], 5.0, [6]]


async def test_a_signal_of_a_wrong_type_does_not_cost_those_in_its_batch(engines: Engines) -> None:
    """It is dropped with a warning; if there is no other, the listener gets the error."""
    registry = Registry()

    @registry.workflow
    async def typed(ctx: Context) -> list[Any]:
        await ctx.listen("go")
        got: list[Any] = await ctx.listen_many("n", limit=10, type=int)
        await ctx.listen("go")
        try:
            got += await ctx.listen_many("n", limit=10, type=int)
        except errors.SerializationError:
            got.append("wrong")
        await ctx.sleep(1)
        return got

    async with engines.open(registry) as env:
        with complaints("resurgam.runtime") as said:
            handle = await env.start(typed)
            for name, value in (("n", 1), ("n", "two"), ("n", 3), ("go", None)):
                await slip_in(env, handle, name, value)
            await env.settle()
            for name, value in (("n", "four"), ("go", None)):
                await slip_in(env, handle, name, value)
            assert await env.finish(handle.result()) == [1, 3, "wrong"]
        assert [text for text in said if "signal 'n'" in text] == said
        assert len(said) == 1


async def test_a_signal_that_is_sent_by_two_attempts_is_heard_once(engines: Engines) -> None:
    """Its id comes from the run and the place of the call, which a retry shares."""
    registry = Registry()

    @registry.workflow
    async def hears(ctx: Context) -> list[Any]:
        got: list[Any] = []
        while batch := await ctx.listen_many("n", limit=10, timeout=100):
            got += batch
        return got

    @registry.workflow(retry=RetryPolicy(max_attempts=2, initial_interval=1, jitter=0))
    async def sends(ctx: Context) -> None:
        await ctx.signal("hearer", "n", 1)
        if ctx.info.attempt == 1:
            raise LookupError("the first time")
        await ctx.signal("hearer", "n", 2)

    async with engines.open(registry) as env:
        handle = await env.start(hears, id="hearer")
        await run(env, sends)
        assert await env.finish(handle.result()) == [1, 2]


async def test_signals_wait_while_a_run_is_put_off_paused_or_parked(engines: Engines) -> None:
    """Whatever it waits for, what is sent meanwhile is heard in order once it goes on."""
    registry = Registry()

    @registry.workflow
    async def collect(ctx: Context) -> list[Any]:
        return [await ctx.listen("n") for _ in range(5)]

    async with engines.client(registry) as (store, clock, client):
        handle = await client.start(collect, delay=10)
        await handle.signal("n", 0)
        async with engines.serve(store, clock, registry) as env:
            await env.advance(5)
            assert (await handle.describe()).status is Status.SCHEDULED
            await handle.signal("n", 1)
            await env.advance(6)
            await handle.pause()
            await handle.signal("n", 2)
            await env.advance(5)
            assert (await types_of(handle)).count("signals_consumed") == 2
            await handle.resume()
        async with engines.serve(store, clock, Registry()) as env:
            await handle.signal("n", 3)
            await env.settle()
            assert (await handle.describe()).status is Status.DIVERGED
            await handle.signal("n", 4)
        async with engines.serve(store, clock, registry) as env:
            assert await env.finish(handle.result()) == [0, 1, 2, 3, 4]


async def test_signal_with_start_reaches_the_open_run_or_begins_one(engines: Engines) -> None:
    """One step: two at once begin one run that hears both, and after its end another is begun."""
    registry = Registry()

    @registry.workflow
    async def cart(ctx: Context, number: int) -> list[Any]:
        return [number, await ctx.listen("item"), await ctx.listen("item")]

    async with engines.open(registry) as env:
        first, second = await asyncio.gather(
            *(env.engine.signal_with_start(cart, 1, id="cart", signal="item", value=n) for n in (10, 20))
        )
        assert first.run_id == second.run_id
        assert await env.finish(first.result()) == [1, 10, 20]
        third = await env.engine.signal_with_start(cart, 2, id="cart", signal="item", value=30, signal_id="x")
        again = await env.engine.signal_with_start(cart, 3, id="cart", signal="item", value=30, signal_id="x")
        assert third.run_id == again.run_id != first.run_id
        await third.signal("item", 40)
        assert await env.finish(third.result()) == [2, 30, 40]


async def test_signal_with_start_that_crosses_the_end_is_in_one_run(engines: Engines) -> None:
    """Before the commit of the end it reaches the old run, which does not listen; after it, it begins another."""
    registry = Registry()
    found: list[Any] = []

    @registry.workflow
    async def once(ctx: Context) -> Any:
        return await ctx.listen("item")

    async with engines.client(registry) as (store, clock, client):

        async def before(part: r.Commit) -> None:
            if writes(part, events.WorkflowCompleted) and not found:
                found.append(await client.signal_with_start(once, id="cart", signal="item", value=2))

        async with engines.serve(Interposed(store, before), clock, registry) as env:
            first = await env.engine.signal_with_start(once, id="cart", signal="item", value=1)
            assert await env.finish(first.result()) == 1
            assert found[0].run_id == first.run_id
            after = await env.engine.signal_with_start(once, id="cart", signal="item", value=3)
            assert after.run_id != first.run_id
            assert await env.finish(after.result()) == 3


async def test_signals_are_carried_to_the_next_generation(engines: Engines) -> None:
    """Those in the mailbox and those still in the inbox, in order; unless they are to be dropped."""
    registry = Registry()

    @registry.workflow
    async def generations(ctx: Context, rule: str, number: int) -> Any:
        if number == 1:
            await ctx.listen("go")
            ctx.continue_as_new(rule, 2, signals=rule)  # type: ignore[arg-type]  # one of the two
        await ctx.sleep(10)
        return await ctx.listen_many("n", limit=10, timeout=1)

    sent: list[int] = []
    async with engines.client(registry) as (store, clock, client):
        handles = {rule: await client.start(generations, rule, 1, id=rule) for rule in ("carry", "drop")}

        async def before(part: r.Commit) -> None:
            if writes(part, events.WorkflowContinued):
                await handles[part.entity_id].signal("n", 3)
                sent.append(3)

        async with engines.serve(Interposed(store, before), clock, registry) as env:
            for handle in handles.values():
                for name, value in (("n", 1), ("n", 2), ("go", None)):
                    await handle.signal(name, value)
            await env.settle()
            for handle in handles.values():
                await handle.signal("n", 4)
            assert await env.finish(handles["carry"].result()) == [1, 2, 3, 4]
            assert await env.finish(handles["drop"].result()) == [4]
            assert sent == [3, 3]


async def test_a_workflow_sends_signals(engines: Engines) -> None:
    """To another, to itself, to a closed one, and to an unknown id: the sender gets the outcome."""
    registry = Registry()

    @registry.workflow
    async def hears(ctx: Context) -> Any:
        return await ctx.listen("news")

    @registry.workflow
    async def sends(ctx: Context, other: str) -> list[Any]:
        told: list[Any] = []
        await ctx.signal(other, "news", {"a": 1})
        await ctx.sleep(1)
        own = ctx.signal(ctx.info.entity_id, "own", 5)
        told.append(await ctx.listen("own"))
        await own
        for gone in (other, "unknown"):
            try:
                await ctx.signal(gone, "news")
            except errors.SignalFailed as failed:
                told.append(str(failed))
        return told

    async with engines.open(registry) as env:
        handle = await env.start(hears, id="hearer")
        told = await run(env, sends, "hearer")
        assert await env.finish(handle.result()) == {"a": 1}
        own, ended, unknown = told
        assert own == 5
        assert "'hearer'" in ended
        assert "is closed and accepts no more signals" in ended
        assert "'unknown'" in unknown


async def test_a_signal_sent_twice_does_not_let_a_later_one_pass_a_deadline(engines: Engines) -> None:
    """The double came in time and means nothing; the next came after the timeout, and is not the listener's."""
    registry = Registry()

    @registry.workflow
    async def wait(ctx: Context) -> list[Any]:
        told = [await ctx.listen("n")]
        try:
            told.append(await ctx.listen("n", timeout=10))
        except errors.SignalTimeout:
            told.append("timeout")
        return [*told, await ctx.listen("n")]

    async with engines.client(registry) as (store, clock, client):
        handle = await client.start(wait)
        await handle.signal("n", 1, id="one")
        async with engines.serve(store, clock, registry) as env:
            await env.settle()
        clock.move_to(clock.now() + 5_000)
        await handle.signal("n", 1, id="one")
        clock.move_to(clock.now() + 10_000)
        await handle.signal("n", 2)
        async with engines.serve(store, clock, registry) as env:
            assert await env.finish(handle.result()) == [1, "timeout", 2]


async def test_a_signal_that_crosses_a_timeout_is_left_to_the_next_listener(engines: Engines) -> None:
    """Between the claim and the commit of the timeout: the log decides, once, and nothing is lost."""
    registry = Registry()
    sent: list[int] = []

    @registry.workflow
    async def wait(ctx: Context) -> list[Any]:
        try:
            return [await ctx.listen("n", timeout=10)]
        except errors.SignalTimeout:
            return ["timeout", await ctx.listen("n")]

    async with engines.client(registry) as (store, clock, client):
        handle = await client.start(wait)

        async def before(part: r.Commit) -> None:
            if writes(part, events.ListenTimedOut) and not sent:
                sent.append(1)
                await handle.signal("n", 1)

        async with engines.serve(Interposed(store, before), clock, registry) as env:
            assert await env.finish(handle.result()) == ["timeout", 1]


async def test_what_is_said_wrongly_changes_nothing(engines: Engines) -> None:
    """Names that are none, values that cannot be written or are too large: one clear error, inside and outside."""
    registry = Registry()

    @registry.workflow
    async def clumsy(ctx: Context) -> list[str]:
        told: list[str] = []
        for call in _mistakes(ctx):
            try:
                call()
            except (errors.ResurgamError, ValueError, TypeError) as error:
                told.append(type(error).__name__)
            else:
                told.append("nothing")
        return told

    async with engines.open(registry, max_payload=1000) as env:
        handle = await env.start(clumsy)
        told = await env.finish(handle.result())
        assert "nothing" not in told, told
        assert told.count("PayloadTooLarge") == 3
        assert await types_of(handle) == ["workflow_started", "workflow_completed", "workflow_deactivated"]


async def test_what_is_said_wrongly_from_outside_changes_nothing(engines: Engines) -> None:
    """The same for clients: the caller gets the error, and the run none of it."""
    async with engines.open(collector(), max_payload=1000) as env:
        handle = await env.start("listening", 1)
        length = len(await handle.history())
        calls: list[Any] = [handle.signal, handle.update, handle.query, handle.resolve, env.engine.resolve]
        for given in ("", None, 1):
            for call in calls:
                with raises(ValueError):
                    await call(given)
        for value, kind in ((object(), errors.SerializationError), ("x" * 2000, errors.PayloadTooLarge)):
            for call in calls:
                with raises(kind):
                    await call("name", value)
        with raises(errors.PayloadTooLarge, "2,002 bytes exceed the limit of 1,000"):
            await handle.signal("number", "x" * 2000)
        await env.settle()
        assert len(await handle.history()) == length
        await handle.signal("number", 0)
        assert await env.finish(handle.result()) == 1


async def test_a_context_is_of_no_use_outside_of_its_workflow(engines: Engines) -> None:
    """Kept and used elsewhere it says so, whatever is asked of it."""
    registry = Registry()
    kept: list[Any] = []

    @registry.workflow
    async def leak(ctx: Context) -> None:
        kept.append(ctx)
        await ctx.listen("close")

    async with engines.open(registry) as env:
        handle = await env.start(leak)
        ctx = kept[-1]
        calls: list[Callable[[], object]] = [
            lambda: ctx.listen("n"),
            lambda: ctx.signal("x", "n"),
            lambda: ctx.publish("t", 1),
            lambda: ctx.promise("p"),
            lambda: ctx.resolve("p", 1),
            lambda: ctx.set("k", 1),
            lambda: ctx.on_signal("close")(lambda: None),
            lambda: ctx.on_update("u")(lambda: None),
            lambda: ctx.on_query("q")(lambda: None),
        ]
        for call in calls:
            with raises(BaseException) as caught:
                call()
            assert isinstance(caught[0], errors.NotDeterministic | errors.Evicted), caught
        await handle.signal("close")
        await env.finish(handle.result())


def _mistakes(ctx: Context) -> list[Callable[[], object]]:
    """Return calls that say something wrongly."""
    bad: Any = object()
    none: Any = None
    names: Any = ()
    return [
        lambda: ctx.listen(*names),
        lambda: ctx.listen(""),
        lambda: ctx.listen(none),
        lambda: ctx.listen("n", timeout=bad),
        lambda: ctx.listen_many("n", limit=0),
        lambda: ctx.listen_many("n", limit=none),
        lambda: ctx.signal("", "n"),
        lambda: ctx.signal("x", ""),
        lambda: ctx.signal("x", "n", bad),
        lambda: ctx.signal("x", "n", "x" * 2000),
        lambda: ctx.promise(""),
        lambda: ctx.promise("p", timeout=bad),
        lambda: ctx.promise("p", type=bad),
        lambda: ctx.resolve("", 1),
        lambda: ctx.resolve("x", bad),
        lambda: ctx.resolve("x", "x" * 2000),
        lambda: ctx.on_signal("")(lambda: None),
        lambda: ctx.on_signal("n")(bad),
        lambda: ctx.on_update(none)(lambda: None),
        lambda: ctx.on_query("q")("text"),  # type: ignore[type-var]  # the case
        lambda: ctx.set("", 1),
        lambda: ctx.set("k", bad),
        lambda: ctx.set("k", "x" * 2000),
    ]
