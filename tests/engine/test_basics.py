"""Start and result, bad calls, side effects, queues, lists and counts."""

import asyncio
from typing import Any

from resurgam.core import errors
from resurgam.core import event as events
from resurgam.core.retry import RetryPolicy
from resurgam.core.state import Status
from resurgam.runtime.context.context import Context
from resurgam.runtime.registry import Registry
from resurgam.store import records as r
from resurgam.testing.contract.bench import raises
from support.engines import Engines, of_kind, run, types, types_of

ONCE = RetryPolicy(max_attempts=1)


async def test_a_workflow_returns_its_result(engines: Engines) -> None:
    """The result of the function is the result of the handle, as often as one asks."""
    registry = Registry()

    @registry.workflow
    async def greet(_ctx: Context, name: str) -> str:
        return f"hello {name}"

    async with engines.open(registry) as env:
        handle = await env.start(greet, "Ada", id="greeting")
        assert await env.finish(handle.result()) == "hello Ada"
        assert await env.finish(env.engine.handle("greeting").result()) == "hello Ada"
        assert (await handle.describe()).status is Status.COMPLETED


async def test_execute_starts_and_waits(engines: Engines) -> None:
    """Starting and waiting in one go gives the result too, while time passes beside it."""
    registry = Registry()

    @registry.workflow
    async def nap(ctx: Context, seconds: float) -> str:
        await ctx.sleep(seconds)
        return "slept"

    async with engines.open(registry) as env:
        assert await env.finish(env.engine.execute(nap, 60)) == "slept"


async def test_a_hundred_activities_run_side_by_side(engines: Engines) -> None:
    """Many activities that are gathered each give their own result, in the order of the calls."""
    registry = Registry()

    @registry.activity
    async def double(x: int) -> int:
        return 2 * x

    @registry.workflow
    async def fan_out(ctx: Context, count: int) -> list[int]:
        return list(await asyncio.gather(*(ctx.activity(double, x) for x in range(count))))

    async with engines.open(registry) as env:
        assert await run(env, fan_out, 100) == [2 * x for x in range(100)]


async def test_the_shortest_history_has_three_entries(engines: Engines) -> None:
    """A workflow that only returns is started, completed, deactivated; seq counts without a gap."""
    registry = Registry()

    @registry.workflow
    async def nothing(_ctx: Context) -> None:
        return None

    async with engines.open(registry) as env:
        handle = await env.start(nothing)
        history = await handle.history()
        assert types(history) == ["workflow_started", "workflow_completed", "workflow_deactivated"]
        assert [entry.seq for entry in history] == [1, 2, 3]


async def test_an_unknown_workflow_is_refused_where_it_would_run(engines: Engines) -> None:
    """An engine that serves the queue itself refuses a name that it does not know."""
    async with engines.open(Registry()) as env:
        with raises(errors.NotFound, "'unknown'"):
            await env.start("unknown")
        assert (await env.engine.list()).instances == ()


async def test_an_unknown_workflow_waits_for_a_worker_that_knows_it(engines: Engines) -> None:
    """Started from elsewhere it is parked with the reason, others are served, and a newer worker runs it."""
    old, new = Registry(), Registry()

    @new.workflow
    async def later(_ctx: Context) -> str:
        return "at last"

    @old.workflow
    async def now(_ctx: Context) -> str:
        return "now"

    async with engines.client(new) as (store, clock, client):
        handle = await client.start(later)
        async with engines.serve(store, clock, old) as env:
            with raises(errors.ResultTimeout, "'later' is not registered"):
                await env.finish(handle.result(timeout=5))
            assert (await handle.describe()).status is Status.DIVERGED
            assert await run(env, now) == "now"
        async with engines.serve(store, clock, new) as env:
            assert await env.finish(handle.result()) == "at last"


async def test_arguments_that_do_not_fit_are_refused_by_the_client(engines: Engines) -> None:
    """A wrong number of arguments, or a wrong type, is an error of the caller, and nothing is started."""
    registry = Registry()

    @registry.workflow
    async def add(_ctx: Context, x: int, y: int) -> int:
        return x + y

    async with engines.open(registry) as env:
        for wrong in ((), (1,), (1, 2, 3)):
            with raises(errors.DefinitionError, "'add'"):
                await env.start("add", *wrong)
        with raises(errors.SerializationError, "'y'"):
            await env.start("add", 1, "two")
        with raises(errors.SerializationError, "'y'"):
            await env.start("add", 1, object())
        assert (await env.engine.list()).instances == ()
        assert await run(env, add, 1, 2) == 3


