"""Activities that fail, are tried again, take too long, or outlive their workflow."""

import asyncio
import threading
from typing import Any

from resurgam.core import errors
from resurgam.core import event as events
from resurgam.core.retry import RetryPolicy
from resurgam.core.state import Status
from resurgam.runtime.context.context import Context
from resurgam.runtime.definitions.info import activity_info
from resurgam.runtime.registry import Registry
from resurgam.testing import Environment, ManualClock
from resurgam.testing.contract.bench import raises
from support.engines import Engines, run, types_of

ONCE = RetryPolicy(max_attempts=1)
STEADY = RetryPolicy(max_attempts=5, initial_interval=1, backoff=2, max_interval=5, jitter=0.1)


class NoMoneyError(Exception):
    """An error of the user, with fields."""

    def __init__(self, account: str, missing: int) -> None:
        super().__init__(f"account {account} lacks {missing}")
        self.account, self.missing = account, missing


async def test_an_activity_that_crashes_is_a_failure(engines: Engines) -> None:
    """Even what is no Exception arrives as the cause of the failure, and the worker goes on."""
    registry = Registry()

    @registry.activity(retry=ONCE)
    def leaves() -> None:
        raise SystemExit("out")

    @registry.activity(retry=ONCE)
    async def divides() -> float:
        return 1 / int("0")

    @registry.workflow
    async def crash(ctx: Context) -> list[str]:
        told: list[str] = []
        for activity in (leaves, divides):
            try:
                await ctx.activity(activity)
            except errors.ActivityFailed as failed:
                told.append(f"{type(failed.cause).__name__}: {failed.cause}")
        return told

    async with engines.open(registry) as env:
        expected = ["SystemExit: out", "ZeroDivisionError: division by zero"]
        assert await run(env, crash) == expected


async def test_an_async_activity_that_leaves_is_a_failure(engines: Engines) -> None:
    """SystemExit in a coroutine counts as a failure of the activity, and does not end the worker's process.

    KeyboardInterrupt that it raises by itself, neither.
    """
    registry = Registry()

    @registry.activity(retry=ONCE)
    async def leaves(kind: str) -> None:
        raise (SystemExit if kind == "exit" else KeyboardInterrupt)("out")

    @registry.workflow
    async def crash(ctx: Context, kind: str) -> str:
        try:
            await ctx.activity(leaves, kind)
        except errors.ActivityFailed as failed:
            return f"{type(failed.cause).__name__}: {failed.cause}"
        return "nothing happened"

    async with engines.open(registry) as env:
        assert await run(env, crash, "exit") == "SystemExit: out"
        assert await run(env, crash, "interrupt") == "KeyboardInterrupt: out"


async def test_an_error_keeps_its_type_its_message_and_its_fields(engines: Engines) -> None:
    """The workflow catches what the activity raised."""
    registry = Registry()

    @registry.activity(retry=ONCE)
    async def charge() -> None:
        raise NoMoneyError("A1", 7) from KeyError("balance")

    @registry.workflow
    async def pay(ctx: Context) -> list[Any]:
        try:
            await ctx.activity(charge)
        except errors.ActivityFailed as failed:
            await ctx.sleep(1)
            cause = failed.cause
            assert isinstance(cause, NoMoneyError)
            return [cause.account, cause.missing, str(cause), type(cause.__cause__).__name__]
        return []

    async with engines.open(registry) as env:
        assert await run(env, pay) == ["A1", 7, "account A1 lacks 7", "KeyError"]


async def test_attempts_are_counted(engines: Engines) -> None:
    """An activity sees which attempt it is, under an id that stays the same, and is no other activity's."""
    registry = Registry()
    seen: list[tuple[int, str]] = []

    @registry.activity(retry=STEADY)
    async def third_time() -> int:
        info = activity_info()
        seen.append((info.attempt, info.idempotency_key))
        if info.attempt < 3:
            raise ValueError(info.attempt)
        return info.attempt

    @registry.workflow
    async def insist(ctx: Context) -> int:
        return await ctx.activity(third_time) + await ctx.activity(third_time)

    async with engines.open(registry) as env:
        assert await run(env, insist) == 6
        assert [attempt for attempt, _ in seen] == [1, 2, 3, 1, 2, 3]
        assert [len({key for _, key in part}) for part in (seen[:3], seen[3:], seen)] == [1, 1, 2]


