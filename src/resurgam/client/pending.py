"""The open work of an execution: what its code waits for, and the progress of each item.

The log shows which commands are open; the store adds attempts, leases, heartbeats and the unread inbox.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from resurgam.client.access import ANY
from resurgam.core import event as events
from resurgam.core.commands import COMMANDS
from resurgam.core.errors import CorruptHistory
from resurgam.core.failure import rebuild
from resurgam.core.location import Location
from resurgam.core.state import InstanceState, Status
from resurgam.store.protocol import Store
from resurgam.store.records import Addressed, ExecutionRef, Instance, OpenActivity, OpenWork

_LAST: Final = datetime(9999, 12, 31, tzinfo=UTC).timestamp()
_LATEST: Final = 20
"""How many of the last entries of a log to search for its failure."""


class PendingWork(msgspec.Struct, frozen=True, kw_only=True):
    """One item of open work. *text* describes it; *since* is the time of the durable call.

    *kind* is ``activity``, ``timer``, ``listener``, ``promise``, ``child``, ``flow``, ``update``, ``operation``,
    ``race``, ``signal``, ``settlement`` or ``compensation``. *status* of an activity: ``running`` on *worker*,
    ``queued`` until a worker claims it, ``retrying`` until *next_try*, ``lost`` if the lease of *worker* expired,
    ``dead`` if it is a dead letter, ``answered`` if the workflow has not read its result yet; of a call of a service also
    ``acknowledged`` until its answer comes, and ``deferred`` while the service is unhealthy. A child has its own status,
    everything else is ``open``.

    *attempt* is the current or the next one, of *max_attempts* (None: no limit, or not known here). *redeliveries*
    counts how often this attempt was claimed again without a result. *error* is the failure of the attempt before.
    *entity_id* is the child, the target of a signal, or the id of a promise or an update. *details* and *heartbeat_at*
    are those of the last heartbeat in the store; workers report heartbeats when they renew a lease.
    """

    kind: str
    text: str
    name: str | None
    location: Location | None
    since: datetime
    status: str = "open"
    until: datetime | None = None
    queue: str | None = None
    entity_id: str | None = None
    attempt: int | None = None
    max_attempts: int | None = None
    redeliveries: int = 0
    error: BaseException | str | None = None
    next_try: datetime | None = None
    heartbeat_at: datetime | None = None
    details: Any = None
    worker: str | None = None


def moment(milliseconds_since: int) -> datetime:
    """Return a store timestamp as a datetime, at most the last one that a datetime can hold."""
    return datetime.fromtimestamp(min(milliseconds_since / 1000, _LAST), UTC)


async def failure_of(store: Store, execution: Addressed) -> BaseException | None:
    """Return the failure of an execution, None if it has not failed; `CorruptHistory` if it cannot be read."""
    try:
        latest = await store.inspector.history(execution, _LATEST)
    except CorruptHistory as error:
        return error
    for entry in reversed(latest):
        if isinstance(entry, events.WorkflowFailed | events.WorkflowRetried):
            return rebuild(entry.failure)
    return None


class Survey(msgspec.Struct, frozen=True):
    """The open work of one execution at the moment *now*."""

    store: Store
    state: InstanceState
    work: OpenWork
    failures: dict[int, events.ActivityRetryScheduled]
    now: int

    @classmethod
    async def of(cls, store: Store, instance: Instance, log: Sequence[events.Event], now: int) -> "Survey":
        """Read the open work of an execution whose log was read just before."""
        work = await store.inspector.open_work(instance) or OpenWork()
        retried = (entry for entry in (*log, *work.inbox) if isinstance(entry, events.ActivityRetryScheduled))
        return cls(store, InstanceState(log), work, {entry.ref: entry for entry in retried}, now)

    @property
    def worker(self) -> str | None:
        """The worker whose lease on the execution has not expired."""
        until = self.work.leased_until
        return self.work.worker if until is not None and until > self.now else None

    async def pending(self) -> tuple[PendingWork, ...]:
        """Return the open work in the order of its calls, then the updates that wait for their handlers."""
        found = [await self._pending_work(command) for command in self.state.open.values()]
        return (*(work for work in found if work is not None), *self._updates())

    async def _pending_work(self, command: events.Command) -> PendingWork | None:
        text = _text_of(command, self.state)
        if text is None:
            return None
        deadline = getattr(command, "deadline", None)
        work = PendingWork(
            kind=COMMANDS[type(command)].label,
            text=f"{text} at {command.location}",
            name=command.name,
            location=command.location,
            since=moment(command.at),
            until=None if deadline is None else moment(deadline),
            queue=getattr(command, "queue", None),
            entity_id=getattr(command, "promise_id", None) or getattr(command, "entity_id", None),
        )
        match command:
            case events.ActivityScheduled():
                return self._activity(work, command.seq)
            case events.ChildCommand():
                return await self._child(work, command, text)
            case _:
                return work

    def _activity(self, work: PendingWork, ref: int) -> PendingWork:
        failed = self.failures.get(ref)
        work = replace(work, error=None if failed is None else rebuild(failed.failure))
        return with_progress(work, self.work, ref, self.now)

    async def _child(self, work: PendingWork, command: events.ChildCommand, text: str) -> PendingWork:
        child = await self.store.inspector.get(command.entity_id, command.run_id)
        if child is None:
            return work
        deferred = command.deferred and child.status is Status.SCHEDULED
        again = child.wake_at if child.attempt > 1 and child.last_seq == 1 else None
        error = child.dead_letter or child.parked or "; ".join(child.activity_dead_letters) or None
        return replace(
            work,
            text=f"{text}, deferred until handle.begin(), at {command.location}" if deferred else work.text,
            status=str(child.status),
            attempt=child.attempt,
            error=error or await self._earlier_failure(child),
            next_try=moment(again) if again is not None and again > self.now else None,
        )

    async def _earlier_failure(self, child: Instance) -> BaseException | None:
        """Return the failure of the attempt before this one of a child."""
        if child.attempt == 1:
            return None
        first = next(iter(await self.store.inspector.history(child, limit=1)), None)
        previous = first.previous if isinstance(first, events.Started) else None
        if previous is None:
            return None
        return await failure_of(self.store, ExecutionRef(entity_id=child.entity_id, execution_id=previous))

    def _updates(self) -> Iterable[PendingWork]:
        accepted = self.state.updates.values()
        unread = [entry for entry in self.work.inbox if isinstance(entry, events.UpdateAccepted)]
        for entry in (*accepted, *unread):
            begun = entry.seq in self.state.updates
            what = f"the handler of update {entry.name!r}" if begun else f"a handler for update {entry.name!r}"
            yield PendingWork(
                kind="update",
                text=f"{what} ({entry.id})",
                name=entry.name,
                location=None,
                since=moment(entry.at),
                status="running" if begun else "queued",
                entity_id=entry.id,
            )


def with_progress(work: PendingWork, open_work: OpenWork, ref: int, now: int) -> PendingWork:
    """Return an open activity with what the store knows about its attempts."""
    row = next((row for row in open_work.activities if row.request.ref == ref), None)
    if row is None:
        return replace(work, status="answered")
    status = _status(row, now)
    retry = row.request.retry
    return replace(
        work,
        status=status,
        attempt=row.attempt,
        max_attempts=None if retry is None else retry.max_attempts,
        redeliveries=max(0, row.deliveries - 1),
        error=row.dead_letter or work.error,
        next_try=moment(row.visible_at) if status == "retrying" else None,
        heartbeat_at=None if row.heartbeat_at is None else moment(row.heartbeat_at),
        details=None if row.details is None else ANY.decode(row.details, "details of a heartbeat"),
        worker=row.worker,
    )


def _status(row: OpenActivity, now: int) -> str:
    if row.dead_letter is not None:
        return "dead"
    if row.leased_until is not None:
        return "running" if row.leased_until > now else "lost"
    return "retrying" if row.visible_at > now else "queued"


def _text_of(command: events.Command, state: InstanceState) -> str | None:
    """Describe an open command; return None for loops and for sagas that go forward, whose steps are listed instead."""
    match command:
        case events.LoopStarted():
            return None
        case events.SagaStepRegistered() if command.seq not in state.compensating:
            return None
        case events.FlowScheduled():
            return f"child flow {command.name!r} ({command.entity_id}) on queue {command.queue!r}"
        case events.ChildCommand():
            return f"child workflow {command.name!r} ({command.entity_id}) on queue {command.queue!r}"
        case events.PromiseCreated():
            until = "" if command.deadline is None else f" until {moment(command.deadline).isoformat()}"
            return f"promise {command.name!r}{until}"
        case _:
            return _short_text(command)


def _short_text(command: events.Command) -> str:
    match command:
        case events.ActivityScheduled():
            what = f"activity {command.name!r} on queue {command.queue!r}"
        case events.TimerStarted():
            what = f"timer until {moment(command.deadline).isoformat()}"
        case events.ListenStarted():
            what = f"signal {' or '.join(map(repr, command.names))}"
        case events.SignalSent():
            what = f"signal {command.name!r} to reach workflow {command.entity_id!r}"
        case events.PromiseSettled():
            what = f"the settlement of promise {command.name!r}"
        case events.SagaStepRegistered():
            what = f"compensation {command.undo!r} of saga step {command.name!r}"
        case events.OperationStarted():
            what = f"operation {command.name!r}"
        case _:
            what = command.command
    return what
