"""Claim instances: lease those that are ready, due, or whose lease has run out."""

from collections.abc import Sequence

from resurgam.core.event import encode_event
from resurgam.store import records as r
from resurgam.store.rules import REDELIVERIES, instance_dead_letter, is_outdated
from resurgam.store.sqlite.claimable import claimable_instances
from resurgam.store.sqlite.covered import put_back
from resurgam.store.sqlite.dead_letters import mark_instance_dead, undecodable
from resurgam.store.sqlite.inbox import StoredEntry, Undecodable, entry_of, stored_inboxes
from resurgam.store.sqlite.rows import schemas_of, unpack
from resurgam.store.sqlite.session import Row
from resurgam.store.sqlite.transaction import Transaction


def claim(t: Transaction, worker: str, queues: Sequence[str], limit: int) -> list[r.Claim]:
    """Lease instances that are ready, due, or whose lease has run out."""
    rows = claimable_instances(t.session, worker, queues, limit, t.now)
    for row in rows:
        if row["covers"]:  # its lease has expired
            put_back(t, row["execution_id"], deliveries=1)
    return _lease(t, rows)


def claim_eagerly(t: Transaction, execution_id: str, queue: str, offer: r.EagerOffer | None) -> r.Claim | None:
    """Lease an instance that was just made ready to the worker that offers, unless older work waits in its queue."""
    if offer is None or queue not in offer.queues:
        return None
    rows = t.session.fetch(
        "claimable_eagerly", execution_id=execution_id, worker=offer.worker, redeliveries=REDELIVERIES, now=t.now
    )
    return next(iter(_lease(t, rows)), None)


def claim_by_delivery(t: Transaction, part: r.Delivery, offer: r.EagerOffer) -> r.Delivered | None:
    """Deliver an event to the newest execution of an entity and lease that to the worker that offers.

    Return None, with nothing changed, if the execution is not there or is not to be claimed. Otherwise no waiter need be
    woken: the only one that the event concerns has it.
    """
    rows = t.session.fetch(
        "newest_claimable", entity_id=part.entity_id, worker=offer.worker, redeliveries=REDELIVERIES, now=t.now
    )
    if not rows:
        return None
    [(packed, execution_id, position, wake, epoch, queue, schemas, unread)] = rows
    if queue not in offer.queues or is_outdated(part, schemas_of(schemas)):
        return None
    t.session.run("wake_and_lease", (t.owner, t.lease_until, position))
    body = encode_event(part.event).decode()
    number = t.session.insert("put_into_inbox", execution_id=execution_id, wake=wake + 1, body=body)
    t.changes.due(t.lease_until)
    inbox = stored_inboxes(t.session, [execution_id])[execution_id] if unread else [(number, body)]
    return r.Delivered(claim=_claim_of(t, execution_id, packed, inbox, wake=wake + 1, epoch=epoch + 1))


def _lease(t: Transaction, rows: Sequence[Row]) -> list[r.Claim]:
    alive = [row for row in rows if not _mark_dead_if_exhausted(t, row)]
    inboxes = stored_inboxes(t.session, [row["execution_id"] for row in alive if row["wake"]])
    claims = [
        (row["position"], claim)
        for row in alive
        if (claim := _claim_of_row(t, row, inboxes.get(row["execution_id"], ()))) is not None
    ]
    if not claims:
        return []
    leases = [{"position": position, "owner": t.owner, "until": t.lease_until} for position, _ in claims]
    t.session.execute_many("lease_instance", leases)
    t.changes.due(t.lease_until)
    return [claim for _, claim in claims]


def _claim_of_row(t: Transaction, row: Row, inbox: Sequence[StoredEntry]) -> r.Claim | None:
    return _claim_of(t, row["execution_id"], row["instance"], inbox, wake=row["wake"], epoch=row["epoch"] + 1)


def _claim_of(
    t: Transaction, execution_id: str, packed: str, inbox: Sequence[StoredEntry], *, wake: int, epoch: int
) -> r.Claim | None:
    """Return the claim of an instance; one that cannot be decoded becomes a dead letter."""
    try:
        entries = tuple([entry_of(number, body) for number, body in inbox])
        return r.Claim(instance=unpack(packed), epoch=epoch, wake=wake, inbox=entries)
    except Undecodable as error:
        mark_instance_dead(t, execution_id, undecodable(error.what, error))
    except ValueError as error:
        mark_instance_dead(t, execution_id, undecodable("its row", error))
    return None


def _mark_dead_if_exhausted(t: Transaction, row: Row) -> bool:
    """Make an instance a dead letter that was handed out too often."""
    if row["deliveries"] < REDELIVERIES:
        return False
    reason = instance_dead_letter(row["deliveries"], row["last_failure"])
    mark_instance_dead(t, row["execution_id"], reason)
    return True