async def test_pauses_between_attempts_grow(engines: Engines) -> None:
    """Each pause is the last times the backoff, capped, spread by no more than the jitter, and is kept to."""
    registry = Registry()
    runs: list[int] = []

    async with engines.client(registry) as (store, clock, client):

        @registry.activity(retry=STEADY)
        async def never() -> None:
            runs.append(clock.now())
            raise ValueError("never")

        @registry.workflow
        async def insist(ctx: Context) -> None:
            await ctx.activity(never)

        handle = await client.start(insist)
        async with engines.serve(store, clock, registry) as env:
            with raises(errors.WorkflowFailed, "after 5 attempts"):
                await env.finish(handle.result())
        retries = [e for e in await handle.history() if isinstance(e, events.ActivityRetryScheduled)]
        assert [retry.attempt for retry in retries] == [1, 2, 3, 4]
        for retry, run, pause in zip(retries, runs[1:], (1000, 2000, 4000, 5000), strict=True):
            assert 0.9 * pause <= retry.next_at - retry.at <= 1.1 * pause
            assert run == retry.next_at


async def test_an_error_that_is_not_to_be_retried_is_final(engines: Engines) -> None:
    """NonRetryable, and errors that the policy names, by type or by name, end it at the first attempt."""
    registry = Registry()
    policy = RetryPolicy(non_retryable=[KeyError, "NoMoneyError"])

    @registry.activity(retry=policy)
    async def refuse(what: str) -> None:
        raise {"asked": errors.NonRetryable("no"), "type": KeyError("no"), "name": NoMoneyError("A", 1)}[what]

    @registry.workflow
    async def once(ctx: Context, what: str) -> int:
        try:
            await ctx.activity(refuse, what)
        except errors.ActivityFailed as failed:
            return failed.attempts
        return 0

    async with engines.open(registry) as env:
        for what in ("asked", "type", "name"):
            assert await run(env, once, what) == 1


async def test_an_activity_may_say_when_to_try_again(engines: Engines) -> None:
    """RetryAfter sets the pause, in a coroutine as in a thread, and does not add attempts."""
    registry = Registry()

    @registry.activity(retry=RetryPolicy(max_attempts=2))
    async def busy() -> None:
        raise errors.RetryAfter(3600, "come back later")

    @registry.activity(retry=RetryPolicy(max_attempts=2))
    def busy_thread() -> None:
        raise errors.RetryAfter(60, "come back soon")

    @registry.workflow
    async def patient(ctx: Context, name: str) -> None:
        await ctx.activity(busy if name == "busy" else busy_thread)

    async with engines.open(registry) as env:
        for name, said, pause in (("busy", "come back later", 3_600_000), ("thread", "come back soon", 60_000)):
            handle = await env.start(patient, name)
            with raises(errors.WorkflowFailed, said):
                await env.finish(handle.result())
            [retry] = [e for e in await handle.history() if isinstance(e, events.ActivityRetryScheduled)]
            assert retry.next_at - retry.at == pause


async def test_an_activity_that_takes_too_long_is_stopped(engines: Engines) -> None:
    """An async activity past its timeout is cancelled, fails with TimeoutError, and is tried again."""
    registry = Registry()
    attempts: list[str] = []

    @registry.activity(timeout=5, retry=RetryPolicy(max_attempts=2))
    async def hangs() -> str:
        if attempts:
            return "second time"
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            attempts.append("stopped")
            raise
        return "never"

    @registry.workflow
    async def wait(ctx: Context) -> str:
        return await ctx.activity(hangs)

    async with engines.open(registry) as env:
        handle = await env.start(wait)
        await env.advance(4.999)
        assert attempts == []
        assert await env.finish(handle.result()) == "second time"
        assert attempts == ["stopped"]
        [retry] = [e for e in await handle.history() if isinstance(e, events.ActivityRetryScheduled)]
        assert retry.failure.type == "builtins.TimeoutError"


