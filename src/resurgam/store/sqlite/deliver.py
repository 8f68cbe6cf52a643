"""Deliver events to instances: into the inbox, or applied at once (pause, resume, begin, terminate)."""

from typing import Final

import msgspec

from resurgam.core import event as events
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.rules import begins, is_outdated
from resurgam.store.sqlite import history, inbox
from resurgam.store.sqlite.claim import claim_by_delivery, claim_eagerly
from resurgam.store.sqlite.covered import lease_alone
from resurgam.store.sqlite.instances import find, newest
from resurgam.store.sqlite.promises import promises_named, settle, settle_by_name
from resurgam.store.sqlite.rows import schemas_of, status_of
from resurgam.store.sqlite.session import Row
from resurgam.store.sqlite.transaction import Transaction

_APPLIED: Final = (events.WorkflowTerminated, events.WorkflowPaused, events.WorkflowResumed, events.WorkflowBegun)
"""Events that are applied at once, by `apply`; the others only enter the inbox of a running instance."""


def deliver(t: Transaction, part: r.Delivery) -> r.Delivered | r.Missing | r.Ended | r.Settled | r.Outdated:
    """Deliver an event to the execution or the promise that it is addressed to."""
    if part.promise_id is not None:
        answer = settle(t, part.promise_id, part.event)
        return _delivered(t, find(t.session, answer), part.offer) if isinstance(answer, str) else answer
    if (
        part.offer is not None
        and part.promise is None
        and part.execution_id is None
        and type(part.event) not in _APPLIED
    ):
        # Most signals: the worker of the sender gets the instance, and the rest below has nothing to add.
        delivered = claim_by_delivery(t, part, part.offer)
        if delivered is not None:
            return delivered
    row = newest(t.session, part.entity_id) if part.execution_id is None else find(t.session, part.execution_id)
    return r.Missing() if row is None else _deliver_to(t, row, part)


def _deliver_to(
    t: Transaction, row: Row, part: r.Delivery
) -> r.Delivered | r.Missing | r.Ended | r.Settled | r.Outdated:
    status = status_of(row["status"])
    if status.terminal:
        known = part.promise is not None and promises_named(t, row["execution_id"], part.promise)
        return r.Settled() if known else r.Ended(status=status)
    if is_outdated(part, schemas_of(row["signal_schemas"])):
        return r.Outdated()
    if part.promise is not None:
        answer = settle_by_name(t, row["execution_id"], part.promise, part.event)
        return _delivered(t, row, part.offer) if isinstance(answer, str) else answer
    return _delivered(t, row if apply(t, row["execution_id"], part.event) else None, part.offer)


def _delivered(t: Transaction, row: Row | None, offer: r.EagerOffer | None) -> r.Delivered:
    """Return the answer, with a claim of the instance in *row* if the offer is taken."""
    return r.Delivered(claim=None if row is None else claim_eagerly(t, row["execution_id"], row["queue"], offer))


def apply(t: Transaction, execution_id: str, event: events.Event) -> bool:
    """Apply an event to an open instance; return whether it went into the inbox."""
    match event:
        case events.WorkflowTerminated():
            terminate(t, execution_id, event)
            return False
        case events.WorkflowPaused():
            pause = r.Pause.TREE if event.tree else r.Pause.ALONE
            applied = t.session.execute("pause_instance", execution_id=execution_id, paused=pause.value)
            t.busy_queues.clear()  # its activities may have been the only ones that waited
        case events.WorkflowResumed():
            applied = t.session.execute("resume_instance", execution_id=execution_id, ready_at=t.ready_at())
            t.busy_queues.clear()  # the pause has held its activities back
        case events.WorkflowBegun():
            applied = t.session.execute("begin_instance", execution_id=execution_id)
        case _:
            applied = 1
    if applied:
        put_and_begin(t, execution_id, event)
    return bool(applied)


def put_and_begin(t: Transaction, execution_id: str, event: events.Event) -> None:
    """Put an event into the inbox; a cancel request and a begin end the wait of a scheduled instance."""
    if begins(event):
        t.session.execute("begin_instance", execution_id=execution_id)
    inbox.put(t, execution_id, event)


def terminate(t: Transaction, execution_id: str, event: events.WorkflowTerminated) -> None:
    """Close an instance whatever its code does; a new epoch fences the worker that holds it."""
    [row] = t.session.fetch("progress", execution_id=execution_id)
    seq = row["last_seq"] + 1
    kept = t.session.fetch("last_events", execution_id=execution_id, last=1, forgotten=True)
    at = max([t.now, *(msgspec.json.decode(last["body"], type=_Moment).at for last in kept)])
    entry = msgspec.structs.replace(event, seq=seq, at=at)
    history.append(t, execution_id, (entry,))
    lease_alone(t, execution_id)
    t.session.execute(
        "terminate_instance",
        execution_id=execution_id,
        status=Status.TERMINATED.value,
        seq=seq,
        now=t.now,
        ready_at=t.ready_at(),
    )
    t.session.execute("forget_tries", execution_id=execution_id)
    t.busy_queues.clear()  # a pause may have held its activities back
    t.changes.touched.add(execution_id)
    t.changes.closed[execution_id] = entry
    t.changes.work = True


class _Moment(msgspec.Struct):
    """The one field of an entry that the next one must not precede."""

    at: int = 0
