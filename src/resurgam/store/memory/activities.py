"""Activities in the memory store: scheduled, claimed, completed, withdrawn."""

from collections.abc import Sequence

import msgspec

from resurgam.core import event as events
from resurgam.core.outcome import ActivityRequest, Withdrawal
from resurgam.store import records as r
from resurgam.store.memory.leases import Leases
from resurgam.store.memory.rows import ActivityRow, Row
from resurgam.store.memory.table import Table
from resurgam.store.rules import REDELIVERIES, activity_dead_letter, covered_by, start_of


class Activities:
    """The activities of all instances."""

    def __init__(self, table: Table, leases: Leases) -> None:
        self._table = table
        self._leases = leases

    def note_running(self, row: Row, running: Sequence[ActivityRequest]) -> None:
        """Note which activities the lease on an instance covers from now on: those that its worker says still run."""
        refs = {request.ref for request in running}
        for ref in [ref for ref, activity in row.activities.items() if activity.covered and ref not in refs]:
            self._table.drop(row, ref)
        for request in running:
            if request.ref not in row.activities:
                self._table.cover(row, request)

    def retry(self, row: Row, retries: Sequence[r.Pending]) -> None:
        """Schedule further attempts of activities."""
        for pending in retries:
            known = row.activities.get(pending.request.ref)
            again = ActivityRow(row.instance.execution_id, **msgspec.structs.asdict(pending))
            if known is not None:
                self._table.drop(row, pending.request.ref)
                again.epoch = known.epoch
                again.details = known.details if again.details is None else again.details
                again.heartbeat_at = known.heartbeat_at if again.heartbeat_at is None else again.heartbeat_at
            self._table.schedule(row, again)

    def dispatch(self, row: Row, part: r.Commit) -> tuple[r.ActivityTask, ...]:
        """Put the activities of a commit on their queues; claim those that it names, unless older work waits there."""
        table = self._table
        eager = part.eager if row.paused is None else frozenset()
        queues = {request.queue for request in part.outcome.activities if request.ref in eager}
        older = {activity.request.queue for activity in table.older_activities(row, tuple(queues))}
        tasks: list[r.ActivityTask] = []
        claimed = [one for one in part.outcome.activities if one.ref in eager and one.queue not in older]
        covered = covered_by(part, claimed)
        for request in part.outcome.activities:
            if request in covered:
                table.cover(row, request)
                tasks.append(_covered_task(part, request))
                continue
            activity = ActivityRow(part.execution_id, request, visible_at=table.clock.now())
            table.schedule(row, activity)
            if request in claimed:
                tasks.append(self._lease(row, activity, part.worker))
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
        """Lease an activity, and put the entry that it starts into the inbox; None if it must not run again."""
        table = self._table
        row = table.rows[activity.execution_id]
        if row.instance.status.terminal and not activity.request.outlives:
            # Its worker is lost and its workflow closed: it is not begun again.
            table.drop(row, activity.request.ref)
            table.put(row, events.ActivityCancelled(at=table.clock.now(), ref=activity.request.ref))
            return None
        if activity.deliveries >= REDELIVERIES:
            activity.dead_letter = activity_dead_letter(activity.request, activity.deliveries)
            activity.leased_until = None
            del table.queued[activity.execution_id, activity.request.ref]
            return None
        task = self._lease(row, activity, worker)
        started = start_of(activity.request, activity.deliveries)
        if started is not None:
            table.put_quietly(row, started)
        return task

    def _lease(self, row: Row, activity: ActivityRow, worker: str) -> r.ActivityTask:
        table = self._table
        del table.queued[activity.execution_id, activity.request.ref]
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
        if part.epoch == 0:
            held = self._at_attempt(part) or held
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

    def _at_attempt(self, part: r.ActivityResult) -> ActivityRow | r.Refused | None:
        """Return an activity that is at the attempt of a result, under any lease; None if it is answered."""
        row = self._table.find(part)
        activity = None if row is None else row.activities.get(part.event.ref)
        if activity is None or activity.attempt == part.event.attempt:
            return activity
        return r.Refused(reason="the activity is at another attempt")


def _covered_task(part: r.Commit, request: ActivityRequest) -> r.ActivityTask:
    return r.ActivityTask(
        execution_id=part.execution_id,
        entity_id=part.entity_id,
        epoch=0,
        attempt=1,
        deliveries=0,
        request=request,
    )