async def test_a_thread_that_takes_too_long_is_left_behind(engines: Engines) -> None:
    """A threaded activity past its timeout fails with TimeoutError; what it returns later is not heard."""
    registry = Registry()
    gate = threading.Event()

    @registry.activity(timeout=5, retry=ONCE)
    def hangs() -> str:
        gate.wait()
        return "too late"

    @registry.workflow
    async def wait(ctx: Context) -> str:
        try:
            return await ctx.activity(hangs)
        except errors.ActivityFailed as failed:
            return type(failed.cause).__name__

    async with engines.open(registry) as env:
        try:
            handle = await env.start(wait)
            await env.advance(4.999)
            assert (await handle.describe()).status is Status.RUNNING
            assert await env.finish(handle.result()) == "TimeoutError"
        finally:
            gate.set()
        await env.advance(60)
        assert (await types_of(handle))[-3:] == ["activity_failed", "workflow_completed", "workflow_deactivated"]


async def test_a_long_activity_keeps_its_lease(engines: Engines) -> None:
    """An activity that runs for much longer than a lease is not handed out a second time."""
    registry = Registry()
    gate = asyncio.Event()
    runs: list[int] = []

    @registry.activity
    async def long() -> str:
        runs.append(activity_info().attempt)
        await gate.wait()
        return "done"

    @registry.workflow
    async def wait(ctx: Context) -> str:
        return await ctx.activity(long)

    async with engines.open(registry) as env:
        handle = await env.start(wait)
        await env.advance(25)
        gate.set()
        assert await env.finish(handle.result()) == "done"
        assert runs == [1]


async def test_a_result_that_comes_after_the_end_is_recorded(engines: Engines) -> None:
    """An activity left running when its workflow ends runs on; its result is the last but one entry."""
    registry = Registry()
    gate = asyncio.Event()

    @registry.activity
    async def slow() -> str:
        await gate.wait()
        return "late"

    @registry.workflow
    async def leave(ctx: Context) -> str:
        ctx.activity(slow)
        return await ctx.listen("go", type=str)

    async with engines.open(registry) as env:
        handle = await env.start(leave)
        await handle.signal("go", "gone")
        assert await env.finish(handle.result()) == "gone"
        found = await handle.describe()
        assert (found.status, found.deactivated) == (Status.COMPLETED, False)
        gate.set()
        await env.settle()
        found = await handle.describe()
        assert (found.status, found.deactivated) == (Status.COMPLETED, True)
        assert (await types_of(handle))[-3:] == ["workflow_completed", "activity_completed", "workflow_deactivated"]
        assert await env.finish(handle.result()) == "gone"


async def test_the_result_of_a_thread_that_comes_after_the_end_is_recorded(engines: Engines) -> None:
    """It is not interrupted when its workflow ends; its result is recorded, though the code never gets it."""
    registry = Registry()
    gate = threading.Event()

    @registry.activity
    def slow() -> str:
        gate.wait()
        return f"late, cancelled: {registry.activity.cancelled()}"

    @registry.workflow
    async def leave(ctx: Context) -> str:
        ctx.activity(slow)
        return await ctx.listen("go", type=str)

    async with engines.open(registry) as env:
        try:
            handle = await env.start(leave)
            await handle.signal("go", "gone")
            assert await env.finish(handle.result()) == "gone"
            assert not (await handle.describe()).deactivated
        finally:
            gate.set()
        while not (await handle.describe()).deactivated:  # the thread ends when the machine lets it
            await env.settle()
        *_, completed, _ = history = await handle.history()
        assert [entry.type for entry in history][-3:-1] == ["workflow_completed", "activity_completed"]
        assert isinstance(completed, events.ActivityCompleted)
        assert bytes(completed.result) == b'"late, cancelled: False"'
        assert await env.finish(handle.result()) == "gone"


