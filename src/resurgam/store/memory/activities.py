"""Activities in the memory store: scheduled, claimed, completed, withdrawn."""

from resurgam.core import event as events
from resurgam.core.outcome import Withdrawal
from resurgam.store import records as r
from resurgam.store.memory.leases import Leases
from resurgam.store.memory.rows import ActivityRow, Row
from resurgam.store.memory.table import Table
from resurgam.store.rules import REDELIVERIES, activity_dead_letter


class Activities:
    """The activities of all instances."""

    def __init__(self, table: Table, leases: Leases) -> None:
        self._table = table
        self._leases = leases

    def dispatch(self, row: Row, part: r.Commit) -> tuple[r.ActivityTask, ...]:
        """Put the activities of a commit on their queues; claim those that it names, unless older work waits there."""
        table = self._table
        eager = part.eager if row.paused is None else frozenset()
        queues = {request.queue for request in part.outcome.activities if request.ref in eager}
        older = {activity.request.queue for activity in table.claimable_activities(tuple(queues))}
        tasks: list[r.ActivityTask] = []
        for request in part.outcome.activities:
            activity = ActivityRow(part.execution_id, request, visible_at=table.clock.now())
            table.schedule(row, activity)
            if request.ref in eager and request.queue not in older:
                task = self.claim(activity, part.worker)
                assert task is not None
                tasks.append(task)
            else:
                activity.epoch = 1  # the epoch of an eager claim; a later claim has another
        return tuple(tasks)

    def withdraw(self, row: Row, withdrawal: Withdrawal) -> None:
        """Remove an activity that is no longer wanted, unless a worker has begun it and may finish."""
        activity = row.activities.get(withdrawal.ref)
        if activity is None or (withdrawal.never_started and activity.begun):
            return
        if withdrawal.answered or activity.leased_until is None:
            self._table.drop(row, withdrawal.ref)
            if withdrawal.entry is not None:
                self._table.put(row, withdrawal.entry)

    def claim(self, activity: ActivityRow, worker: str) -> r.ActivityTask | None:
        """Lease an activity; None if it must not run again."""
        table = self._table
        row = table.rows[activity.execution_id]
        if row.instance.status.terminal:
            # Its worker is lost and its workflow closed: it is not begun again.
            table.drop(row, activity.request.ref)
            table.put(row, events.ActivityCancelled(at=table.clock.now(), ref=activity.request.ref))
            return None
        del table.queued[activity.execution_id, activity.request.ref]
        if activity.deliveries >= REDELIVERIES:
            activity.dead_letter = activity_dead_letter(activity.request, activity.deliveries)
            activity.leased_until = None
            return None
        activity.worker = worker
        activity.deliveries += 1
        activity.epoch += 1
        activity.leased_until = table.clock.now() + table.lease
        table.remind(activity.leased_until, activity.execution_id, activity.request.ref)
        return r.ActivityTask(
            execution_id=activity.execution_id,
            entity_id=row.instance.entity_id,
            epoch=activity.epoch,
            attempt=activity.attempt,
            deliveries=activity.deliveries - 1,
            request=activity.request,
            details=activity.details,
        )

    def complete(self, part: r.ActivityResult) -> r.Accepted | r.Refused:
        """Put the result of an attempt into the inbox, and schedule the next attempt if there is one."""
        held = self._leases.holder(
            r.Lease(entity_id=part.entity_id, execution_id=part.execution_id, epoch=part.epoch, ref=part.event.ref)
        )
        if isinstance(held, r.Refused):
            return held
        assert isinstance(held, ActivityRow)
        row = self._table.rows[part.execution_id]
        self._table.drop(row, part.event.ref)
        if isinstance(part.event, events.ActivityRetryScheduled):
            again = ActivityRow(part.execution_id, held.request, part.event.next_at, held.attempt + 1, held.epoch)
            again.details = held.details if part.details is None else part.details
            again.heartbeat_at = held.heartbeat_at if part.heartbeat_at is None else part.heartbeat_at
            self._table.schedule(row, again)
        self._table.put(row, part.event)
        return r.Accepted()
