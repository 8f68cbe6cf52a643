"""Activities: how they are scheduled, claimed, completed and withdrawn."""

from collections.abc import Container, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.outcome import ActivityRequest, Withdrawal
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.rules import OUTLIVES, REDELIVERIES, activity_dead_letter, is_withdrawn, start_of
from resurgam.store.sqlite import inbox
from resurgam.store.sqlite.claimable import claimable_activities
from resurgam.store.sqlite.covered import lease_named
from resurgam.store.sqlite.dead_letters import mark_activity_dead, undecodable
from resurgam.store.sqlite.session import Row, Session
from resurgam.store.sqlite.transaction import Transaction

_requests = msgspec.json.Decoder(ActivityRequest)
_encoder = msgspec.json.Encoder()


def claim(t: Transaction, queues: Sequence[str], limit: int) -> list[r.ActivityTask]:
    """Lease activities whose time has come."""
    rows = claimable_activities(t.session, queues, limit, t.now)
    return [task for row in rows if (task := _lease(t, row)) is not None]


def _lease(t: Transaction, row: Row) -> r.ActivityTask | None:
    """Lease one activity; None if it is withdrawn, or a dead letter from now on."""
    execution_id, ref = row["execution_id"], row["ref"]
    if Status(row["status"]).terminal and not row["request"].endswith(OUTLIVES):
        # The attempt was lost and the workflow is closed: the activity is cancelled instead of begun again.
        t.session.run("remove_activity", (execution_id, ref))
        inbox.put(t, execution_id, events.ActivityCancelled(at=t.now, ref=ref))
        return None
    try:
        request = _requests.decode(row["request"])
    except ValueError as error:
        mark_activity_dead(t, execution_id, ref, undecodable(f"activity (entry {ref})", error))
        return None
    if row["deliveries"] >= REDELIVERIES:
        mark_activity_dead(t, execution_id, ref, activity_dead_letter(request, row["deliveries"]))
        return None
    t.session.execute("lease_activity", execution_id=execution_id, ref=ref, owner=t.owner, until=t.lease_until)
    t.changes.due(t.lease_until)
    started = start_of(request, row["deliveries"] + 1)
    if started is not None:
        inbox.put_quietly(t, execution_id, started)
    return r.ActivityTask(
        execution_id=execution_id,
        entity_id=row["entity_id"],
        epoch=row["epoch"] + 1,
        attempt=row["attempt"],
        deliveries=row["deliveries"],
        request=request,
        details=details_of(row),
    )


def complete(t: Transaction, part: r.ActivityResult) -> r.Accepted | r.Refused:
    """Deliver the result of an attempt to its instance, and remove the activity or schedule its next attempt."""
    lease = r.Lease(entity_id=part.entity_id, execution_id=part.execution_id, epoch=part.epoch, ref=part.event.ref)
    held = _held(t, lease, attempt=part.event.attempt)
    if isinstance(held, r.Refused):
        return held
    if isinstance(part.event, events.ActivityRetryScheduled):
        t.session.execute(
            "retry_activity",
            execution_id=part.execution_id,
            ref=part.event.ref,
            next_at=part.event.next_at,
            details=text_of(part.details),
            heartbeat_at=part.heartbeat_at,
        )
        t.changes.due(part.event.next_at)
    else:
        t.session.run("remove_activity", (part.execution_id, part.event.ref))
    inbox.put(t, part.execution_id, part.event)
    return r.Accepted()


def extend(t: Transaction, lease: r.Lease) -> r.Extended | r.Refused:
    """Renew the lease of an activity, and keep the details of its last heartbeat."""
    held = _held(t, lease)
    if isinstance(held, r.Refused):
        return held
    t.session.execute(
        "extend_activity",
        execution_id=lease.execution_id,
        ref=lease.ref,
        until=t.lease_until,
        details=text_of(lease.details),
        heartbeat_at=lease.heartbeat_at,
    )
    t.changes.due(t.lease_until)
    return r.Extended()


def release(t: Transaction, part: r.Release) -> r.Released | r.Refused:
    """End the lease of an activity."""
    lease = part.lease
    held = _held(t, lease)
    if isinstance(held, r.Refused):
        return held
    undelivered = int(part.failed is None)
    t.session.execute("release_activity", execution_id=lease.execution_id, ref=lease.ref, undelivered=undelivered)
    if part.final and part.failed is not None:
        mark_activity_dead(t, lease.execution_id, held["ref"], part.failed)
    return r.Released()


