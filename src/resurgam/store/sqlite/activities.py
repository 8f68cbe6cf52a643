"""Activities: how they come into their queues, to workers, and out again."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.outcome import ActivityRequest, Withdrawal
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.protocol import REDELIVERIES
from resurgam.store.sqlite.session import Row, Session, claimable_activities
from resurgam.store.sqlite.writing import Writing, undecodable

_requests = msgspec.json.Decoder(ActivityRequest)
_encoder = msgspec.json.Encoder()
_NOT_LEASED: Final[dict[str, object]] = {"deliveries": 0, "owner": None}


class Activities(Writing):
    """What verbs do to activities."""

    def claim_activities(self, queues: Sequence[str], limit: int) -> list[r.ActivityTask]:
        """Lease activities whose time has come."""
        rows = claimable_activities(self._session, queues, limit, self._now)
        return [task for row in rows if (task := self._claim_activity(row)) is not None]

    def _claim_activity(self, row: Row) -> r.ActivityTask | None:
        execution_id, ref = row["execution_id"], row["ref"]
        if Status(row["status"]).terminal:
            # Whoever ran it is gone, and nobody waits for it: it is not begun again for a workflow that has ended.
            self._session.do("remove_activity", execution_id=execution_id, ref=ref)
            self._put(execution_id, events.ActivityCancelled(at=self._now, ref=ref))
            return None
        try:
            request = _requests.decode(row["request"])
        except ValueError as error:
            dead = undecodable(f"activity (entry {ref})", error)
            self._session.do("bury_activity", execution_id=execution_id, ref=ref, dead=dead)
            self.changes.touched.add(execution_id)
            return None
        if row["deliveries"] >= REDELIVERIES:
            what = f"activity {request.name!r} (entry {ref})"
            dead = f"{what} was handed out {row['deliveries']} times without an answer"
            self._session.do("bury_activity", execution_id=execution_id, ref=ref, dead=dead)
            return None
        self._session.do("lease_activity", execution_id=execution_id, ref=ref, owner=self._owner, until=self._until)
        self.changes.due(self._until)
        return r.ActivityTask(
            execution_id=execution_id,
            workflow_id=row["entity_id"],
            epoch=row["epoch"] + 1,
            attempt=row["attempt"],
            deliveries=row["deliveries"],
            request=request,
            details=details_of(row),
        )

    def complete_activity(self, part: r.ActivityResult) -> r.Accepted | r.Refused:
        """Tell an instance what became of its activity."""
        lease = r.Lease(execution_id=part.execution_id, epoch=part.epoch, ref=part.event.ref)
        held = self._held_activity(lease)
        if isinstance(held, r.Refused):
            return held
        self._session.do("remove_activity", execution_id=part.execution_id, ref=part.event.ref)
        if isinstance(part.event, events.ActivityRetryScheduled):
            again = {
                **{key: held[key] for key in ("execution_id", "ref", "queue", "request", "epoch")},
                **_NOT_LEASED,
                "visible_at": part.event.next_at,
                "available_at": part.event.next_at,
                "attempt": held["attempt"] + 1,
                "details": held["details"] if part.details is None else text_of(part.details),
            }
            self.changes.due(part.event.next_at)
            self._session.do("schedule_activity", **again)
            heartbeat_at = held["heartbeat_at"] if part.heartbeat_at is None else part.heartbeat_at
            if heartbeat_at is not None:
                lease_key = {"execution_id": part.execution_id, "ref": part.event.ref}
                self._session.do("note_heartbeat", **lease_key, heartbeat_at=heartbeat_at)
        self._put(part.execution_id, part.event)
        return r.Accepted()

    def _extend_activity(self, lease: r.Lease) -> r.Extended | r.Refused:
        held = self._held_activity(lease)
        if isinstance(held, r.Refused):
            return held
        self._session.do(
            "extend_activity",
            execution_id=lease.execution_id,
            ref=lease.ref,
            until=self._until,
            details=text_of(lease.details),
            heartbeat_at=lease.heartbeat_at,
        )
        self.changes.due(self._until)
        return r.Extended()

    def _release_activity(self, part: r.Release, undelivered: int) -> r.Released | r.Refused:
        lease = part.lease
        held = self._held_activity(lease)
        if isinstance(held, r.Refused):
            return held
        self._session.do("release_activity", execution_id=lease.execution_id, ref=lease.ref, undelivered=undelivered)
        if part.final:
            self._session.do("bury_activity", execution_id=lease.execution_id, ref=lease.ref, dead=part.failed)
        return r.Released()

    def _held_activity(self, lease: r.Lease) -> Row | r.Refused:
        rows = self._session.all("activity", execution_id=lease.execution_id, ref=lease.ref)
        if not rows:
            return r.Refused(reason="the activity is answered or withdrawn")
        if rows[0]["epoch"] != lease.epoch or rows[0]["lease_owner"] is None:
            return r.Refused(reason="the lease of the activity is lost")
        return rows[0]

    def _choose(self, part: r.Commit) -> Sequence[ActivityRequest]:
        """Choose those of the activities asked for that the worker may begin at once."""
        if not part.hands or not part.outcome.activities:
            return ()
        if self._queues_with_work is None:
            queues = _encoder.encode(part.queues).decode()
            rows = self._session.all("queues_with_work", queues=queues, now=self._now)
            self._queues_with_work = {row["queue"] for row in rows}
        served = set(part.queues) - self._queues_with_work
        return [request for request in part.outcome.activities if request.queue in served][: part.hands]

    def _schedule(self, execution_id: str, requests: Sequence[ActivityRequest], handed_out: set[int]) -> None:
        """Put activities on their queues, those that were handed out under their first lease."""
        for request in requests:
            if request.ref not in handed_out:
                self.changes.work = True
                if self._queues_with_work is not None:
                    self._queues_with_work.add(request.queue)
        if handed_out:
            self.changes.due(self._until)
        self._session.many(
            "schedule_activity",
            [self._activity(execution_id, request, leased=request.ref in handed_out) for request in requests],
        )

    def _activity(self, execution_id: str, request: ActivityRequest, *, leased: bool) -> dict[str, object]:
        return {
            "execution_id": execution_id,
            "ref": request.ref,
            "queue": request.queue,
            "request": _encoder.encode(request).decode(),
            "visible_at": self._now,
            "available_at": self._until if leased else self._now,
            "attempt": 1,
            "epoch": 1,  # whoever claims it later has another: this one is the commit's own
            "deliveries": int(leased),
            "owner": self._owner if leased else None,
            "details": None,
        }

    def _withdraw(self, execution_id: str, withdrawal: Withdrawal) -> int:
        """Take an activity back; return how often that raised the wake counter."""
        gone = self._session.all(
            "withdraw_activity",
            execution_id=execution_id,
            ref=withdrawal.ref,
            answered=withdrawal.answered,
            never_started=withdrawal.never_started,
        )
        if not gone or withdrawal.entry is None:
            return 0
        self._put(execution_id, withdrawal.entry)
        return 1


def first_attempt(part: r.Commit, request: ActivityRequest) -> r.ActivityTask:
    """Return an activity that is handed out by the commit that asks for it."""
    return r.ActivityTask(
        execution_id=part.execution_id,
        workflow_id=part.entity_id,
        epoch=1,
        attempt=1,
        deliveries=0,
        request=request,
    )


def pending_of(row: Row) -> r.Pending:
    """Return the activity that a row holds, whoever may have it in hand."""
    return r.Pending(**_pending(row))


def open_activity_of(row: Row) -> r.OpenActivity:
    """Return the activity that a row holds, with its lease."""
    held = row["lease_owner"] is not None
    lease = {"worker": row["lease_owner"], "leased_until": row["available_at"]} if held else {}
    return r.OpenActivity(**_pending(row), **lease)


def _pending(row: Row) -> dict[str, Any]:
    return {
        "request": _requests.decode(row["request"]),
        "visible_at": row["visible_at"],
        "attempt": row["attempt"],
        "deliveries": row["deliveries"],
        "dead": row["dead"],
        "details": details_of(row),
        "heartbeat_at": row["heartbeat_at"],
    }


def adopt_activities(session: Session, execution_id: str, activities: Sequence[r.Pending]) -> None:
    """Take in activities that come with an execution."""
    rows = [
        {
            "execution_id": execution_id,
            "ref": pending.request.ref,
            "queue": pending.request.queue,
            "request": _encoder.encode(pending.request).decode(),
            "visible_at": pending.visible_at,
            "attempt": pending.attempt,
            "deliveries": pending.deliveries,
            "dead": pending.dead,
            "details": text_of(pending.details),
            "heartbeat_at": pending.heartbeat_at,
        }
        for pending in activities
    ]
    session.many("adopt_activity", rows)


def details_of(row: Row) -> Raw | None:
    """Return what an attempt of the activity in a row has told."""
    return None if row["details"] is None else Raw(row["details"].encode())


def text_of(value: Raw | None) -> str | None:
    """Return a value as it is kept."""
    return None if value is None else bytes(value).decode()
