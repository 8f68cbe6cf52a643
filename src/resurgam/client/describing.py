"""Where a workflow stands and what it waits for, told from its history."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from resurgam.client.compensating import compensation_id, uncompensated
from resurgam.core import event as events
from resurgam.core.failure import rebuild
from resurgam.core.location import Location
from resurgam.core.state import InstanceState, Status
from resurgam.store.protocol import Store
from resurgam.store.records import Instance

_LAST = datetime(9999, 12, 31, tzinfo=UTC).timestamp()


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentCall:
    """The call of another workflow's code that began this one."""

    entity_id: str
    run_id: str
    execution_id: str
    location: Location


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """Where a workflow stands. *previous* is the execution that this one retries or continues.

    *uncompensated* are steps of its sagas that could not be taken back, and that somebody has to see to.
    """

    entity_id: str
    execution_id: str
    run_id: str
    tree_id: str
    generation: int
    attempt: int
    name: str
    queue: str
    status: Status
    paused: bool
    created_at: datetime
    begins_at: datetime | None
    closed_at: datetime | None
    deactivated: bool
    history_length: int
    tags: dict[str, str]
    parent: ParentCall | None
    previous: str | None
    waiting_for: tuple[str, ...]
    uncompensated: tuple[str, ...]
    error: BaseException | str | None


async def describe(store: Store, instance: Instance) -> Description:
    """Return where an execution stands."""
    log = await store.history(instance.execution_id)
    state = InstanceState(log)
    started = state.started
    return Description(
        entity_id=instance.entity_id,
        execution_id=instance.execution_id,
        run_id=instance.run_id,
        tree_id=instance.tree_id,
        generation=instance.generation,
        attempt=instance.attempt,
        name=instance.name,
        queue=instance.queue,
        status=instance.status,
        paused=instance.status is Status.PAUSED,
        created_at=_moment(instance.created_at),
        begins_at=None if started is None or started.begins_at is None else _moment(started.begins_at),
        closed_at=None if instance.closed_at is None else _moment(instance.closed_at),
        deactivated=instance.deactivated,
        history_length=instance.last_seq,
        tags=instance.tags,
        parent=_parent(instance),
        previous=None if started is None else started.previous,
        waiting_for=() if instance.status.terminal else await _waiting_for(store, instance, state),
        uncompensated=await _uncompensated(store, instance, log),
        error=_error(state, instance),
    )


async def _uncompensated(store: Store, instance: Instance, log: Sequence[events.Event]) -> tuple[str, ...]:
    left = []
    for step in uncompensated(log, ended=instance.status.terminal):
        by_hand = await store.get(compensation_id(instance, step.command))
        if by_hand is None or by_hand.status is not Status.COMPLETED:
            place = step.command.location
            left.append(f"saga step {step.command.name!r} at {place}: handle.compensate({str(place)!r})")
    return tuple(left)


def _parent(instance: Instance) -> ParentCall | None:
    call = instance.parent
    if call is None:
        return None
    return ParentCall(
        entity_id=call.entity_id, run_id=call.run_id, execution_id=call.execution_id, location=call.location
    )


def _moment(milliseconds_since: int) -> datetime:
    return datetime.fromtimestamp(min(milliseconds_since / 1000, _LAST), UTC)


async def _waiting_for(store: Store, instance: Instance, state: InstanceState) -> tuple[str, ...]:
    waits = ["somebody to resume it: handle.resume()"] if instance.status is Status.PAUSED else []
    begun = instance.status is Status.RUNNING and state.started is not None and state.started.attempt == 1
    if not state.begun and state.started is not None and not begun:
        return (*waits, _beginning(state.started))
    unbegun = {
        command.seq
        for command in state.open.values()
        if isinstance(command, events.ChildScheduled) and command.deferred and await _is_put_off(store, command)
    }
    waits += [text for command in state.open.values() if (text := _wants(command, state, unbegun))]
    work = await store.open_work(instance.execution_id)
    unread = () if work is None else work.inbox
    sent = (event for event in unread if isinstance(event, events.UpdateAccepted))
    updates = [f"a handler for update {event.name!r} ({event.id})" for event in sent]
    return (*(tuple(waits) or (f"a worker that serves queue {instance.queue!r}",)), *updates)


def _beginning(started: events.WorkflowStarted) -> str:
    if started.begins_at is None:
        return "somebody to begin it: handle.begin()"
    what = "its start" if started.attempt == 1 else f"its next attempt, number {started.attempt},"
    return f"{what} at {_moment(started.begins_at).isoformat()}"


async def _is_put_off(store: Store, command: events.ChildScheduled) -> bool:
    """Whether a deferred child has not been begun; its parent's history does not tell."""
    child = await store.get(command.entity_id, command.run_id)
    return child is not None and child.status is Status.SCHEDULED


def _wants(command: events.Command, state: InstanceState, unbegun: set[int]) -> str | None:
    """Return what an open command waits for; None for those whose own steps say it: loops, and sagas going forward."""
    match command:
        case events.LoopStarted():
            return None
        case events.SagaStepRegistered() if command.seq not in state.compensating:
            return None
        case events.ChildScheduled():
            what = f"child workflow {command.name!r} ({command.entity_id}) on queue {command.queue!r}"
            what += ", which nobody has begun: handle.begin()," if command.seq in unbegun else ""
        case events.PromiseCreated():
            until = "" if command.deadline is None else f" until {_moment(command.deadline).isoformat()}"
            what = f"promise {command.name!r}{until}"
        case _:
            what = _simply(command)
    return f"{what} at {command.location}"


def _simply(command: events.Command) -> str:
    match command:
        case events.ActivityScheduled():
            what = f"activity {command.name!r} on queue {command.queue!r}"
        case events.TimerStarted():
            what = f"timer until {_moment(command.deadline).isoformat()}"
        case events.ListenStarted():
            what = f"signal {' or '.join(map(repr, command.names))}"
        case events.SignalSent():
            what = f"signal {command.name!r} to reach workflow {command.entity_id!r}"
        case events.PromiseSettled():
            what = f"the settlement of promise {command.name!r}"
        case events.SagaStepRegistered():
            what = f"compensation {command.undo!r} of saga step {command.name!r}"
        case _:
            what = command.command
    return what


def _error(state: InstanceState, instance: Instance) -> BaseException | str | None:
    if isinstance(state.ended, events.WorkflowFailed | events.WorkflowRetried):
        return rebuild(state.ended.failure)
    return instance.dead or instance.parked or "; ".join(instance.troubles) or None