def _held(t: Transaction, lease: r.Lease, attempt: int | None = None) -> Row | r.Refused:
    """Return the row of a leased activity. An *attempt* that the lease on its instance covered needs no lease."""
    if lease.epoch == 0:
        lease_named(t, lease.execution_id, lease.ref)
    rows = t.session.fetch("activity", execution_id=lease.execution_id, ref=lease.ref)
    if not rows:
        return r.Refused(reason="the activity is answered or withdrawn")
    if lease.epoch == 0 and attempt is not None:
        return rows[0] if rows[0]["attempt"] == attempt else r.Refused(reason="the activity is at another attempt")
    if rows[0]["epoch"] != lease.epoch or rows[0]["lease_owner"] is None:
        return r.Refused(reason="the lease of the activity is lost")
    return rows[0]


def choose_eager(t: Transaction, part: r.Commit) -> Sequence[ActivityRequest]:
    """Choose the activities that a commit claims: those that it names, except where older work waits in their queue."""
    if not part.eager:
        return ()
    eager = part.eager
    return [request for request in part.outcome.activities if request.ref in eager and not is_busy(t, request.queue)]


def is_busy(t: Transaction, queue: str) -> bool:
    """Whether older work waits in a queue."""
    busy = t.busy_queues.get(queue)
    if busy is None:
        t.session.write_rows()
        busy = t.busy_queues[queue] = t.session.finds("waiting_activity", (queue, t.now))
    return busy


def schedule(t: Transaction, execution_id: str, requests: Sequence[ActivityRequest], eager: set[int]) -> None:
    """Put activities on their queues; those in *eager* are leased by the same statement."""
    for request in requests:
        if request.ref not in eager:
            t.changes.work = True
            t.busy_queues[request.queue] = True
    if eager:
        t.changes.due(t.lease_until)
    leased, free = (t.now, t.lease_until, 1, t.owner), (t.now, t.now, 0, None)
    t.session.put_off(
        "schedule_activity",
        [
            (
                execution_id,
                request.ref,
                request.queue,
                encode_request(request),
                *(leased if request.ref in eager else free),
            )
            for request in requests
        ],
    )


def encode_request(request: ActivityRequest) -> str:
    """Return a request in the form of its column."""
    return _encoder.encode(request).decode()


def retry(t: Transaction, execution_id: str, retries: Sequence[r.Pending]) -> None:
    """Schedule further attempts of activities that may have no row."""
    for pending in retries:
        t.session.execute("retry_covered", **_columns_of(execution_id, pending))
        t.changes.due(pending.visible_at)
        if pending.visible_at <= t.now:
            t.changes.work = True
            t.busy_queues[pending.request.queue] = True


def withdraw(t: Transaction, execution_id: str, withdrawal: Withdrawal, covered: Container[int]) -> int:
    """Withdraw an activity; return how often that raised the wake counter. *covered* are refs without a row."""
    gone = t.session.execute(
        "withdraw_activity",
        execution_id=execution_id,
        ref=withdrawal.ref,
        answered=withdrawal.answered,
        never_started=withdrawal.never_started,
    )
    if gone:
        t.busy_queues.clear()  # it may have been the only one that waited in its queue
    gone = gone or (withdrawal.ref in covered and is_withdrawn(withdrawal))
    if not gone or withdrawal.entry is None:
        return 0
    inbox.put(t, execution_id, withdrawal.entry)
    return 1


def eager_tasks(part: r.Commit, requests: Sequence[ActivityRequest], epoch: int) -> list[r.ActivityTask]:
    """Return the tasks of activities that are claimed by the commit that schedules them."""
    return [
        r.ActivityTask(
            execution_id=part.execution_id,
            entity_id=part.entity_id,
            epoch=epoch,
            attempt=1,
            deliveries=0,
            request=request,
        )
        for request in requests
    ]


def pending_of(row: Row) -> r.Pending:
    """Return the activity that a row holds, without its lease."""
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
        "dead_letter": row["dead_letter"],
        "details": details_of(row),
        "heartbeat_at": row["heartbeat_at"],
    }


def adopt_activities(session: Session, execution_id: str, activities: Sequence[r.Pending]) -> None:
    """Insert the activities of an adopted execution."""
    session.execute_many("adopt_activity", [_columns_of(execution_id, pending) for pending in activities])


def _columns_of(execution_id: str, pending: r.Pending) -> dict[str, object]:
    return {
        "execution_id": execution_id,
        "ref": pending.request.ref,
        "queue": pending.request.queue,
        "request": encode_request(pending.request),
        "visible_at": pending.visible_at,
        "attempt": pending.attempt,
        "deliveries": pending.deliveries,
        "dead_letter": pending.dead_letter,
        "details": text_of(pending.details),
        "heartbeat_at": pending.heartbeat_at,
    }


def details_of(row: Row) -> Raw | None:
    """Return the details that the last heartbeat of an activity left."""
    return None if row["details"] is None else Raw(row["details"].encode())


def text_of(value: Raw | None) -> str | None:
    """Return a value in the form of its column."""
    return None if value is None else bytes(value).decode()
