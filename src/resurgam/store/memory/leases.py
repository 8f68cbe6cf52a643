"""Leases of instances and activities in the memory store.

A claim raises the ``epoch`` of its row. A verb that names another epoch comes from a worker that has lost the lease.
"""

import msgspec

from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.memory.rows import ActivityRow, Row
from resurgam.store.memory.table import Table
from resurgam.store.rules import REDELIVERIES, failure_note, instance_dead_letter


class Leases:
    """Grant, check, renew and end leases."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def claim(self, row: Row, worker: str) -> r.Claim | None:
        """Lease an instance; one that was handed out too often becomes a dead letter instead."""
        table, execution_id = self._table, row.instance.execution_id
        table.ready.pop(execution_id, None)
        row.ready = False
        if row.deliveries >= REDELIVERIES:
            reason = instance_dead_letter(row.deliveries, row.last_failure)
            row.instance = msgspec.structs.replace(row.instance, dead_letter=reason)
            table.lease_alone(row)
            row.leased_until = None
            table.parked.pop(execution_id, None)
            return None
        table.put_back(row, deliveries=1)
        row.worker = worker
        row.deliveries += 1
        row.epoch += 1
        row.leased_until = table.clock.now() + table.lease
        table.remind(row.leased_until, execution_id)
        return r.Claim(instance=row.instance, epoch=row.epoch, wake=row.wake, inbox=row.entries_since(0))

    def claim_eagerly(self, row: Row, offer: r.EagerOffer | None) -> r.Claim | None:
        """Lease an instance to the worker that offers itself, unless older work waits in its queue."""
        table = self._table
        if offer is None or row.instance.queue not in offer.queues or row.leased_until is not None:
            return None
        fits = (
            row.shown().status is Status.RUNNING and row.instance.dead_letter is None and row.deliveries < REDELIVERIES
        )
        if not fits or offer.worker in row.tried_by or any(True for _ in table.older(row)):
            return None
        return self.claim(row, offer.worker)

    def holder(self, lease: r.Lease) -> Row | ActivityRow | r.Refused:
        """Return the row that a lease holds."""
        if lease.ref is None:
            return self.held(lease, lease.epoch)
        row = self._table.find(lease)
        activity = None if row is None else row.activities.get(lease.ref)
        if activity is None:
            return r.Refused(reason="the activity is answered or withdrawn")
        if activity.covered and lease.epoch == 0:
            self._table.lease_one(activity)
        if activity.epoch != lease.epoch or activity.leased_until is None:
            return r.Refused(reason="the lease of the activity is lost")
        return activity

    def held(self, execution: r.Addressed, epoch: int) -> Row | r.Refused:
        """Return an instance that is leased under this epoch."""
        row = self._table.find(execution)
        if row is None:
            return r.Refused(reason="there is no such instance")
        if row.epoch != epoch or row.leased_until is None:
            return r.Refused(reason="the lease is lost")
        return row

    def extend(self, lease: r.Lease) -> r.Extended | r.Refused:
        """Renew a lease."""
        table, held = self._table, self.holder(lease)
        if isinstance(held, r.Refused):
            return held
        held.leased_until = table.clock.now() + table.lease
        table.remind(held.leased_until, lease.execution_id, lease.ref or 0)
        # It may have expired and be offered to others already; none has taken it.
        if isinstance(held, ActivityRow):
            table.queued.pop((lease.execution_id, held.request.ref), None)
            held.details = held.details if lease.details is None else lease.details
            held.heartbeat_at = held.heartbeat_at if lease.heartbeat_at is None else lease.heartbeat_at
            return r.Extended()
        for activity in held.activities.values():
            if activity.covered:
                activity.leased_until = held.leased_until
        held.ready = False
        table.ready.pop(lease.execution_id, None)
        return r.Extended(wake=held.wake, inbox=held.entries_since(lease.wake))

    def release(self, part: r.Release) -> r.Released | r.Refused:
        """End a lease."""
        held = self.holder(part.lease)
        if isinstance(held, r.Refused):
            return held
        if part.failed is None:
            held.deliveries = max(0, held.deliveries - 1)
        if isinstance(held, ActivityRow):
            self._release_activity(held, part)
        else:
            self._release_instance(held, part)
        return r.Released()

    def _release_activity(self, activity: ActivityRow, part: r.Release) -> None:
        activity.leased_until = None
        if part.final:
            activity.dead_letter = part.failed
            self._table.queued.pop((part.lease.execution_id, activity.request.ref), None)  # if the lease has expired
        else:
            self._table.queued[part.lease.execution_id, activity.request.ref] = None

    def _release_instance(self, row: Row, part: r.Release) -> None:
        row.last_failure = failure_note(part.failed)
        self._table.put_back(row, deliveries=int(part.failed is not None))
        if part.final:
            row.instance = msgspec.structs.replace(row.instance, dead_letter=part.failed)
            self._table.parked.pop(part.lease.execution_id, None)
        self._table.free(row, ready=not part.final)
