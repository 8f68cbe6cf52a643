"""Settle the future that waits for an answer: one short function per kind of answer, found in a table.

`settle` looks the future up once, before the function is called. Kinds that are not in the table (a retry was
scheduled, the code itself cancelled a call) are neither delivered, nor do they move the workflow's time.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar, cast

from resurgam.core import errors
from resurgam.core import event as events
from resurgam.core.failure import rebuild
from resurgam.core.flow_event import FLOW
from resurgam.runtime.context.children import Child
from resurgam.runtime.loop.futures import Batch, Durable
from resurgam.runtime.matching.divergence import cancelled_another, unasked, unfit
from resurgam.runtime.matching.recorder import Recorder

A = TypeVar("A", bound=events.Answer)
_Handler = Callable[[Recorder, events.Answer, Durable[Any]], None]
_HANDLERS: Final[dict[type[events.Event], _Handler]] = {}


def answer_kinds() -> Iterable[type[events.Event]]:
    """Return the kinds of entries that settle a future."""
    return (*_HANDLERS, events.SignalsConsumed)


def is_answer(entry: events.Event) -> bool:
    """Whether an entry settles a future of the code."""
    kind = type(entry)
    return (kind in _HANDLERS or kind is events.SignalsConsumed) and not events.was_never_started(entry)


def settle(recorder: Recorder, answer: events.Answer) -> None:
    """Settle the future that *answer* belongs to."""
    if type(answer) is events.SignalsConsumed:
        recorder.mailbox.take(answer)
    if not recorder.recorded.is_reached(answer.ref):
        _keep_early(recorder, answer)
        return
    future, names = recorder.pending.take(answer.ref)
    if future is None or future.done():
        recorder.mailbox.hand_over(answer.ref)
        return
    if isinstance(future, Child):
        future.settle(lambda: _settle(recorder, answer, future, names))
    else:
        _settle(recorder, answer, future, names)


def settle_result(recorder: Recorder, answer: events.ActivityCompleted, future: Durable[Any]) -> None:
    """Settle the future of an activity that returned: `settle` for the answer that most are."""
    if future.done():
        return
    try:
        value = future.codec.decode(answer.result)
    except errors.SerializationError:
        _settle(recorder, answer, future, ())  # again, to say what does not fit
    else:
        future.set_result(value)


def _settle(recorder: Recorder, answer: events.Answer, future: Durable[Any], names: tuple[str, ...]) -> None:
    try:
        if type(answer) is events.SignalsConsumed:
            _signals_consumed(recorder, answer, future, names)
        else:
            _HANDLERS[type(answer)](recorder, answer, future)
    except errors.SerializationError as error:
        # Whether the entry is new or recorded: a choice that depended on it could not be replayed.
        reason = f"a type that does not fit ({error.reason})"
        recorder.verdict.decide(unfit(future.command, answer, "type", reason, error.path))


def child_started(recorder: Recorder, entry: events.ChildStarted) -> None:
    """Tell the future of a child that it has started; a detached one is settled by that."""
    pending = recorder.pending
    pending.started_children[entry.ref] = entry.execution_id
    future = pending.futures.get(entry.ref)
    if isinstance(future, Child):
        future.set_started(entry.execution_id)
        if future.call.detach:
            pending.drop(entry.ref)
            future.set_result(None)


def checkpoint(recorder: Recorder, entry: events.LoopCheckpointed) -> None:
    """Let a loop go on from its checkpoint; a loop that the code has not reached yet finds it later."""
    loop = recorder.pending.loops.get(entry.ref)
    if loop is not None:
        loop.checkpointed(entry)
    elif not recorder.recorded.is_reached(entry.ref):
        _keep_early(recorder, entry)


def is_still_awaited(recorder: Recorder, entry: events.Event) -> bool:
    """Whether changed code still waits for a command that the recorded code cancelled.

    The cancellation of a call that the code has not made yet is kept, like other answers, until the call is made.
    """
    assert entry.ref is not None
    if entry.ref in recorder.pending.futures:
        return True
    recorded = recorder.recorded
    if not recorded.is_reached(entry.ref) and not recorded.is_skipped(entry.ref):
        recorder.early.keep(cast("events.Answer", entry))
    return False


def cancel_as_recorded(recorder: Recorder, entry: events.Event) -> None:
    """Cancel a future because the history does, whether or not today's code cancels it.

    Nothing else will settle it: the log has its answer, so no timer fires and no result is delivered for it.
    """
    assert entry.ref is not None
    future = recorder.pending.futures.get(entry.ref)
    if future is None:
        return
    own = (command for command in recorder.pending.cancelled if type(command) is type(future.command))
    other = next(own, None)
    if other is not None and recorder.matching != "location":
        recorder.verdict.decide(cancelled_another(other, future.command, entry))
    else:
        future.cancel()


def _keep_early(recorder: Recorder, answer: events.Answer) -> None:
    """Keep an answer whose call the code has not made, unless that was removed; diverge if it cannot come later."""
    recorded, early = recorder.recorded, recorder.early
    command = recorded.command(answer.ref)
    if recorded.is_skipped(answer.ref) or recorder.ended_scopes.is_cut_off(command.location):
        return
    if not (early.may_hold(answer.ref) or recorded.is_keyed(command.location)):
        # A scope that has ended too soon is the better explanation, and has a remedy.
        recorder.ended_scopes.check(recorder.verdict)
        if recorder.verdict.reason is None:
            recorder.verdict.decide(unasked(command, answer))
    elif isinstance(answer, events.LoopCheckpointed):
        early.keep_checkpoint(answer)
    else:
        early.keep(answer)
        early.delayed[answer.ref] = None


def _settles(*kinds: type[A]) -> Callable[[Callable[[Recorder, A, Durable[Any]], None]], None]:
    def register(function: Callable[[Recorder, A, Durable[Any]], None]) -> None:
        _HANDLERS.update(dict.fromkeys(kinds, cast("_Handler", function)))

    return register


@_settles(events.ActivityCompleted, events.OperationCompleted)
def _completed(recorder: Recorder, answer: Any, future: Durable[Any]) -> None:
    future.set_result(future.codec.decode(answer.result, f"result of {future.command.name!r}"))


@_settles(events.ActivityFailed)
def _activity_failed(recorder: Recorder, answer: events.ActivityFailed, future: Durable[Any]) -> None:
    error = errors.ActivityFailed(str(future.command.name), answer.attempt)
    error.__cause__ = rebuild(answer.failure)
    future.set_exception(error)


@_settles(events.OperationFailed)
def _operation_failed(recorder: Recorder, answer: events.OperationFailed, future: Durable[Any]) -> None:
    error = errors.OperationFailed(str(future.command.name))
    error.__cause__ = rebuild(answer.failure)
    future.set_exception(error)


@_settles(events.ChildCompleted)
def _child_completed(recorder: Recorder, answer: events.ChildCompleted, future: Durable[Any]) -> None:
    future.set_result(future.codec.decode(answer.result, f"result of child workflow {future.command.name!r}"))


@_settles(events.ChildFailed)
def _child_failed(recorder: Recorder, answer: events.ChildFailed, future: Durable[Any]) -> None:
    call = cast("events.ChildCommand", future.command)
    error = errors.ChildWorkflowFailed(call.name, call.entity_id)
    error.__cause__ = rebuild(answer.failure)
    future.set_exception(error)


@_settles(events.ChildCancelled)
def _child_cancelled(recorder: Recorder, answer: events.ChildCancelled, future: Durable[Any]) -> None:
    call = cast("events.ChildCommand", future.command)
    future.set_exception(errors.ChildWorkflowCancelled(call.name, call.entity_id))


@_settles(events.FlowAnswered)
def _flow_answered(recorder: Recorder, answer: events.FlowAnswered, future: Durable[Any]) -> None:
    call = cast("events.FlowScheduled", future.command)
    if answer.outcome == "completed":
        future.set_result(future.codec.decode(answer.result, f"result of flow {call.name!r}"))
    elif answer.failure is None:
        future.set_exception(errors.ChildWorkflowCancelled(call.name, call.entity_id, FLOW))
    else:
        error = errors.ChildWorkflowFailed(call.name, call.entity_id, FLOW)
        error.__cause__ = rebuild(answer.failure)
        future.set_exception(error)


@_settles(events.PromiseResolved)
def _promise_resolved(recorder: Recorder, answer: events.PromiseResolved, future: Durable[Any]) -> None:
    name = future.command.name
    try:
        value = future.codec.decode(answer.value, f"value of promise {name!r}")
    except errors.SerializationError as error:
        # The sender's mistake, as with signals.
        future.set_exception(error)
    else:
        future.set_result(value)


@_settles(events.PromiseRejected)
def _promise_rejected(recorder: Recorder, answer: events.PromiseRejected, future: Durable[Any]) -> None:
    error = errors.PromiseRejected(str(future.command.name))
    error.__cause__ = rebuild(answer.failure)
    future.set_exception(error)


@_settles(events.PromiseTimedOut)
def _promise_timed_out(recorder: Recorder, answer: events.PromiseTimedOut, future: Durable[Any]) -> None:
    future.set_exception(errors.PromiseTimeout(str(future.command.name)))


@_settles(events.SignalDelivered)
def _signal_delivered(recorder: Recorder, answer: events.SignalDelivered, future: Durable[Any]) -> None:
    future.set_result(answer.first if isinstance(future.command, events.PromiseSettled) else None)


@_settles(events.SignalFailed)
def _signal_failed(recorder: Recorder, answer: events.SignalFailed, future: Durable[Any]) -> None:
    cause = rebuild(answer.failure)
    if not isinstance(future.command, events.SignalSent):
        future.set_exception(cause)
        return
    error = errors.SignalFailed(future.command.entity_id, future.command.name)
    error.__cause__ = cause
    future.set_exception(error)


@_settles(events.TimerFired)
def _timer_fired(recorder: Recorder, answer: events.TimerFired, future: Durable[Any]) -> None:
    future.set_result(None)


def _signals_consumed(
    recorder: Recorder, answer: events.SignalsConsumed, future: Durable[Any], names: tuple[str, ...]
) -> None:
    signals = recorder.mailbox.hand_over(answer.ref)
    strange = next((signal.name for signal in signals if signal.name not in names), None)
    if strange is not None:
        # The names that a listener asks for may change, but not to ones that exclude what it was given.
        recorder.verdict.decide(unfit(future.command, answer, "signal", ", ".join(names), strange))
        return
    values, wrong = [], []
    for signal in signals:
        try:
            values.append((signal.name, future.codec.decode(signal.value, f"signal {signal.name!r}")))
        except errors.SerializationError as error:
            wrong.append((signal, error))
    if not values:
        # The sender's mistake, not a change of this code: it is the same on every replay, so the code may handle it.
        future.set_exception(wrong[0][1])
        return
    for signal, reason in wrong:
        # The others are still valid.
        recorder.warn(f"signal {signal.name!r} ({signal.id}) is dropped: {reason}")
    given = values if len(names) > 1 else [value for _, value in values]
    future.set_result(given if isinstance(future, Batch) else given[0])


@_settles(events.ListenTimedOut)
def _listen_timed_out(recorder: Recorder, answer: events.ListenTimedOut, future: Durable[Any]) -> None:
    if isinstance(future, Batch):
        future.set_result([])
    else:
        future.set_exception(errors.SignalTimeout(cast("events.ListenStarted", future.command).names))


@_settles(events.RaceDecided)
def _race_decided(recorder: Recorder, answer: events.RaceDecided, future: Durable[Any]) -> None:
    members = recorder.pending.races.pop(answer.ref).members
    delayed = answer.ref in recorder.early.delayed or recorder.pending.has_call_after(answer.seq)
    if answer.winner < len(members) and not members[answer.winner].done() and delayed:
        # An inserted step has delayed the race, or its winner, which has not settled yet.
        members[answer.winner].add_done_callback(lambda winner: _won(future, answer.winner, winner))
        return
    if answer.winner >= len(members) or not members[answer.winner].done():
        lost = "none such, or not there yet"
        recorder.verdict.decide(unfit(future.command, answer, "winner", lost, f"competitor {answer.winner}"))
        return
    _won(future, answer.winner, members[answer.winner])


def _won(future: Durable[Any], index: int, winner: "asyncio.Future[Any]") -> None:
    if future.done():
        return
    if winner.cancelled():
        future.cancel()
    elif (error := winner.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result((index, winner.result()))


@_settles(events.LoopCompleted)
def _loop_completed(recorder: Recorder, answer: events.LoopCompleted, future: Durable[Any]) -> None:
    future.set_result(answer)
