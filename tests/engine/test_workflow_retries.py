"""Workflows that fail and are tried again, by their policy or by hand."""

import asyncio
from typing import Any, Final

import pytest

from resurgam.core import errors
from resurgam.core import event as events
from resurgam.core.retry import RetryPolicy
from resurgam.core.state import Status
from resurgam.errors import WorkflowFailed
from resurgam.runtime.context.context import Context
from resurgam.runtime.definitions.info import activity_info
from resurgam.runtime.registry import Registry
from resurgam.testing.contract.bench import raises
from support.engines import Engines, count_of, executions, of_kind, run, types, types_of

TWICE: Final = RetryPolicy(max_attempts=2, initial_interval=10, jitter=0)
THRICE: Final = RetryPolicy(max_attempts=3, initial_interval=10, backoff=2, jitter=0)


async def test_a_retry_is_another_execution_of_the_same_run(engines: Engines) -> None:
    """Execution and attempt are new; entity, run, tree and generation are not; pauses grow; each keeps its history."""
    registry = Registry()

    @registry.workflow(retry=THRICE)
    async def stubborn(ctx: Context) -> list[Any]:
        info = ctx.info
        ids = [info.entity_id, info.run_id, info.tree_id, info.generation]
        if info.attempt < 3:
            raise LookupError(f"attempt {info.attempt}")
        return [*ids, info.execution_id, ctx.now().timestamp()]

    async with engines.open(registry) as env:
        begin = env.now().timestamp()
        handle = await env.start(stubborn, id="stubborn")
        first = await handle.describe()
        result = await env.finish(handle.result())
        last = await handle.describe()
        assert result[:4] == ["stubborn", handle.run_id, handle.run_id, 1]
        assert result[5] - begin == 30.0
        assert (last.execution_id, last.attempt) == (result[4], 3)
        copies = await env.engine.store.transfer.copies("stubborn")
        assert [(one.instance.attempt, one.instance.status) for one in copies] == [
            (1, Status.FAILED),
            (2, Status.FAILED),
            (3, Status.COMPLETED),
        ]
        assert len({one.instance.execution_id for one in copies}) == 3
        assert last.previous == copies[1].instance.execution_id
        assert first.run_id == last.run_id


async def test_a_run_between_two_attempts_is_running(engines: Engines) -> None:
    """`scheduled` is a start that was put off, and nothing else; it says what it waits for, and cannot be begun."""
    registry = Registry()

    @registry.workflow(retry=TWICE)
    async def stubborn(ctx: Context) -> int:
        if ctx.info.attempt == 1:
            raise LookupError("once")
        return ctx.info.attempt

    async with engines.open(registry) as env:
        handle = await env.start(stubborn)
        between = await handle.describe()
        assert (between.status, between.attempt) == (Status.RUNNING, 2)
        assert any("its next attempt" in text for text in between.waiting_for), between.waiting_for
        assert await count_of(env, status="running") == 1
        with raises(errors.StoreError):
            await handle.begin()
        await env.advance(9)
        assert (await handle.describe()).history_length == 1
        assert await env.finish(handle.result(), limit=2) == 2


async def test_the_last_failure_is_the_one_that_is_told(engines: Engines) -> None:
    """When no attempt is left, the run has failed with what the last one raised."""
    registry = Registry()

    @registry.workflow(retry=TWICE)
    async def hopeless(ctx: Context) -> None:
        raise LookupError(f"attempt {ctx.info.attempt}")

    async with engines.open(registry) as env:
        handle = await env.start(hopeless)
        with raises(errors.WorkflowFailed) as caught:
            await env.finish(handle.result())
        assert str(caught[0].__cause__) == "attempt 2"
        assert (await handle.describe()).status is Status.FAILED


async def test_some_errors_are_not_tried_again(engines: Engines) -> None:
    """`NonRetryable`, those that the policy names, and a cancellation; `RetryAfter` says when."""
    registry = Registry()
    policy = RetryPolicy(max_attempts=3, initial_interval=10, jitter=0, non_retryable=[LookupError])

    @registry.workflow(retry=policy)
    async def fail(ctx: Context, how: str) -> list[float]:
        if ctx.info.attempt == 1:
            ctx.set("since", ctx.now().timestamp())
        match how:
            case "never":
                raise errors.NonRetryable("no")
            case "named":
                raise KeyError("a kind of LookupError")
            case "after" if ctx.info.attempt == 1:
                raise errors.RetryAfter(77)
            case "cancelled":
                try:
                    await ctx.sleep(3600)
                except asyncio.CancelledError:
                    raise ValueError("cleaning up failed") from None
        return [ctx.info.attempt, ctx.now().timestamp()]

    async with engines.open(registry) as env:
        for how in ("never", "named"):
            handle = await env.start(fail, how)
            assert (await handle.describe()).status is Status.FAILED, how
        handle = await env.start(fail, "cancelled")
        await handle.cancel()
        await env.settle()
        assert (await handle.describe()).status is Status.FAILED
        begin = env.now().timestamp()
        attempt, now = await run(env, fail, "after")
        assert (attempt, now - begin) == (2, 77.0)