async def test_an_unregistered_activity_fails(engines: Engines) -> None:
    """An activity that the worker does not know is a failure that the workflow hears of."""
    registry = Registry()
    unknown = registry.activity.ref("unknown", returns=str).options(retry=ONCE)

    @registry.workflow
    async def ask(ctx: Context) -> str:
        try:
            return await ctx.activity(unknown)
        except errors.ActivityFailed as failed:
            return f"{type(failed.cause).__name__} {failed.cause}"

    async with engines.open(registry) as env:
        result = await run(env, ask)
        assert result.startswith("NotFound activity 'unknown' is not registered")


async def test_an_activity_called_with_wrong_arguments_fails_at_once(engines: Engines) -> None:
    """By function the call itself is an error; by name the failure reaches the workflow, without retries."""
    registry = Registry()

    @registry.activity
    async def one(x: int) -> int:
        return x

    @registry.workflow
    async def call(ctx: Context) -> list[str]:
        told: list[str] = []
        given: Any = one
        try:
            ctx.activity(given, 1, 2)
        except errors.DefinitionError as error:
            told.append(str(error))
        for wrong in ((1, 2), ("x",)):
            try:
                await ctx.activity("one", *wrong)
            except errors.ActivityFailed as failed:
                told.append(f"{failed.attempts} {type(failed.cause).__name__}")
        return told

    async with engines.open(registry) as env:
        first, *others = await run(env, call)
        assert "'one'" in first
        assert others == ["1 DefinitionError", "1 SerializationError"]


async def test_a_side_effect_is_run_once(engines: Engines) -> None:
    """Operations around a sleep are run once each, and what they gave is used again."""
    registry = Registry()
    calls: list[str] = []

    def effect(name: str) -> str:
        calls.append(name)
        return f"{name} {len(calls)}"

    async def slow_effect(name: str) -> str:
        return effect(name)

    @registry.workflow
    async def twice(ctx: Context) -> list[str]:
        first = await ctx.run(effect, "first")
        await ctx.sleep(60)
        second = await ctx.run(slow_effect, "second")
        await ctx.sleep(60)
        return [first, second]

    async with engines.open(registry) as env:
        assert await run(env, twice) == ["first 1", "second 2"]
        assert calls == ["first", "second"]


async def test_a_side_effect_that_fails_is_not_repeated(engines: Engines) -> None:
    """An operation that raised is heard of once, with its cause."""
    registry = Registry()
    calls: list[int] = []

    def broken() -> None:
        calls.append(1)
        raise KeyError("no")

    @registry.workflow
    async def try_it(ctx: Context) -> str:
        try:
            await ctx.run(broken)
        except errors.OperationFailed as failed:
            await ctx.sleep(1)
            return type(failed.cause).__name__
        return "nothing happened"

    async with engines.open(registry) as env:
        assert await run(env, try_it) == "KeyError"
        assert calls == [1]


async def test_a_workflow_that_has_ended_takes_no_signal(engines: Engines) -> None:
    """Signal and cancel after the end, and to an unknown id, are NotFound."""
    registry = Registry()

    @registry.workflow
    async def nothing(_ctx: Context) -> None:
        return None

    async with engines.open(registry) as env:
        handle = await env.start(nothing, id="over")
        for told in (handle, env.engine.handle("unknown")):
            with raises(errors.NotFound, told.entity_id):
                await told.signal("news", 1)
            with raises(errors.NotFound, told.entity_id):
                await told.cancel()
        assert len(await handle.history()) == 3


async def test_the_counts_are_right_at_every_step(engines: Engines) -> None:
    """Open instances and what waits in each queue, before the start, in each activity, and at the end."""
    registry = Registry()
    seen: list[r.Stats] = []

    async with engines.client(registry) as (store, clock, client):

        @registry.activity
        async def look() -> None:
            seen.append(await store.inspector.stats())

        @registry.workflow
        async def watch(ctx: Context) -> None:
            await ctx.activity(look)
            await ctx.activity(look.options(queue="other"))

        handle = await client.start(watch)
        before = await store.inspector.stats()
        assert before.instances == {"running": 1}
        assert before.queues["default"] == r.QueueStats(instances=1)
        async with engines.serve(store, clock, registry, queues=["default", "other"]) as env:
            await env.finish(handle.result())
        for stats, queue in zip(seen, ("default", "other"), strict=True):
            assert stats.instances == {"running": 1}
            assert stats.queues[queue] == r.QueueStats(claimed_activities=1)
        after = await store.inspector.stats()
        assert {status: count for status, count in after.instances.items() if count} == {"completed": 1}
        assert set(after.queues.values()) <= {r.QueueStats()}


async def test_fifty_instances_are_listed_in_five_pages(engines: Engines) -> None:
    """Pages of ten show each instance once, newest first, and after the fifth there is none."""
    registry = Registry()

    @registry.workflow
    async def nothing(_ctx: Context) -> None:
        return None

    async with engines.open(registry) as env:
        for number in range(50):
            await env.engine.start(nothing, id=f"order-{number:02}")
            if number % 7 == 0:
                await env.advance(1)
        names: list[str] = []
        created: list[int] = []
        cursor: str | None = None
        for number in range(5):
            page = await env.engine.list(limit=10, cursor=cursor)
            assert len(page.instances) == 10
            cursor = page.cursor
            assert (cursor is None) == (number == 4)
            names += [found.entity_id for found in page.instances]
            created += [found.created_at for found in page.instances]
        assert sorted(names) == [f"order-{number:02}" for number in range(50)]
        assert created == sorted(created, reverse=True)


