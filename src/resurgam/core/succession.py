"""Build the first entry of the execution that follows another: its next attempt, or its next generation.

A retry starts with an empty log, but reuses results of its run: completed activities and children, settled promises and
sent messages are *carried over*, and answer the same call at the same location. Failed and cancelled calls, and
operations, run again. Signals and updates are delivered again, in order, whether they had been consumed or not.

A continuation starts with nothing but its arguments and the unread inbox.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

import msgspec
from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.event import NULL
from resurgam.core.location import Location
from resurgam.core.state import tags_after

_MARKED: Final = (
    *(events.ActivityCompleted, events.ChildCompleted, events.FlowAnswered),
    *(events.PromiseResolved, events.PromiseRejected),
)
_KEPT: Final = (*_MARKED, events.SignalDelivered)
_SAGA: Final = str(events.SagaStepRegistered.__struct_config__.tag)


def next_attempt(
    log: Sequence[events.Event],
    *,
    execution_id: str,
    at: int,
    python: str,
    begins_at: int | None = None,
    manual: bool = False,
    compensated: Sequence[Location] = (),
) -> tuple[events.WorkflowStarted, tuple[events.Event, ...]]:
    """Return the first entry of the next attempt of a run, and the first entries of its inbox.

    A *manual* retry gets a fresh timeout: that of the earlier attempts may have expired. *compensated* are the saga
    steps that were compensated manually since.
    """
    started = log[0]
    assert isinstance(started, events.WorkflowStarted)
    begun = next((entry.at for entry in log if isinstance(entry, events.WorkflowBegun)), started.at)
    following = msgspec.structs.replace(
        started,
        at=at,
        execution_id=execution_id,
        attempt=started.attempt + 1,
        python=python,
        previous=started.execution_id,
        since=None if manual else started.since or begun,
        begins_at=begins_at,
        deferred=False,
        tags=tags_after(log),
        carried=carried(log, compensated),
        children=tuple(_children(log)),
    )
    received = (entry for entry in log if isinstance(entry, events.SignalReceived | events.UpdateAccepted))
    return following, tuple(map(_unread, received))


def without_children(started: events.WorkflowStarted, run_ids: Collection[str]) -> events.WorkflowStarted:
    """Return the first entry of an attempt without these runs of its children, so that it starts them again."""
    children = tuple(child for child in started.children if child.run_id not in run_ids)
    return msgspec.structs.replace(started, children=children)


def next_generation(  # noqa: PLR0913 -- what differs from the generation before
    started: events.WorkflowStarted,
    *,
    run_id: str,
    execution_id: str,
    at: int,
    python: str,
    input: Raw,
    tags: dict[str, str],
    signals: tuple[str, ...] = (),
) -> events.WorkflowStarted:
    """Return the first entry of the next generation of a workflow; *signals* are the ids received so far."""
    return msgspec.structs.replace(
        started,
        at=at,
        run_id=run_id,
        execution_id=execution_id,
        generation=started.generation + 1,
        attempt=1,
        python=python,
        input=input,
        tags=tags,
        previous=started.execution_id,
        since=None,
        begins_at=None,
        deferred=False,
        carried=(),
        signals=signals,
        children=(),
    )


def requeue(signals: Iterable[events.SignalReceived]) -> tuple[events.Event, ...]:
    """Return received signals as entries for another inbox."""
    return tuple(_unread(signal) for signal in signals)


def _unread(received: events.SignalReceived | events.UpdateAccepted) -> events.Event:
    if isinstance(received, events.UpdateAccepted):
        return msgspec.structs.replace(received, seq=0, scope=0)
    return msgspec.structs.replace(received, seq=0)


def carried(log: Sequence[events.Event], also: Sequence[Location] = ()) -> tuple[events.Carried, ...]:
    """Return the results that the next attempt of a run reuses, and the compensation counts of its saga steps."""
    started = log[0]
    assert isinstance(started, events.WorkflowStarted)
    commands = {entry.seq: entry for entry in log if isinstance(entry, events.Command)}
    compensated = [commands[entry.ref].location for entry in log if isinstance(entry, events.SagaCompensationStarted)]
    compensated += (step for step in also if step not in compensated)
    called = {(command.location, command.type) for command in commands.values()}
    kept = [one for one in started.carried if (one.location, one.kind) not in called or one.times]
    kept += _answered(log, commands)
    kept = [one for one in kept if one.times or not _is_below(one.location, compensated)]
    return tuple(_counted(kept, compensated))


def _answered(log: Iterable[events.Event], commands: dict[int, events.Command]) -> Iterator[events.Carried]:
    for entry in log:
        command = commands.get(entry.ref or 0)
        if isinstance(entry, events.MessagePublished):
            yield _carried(entry, NULL)
        elif command is not None and _is_kept(entry, command):
            answer = msgspec.structs.replace(entry, seq=0)
            if isinstance(answer, _MARKED):
                answer = msgspec.structs.replace(answer, carried=True)
            yield _carried(command, Raw(events.encode_event(answer)))


def _is_kept(answer: events.Event, command: events.Command) -> bool:
    """Whether the next attempt reuses an answer. A detached child need only have started."""
    if isinstance(answer, events.FlowAnswered) and answer.outcome != "completed":
        return False
    detached = isinstance(command, events.ChildCommand) and command.detach
    return isinstance(answer, _KEPT) or (detached and isinstance(answer, events.ChildStarted))


def _carried(command: events.Command, answer: Raw) -> events.Carried:
    return events.Carried(
        location=command.location, kind=command.type, name=command.name, digest=command.digest, answer=answer
    )


def _children(log: Sequence[events.Event]) -> Iterator[events.EarlierChild]:
    """Yield the children that the next attempt adopts where it makes the same call, and closes otherwise."""
    started = log[0]
    assert isinstance(started, events.WorkflowStarted)
    before = {one.run_id: one for one in started.children}
    calls = {entry.seq: entry for entry in log if isinstance(entry, events.ChildCommand) and not entry.detach}
    executions = {entry.ref: entry.execution_id for entry in log if isinstance(entry, events.ChildStarted)}
    ends = {entry.ref: entry for entry in log if isinstance(entry, events.ChildAnswer)}
    called = {call.run_id for call in calls.values()}
    yield from (one for one in started.children if one.run_id not in called)
    for seq, call in calls.items():
        if seq in ends and events.child_outcome(ends[seq]) != "completed":
            continue
        known = before.get(call.run_id)
        yield events.EarlierChild(
            location=call.location,
            name=call.name,
            digest=call.digest,
            entity_id=call.entity_id,
            run_id=call.run_id,
            execution_id=executions.get(seq, "" if known is None else known.execution_id),
            by=started.execution_id if known is None else known.by,
            at=call.at if known is None else known.at,
            on_parent_close=call.on_parent_close,
            open=seq not in ends,
        )


def _counted(kept: list[events.Carried], compensated: list[Location]) -> Iterator[events.Carried]:
    """Count how often each saga step was compensated, over all attempts."""
    times = {one.location: one.times for one in kept if one.times}
    for step in compensated:
        times[step] = times.get(step, 0) + 1
    yield from (one for one in kept if not one.times)
    yield from (events.Carried(location=step, kind=_SAGA, times=number) for step, number in times.items())


def _is_below(location: Location, steps: Iterable[Location]) -> bool:
    return any(step.contains(location) for step in steps)