async def test_what_is_done_is_carried_over_and_the_rest_is_done_again(engines: Engines) -> None:
    """Completed activities, children, promises are marked and not repeated; failed ones and operations are."""
    registry = Registry()
    ran: list[str] = []

    @registry.activity(retry=RetryPolicy(max_attempts=1))
    async def act(what: str) -> str:
        ran.append(f"activity {what}")
        if what == "fails" and ran.count("activity fails") == 1:
            raise LookupError("the first time")
        return what

    def effect() -> int:
        ran.append("operation")
        return ran.count("operation")

    @registry.workflow
    async def child(_ctx: Context, number: int) -> int:
        ran.append(f"child {number}")
        return number

    @registry.workflow(retry=TWICE)
    async def work(ctx: Context) -> list[Any]:
        got: list[Any] = [await ctx.activity(act, "works"), await ctx.run(effect), await ctx.workflow(child, 7)]
        got += [await ctx.promise("word", type=str), await ctx.activity(act, "fails")]
        return [*got, ctx.info.attempt]

    async with engines.open(registry) as env:
        handle = await env.start(work)
        await handle.resolve("word", "given")
        assert await env.finish(handle.result()) == ["works", 2, 7, "given", "fails", 2]
        assert ran == ["activity works", "operation", "child 7", "activity fails", "operation", "activity fails"]
        marked = types(entry for entry in await handle.history() if getattr(entry, "carried", False) is True)
        assert marked == ["activity_completed", "child_completed", "promise_resolved"]
        assert await count_of(env, name="child") == 1


async def test_saga_steps_are_carried_over_unless_they_were_taken_back(engines: Engines) -> None:
    """A saga that was completed stands; one that was compensated is done anew, with keys of its own."""
    registry = Registry()
    ran: list[tuple[str, str]] = []

    @registry.activity
    async def book(what: str) -> str:
        ran.append((f"book {what}", activity_info().idempotency_key))
        return what

    @registry.activity
    async def unbook(what: str) -> None:
        ran.append((f"unbook {what}", activity_info().idempotency_key))

    @registry.workflow(retry=TWICE)
    async def trip(ctx: Context) -> list[str]:
        async with ctx.saga() as done:
            first = await done.step(book, "hotel", undo=unbook)
        async with ctx.saga() as undone:
            second = await undone.step(book, "flight", undo=unbook)
            if ctx.info.attempt == 1:
                raise LookupError("no car")
        return [first, second]

    async with engines.open(registry) as env:
        assert await run(env, trip) == ["hotel", "flight"]
        assert [what for what, _ in ran] == ["book hotel", "book flight", "unbook flight", "book flight"]
        keys = [key for what, key in ran if what == "book flight"]
        assert keys[0] != keys[1]


async def test_the_idempotency_key_of_an_activity_is_the_same_in_every_attempt(engines: Engines) -> None:
    """Of the activity and of its workflow; it belongs to the place in the run."""
    registry = Registry()
    keys: list[tuple[str, str, int]] = []

    @registry.activity(retry=RetryPolicy(max_attempts=2, initial_interval=1, jitter=0))
    async def act() -> str:
        info = activity_info()
        keys.append((info.idempotency_key, info.execution_id, info.attempt))
        if len(keys) < 4:
            raise LookupError("not yet")
        return info.workflow_id

    @registry.workflow(retry=TWICE)
    async def work(ctx: Context) -> str:
        return await ctx.activity(act)

    async with engines.open(registry) as env:
        handle = await env.start(work, id="work")
        assert await env.finish(handle.result()) == "work"
        assert {key for key, _, _ in keys} == {f"{handle.run_id}/1"}
        assert [attempt for _, _, attempt in keys] == [1, 2, 1, 2]


async def test_consumed_signals_are_put_back_in_order(engines: Engines) -> None:
    """Taken, unread and sent between two attempts: the next attempt hears them all, in the order of sending."""
    registry = Registry()

    @registry.workflow(retry=TWICE)
    async def collect(ctx: Context) -> list[int]:
        got = [await ctx.listen("number", type=int) for _ in range(2)]
        if ctx.info.attempt == 1:
            raise LookupError("lost")
        return [*got, *[await ctx.listen("number", type=int) for _ in range(2)]]

    async with engines.client(registry) as (store, clock, client):
        handle = await client.start(collect)
        for number in range(3):
            await handle.signal("number", number, id=f"n{number}")
        async with engines.serve(store, clock, registry) as env:
            await env.settle()
            await handle.signal("number", 3)
            await handle.signal("number", 0, id="n0")  # still the same signal
            assert await env.finish(handle.result()) == [0, 1, 2, 3]


