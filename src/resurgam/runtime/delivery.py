"""What each kind of entry does to the code that waits for it: one short function per kind, found by its type.

The dispatcher looks up the future that an answer belongs to, once, before the function is called. Entries that are
not in the table (a retry that was scheduled, what the code itself called off) are part of the history and nothing
more: they are neither delivered, nor do they move the workflow's time.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

from resurgam.core import errors
from resurgam.core import event as events
from resurgam.core.failure import rebuild
from resurgam.runtime.futures import Durable
from resurgam.runtime.recorder import Recorder

A = TypeVar("A", bound=events.Answer)
_Handler = Callable[[Recorder, events.Answer, Durable[Any]], None]
_HANDLERS: Final[dict[type[events.Event], _Handler]] = {}


def is_answer(entry: events.Event) -> bool:
    """Whether an entry is told to code that waits for it."""
    return type(entry) in _HANDLERS


def settle(recorder: Recorder, answer: events.Answer) -> None:
    """Settle the future that *answer* belongs to."""
    if not recorder.was_asked_for(answer.ref):
        recorder.verdict = _unasked(recorder, answer)
        return
    if isinstance(answer, events.SignalsConsumed):
        # Even without anybody to hear them, they leave the mailbox.
        recorder.taken = [recorder.take_signal(seq) for seq in answer.signals]
    future = recorder.pending.pop(answer.ref, None)
    recorder.operations.pop(answer.ref, None)
    recorder.listeners.pop(answer.ref, None)
    if future is None or future.done():
        return
    try:
        _HANDLERS[type(answer)](recorder, answer, future)
    except errors.SerializationError as error:
        # Whether the entry is new or recorded: a choice that depended on it could not be replayed.
        recorder.verdict = _unfit(future, answer, "type", f"a type that does not fit ({error.reason})", error.path)


def _settles(*kinds: type[A]) -> Callable[[Callable[[Recorder, A, Durable[Any]], None]], None]:
    def register(function: Callable[[Recorder, A, Durable[Any]], None]) -> None:
        _HANDLERS.update(dict.fromkeys(kinds, cast("_Handler", function)))

    return register


@_settles(events.ActivityCompleted, events.OperationCompleted)
def _completed(recorder: Recorder, answer: events.Answer, future: Durable[Any]) -> None:
    assert isinstance(answer, events.ActivityCompleted | events.OperationCompleted)
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


@_settles(events.TimerFired)
def _timer_fired(recorder: Recorder, answer: events.TimerFired, future: Durable[Any]) -> None:
    future.set_result(None)


@_settles(events.SignalsConsumed)
def _signals_consumed(recorder: Recorder, answer: events.SignalsConsumed, future: Durable[Any]) -> None:
    command = cast("events.ListenStarted", future.command)
    signal = recorder.taken[0]
    try:
        value = future.codec.decode(signal.value, f"signal {signal.name!r}")
    except errors.SerializationError as error:
        # The sender's mistake, not a change of this code: it is the same on every replay, so the code may handle it.
        future.set_exception(error)
        return
    future.set_result(value if len(command.names) == 1 else (signal.name, value))


@_settles(events.ListenTimedOut)
def _listen_timed_out(recorder: Recorder, answer: events.ListenTimedOut, future: Durable[Any]) -> None:
    future.set_exception(errors.SignalTimeout(cast("events.ListenStarted", future.command).names))


@_settles(events.RaceDecided)
def _race_decided(recorder: Recorder, answer: events.RaceDecided, future: Durable[Any]) -> None:
    members = recorder.races.pop(answer.ref).members
    if answer.winner >= len(members) or not members[answer.winner].done():
        recorder.verdict = _unfit(
            future, answer, "winner", "none such, or not there yet", f"competitor {answer.winner}"
        )
        return
    winner = members[answer.winner]
    if winner.cancelled():
        future.cancel()
    elif (error := winner.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result((answer.winner, winner.result()))


def _unasked(recorder: Recorder, answer: events.Answer) -> errors.HistoryDiverged:
    command = recorder.recorded(answer.ref)
    return errors.HistoryDiverged(
        command.location,
        command.command,
        "order",
        code_value="not asked for",
        history_value=f"{answer.type} of {command.name or command.type}",
        event_seq=answer.seq,
    )


def _unfit(
    future: Durable[Any], answer: events.Answer, field: str, code_value: str, history_value: str
) -> errors.HistoryDiverged:
    return errors.HistoryDiverged(
        future.command.location,
        future.command.command,
        field,
        code_value=code_value,
        history_value=history_value,
        event_seq=answer.seq,
    )