async def test_a_workflow_tells_its_queue(engines: Engines) -> None:
    """The queue of an instance, its own or the one given at the start, is shown."""
    registry = Registry()

    @registry.workflow
    async def here(ctx: Context) -> str:
        return ctx.info.queue

    @registry.workflow(queue="custom")
    async def there(ctx: Context) -> str:
        return ctx.info.queue

    async with engines.open(registry, queues=["default", "custom", "given"]) as env:
        for workflow, queue, expected in (
            (here, None, "default"),
            (there, None, "custom"),
            (here, "given", "given"),
        ):
            handle = await env.start(workflow, queue=queue)
            assert (await handle.describe()).queue == expected
            assert await env.finish(handle.result()) == expected


async def test_a_queue_without_a_worker_is_left_alone(engines: Engines) -> None:
    """An instance on an unserved queue stays open, and its function is never called."""
    registry = Registry()
    called: list[int] = []

    @registry.workflow
    async def never(_ctx: Context) -> None:
        called.append(1)

    async with engines.open(registry) as env:
        handle = await env.start(never, queue="unserved")
        await env.advance(3600)
        assert (await handle.describe()).status is Status.RUNNING
        assert called == []
        assert await types_of(handle) == ["workflow_started"]


async def test_a_failed_workflow_raises_its_cause(engines: Engines) -> None:
    """What the function raised is the cause of what the handle raises, with its type and message."""
    registry = Registry()

    @registry.workflow
    async def fail(ctx: Context) -> None:
        await ctx.sleep(1)
        raise LookupError("nothing there")

    async with engines.open(registry) as env:
        with raises(errors.WorkflowFailed) as caught:
            await run(env, fail)
        assert isinstance(caught[0].__cause__, LookupError)
        assert str(caught[0].__cause__) == "nothing there"


async def test_state_is_kept_and_can_be_read_from_outside(engines: Engines) -> None:
    """What a workflow sets is what it gets, and what its handle shows, until it is cleared."""
    registry = Registry()

    @registry.workflow
    async def count(ctx: Context) -> list[Any]:
        ctx.set("count", 1)
        ctx.set("gone", {"a": [1]})
        await ctx.sleep(10)
        ctx.set("count", ctx.get("count") + 1)
        ctx.clear("gone")
        await ctx.sleep(10)
        return [ctx.get("count"), ctx.get("gone", "default")]

    async with engines.open(registry) as env:
        handle = await env.start(count)
        assert (await handle.state("count"), await handle.state("gone")) == (1, {"a": [1]})
        await env.advance(10)
        assert (await handle.state("count"), await handle.state("gone", "none")) == (2, "none")
        assert await env.finish(handle.result()) == [2, "default"]


def crash():
    empty = []
    return empty[1]


async def test_a_failed_run_keeps_its_traceback(engines: Engines):
    registry = Registry()

    @registry.workflow
    async def work(_ctx: Context) -> None:
        crash()

    async with engines.open(registry) as env:
        handle = await env.start(work)
        [failed] = of_kind(await handle.history(), events.WorkflowFailed)
    assert "IndexError" in failed.failure.type
    assert "in crash" in failed.failure.traceback


async def test_results_of_all_kinds_are_what_was_recorded(engines: Engines):
    registry = Registry()

    @registry.activity
    async def act() -> tuple[int, str, list[float]]:
        return 1, "two", [3.0]

    @registry.activity
    async def book(trip: dict[str, int]) -> dict[str, int]:
        return trip

    @registry.workflow
    async def leaf(ctx: Context) -> tuple[int, str, list[float]]:
        return await ctx.activity(act)

    @registry.workflow
    async def child(ctx: Context) -> list[object]:
        return [await ctx.workflow(leaf)]

    @registry.workflow
    async def work(ctx: Context) -> list[object]:
        async with ctx.saga() as saga:
            booked = await saga.step(book, {"a": 1})
        effect = await ctx.run(lambda: {"x": [None, True]}, name="effect")
        return [await ctx.activity(act), effect, await ctx.workflow(child), booked, await ctx.listen("word")]

    async with engines.open(registry) as env:
        handle = await env.start(work)
        await handle.signal("word", {"deep": [1, {"er": None}]})
        assert await env.finish(handle.result()) == [
            [1, "two", [3.0]],
            {"x": [None, True]},
            [[1, "two", [3.0]]],
            {"a": 1},
            {"deep": [1, {"er": None}]},
        ]