async def test_what_was_asked_with_other_input_is_asked_again(engines: Engines) -> None:
    """Only the same name and input at the same place is carried over."""
    registry = Registry()
    ran: list[str] = []

    @registry.activity
    async def act(what: str) -> str:
        ran.append(what)
        return what

    @registry.workflow(retry=TWICE)
    async def work(ctx: Context) -> list[str]:
        got = [await ctx.activity(act, "same"), await ctx.activity(act, f"attempt {ctx.info.attempt}")]
        if ctx.info.attempt == 1:
            raise LookupError("once")
        return got

    async with engines.open(registry) as env:
        assert await run(env, work) == ["same", "attempt 2"]
        assert ran == ["same", "attempt 1", "attempt 2"]


async def test_updates_and_cancellations_reach_the_next_attempt(engines: Engines) -> None:
    """What comes between two attempts is for the next one; a cancel ends the run before it begins."""
    registry = Registry()
    ran: list[int] = []

    @registry.workflow(retry=TWICE)
    async def work(ctx: Context) -> list[str]:
        ran.append(ctx.info.attempt)
        got: list[str] = []

        @ctx.on_update("add")
        def add(what: str) -> int:
            got.append(what)
            return len(got)

        if ctx.info.attempt == 1:
            raise LookupError("once")
        await ctx.until(lambda: bool(got))
        return got

    async with engines.open(registry) as env:
        handle = await env.start(work)
        update = asyncio.ensure_future(handle.update("add", "between"))
        assert await env.finish(handle.result()) == ["between"]
        assert await env.finish(update) == 1
        ran.clear()
        other = await env.start(work)
        await other.cancel()
        with raises(errors.WorkflowCancelled):
            await env.finish(other.result(), limit=1)
        assert ran == [1]


async def test_a_failed_run_is_tried_again_by_hand(engines: Engines) -> None:
    """It gets its next attempt, with what it has; the handle follows; only a failed one does."""
    registry = Registry()
    ran: list[str] = []
    broken: list[int] = [1]

    @registry.activity(retry=RetryPolicy(max_attempts=1))
    async def act(what: str) -> str:
        ran.append(what)
        if what == "second" and broken:
            raise LookupError("broken")
        return what

    @registry.workflow
    async def work(ctx: Context) -> list[Any]:
        got = [await ctx.activity(act, "first"), await ctx.activity(act, "second")]
        return [*got, ctx.info.attempt]

    async with engines.open(registry) as env:
        handle = await env.start(work, id="work")
        with raises(errors.WorkflowFailed):
            await env.finish(handle.result())
        broken.clear()
        assert await handle.retry() == 1
        await env.settle()
        assert await env.finish(env.engine.handle("work").result()) == ["first", "second", 2]
        assert await env.finish(handle.result()) == ["first", "second", 2]
        assert ran == ["first", "second", "second"]
        assert (await handle.describe()).run_id == handle.run_id
        with raises(errors.StoreError, "has nothing to retry"):
            await handle.retry()


async def test_a_run_whose_id_is_used_again_is_not_tried_again(engines: Engines) -> None:
    """By its run: `AlreadyExists`, and nothing has changed."""
    registry = Registry()

    @registry.workflow
    async def work(ctx: Context, fails: int) -> None:
        if fails:
            raise LookupError("no")
        await ctx.sleep(3600)

    async with engines.open(registry) as env:
        failed = await env.start(work, 1, id="work")
        await env.start(work, 0, id="work")
        with raises(errors.AlreadyExists, "cannot be retried"):
            await env.engine.handle("work", failed.run_id).retry()
        assert await count_of(env) == 2


async def test_a_retry_by_hand_has_the_whole_timeout_again(engines: Engines) -> None:
    """A run that failed because its time was over can be tried again, whenever that is."""
    registry = Registry()

    @registry.workflow(timeout=60)
    async def slow(ctx: Context) -> int:
        await ctx.sleep(3600 if ctx.info.attempt == 1 else 50)
        return ctx.info.attempt

    async with engines.open(registry) as env:
        handle = await env.start(slow)
        await env.advance(3600)
        assert (await handle.describe()).status is Status.FAILED
        await handle.retry()
        assert await env.finish(env.engine.handle(handle.entity_id).result()) == 2


