"""Activities in the memory store: how they come into their queues, to workers, and out again."""

from resurgam.core import event as events
from resurgam.core.outcome import Withdrawal
from resurgam.store import records as r
from resurgam.store.memory.rows import MemoryRows
from resurgam.store.protocol import REDELIVERIES
from resurgam.store.rows import ActivityRow, Row


class MemoryActivities(MemoryRows):
    """What verbs do to the activities of an instance."""

    def _dispatch(self, row: Row, part: r.Commit) -> tuple[r.ActivityTask, ...]:
        """Put activities on their queues, and hand out as many as the worker has free hands for."""
        older = {activity.request.queue for activity in self._claimable_activities(part.queues)}
        hands = part.hands if row.paused is None else 0
        tasks: list[r.ActivityTask] = []
        for request in part.outcome.activities:
            activity = ActivityRow(part.execution_id, request, visible_at=self._clock.now())
            self._schedule(row, activity)
            if len(tasks) < hands and request.queue in part.queues and request.queue not in older:
                task = self._claim_activity(activity)
                assert task is not None
                activity.worker = part.worker
                tasks.append(task)
            else:
                activity.epoch = 1  # whoever claims it later has another: this one is the commit's own
        return tuple(tasks)

    def _withdraw(self, row: Row, withdrawal: Withdrawal) -> None:
        activity = row.activities.get(withdrawal.ref)
        if activity is None or (withdrawal.never_started and activity.begun):
            return
        if withdrawal.answered or activity.leased_until is None:
            self._drop(row, withdrawal.ref)
            if withdrawal.entry is not None:
                # This raises the counter too, so that the instance hears of it.
                self._put(row, withdrawal.entry)

    def _claim_activity(self, activity: ActivityRow) -> r.ActivityTask | None:
        row = self._rows[activity.execution_id]
        if row.instance.status.terminal:
            # Whoever ran it is gone, and nobody waits for it: it is not begun again for a workflow that has ended.
            self._drop(row, activity.request.ref)
            self._put(row, events.ActivityCancelled(at=self._clock.now(), ref=activity.request.ref))
            return None
        del self._queued[activity.execution_id, activity.request.ref]
        if activity.deliveries >= REDELIVERIES:
            what = f"activity {activity.request.name!r} (entry {activity.request.ref})"
            activity.dead = f"{what} was handed out {activity.deliveries} times without an answer"
            activity.leased_until = None
            return None
        activity.deliveries += 1
        activity.epoch += 1
        activity.leased_until = self._clock.now() + self._lease
        self._remind(activity.leased_until, activity.execution_id, activity.request.ref)
        return r.ActivityTask(
            execution_id=activity.execution_id,
            workflow_id=row.instance.entity_id,
            epoch=activity.epoch,
            attempt=activity.attempt,
            deliveries=activity.deliveries - 1,
            request=activity.request,
            details=activity.details,
        )

    def _complete(self, part: r.ActivityResult) -> r.Accepted | r.Refused:
        held = self._holder(r.Lease(execution_id=part.execution_id, epoch=part.epoch, ref=part.event.ref))
        if isinstance(held, r.Refused):
            return held
        assert isinstance(held, ActivityRow)
        row = self._rows[part.execution_id]
        self._drop(row, part.event.ref)
        if isinstance(part.event, events.ActivityRetryScheduled):
            again = ActivityRow(part.execution_id, held.request, part.event.next_at, held.attempt + 1, held.epoch)
            again.details = held.details if part.details is None else part.details
            again.heartbeat_at = held.heartbeat_at if part.heartbeat_at is None else part.heartbeat_at
            self._schedule(row, again)
        self._put(row, part.event)
        return r.Accepted()
