"""Leases on instances and activities: renewed, released, or ended because their owner is dead."""

from resurgam.store import records as r
from resurgam.store.rules import failure_note
from resurgam.store.sqlite import activities
from resurgam.store.sqlite.covered import put_back
from resurgam.store.sqlite.dead_letters import mark_instance_dead
from resurgam.store.sqlite.inbox import entries_since
from resurgam.store.sqlite.transaction import Transaction


def extend(t: Transaction, lease: r.Lease) -> r.Extended | r.Refused:
    """Renew a lease."""
    if lease.ref is not None:
        return activities.extend(t, lease)
    hit = t.session.fetch("extend_instance", execution_id=lease.execution_id, epoch=lease.epoch, until=t.lease_until)
    if not hit:
        return r.Refused(reason="the lease is lost")
    t.changes.due(t.lease_until)
    wake = hit[0]["wake"]
    entries = entries_since(t, lease.execution_id, lease.wake) if wake != lease.wake else ()
    if entries is None:
        return r.Refused(reason="something in the inbox cannot be decoded")
    return r.Extended(wake=wake, inbox=entries)


def release(t: Transaction, part: r.Release) -> r.Released | r.Refused:
    """End a lease, so that another worker may claim the work at once."""
    lease = part.lease
    t.changes.work = True
    if lease.ref is not None:
        return activities.release(t, part)
    released = t.session.execute(
        "release_instance",
        execution_id=lease.execution_id,
        epoch=lease.epoch,
        undelivered=int(part.failed is None),
        last_failure=failure_note(part.failed),
        ready_at=t.ready_at(),
    )
    if released:
        put_back(t, lease.execution_id, deliveries=int(part.failed is not None))
    if released and part.final and part.failed is not None:
        mark_instance_dead(t, lease.execution_id, part.failed)
    return r.Released() if released else r.Refused(reason="the lease is lost")


def end_leases_of(t: Transaction, owner: str) -> None:
    """End the leases of an owner that is dead, and remove its workers."""
    t.session.execute("end_instance_leases", owner=owner, now=t.now)
    t.session.execute("end_activity_leases", owner=owner, now=t.now)
    t.session.execute("remove_workers_of", owner=owner)
    t.changes.work = True
