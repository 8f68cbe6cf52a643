"""Describe a workflow: its status, its open work and what it waits for."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from resurgam.client.access import ANY
from resurgam.client.compensation import compensation_id, uncompensated
from resurgam.client.flow_survey import FlowSurvey
from resurgam.client.pending import PendingWork, Survey, failure_of, moment
from resurgam.core import event as events
from resurgam.core.errors import CorruptHistory, NotFound
from resurgam.core.failure import rebuild
from resurgam.core.flow_event import CATALOG, FLOW
from resurgam.core.lifecycle import WORKFLOW
from resurgam.core.location import Location
from resurgam.core.state import InstanceState, Status
from resurgam.store.protocol import Store
from resurgam.store.records import ExecutionRef, Instance, OpenWork

_AS_STORED: Final = (
    *("entity_id", "execution_id", "run_id", "tree_id", "generation", "attempt", "kind", "name", "queue"),
    *("status", "deactivated", "tags", "archived"),
)


class ParentCall(msgspec.Struct, frozen=True, kw_only=True):
    """The call of another workflow's code that started this one."""

    entity_id: str
    run_id: str
    execution_id: str
    location: Location


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """The state of an execution. *previous* is the execution that this one retries or continues.

    *kind* is ``"workflow"``, or ``"flow"`` for a goal flow.

    *input* are its arguments, *result* its return value once completed, and *state* its durable state (``ctx.set``),
    all as plain values; of a flow, the given values, the outputs of the goals, and the first value of each attribute.
    *pending* is its open work, *waiting_for* the same as text. *worker* is the worker that holds the execution now;
    *redeliveries* counts how often it was claimed again without a commit. *previous_error* is the failure of the
    attempt before.

    *archived* is the URL of the file that holds its history, if that is in an archive. Unless the engine was opened with
    ``archive=``, all that is known of such an execution is then in its row: no input, no result.

    *uncompensated* are saga steps whose compensation failed or was cut off; each needs `Handle.compensate`.
    """

    entity_id: str
    execution_id: str
    run_id: str
    tree_id: str
    generation: int
    attempt: int
    kind: str
    name: str
    queue: str
    status: Status
    paused: bool
    created_at: datetime
    begins_at: datetime | None
    closed_at: datetime | None
    deactivated: bool
    archived: str | None
    history_length: int
    tags: dict[str, str]
    parent: ParentCall | None
    previous: str | None
    previous_error: BaseException | None
    input: Any
    result: Any
    state: dict[str, Any]
    waiting_for: tuple[str, ...]
    pending: tuple[PendingWork, ...]
    worker: str | None
    redeliveries: int
    uncompensated: tuple[str, ...]
    error: BaseException | str | None


async def describe(store: Store, instance: Instance, now: int) -> Description:
    """Return the description of an execution at the moment *now*.

    If an entry of its history cannot be decoded, describe the entries before it; the *error* names that entry.
    """
    log, corrupt = await _readable_log(store, instance)
    if instance.kind != WORKFLOW:
        return await _describe_other(store, instance, log, corrupt, now)
    survey = await Survey.of(store, instance, log, now)
    state, started = survey.state, survey.state.started
    pending = await survey.pending() if corrupt is None else ()
    waits: tuple[str, ...] = ()
    if instance.status.terminal:
        pending = tuple(work for work in pending if work.kind == "activity")  # it may still be running
    else:
        waits = _waiting_for(instance, state, pending, corrupt) or (await _without_command(store, instance, survey),)
    return Description(
        **{name: getattr(instance, name) for name in _AS_STORED},
        paused=instance.status is Status.PAUSED,
        created_at=moment(instance.created_at),
        begins_at=None if started is None or started.begins_at is None else moment(started.begins_at),
        closed_at=None if instance.closed_at is None else moment(instance.closed_at),
        history_length=instance.last_seq,
        parent=_parent(instance),
        previous=None if started is None else started.previous,
        previous_error=await _previous_error(store, instance, started),
        input=None if started is None else ANY.decode(started.input, "input"),
        result=_result(state),
        state={key: ANY.decode(value, f"state {key!r}") for key, value in state.variables.items()},
        waiting_for=(*waits, *_queued_updates(pending)),
        pending=pending,
        worker=survey.worker,
        redeliveries=max(0, survey.work.deliveries - 1),
        uncompensated=await _uncompensated(store, instance, log),
        error=corrupt or _error(state, instance),
    )


