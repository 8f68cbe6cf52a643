"""Whole executions, out of one store and into another, told in the named statements of `queries.sql`."""

from collections.abc import Sequence

from resurgam.core.event import decode_event, encode_event
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.adoption import sort_out
from resurgam.store.encoding import encode
from resurgam.store.sqlite.activities import adopt_activities, pending_of
from resurgam.store.sqlite.forgetting import forget, forgotten_of
from resurgam.store.sqlite.reading import log_of
from resurgam.store.sqlite.rows import columns_of, columns_of_promise, instance_of, pause_of, promise_of
from resurgam.store.sqlite.session import Row, Session


class Moving:
    """Reads and writes all that belongs to an execution, within a transaction."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def copies(self, entity_id: str, run_id: str | None) -> Sequence[r.Copy]:
        """Return everything that is kept of an entity's executions, or of one run's, oldest first."""
        rows = self._session.all("executions_of", entity_id=entity_id)
        return [self._copy(row) for row in rows if run_id in (None, row["run_id"])]

    def _copy(self, row: Row) -> r.Copy:
        execution_id = row["execution_id"]
        log = self._session.all("last_events", execution_id=execution_id, last=-1, forgotten=True)
        inbox = self._session.all("inbox_since", execution_id=execution_id, wake=-1)
        activities = self._session.all("activities_of", execution_id=execution_id)
        promises = self._session.all("promises_of", execution_id=execution_id)
        return r.Copy(
            instance=instance_of(row, beneath=True),
            log=tuple(log_of(log, execution_id)),
            forgotten=forgotten_of(log),
            inbox=tuple(decode_event(entry["body"]) for entry in inbox),
            activities=tuple(pending_of(activity) for activity in activities),
            promises=tuple(promise_of(promise) for promise in promises),
            paused=pause_of(row),
        )

    def adopt(self, part: r.Adoption, turn: int) -> r.Adopted | r.Exists:
        """Take in executions that belong together, ready from this *turn* on: all of them, or none."""
        arriving = sort_out(part, self._find, self._executions_of, self._holder_of)
        if isinstance(arriving, r.Exists):
            return arriving
        for copy in arriving.copies:
            self._take_in(copy, turn)
        for entity_id, order in arriving.orders.items():
            if [instance.execution_id for instance in self._executions_of(entity_id)] != order:
                for execution_id in order:
                    self._session.do("move_to_end", execution_id=execution_id)
        return arriving.answer

    def _find(self, execution_id: str) -> r.Instance | None:
        rows = self._session.all("instance_by_execution", execution_id=execution_id)
        return instance_of(rows[0]) if rows else None

    def _holder_of(self, promise_id: str) -> r.Instance | None:
        rows = self._session.all("holder_of_promise", promise_id=promise_id)
        return instance_of(rows[0]) if rows else None

    def _executions_of(self, entity_id: str) -> Sequence[r.Instance]:
        return [instance_of(row) for row in self._session.all("executions_of", entity_id=entity_id)]

    def _take_in(self, copy: r.Copy, turn: int) -> None:
        execution_id = copy.instance.execution_id
        instance = copy.instance
        self._session.do(
            "adopt_instance",
            **columns_of(instance, copy.paused),
            closed_at=instance.closed_at,
            deactivated=instance.deactivated,
            parked=instance.parked,
            dead=instance.dead,
            accepts=encode(instance.accepts) if instance.accepts else None,
            failure=instance.failure,
            ready=turn if copy.ready and instance.status is not Status.SCHEDULED else 0,
            wake=len(copy.inbox),
        )
        log = [{"execution_id": execution_id, "seq": e.seq, "body": encode_event(e).decode()} for e in copy.log]
        self._session.many("append_event", log)
        forget(self._session, execution_id, copy.forgotten)
        inbox = [
            {"execution_id": execution_id, "wake": wake, "body": encode_event(event).decode()}
            for wake, event in enumerate(copy.inbox, 1)
        ]
        self._session.many("put_into_inbox", inbox)
        adopt_activities(self._session, execution_id, copy.activities)
        promises = [
            columns_of_promise(execution_id, promise) | {"settled": promise.settled} for promise in copy.promises
        ]
        self._session.many("adopt_promise", promises)
