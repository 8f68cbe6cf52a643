"""Copy whole executions out of a store, and adopt them into another."""

from collections.abc import Sequence

from resurgam.core.event import decode_event, encode_event
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.adoption import plan_adoption
from resurgam.store.encoding import encode
from resurgam.store.sqlite import history
from resurgam.store.sqlite.activities import adopt_activities, pending_of
from resurgam.store.sqlite.covered import by_ref, pending_ones
from resurgam.store.sqlite.instances import find, tag
from resurgam.store.sqlite.purge import delete, delete_rest
from resurgam.store.sqlite.rows import columns_of, columns_of_promise, instance_of, pause_of, promise_of
from resurgam.store.sqlite.session import Row, Session, Snapshots
from resurgam.store.sqlite.transaction import Transaction, Write


class SqliteTransfer:
    """Copy and adopt whole executions, each part in one transaction."""

    def __init__(self, file: Snapshots, write: Write) -> None:
        self._file = file
        self._write = write

    async def copies(self, entity_id: str, run_id: str | None = None) -> Sequence[r.Copy]:
        """Return everything that is kept of an entity's executions, oldest first."""
        return self._file.read(lambda session: copies_of(session, entity_id, run_id))

    async def adopt(self, parts: Sequence[r.Adoption]) -> Sequence[r.Adopted | r.Exists]:
        """Adopt executions from another store."""
        return await self._write(lambda t: [adopt(t, part) for part in parts]) if parts else []

    async def remove(self, parts: Sequence[r.Removal]) -> Sequence[r.Removed | r.Changed]:
        """Delete executions that another store has adopted."""
        return await self._write(lambda t: [remove(t, part) for part in parts]) if parts else []

    async def reserve(self, parts: Sequence[r.Reservation]) -> Sequence[r.Reserved | r.Changed]:
        """Append the entries that say that complete executions are being archived."""
        return await self._write(lambda t: [reserve(t, part) for part in parts]) if parts else []

    async def archive(self, parts: Sequence[r.Archival]) -> Sequence[r.Archived | r.Changed]:
        """Delete everything but the rows of executions that an archive holds."""
        return await self._write(lambda t: [archive(t, part) for part in parts]) if parts else []

    async def flush(self) -> None:
        """Do nothing: effects are part of the commit."""

    async def scrub(self) -> None:
        """Do nothing: no answers are kept."""


def remove(t: Transaction, part: r.Removal) -> r.Removed | r.Changed:
    """Delete executions of an entity, unless one of them has changed."""
    if not _are_unchanged(t.session, part):
        return r.Changed()
    for copy in part.copies:
        delete(t, copy.instance.execution_id)
    return r.Removed()


def reserve(t: Transaction, part: r.Reservation) -> r.Reserved | r.Changed:
    """Append an entry to the log of a complete execution, unless there is more to come in it."""
    ids = {"entity_id": part.entity_id, "execution_id": part.execution_id}
    if not t.session.execute("reserve_instance", **ids, seq=part.event.seq):
        return r.Changed()
    history.append(t, part.execution_id, (part.event,))
    return r.Reserved()


def archive(t: Transaction, part: r.Archival) -> r.Archived | r.Changed:
    """Delete everything but the rows of executions of an entity, unless one of them has changed or is not complete."""
    instances = [copy.instance for copy in part.copies]
    if not all(instance.deactivated and instance.archived is None for instance in instances):
        return r.Changed()
    if not _are_unchanged(t.session, part):
        return r.Changed()
    for instance in instances:
        delete_rest(t, instance.execution_id)
        t.session.execute("archive_instance", execution_id=instance.execution_id, archive=part.archive)
    return r.Archived()


def _are_unchanged(session: Session, part: r.Removal | r.Archival) -> bool:
    """Whether new copies of executions of an entity would equal those of a part."""
    found = [session.fetch("instance_by_execution", execution_id=copy.instance.execution_id) for copy in part.copies]
    rows = sorted((row for rows in found for row in rows if row["entity_id"] == part.entity_id), key=_position)
    return tuple(_copy(session, row) for row in rows) == part.copies


def _position(row: Row) -> int:
    position: int = row["position"]
    return position