async def _describe_other(
    store: Store, instance: Instance, log: Sequence[events.Event], corrupt: CorruptHistory | None, now: int
) -> Description:
    """Describe a flow, or an instance of a kind of which only the row is known."""
    work = await store.inspector.open_work(instance) or OpenWork()
    known = instance.kind == FLOW and corrupt is None and bool(log)
    flow = FlowSurvey.of(instance, log, work, now) if known else None
    pending = () if flow is None else await flow.pending(store)
    held = work.leased_until is not None and work.leased_until > now
    waits = ["a resume: handle.resume()"] if instance.status is Status.PAUSED else []
    waits += [one.text for one in pending]
    return Description(
        **{name: getattr(instance, name) for name in _AS_STORED},
        paused=instance.status is Status.PAUSED,
        created_at=moment(instance.created_at),
        begins_at=None,
        closed_at=None if instance.closed_at is None else moment(instance.closed_at),
        history_length=instance.last_seq,
        parent=_parent(instance),
        previous=None,
        previous_error=None,
        input=None if flow is None else flow.given(),
        result=None if flow is None else flow.result(),
        state={} if flow is None else flow.attributes(),
        waiting_for=() if instance.status.terminal else tuple(waits) or _idle(instance),
        pending=pending,
        worker=work.worker if held else None,
        redeliveries=max(0, work.deliveries - 1),
        uncompensated=() if flow is None else flow.uncompensated(),
        error=corrupt or (flow.error() if flow is not None else None) or _problem(instance),
    )


def _idle(instance: Instance) -> tuple[str, ...]:
    """Return what an instance waits for that has no open work: the catalog waits for changes, which its clients make."""
    return () if instance.kind == CATALOG else (f"a worker that serves queue {instance.queue!r}",)


async def _readable_log(store: Store, execution: Instance) -> tuple[Sequence[events.Event], CorruptHistory | None]:
    """Return the log of an execution or, with the error, its entries before the first that cannot be decoded.

    That of an archived one is empty if the archive cannot be read here.
    """
    try:
        return await store.inspector.history(execution), None
    except CorruptHistory as error:
        return error.readable, error
    except NotFound:
        if execution.archived is None:
            raise
        return [], None


async def _uncompensated(store: Store, instance: Instance, log: Sequence[events.Event]) -> tuple[str, ...]:
    left = []
    for step in uncompensated(log, ended=instance.status.terminal):
        manual = await store.inspector.get(compensation_id(instance, step.command))
        if manual is None or manual.status is not Status.COMPLETED:
            location = step.command.location
            left.append(f"saga step {step.command.name!r} at {location}: handle.compensate({str(location)!r})")
    return tuple(left)


async def _previous_error(store: Store, instance: Instance, started: events.Started | None) -> BaseException | None:
    if started is None or started.previous is None or instance.attempt == 1:
        return None
    try:
        return await failure_of(store, ExecutionRef(entity_id=instance.entity_id, execution_id=started.previous))
    except NotFound:  # it is archived, and the engine has no archive
        return None


def _result(state: InstanceState) -> Any:
    ended = state.ended
    return ANY.decode(ended.result, "result") if isinstance(ended, events.WorkflowCompleted) else None


def _parent(instance: Instance) -> ParentCall | None:
    call = instance.parent
    if call is None:
        return None
    return ParentCall(
        entity_id=call.entity_id, run_id=call.run_id, execution_id=call.execution_id, location=call.location
    )


def _waiting_for(
    instance: Instance, state: InstanceState, pending: Sequence[PendingWork], corrupt: CorruptHistory | None
) -> tuple[str, ...]:
    if corrupt is not None:
        return ("a build that can read its history",)
    if instance.status is Status.DIVERGED:
        return ("a build that fits its history",)
    waits = ["a resume: handle.resume()"] if instance.status is Status.PAUSED else []
    begun = instance.status is Status.RUNNING and state.started is not None and state.started.attempt == 1
    if not state.begun and state.started is not None and not begun:
        return (*waits, _start_text(state.started))
    return (*waits, *(work.text for work in pending if work.kind != "update"))


def _queued_updates(pending: Sequence[PendingWork]) -> Sequence[str]:
    return [work.text for work in pending if work.kind == "update" and work.status == "queued"]


async def _without_command(store: Store, instance: Instance, survey: Survey) -> str:
    """Return what a workflow waits for that has no open command: a worker, or a condition that only its code knows."""
    if instance.dead_letter is not None:
        return "handle.retry(), which releases a dead letter"
    if not any(instance.queue in worker.queues for worker in await store.workers.list()):
        return f"a worker that serves queue {instance.queue!r}"
    own = "a condition of its own code: ctx.until, or an asyncio object"
    # Whether a worker has run the code is known only from what it has recorded.
    has_run = instance.last_seq > 1 and not survey.work.inbox
    return own if has_run else f"{own}; or a free worker of queue {instance.queue!r}"


def _start_text(started: events.Started) -> str:
    if started.begins_at is None:
        return "its start by handle.begin()"
    what = "its start" if started.attempt == 1 else f"its next attempt, number {started.attempt},"
    return f"{what} at {moment(started.begins_at).isoformat()}"


def _error(state: InstanceState, instance: Instance) -> BaseException | str | None:
    if isinstance(state.ended, events.WorkflowFailed | events.WorkflowRetried):
        return rebuild(state.ended.failure)
    return _problem(instance)


def _problem(instance: Instance) -> str | None:
    return instance.dead_letter or instance.parked or "; ".join(instance.activity_dead_letters) or None