async def test_an_activity_that_fails_after_the_end_is_not_tried_again(engines: Engines) -> None:
    """Once the workflow has ended nothing new starts, and its history is closed."""
    registry = Registry()
    gate = asyncio.Event()
    runs: list[int] = []

    @registry.activity(retry=RetryPolicy(max_attempts=None))
    async def slow() -> None:
        runs.append(activity_info().attempt)
        await gate.wait()
        raise ValueError("too late")

    @registry.workflow
    async def leave(ctx: Context) -> str:
        ctx.activity(slow)
        return await ctx.listen("go", type=str)

    async with engines.open(registry) as env:
        handle = await env.start(leave)
        await handle.signal("go", "gone")
        await env.finish(handle.result())
        gate.set()
        await env.advance(60)
        assert runs == [1]
        assert (await handle.describe()).deactivated


async def test_an_activity_that_has_not_started_ends_with_its_workflow(engines: Engines) -> None:
    """What is unclaimed at the end, or asked for in the very last step, is withdrawn, and never run."""
    registry = Registry()
    runs: list[str] = []

    @registry.activity
    async def work(what: str) -> None:
        runs.append(what)

    @registry.workflow
    async def leave(ctx: Context) -> None:
        ctx.activity(work.options(queue="unserved"), "unclaimed")
        await ctx.sleep(1)
        ctx.activity(work, "last")

    async with engines.client(registry) as (store, clock, client):
        handle = await client.start(leave)
        async with engines.serve(store, clock, registry) as env:
            await env.finish(handle.result())
        async with engines.serve(store, clock, registry, queues=["default", "unserved"]) as env:
            await env.advance(60)
            assert runs == []
        assert (await types_of(handle))[-5:] == [
            "activity_scheduled",
            "workflow_completed",
            "activity_cancelled",
            "activity_cancelled",
            "workflow_deactivated",
        ]


async def test_the_result_of_a_cancelled_activity_is_dropped(engines: Engines) -> None:
    """The answer of a running activity that was cancelled is neither told nor recorded."""
    registry = Registry()
    gate = asyncio.Event()

    @registry.activity
    async def slow() -> str:
        await gate.wait()
        return "late"

    @registry.workflow
    async def impatient(ctx: Context) -> str:
        future = ctx.activity(slow)
        await ctx.sleep(1)
        future.cancel()
        try:
            return await future
        except asyncio.CancelledError:
            await ctx.sleep(10)
            return "called off"

    async with engines.open(registry) as env:
        handle = await env.start(impatient)
        await env.advance(2)
        gate.set()
        assert await env.finish(handle.result()) == "called off"
        kinds = await types_of(handle)
        assert kinds.count("activity_cancelled") == 1
        assert "activity_completed" not in kinds


async def test_activities_run_where_their_queue_is_served(engines: Engines) -> None:
    """An activity of another queue waits for a worker of that queue, and its result comes back."""
    registry = Registry()

    @registry.activity(queue="special")
    def where() -> str:
        return activity_info().queue

    @registry.workflow
    async def ask(ctx: Context) -> str:
        return await ctx.activity(where)

    async with engines.client(registry) as (store, clock, client):
        handle = await client.start(ask)
        async with engines.serve(store, clock, registry) as env:
            await env.advance(60)
            assert (await handle.describe()).waiting_for
            async with engines.serve(store, clock, registry, queues=["special"]) as special:
                await special.settle()
                assert await env.finish(handle.result()) == "special"


async def test_a_result_is_recorded_whole_or_not_at_all(engines: Engines):
    """A result that a worker handed in is used by the next worker."""
    registry, clock = Registry(), ManualClock()
    ran = []

    @registry.activity(retry=ONCE)
    async def act() -> str:
        ran.append(activity_info().execution_id)
        return "done"

    @registry.workflow
    async def work(ctx: Context) -> list[str]:
        first = await ctx.activity(act.options(queue="far"))
        return [first, await ctx.activity(act.options(queue="far"))]

    async with engines.open(registry, clock=clock, queues=["default"]) as env:
        handle = await env.start(work)
        store = env.engine.store
        async with Environment(store=store, registry=registry, clock=clock, queues=["far"]) as far:
            for _ in range(3):
                await far.settle()
                await env.settle()
            assert await env.finish(handle.result()) == ["done", "done"]
    assert len(ran) == len(set(ran)) == 2
