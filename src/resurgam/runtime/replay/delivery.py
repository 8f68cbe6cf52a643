"""What each kind of entry does to the code that waits for it: one short function per kind, found by its type.

The dispatcher looks up the future that an answer belongs to, once, before the function is called. Entries that are
not in the table (a retry that was scheduled, what the code itself called off) are part of the history and nothing
more: they are neither delivered, nor do they move the workflow's time.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar, cast

from resurgam.core import errors
from resurgam.core import event as events
from resurgam.core.failure import rebuild
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
    """Whether an entry is told to code that waits for it."""
    kind = type(entry)
    return (kind in _HANDLERS or kind is events.SignalsConsumed) and not never_started(entry)


def never_started(entry: events.Event) -> bool:
    """Whether an entry says that the code called a child off before it was begun; then the code knows."""
    return type(entry) is events.ChildCancelled and not entry.child


def settle(recorder: Recorder, answer: events.Answer) -> None:
    """Settle the future that *answer* belongs to."""
    if type(answer) is events.SignalsConsumed:
        recorder.mailbox.take(answer)
    if not recorder.past.was_asked_for(answer.ref):
        _not_asked_for(recorder, answer)
        return
    future = recorder.pending.pop(answer.ref, None)
    recorder.operations.pop(answer.ref, None)
    names = recorder.listeners.pop(answer.ref, ())
    if future is None or future.done():
        recorder.mailbox.hand_over(answer.ref)
        return
    if isinstance(future, Child):
        future.answered(lambda: _tell(recorder, answer, future, names))
    else:
        _tell(recorder, answer, future, names)


def _tell(recorder: Recorder, answer: events.Answer, future: Durable[Any], names: tuple[str, ...]) -> None:
    try:
        if type(answer) is events.SignalsConsumed:
            _signals_consumed(recorder, answer, future, names)
        else:
            _HANDLERS[type(answer)](recorder, answer, future)
    except errors.SerializationError as error:
        # Whether the entry is new or recorded: a choice that depended on it could not be replayed.
        reason = f"a type that does not fit ({error.reason})"
        recorder.verdict = unfit(future.command, answer, "type", reason, error.path)


def begun(recorder: Recorder, entry: events.ChildStarted) -> None:
    """A child is there; a detached one is waited for no longer."""
    recorder.begun[entry.ref] = entry.execution_id
    future = recorder.pending.get(entry.ref)
    if isinstance(future, Child):
        future.begun(entry.execution_id)
        if future.call.detach:
            del recorder.pending[entry.ref]
            future.set_result(None)


def handled(recorder: Recorder, entry: events.SignalHandled) -> None:
    """The handler of a signal begins."""
    recorder.handlers.begin_signal(entry, recorder.mailbox.take_one(entry.signal))


def checkpoint(recorder: Recorder, entry: events.LoopCheckpointed) -> None:
    """Tell a loop of its checkpoint; one that the code has not come to yet finds it when it does."""
    looping = recorder.loops.get(entry.ref)
    if looping is not None:
        looping.checkpointed(entry)
    elif not recorder.past.was_asked_for(entry.ref):
        _not_asked_for(recorder, entry)


def is_still_awaited(recorder: Recorder, entry: events.Event) -> bool:
    """Whether changed code still waits for a command that the recorded code cancelled.

    The cancellation of a call that the code has not made yet is kept, as other answers are, until the call is made.
    """
    assert entry.ref is not None
    if entry.ref in recorder.pending:
        return True
    past = recorder.past
    if not past.was_asked_for(entry.ref) and not past.is_skipped(entry.ref):
        recorder.early.answers[entry.ref] = cast("events.Answer", entry)
    return False


def call_off(recorder: Recorder, entry: events.Event) -> None:
    """Settle a future as the history says: cancelled, whether or not the code of today cancels it.

    Nothing else will ever settle it: the log has its answer, so no timer fires and no result is delivered for it.
    """
    assert entry.ref is not None
    future = recorder.pending.get(entry.ref)
    if future is None:
        return
    other = next((cancelled for cancelled in recorder.called_off if type(cancelled) is type(future.command)), None)
    if other is not None and recorder.matching != "location":
        recorder.verdict = cancelled_another(other, future.command, entry)
    else:
        future.cancel()


def _not_asked_for(recorder: Recorder, answer: events.Answer) -> None:
    """The code has not made the call that this answers: it was removed, or comes later now, or they diverge."""
    if recorder.past.is_skipped(answer.ref) or recorder.is_cut_off(recorder.past.command(answer.ref).location):
        return
    if not recorder.may_be_asked_for(answer.ref):
        # Where a strand has ended too soon, that is what is wrong, and it says what would help.
        recorder.check_ended()
        recorder.verdict = recorder.verdict or unasked(recorder.past.command(answer.ref), answer)
    elif isinstance(answer, events.LoopCheckpointed):
        recorder.early.checkpoints[answer.ref] = answer
    else:
        recorder.early.answers[answer.ref] = answer
        recorder.early.put_off.add(answer.ref)


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
    call = cast("events.ChildScheduled", future.command)
    error = errors.ChildWorkflowFailed(call.name, call.entity_id)
    error.__cause__ = rebuild(answer.failure)
    future.set_exception(error)


@_settles(events.ChildCancelled)
def _child_cancelled(recorder: Recorder, answer: events.ChildCancelled, future: Durable[Any]) -> None:
    call = cast("events.ChildScheduled", future.command)
    future.set_exception(errors.ChildWorkflowCancelled(call.name, call.entity_id))


@_settles(events.PromiseResolved)
def _promise_resolved(recorder: Recorder, answer: events.PromiseResolved, future: Durable[Any]) -> None:
    name = future.command.name
    try:
        value = future.codec.decode(answer.value, f"value of promise {name!r}")
    except errors.SerializationError as error:
        # The mistake of whoever settled it, as with signals.
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
        recorder.verdict = unfit(future.command, answer, "signal", ", ".join(names), strange)
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
        # It must not cost those that came with it.
        recorder.complain(f"signal {signal.name!r} ({signal.id}) is dropped: {reason}")
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
    members = recorder.races.pop(answer.ref).members
    put_off = answer.ref in recorder.early.put_off or any(seq > answer.seq for seq in recorder.pending)
    if answer.winner < len(members) and not members[answer.winner].done() and put_off:
        # An inserted step has put the race off, or its winner: what the winner gives is still to come.
        members[answer.winner].add_done_callback(lambda winner: _won(future, answer.winner, winner))
        return
    if answer.winner >= len(members) or not members[answer.winner].done():
        lost = "none such, or not there yet"
        recorder.verdict = unfit(future.command, answer, "winner", lost, f"competitor {answer.winner}")
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
