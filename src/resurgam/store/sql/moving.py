"""Whole executions, out of one store and into another, told in the named statements of `queries.sql`."""

from collections.abc import Sequence

import msgspec

from resurgam.core.event import decode_event, encode_event
from resurgam.core.outcome import ActivityRequest
from resurgam.store import records as r
from resurgam.store.arriving import sort_out
from resurgam.store.sql.forgetting import forget, forgotten_of
from resurgam.store.sql.reading import log_of
from resurgam.store.sql.session import Row, Session
from resurgam.store.sql.transactions import instance_of

_requests = msgspec.json.Decoder(ActivityRequest)


class Moving:
    """Reads and writes all that belongs to an execution, within a transaction."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def copies(self, entity_id: str, run_id: str | None) -> Sequence[r.Copy]:
        """Return everything that is kept of an entity's executions, or of one run's, oldest first."""
        return [
            self._copy(instance) for instance in self._executions_of(entity_id) if run_id in (None, instance.run_id)
        ]

    def _copy(self, instance: r.Instance) -> r.Copy:
        execution_id = instance.execution_id
        log = self._session.all("last_events", execution_id=execution_id, last=-1, forgotten=True)
        inbox = self._session.all("inbox_since", execution_id=execution_id, wake=-1)
        activities = self._session.all("activities_of", execution_id=execution_id)
        return r.Copy(
            instance=instance,
            log=tuple(log_of(log, execution_id)),
            forgotten=forgotten_of(log),
            inbox=tuple(decode_event(row["body"]) for row in inbox),
            activities=tuple(_pending(row) for row in activities),
        )

    def adopt(self, part: r.Adoption) -> r.Adopted | r.Exists:
        """Take in executions that belong together: all of them, or none."""
        arriving = sort_out(part, self._find, self._executions_of)
        if isinstance(arriving, r.Exists):
            return arriving
        for copy in arriving.copies:
            self._take_in(copy)
        for entity_id, order in arriving.orders.items():
            if [instance.execution_id for instance in self._executions_of(entity_id)] != order:
                for execution_id in order:
                    self._session.do("move_to_end", execution_id=execution_id)
        return arriving.answer

    def _find(self, execution_id: str) -> r.Instance | None:
        rows = self._session.all("instance_by_execution", execution_id=execution_id)
        return instance_of(rows[0]) if rows else None

    def _executions_of(self, entity_id: str) -> Sequence[r.Instance]:
        return [instance_of(row) for row in self._session.all("executions_of", entity_id=entity_id)]

    def _take_in(self, copy: r.Copy) -> None:
        execution_id = copy.instance.execution_id
        fields = msgspec.structs.asdict(copy.instance) | {
            "status": copy.instance.status.value,
            "tags": msgspec.json.encode(copy.instance.tags).decode(),
            "ready": copy.ready,
            "wake": len(copy.inbox),
        }
        del fields["troubles"]  # they are those of its activities
        self._session.do("adopt_instance", **fields)
        log = [{"execution_id": execution_id, "seq": e.seq, "body": encode_event(e).decode()} for e in copy.log]
        self._session.many("append_event", log)
        forget(self._session, execution_id, copy.forgotten)
        inbox = [
            {"execution_id": execution_id, "wake": wake, "body": encode_event(event).decode()}
            for wake, event in enumerate(copy.inbox, 1)
        ]
        self._session.many("put_into_inbox", inbox)
        self._session.many("adopt_activity", [_columns(execution_id, pending) for pending in copy.activities])


def _pending(row: Row) -> r.Pending:
    return r.Pending(
        request=_requests.decode(row["request"]),
        visible_at=row["visible_at"],
        attempt=row["attempt"],
        deliveries=row["deliveries"],
        dead=row["dead"],
    )


def _columns(execution_id: str, pending: r.Pending) -> dict[str, object]:
    return {
        "execution_id": execution_id,
        "ref": pending.request.ref,
        "queue": pending.request.queue,
        "request": msgspec.json.encode(pending.request).decode(),
        "visible_at": pending.visible_at,
        "attempt": pending.attempt,
        "deliveries": pending.deliveries,
        "dead": pending.dead,
    }
