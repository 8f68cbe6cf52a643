"""One small workflow for each verb, to be killed after every event. See `test_crash_verbs`."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from msgspec import Raw

from resurgam import Break, Context, Continue, Registry, RetryPolicy
from resurgam.core import event as events
from resurgam.errors import ChildWorkflowFailed, PromiseRejected, PromiseTimeout, SignalFailed
from resurgam.runtime.definitions.definition import Workflow
from resurgam.testing.clock import START

registry = Registry()
FAILS = object()
CANCELLED = object()


@dataclass(frozen=True)
class Case:
    """A workflow, what reaches it from outside, what it should come to, and which entries it must write for that."""

    workflow: Workflow[..., Any]
    expect: object
    wrote: tuple[str, ...]
    executions: int
    args: tuple[Any, ...] = ()
    outside: dict[str, Any] = field(default_factory=dict)


CASES: dict[str, Case] = {}


def case(
    expect: object, *wrote: str, executions: int = 1, attempts: int = 1, args: tuple[Any, ...] = (), **outside: Any
) -> Callable[[Callable[..., Any]], Workflow[..., Any]]:
    """Put a workflow into the table."""

    def register(function: Callable[..., Any]) -> Workflow[..., Any]:
        policy = RetryPolicy(max_attempts=attempts, jitter=0)
        workflow = registry.workflow(retry=policy)(function)
        CASES[function.__name__] = Case(workflow, expect, wrote, executions, args, outside)
        return workflow

    return register


def signal(name: str, value: int, number: int = 1) -> events.Event:
    return events.SignalReceived(name=name, id=f"{name}-{number}", value=Raw(b"%d" % value))


def update(name: str, value: int) -> events.Event:
    return events.UpdateAccepted(name=name, id=f"{name}-{value}", input=Raw(b"[%d]" % value))


CANCEL = events.CancelRequested(reason="enough")


@registry.activity
async def echo(value: int) -> int:
    return value


@registry.activity(retry=RetryPolicy(max_attempts=3, jitter=0))
async def fail(value: int) -> int:
    raise ValueError(value)


@registry.activity
async def undo(value: int | None) -> None:
    pass


# What a workflow does by itself.


@case("failed", "activity_retry_scheduled", "activity_failed")
async def activity_with_retries(ctx: Context) -> str:
    try:
        await ctx.activity(fail, 1)
    except Exception:
        return "failed"
    return "never"


@case([4, "no"], "operation_completed", "operation_failed")
async def run(ctx: Context) -> list[Any]:
    async def no() -> None:
        raise ValueError("no")

    first = await ctx.run(lambda: 4, name="four")
    try:
        await ctx.run(no)
    except Exception as error:
        return [first, str(error.__cause__)]
    return []


@case(2, "timer_fired", "timer_cancelled")
async def sleep(ctx: Context) -> int:
    given_up = ctx.sleep(100)
    await ctx.sleep(1)
    given_up.cancel()
    return await ctx.activity(echo, 2)


@case([1, [2, 3], []], "signals_consumed", "listen_timed_out", messages=[signal("s", n, n) for n in (1, 2, 3)])
async def listening(ctx: Context) -> list[Any]:
    first = await ctx.listen("s")
    return [first, await both(ctx), await ctx.listen_many("s", limit=5, timeout=1)]


async def both(ctx: Context) -> list[int]:
    heard: list[int] = []
    while len(heard) < 2:
        heard += await ctx.listen_many("s", limit=2)
    return heard


# Children.


@registry.workflow
async def child(ctx: Context, value: int) -> int:
    doubled = await ctx.activity(echo, 2 * value)
    await ctx.sleep(1)
    return doubled


@registry.workflow
async def failing(ctx: Context, value: int) -> int:
    await ctx.activity(echo, value)
    raise ValueError(value)


@registry.workflow
async def hearing(ctx: Context) -> list[Any]:
    return [await ctx.listen("a"), await ctx.listen("b")]


@registry.workflow
async def cleaning(ctx: Context) -> int:
    try:
        await ctx.listen("never")
    except asyncio.CancelledError:
        await ctx.activity(echo, 7)
        raise
    return 0


@registry.workflow
async def counting(ctx: Context, number: int) -> int:
    await ctx.activity(echo, number)
    if number < 3:
        ctx.continue_as_new(number + 1)
    return number


@case(6, "child_started", "child_completed", executions=2)
async def child_that_returns(ctx: Context) -> int:
    begun = ctx.workflow(child, 3)
    await begun.started
    return await begun


@case("ValueError: 3", "child_failed", executions=2)
async def child_that_fails(ctx: Context) -> str:
    try:
        await ctx.workflow(failing, 3)
    except ChildWorkflowFailed as error:
        return f"{type(error.__cause__).__name__}: {error.__cause__}"
    return "never"


@case("CancelledError", "child_cancel_requested", "child_cancelled", executions=2)
async def child_that_is_cancelled(ctx: Context) -> str:
    begun = ctx.workflow(cleaning)
    await begun.started
    begun.cancel()
    [outcome] = await asyncio.gather(begun, return_exceptions=True)
    return type(outcome).__name__


@case(None, "child_started", executions=2)
async def child_that_is_detached(ctx: Context) -> object:
    return await ctx.workflow(child, 3, detach=True, id="on its own")


@case(1, "child_started", executions=2)
async def child_that_is_deferred_and_abandoned(ctx: Context) -> int:
    ctx.workflow(child, 3, deferred=True, on_parent_close="abandon")
    return await ctx.activity(echo, 1)


@case(6, "child_completed", executions=2)
async def child_that_is_deferred_and_awaited(ctx: Context) -> int:
    return await ctx.workflow(child, 3, deferred=True)


@case(3, "child_completed", executions=4)
async def child_that_continues(ctx: Context) -> int:
    return await ctx.workflow(counting, 1)


@case(1, "child_started", executions=2)
async def child_that_is_left_behind(ctx: Context) -> int:
    ctx.workflow(cleaning)
    return await ctx.activity(echo, 1)


@case(1, "child_started", executions=2)
async def child_that_is_terminated(ctx: Context) -> int:
    await ctx.workflow(cleaning, on_parent_close="terminate").started
    return await ctx.activity(echo, 1)


@case("AlreadyExists", "child_failed", executions=2)
async def child_whose_id_is_in_use(ctx: Context) -> str:
    first = ctx.workflow(child, 1, id="one")
    await first.started
    try:
        await ctx.workflow(child, 2, id="one")
    except ChildWorkflowFailed as error:
        await first
        return type(error.__cause__).__name__
    return "never"


# Promises, signals, messages.


@case([5, "no", "late"], "promise_resolved", "promise_rejected", promises={"yes": 5, "no": ValueError("no")})
async def promises(ctx: Context) -> list[Any]:
    answers: list[Any] = [await ctx.promise("yes", type=int)]
    try:
        await ctx.promise("no")
    except PromiseRejected as error:
        answers.append(str(error.__cause__))
    try:
        await ctx.promise("late", timeout=3)
    except PromiseTimeout:
        answers.append("late")
    return answers


@case([True, 4], "promise_settled", "promise_resolved")
async def promise_that_it_settles_itself(ctx: Context) -> list[Any]:
    promise = ctx.promise("p", type=int)
    return [await ctx.resolve(promise.promise_id, 4), await promise]


@case([[1, 2], "gone"], "signal_delivered", "signal_failed", executions=2)
async def signals_to_a_child(ctx: Context) -> list[Any]:
    begun = ctx.workflow(hearing)
    await begun.signal("a", 1)
    await ctx.signal(begun.entity_id, "b", 2)
    heard = await begun
    try:
        await begun.signal("a", 3)
    except SignalFailed:
        return [heard, "gone"]
    return [heard]


@case([1, "unknown"], "signal_delivered", "signal_failed")
async def signals_to_itself_and_to_nobody(ctx: Context) -> list[Any]:
    await ctx.signal(ctx.info.entity_id, "s", 1)
    heard = await ctx.listen("s")
    try:
        await ctx.signal("unknown", "s")
    except SignalFailed:
        return [heard, "unknown"]
    return [heard]


@case(None, "message_published")
async def publish(ctx: Context) -> None:
    await ctx.publish("topic", 1)
    await ctx.activity(echo, 1)
    await ctx.publish("topic", 2)


# Handlers.


@case([1, 2], "signal_handled", messages=[signal("s", 1, 1), signal("s", 2, 2)])
async def signals_handled(ctx: Context) -> list[int]:
    heard: list[int] = []

    @ctx.on_signal("s")
    async def on_signal(value: int) -> None:
        await ctx.sleep(1)
        heard.append(await ctx.activity(echo, value))

    await ctx.until(lambda: len(heard) == 2)
    return heard


@case(
    6,
    *("update_accepted", "update_completed", "update_rejected"),
    messages=[update("add", 4), update("add", -1), update("add", 0), update("add", 2)],
)
async def updates_handled(ctx: Context) -> int:
    total = 0

    def validate(value: int) -> None:
        if value < 0:
            raise ValueError("less than nothing")

    @ctx.on_update("add", validator=validate)
    async def add(value: int) -> int:
        nonlocal total
        if not value:
            raise LookupError("nothing")
        total += await ctx.activity(echo, value)
        return total

    await ctx.until(lambda: total == 6)
    await ctx.sleep(1)
    return total


@case(
    [1, 1, 2, 2, 3, "n", 3],
    *("update_accepted", "update_completed", "signal_handled"),
    messages=[update("add", 1), signal("go", 0), update("add", 2), update("add", 3), signal("note", 0)],
)
async def handlers_one_at_a_time(ctx: Context) -> list[Any]:
    got: list[Any] = []

    @ctx.on_update("add", one_at_a_time=True)
    async def add(value: int) -> int:
        got.append(value)
        await ctx.activity(echo, value)
        await ctx.sleep(3)
        got.append(value)
        return value

    @ctx.on_signal("note")
    async def note(_: int) -> None:
        await ctx.sleep(8)
        got.append("n")

    await ctx.listen("go")
    await ctx.handlers_finished()
    return got


@case(3, "update_accepted", "update_completed", messages=[update("late", 3)])
async def update_that_waits_for_its_handler(ctx: Context) -> int:
    given: list[int] = []
    await ctx.sleep(1)

    @ctx.on_update("late")
    def late(value: int) -> None:
        given.append(value)

    await ctx.until(lambda: bool(given))
    return given[0]


# Sagas.


@case([1, 2], "saga_step_registered", "saga_closed")
async def saga_that_goes_well(ctx: Context) -> list[int]:
    async with ctx.saga() as saga:
        return [await saga.step(echo, 1, undo=undo), await saga.step(echo, 2, undo=undo)]


def _saga_failing_at(number: int) -> None:
    async def workflow(ctx: Context) -> str:
        try:
            async with ctx.saga() as saga:
                for step in range(3):
                    await saga.step(fail if step == number else echo, step, undo=undo, undo_on_unknown=step == 1)
        except Exception as error:
            return type(error).__name__
        return "never"

    workflow.__name__ = f"saga_that_fails_at_{number}"
    compensated = ("saga_compensation_started",) if number else ()
    case("ActivityFailed", "saga_closed", *compensated)(workflow)


for number in range(3):
    _saga_failing_at(number)


@case("LookupError", "saga_compensation_started", "saga_closed", "activity_failed")
async def saga_that_cannot_be_taken_back(ctx: Context) -> str:
    try:
        async with ctx.saga() as saga:
            await saga.step(echo, 1, undo=undo)
            await saga.step(echo, 2, undo=fail)
            raise LookupError
    except LookupError:
        return "LookupError"


@case("LookupError", "saga_compensation_started", "saga_closed")
async def saga_within_a_saga(ctx: Context) -> str:
    try:
        async with ctx.saga() as outer:
            await outer.step(echo, 1, undo=undo)
            async with ctx.saga() as inner:
                await inner.step(echo, 2, undo=undo)
            await outer.step(echo, 3, undo=undo)
            raise LookupError
    except LookupError:
        return "LookupError"


@case(CANCELLED, "saga_compensation_started", "saga_closed", messages=[CANCEL])
async def saga_that_is_cancelled(ctx: Context) -> None:
    async with ctx.saga() as saga:
        await saga.step(echo, 1, undo=undo)
        await ctx.listen("never")


# What follows an execution.


@case([1, 2, 3], "signals_consumed", executions=3, args=([],), messages=[signal("s", n, n) for n in (1, 2, 3)])
async def continued_with_its_signals(ctx: Context, heard: list[int]) -> list[int]:
    heard = [*heard, await ctx.listen("s", type=int)]
    if len(heard) < 3:
        ctx.continue_as_new(heard)
    return heard


@case([3, [1, 2]], "activity_completed", executions=2, attempts=2, messages=[signal("s", 1, 1), signal("s", 2, 2)])
async def retried_with_its_answers(ctx: Context) -> list[Any]:
    """The activity, the child and the promise are carried over, the signals are heard again."""
    done = await ctx.activity(echo, 3)
    heard = [await ctx.listen("s"), await ctx.listen("s")]
    if ctx.info.attempt == 1:
        raise ValueError
    return [done, heard]


@case([6, 5], "child_completed", "promise_resolved", executions=3, attempts=2, promises={"p": 5})
async def retried_with_its_child_and_promise(ctx: Context) -> list[int]:
    begun, promise = ctx.workflow(child, 3), ctx.promise("p", type=int)
    if ctx.info.attempt == 1:
        await ctx.activity(echo, 1)
        raise ValueError
    return [await begun, await promise]


@case(FAILS, "workflow_failed", executions=3, attempts=3)
async def retried_until_it_fails(ctx: Context) -> None:
    await ctx.activity(echo, ctx.info.attempt)
    raise ValueError(ctx.info.attempt)


@case("undone 2", "saga_closed", executions=2, attempts=2)
async def retried_after_a_saga(ctx: Context) -> str:
    """What was taken back is done again: it is not carried over."""
    async with ctx.saga() as saga:
        await saga.step(echo, 1, undo=undo)
        if ctx.info.attempt == 1:
            raise ValueError
    return f"undone {ctx.info.attempt}"


# Several of these at once.


@case([0, 6], "race_decided", "promise_cancelled", executions=3)
async def race_of_children_and_promises(ctx: Context) -> list[Any]:
    return list(await ctx.race(ctx.workflow(child, 3), ctx.promise("never"), ctx.workflow(cleaning), ctx.listen("x")))


@case([6, 5, None, 1], "child_completed", executions=2, promises={"p": 5}, messages=[signal("s", 1)])
async def gather_of_everything(ctx: Context) -> list[Any]:
    return await asyncio.gather(
        ctx.workflow(child, 3), ctx.promise("p"), ctx.signal(ctx.info.entity_id, "t"), ctx.listen("s")
    )


@case(3, "loop_checkpointed", "loop_completed", executions=4, promises={"p": 1})
async def loop_that_forgets_around_everything(ctx: Context) -> int:
    async def body(ctx: Context, done: int) -> Continue[int] | Break[int]:
        await ctx.workflow(child, done)
        await ctx.promise("p")
        await ctx.signal(ctx.info.entity_id, "s", done)
        await ctx.listen_many("s", limit=3)
        await ctx.publish("topic", done)
        async with ctx.saga() as saga:
            await saga.step(echo, done, undo=undo)
        return Continue(done + 1) if done < 2 else Break(done + 1)

    return await ctx.loop(body, 0, forget_every=1)


@case([3, 3], "loop_checkpointed", "signal_handled", messages=[signal("add", n, n) for n in (1, 2)])
async def loop_that_forgets_beside_handlers(ctx: Context) -> list[Any]:
    @ctx.on_signal("add")
    async def add(value: int) -> None:
        ctx.set("total", ctx.get("total", 0) + await ctx.activity(echo, value))

    async def body(ctx: Context, done: int) -> Continue[int] | Break[int]:
        await ctx.sleep(1)
        return Continue(done + 1) if done < 2 else Break(done + 1)

    return [await ctx.loop(body, 0, forget_every=1), ctx.get("total")]


@case(
    [6, [0, 2, 4]],
    *("loop_checkpointed", "update_completed"),
    messages=[update("add", n) for n in (1, 2, 3)],
)
async def loop_that_forgets_beside_updates_one_at_a_time(ctx: Context) -> list[Any]:
    @ctx.on_update("add", one_at_a_time=True)
    async def add(value: int) -> int:
        begun = round(ctx.now().timestamp()) - START // 1000
        await ctx.sleep(2)
        ctx.set("begun", [*ctx.get("begun", []), begun])
        return await ctx.activity(echo, value)

    async def body(ctx: Context, done: int) -> Continue[int] | Break[int]:
        await ctx.sleep(1)
        return Continue(done + 1) if done < 5 else Break(done + 1)

    done = await ctx.loop(body, 0, forget_every=1)
    await ctx.handlers_finished()
    return [done, ctx.get("begun")]