async def test_the_history_of_a_retry_begins_with_what_it_has(engines: Engines) -> None:
    """It is empty but for its start, which names the execution before it."""
    registry = Registry()

    @registry.workflow(retry=TWICE)
    async def work(ctx: Context) -> None:
        await ctx.sleep(1)
        if ctx.info.attempt == 1:
            raise LookupError("once")

    async with engines.open(registry) as env:
        handle = await env.start(work)
        await env.finish(handle.result())
        first, second = await env.engine.store.transfer.copies(handle.entity_id)
        assert [entry.type for entry in first.log] == [
            *("workflow_started", "timer_started", "timer_fired", "workflow_retried", "workflow_deactivated"),
        ]
        [retried] = of_kind(first.log, events.WorkflowRetried)
        assert retried.execution_id == second.instance.execution_id
        assert (await types_of(handle))[-4:] == [
            *("timer_started", "timer_fired", "workflow_completed", "workflow_deactivated"),
        ]


async def test_an_unread_answer_of_a_failed_attempt_is_recorded_and_carried_over(engines: Engines) -> None:
    """It arrived after the signal that made the code fail."""
    registry, ran = Registry(), []
    gate = asyncio.Event()

    @registry.activity
    async def work() -> str:
        ran.append("work")
        await gate.wait()
        return "done"

    @registry.workflow(retry=TWICE)
    async def entity(ctx: Context) -> str:
        call = ctx.activity(work)
        if ctx.info.attempt == 1:
            await ctx.listen("go")
            raise LookupError("once")
        return await call

    async with engines.open(registry) as env:
        handle = await env.start(entity)
        await handle.pause()
        await env.settle()
        await handle.signal("go")
        gate.set()
        await env.advance(1)
        await handle.resume()
        await env.finish(handle.result())
        first = (await env.engine.store.transfer.copies(handle.entity_id))[0]
        assert not first.inbox
        assert first.instance.deactivated
    assert ran == ["work"]


def crash():
    empty = []
    return empty[1]


async def test_an_operation_that_failed_is_run_again_by_the_next_attempt(engines: Engines):
    registry, ran = Registry(), []

    def effect():
        ran.append(1)
        crash()

    @registry.workflow(retry=TWICE)
    async def work(ctx: Context) -> None:
        await ctx.run(effect)

    async with engines.open(registry) as env:
        with pytest.raises(WorkflowFailed, match="IndexError"):
            await run(env, work, id="me")
        found = await executions(env, "me")
    assert [(one.instance.attempt, one.instance.status) for one in found] == [(1, Status.FAILED), (2, Status.FAILED)]
    assert len(ran) == 2


async def test_an_activity_that_had_failed_once_is_not_run_again_by_a_retry(engines: Engines):
    registry = Registry()
    ran = []

    @registry.activity(retry=RetryPolicy(max_attempts=3, initial_interval=1, jitter=0))
    async def act() -> int:
        ran.append(1)
        if len(ran) == 1:
            raise LookupError("the first time")
        return len(ran)

    @registry.workflow(retry=TWICE)
    async def work(ctx: Context) -> int:
        got = await ctx.activity(act)
        if ctx.info.attempt == 1:
            raise LookupError("once")
        return got

    async with engines.open(registry) as env:
        assert await run(env, work) == 2
    assert len(ran) == 2


async def test_a_recorded_call_is_not_taken_for_one_of_another_kind(engines: Engines):
    """The next attempt asks for a child, or a promise, of the same name and input where an activity was."""
    registry = Registry()

    @registry.activity(name="same")
    async def act(_number: int) -> str:
        return "activity"

    @registry.workflow(name="same")
    async def child(_ctx: Context, _number: int) -> str:
        return "child"

    @registry.workflow(retry=RetryPolicy(max_attempts=3, initial_interval=1, jitter=0))
    async def work(ctx: Context) -> list[str]:
        match ctx.info.attempt:
            case 1:
                await ctx.activity(act, 1)
                raise LookupError("after the activity")
            case 2:
                got = await ctx.workflow(child, 1)
                assert got == "child"
                raise LookupError("after the child")
        return [await ctx.activity(act, 1)]

    async with engines.open(registry) as env:
        assert await run(env, work) == ["activity"]


async def test_attempts_are_counted_through_pauses_and_restarts(engines: Engines):

    registry = Registry()
    ran = []

    @registry.workflow(retry=RetryPolicy(max_attempts=3, initial_interval=10, backoff=1, jitter=0))
    async def work(ctx: Context) -> None:
        ran.append(ctx.info.attempt)
        await ctx.sleep(1)
        raise LookupError(f"attempt {ctx.info.attempt}")

    async with engines.open(registry) as env:
        handle = await env.start(work, id="me")
        for _ in range(3):
            await env.advance(5)
            if (await handle.describe()).status.terminal:
                break
            await handle.pause()
            await env.advance(60)
            await handle.resume()
        with pytest.raises(WorkflowFailed, match="attempt 3"):
            await env.finish(handle.result())
        assert [one.instance.attempt for one in await executions(env, "me")] == [1, 2, 3]
        assert handle.execution_id == (await executions(env, "me"))[-1].instance.execution_id
    assert list(dict.fromkeys(ran)) == [1, 2, 3]
