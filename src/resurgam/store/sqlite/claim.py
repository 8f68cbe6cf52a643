"""Claim instances: lease those that are ready, due, or whose lease has run out."""

from collections.abc import Mapping, Sequence

from resurgam.store import records as r
from resurgam.store.rules import REDELIVERIES, instance_dead_letter
from resurgam.store.sqlite.claimable import claimable_instances
from resurgam.store.sqlite.dead_letters import mark_instance_dead, undecodable
from resurgam.store.sqlite.inbox import Undecodable, entry_of, rows_of_inboxes
from resurgam.store.sqlite.rows import instance_of
from resurgam.store.sqlite.session import Row
from resurgam.store.sqlite.transaction import Transaction


def claim(t: Transaction, worker: str, queues: Sequence[str], limit: int) -> list[r.Claim]:
    """Lease instances that are ready, due, or whose lease has run out."""
    return _lease(t, claimable_instances(t.session, worker, queues, limit, t.now))


def claim_eagerly(t: Transaction, execution_id: str, queue: str, offer: r.EagerOffer | None) -> r.Claim | None:
    """Lease an instance that was just made ready to the worker that offers, unless older work waits in its queue."""
    if offer is None or queue not in offer.queues:
        return None
    rows = t.session.fetch("claimable_eagerly", execution_id=execution_id, worker=offer.worker, now=t.now)
    return next(iter(_lease(t, rows)), None)


def _lease(t: Transaction, rows: Sequence[Row]) -> list[r.Claim]:
    alive = [row for row in rows if not _mark_dead_if_exhausted(t, row)]
    inboxes = rows_of_inboxes(t.session, [row["execution_id"] for row in alive if row["wake"]])
    claims = [(row["position"], claim) for row in alive if (claim := _claim_of(t, row, inboxes)) is not None]
    if not claims:
        return []
    leases = [{"position": position, "owner": t.owner, "until": t.lease_until} for position, _ in claims]
    t.session.execute_many("lease_instance", leases)
    t.changes.due(t.lease_until)
    return [claim for _, claim in claims]


def _claim_of(t: Transaction, row: Row, inboxes: Mapping[str, Sequence[Row]]) -> r.Claim | None:
    """Return the claim of an instance; one that cannot be decoded becomes a dead letter."""
    execution_id = row["execution_id"]
    try:
        inbox = tuple([entry_of(entry) for entry in inboxes.get(execution_id, ())])
        return r.Claim(instance=instance_of(row), epoch=row["epoch"] + 1, wake=row["wake"], inbox=inbox)
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