def copies_of(session: Session, entity_id: str, run_id: str | None) -> Sequence[r.Copy]:
    """Return everything that is kept of an entity's executions, or of one run's, oldest first."""
    if run_id is None:
        rows = session.fetch("executions_of", entity_id=entity_id)
    else:
        rows = session.fetch("executions_of_run", entity_id=entity_id, run_id=run_id)
    return [_copy(session, row) for row in rows]


def _copy(session: Session, row: Row) -> r.Copy:
    execution_id = row["execution_id"]
    log = session.fetch("last_events", execution_id=execution_id, last=-1, forgotten=True)[::-1]
    inbox = session.fetch("inbox_since", execution_id=execution_id, wake=-1)
    activities = session.fetch("activities_of", execution_id=execution_id)
    promises = session.fetch("promises_of", execution_id=execution_id)
    answers = session.fetch("answer_of", execution_id=execution_id)
    return r.Copy(
        instance=instance_of(row, beneath=True),
        log=tuple(history.decode_log(log, execution_id)),
        forgotten=history.forgotten_of(log),
        inbox=tuple(decode_event(entry["body"]) for entry in inbox),
        activities=by_ref([pending_of(activity) for activity in activities], pending_ones(session, row)),
        promises=tuple(promise_of(promise) for promise in promises),
        answer=decode_event(answers[0]["body"]) if answers else None,
        paused=pause_of(row),
    )


def adopt(t: Transaction, part: r.Adoption) -> r.Adopted | r.Exists:
    """Adopt executions of one entity, ready from now on: all of them, or none."""
    session = t.session

    def find_instance(execution_id: str) -> r.Instance | None:
        row = find(session, execution_id)
        return None if row is None else instance_of(row)

    def holder_of(promise_id: str) -> r.Instance | None:
        rows = session.fetch("holder_of_promise", promise_id=promise_id)
        return instance_of(rows[0]) if rows else None

    def executions_of(entity_id: str) -> Sequence[r.Instance]:
        return [instance_of(row) for row in session.fetch("executions_of", entity_id=entity_id)]

    plan = plan_adoption(part, find_instance, executions_of, holder_of)
    if isinstance(plan, r.Exists):
        return plan
    ready_at = t.ready_at()
    for execution_id in plan.restored:
        delete(t, execution_id)
    for copy in plan.copies:
        _insert(t, copy, ready_at)
    if [instance.execution_id for instance in executions_of(part.entity_id)] != plan.order:
        for execution_id in plan.order:
            session.execute("move_to_end", execution_id=execution_id)
    _note(t, part)
    return plan.answer


def _insert(t: Transaction, copy: r.Copy, ready_at: int) -> None:
    execution_id = copy.instance.execution_id
    instance = copy.instance
    session = t.session
    session.execute(
        "adopt_instance",
        **columns_of(instance, copy.paused),
        closed_at=instance.closed_at,
        deactivated=instance.deactivated,
        parked=instance.parked,
        dead_letter=instance.dead_letter,
        signal_schemas=encode(instance.signal_schemas) if instance.signal_schemas else None,
        failure=instance.failure,
        archived=instance.archived,
        ready=ready_at if copy.ready and instance.status is not Status.SCHEDULED else 0,
        wake=len(copy.inbox),
    )
    tag(session, instance)
    history.append(t, execution_id, copy.log)
    history.forget(session, execution_id, copy.forgotten)
    inbox = [
        {"execution_id": execution_id, "wake": wake, "body": encode_event(event).decode()}
        for wake, event in enumerate(copy.inbox, 1)
    ]
    session.execute_many("put_into_inbox", inbox)
    adopt_activities(session, execution_id, copy.activities)
    promises = [columns_of_promise(execution_id, promise) | {"settled": promise.settled} for promise in copy.promises]
    session.execute_many("adopt_promise", promises)
    if copy.answer is not None:
        session.execute("keep_answer", execution_id=execution_id, body=encode_event(copy.answer).decode())


def _note(t: Transaction, part: r.Adoption) -> None:
    """Note what waiters must hear of."""
    t.changes.work = True
    for copy in part.copies:
        t.changes.due(copy.instance.wake_at)
        for pending in copy.activities:
            t.changes.due(pending.visible_at)
