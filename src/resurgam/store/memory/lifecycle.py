"""Executions in the memory store: created, sent events, paused, terminated, revived, purged."""

import msgspec

from resurgam.core import event as events
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.memory.leases import Leases
from resurgam.store.memory.promises import Promises
from resurgam.store.memory.rows import Row
from resurgam.store.memory.table import Table
from resurgam.store.rules import Way, begins, is_outdated, is_same, pause_after, way_past


class Lifecycle:
    """What `create`, `deliver`, `revive` and `purge` do to executions, and messages of other executions too."""

    def __init__(self, table: Table, leases: Leases, promises: Promises) -> None:
        self._table = table
        self._leases = leases
        self._promises = promises

    def create(self, part: r.Creation) -> r.Created | r.Exists:
        """Begin an execution, unless the entity has one that stands in its way."""
        started = part.started
        for known in self._table.executions_of(started.entity_id):
            if is_same(known.instance, started):
                return r.Created(instance=known.shown())
        newest = self._table.newest(started.entity_id)
        if newest is not None and not self.make_way(newest, part):
            return r.Exists(instance=newest.shown())
        row = self.begin(started)
        if newest is not None and part.follows is not None:
            self._promises.move(newest, row)
        for event in part.inbox:
            self.apply(row, event)
        claim = self._leases.claim_eagerly(row, part.offer)
        return r.Created(instance=row.shown(), claim=claim and msgspec.structs.replace(claim, log=(started,)))

    def make_way(self, newest: Row, part: r.Creation) -> bool:
        """Whether another execution may follow; an open one is terminated for it, or sent the inbox of the new one."""
        way = way_past(newest.instance, part)
        if way is Way.REPLACE:
            assert part.replace is not None
            self.terminate(newest, part.replace)
        if way is Way.DELIVER:
            for event in part.inbox:
                self.apply(newest, event)
        return way in (Way.BEGIN, Way.REPLACE)

    def begin(self, started: events.Started, paused: r.Pause | None = None) -> Row:
        """Add an execution that is ready to be claimed."""
        row = Row(r.Instance.of(started), {}, ready=False, paused=paused)
        self._table.add(row)
        self._table.log(row, (started,))
        self._table.free(row, ready=True)
        return row

    def deliver(self, part: r.Delivery) -> r.Delivered | r.Missing | r.Ended | r.Settled | r.Outdated:
        """Send an event to an execution, or settle a promise."""
        if part.promise_id is not None:
            return self._settled(self._promises.settle(part.promise_id, part.event), part)
        table = self._table
        row = table.rows.get(part.execution_id) if part.execution_id else table.newest(part.entity_id)
        if row is None:
            return r.Missing()
        if row.instance.status.terminal:
            known = any(promise.name == part.promise for promise in row.promises.values())
            return r.Settled() if known else r.Ended(status=row.instance.status)
        if is_outdated(part, row.instance.signal_schemas):
            return r.Outdated()
        if part.promise is not None:
            named = self._promises.named(row, part.promise)
            settled = r.Missing() if named is None else self._promises.settle(named.promise_id, part.event)
            return self._settled(settled, part)
        return self._settled(row, part) if self.apply(row, part.event) else r.Delivered()

    def _settled(self, answer: Row | r.Missing | r.Settled, part: r.Delivery) -> r.Delivered | r.Missing | r.Settled:
        if not isinstance(answer, Row):
            return answer
        return r.Delivered(claim=self._leases.claim_eagerly(answer, part.offer))

    def apply(self, row: Row, event: events.Event) -> bool:
        """Do what an event does to an open instance; return whether it was put into the inbox."""
        match event:
            case events.WorkflowTerminated():
                self.terminate(row, event)
                return False
            case events.WorkflowPaused():
                return self.pause(row, event)
            case events.WorkflowResumed() if row.paused is None:
                return False
            case events.WorkflowResumed():
                row.paused = None
                self._table.offer(row)
            case events.WorkflowBegun() if row.instance.status is not Status.SCHEDULED:
                return False
        self.hand_on(row, event)
        return True

    def hand_on(self, row: Row, event: events.Event) -> None:
        """Put an event into the inbox; two kinds of them begin an instance that is scheduled for later."""
        if begins(event) and row.instance.status is Status.SCHEDULED:
            row.instance = msgspec.structs.replace(row.instance, status=Status.RUNNING, wake_at=None)
        self._table.put(row, event)

    def pause(self, row: Row, event: events.WorkflowPaused) -> bool:
        """Pause an instance, or widen its pause to the tree; return whether that changed anything."""
        pause = pause_after(row.paused, event)
        if pause is None or row.instance.status.terminal:
            return False
        row.paused = pause
        self._table.ready.pop(row.instance.execution_id, None)
        self._table.put(row, event)
        return True

    def terminate(self, row: Row, event: events.WorkflowTerminated) -> None:
        """Close an instance whatever its code does; a new epoch fences the worker that holds it."""
        now = self._table.clock.now()
        at = max([now, *(entry.at for entry in row.kept()[-1:])])
        self._table.log(row, [msgspec.structs.replace(event, seq=row.instance.last_seq + 1, at=at)])
        row.epoch += 1
        self._table.lease_alone(row)
        row.instance = msgspec.structs.replace(
            row.instance,
            status=Status.TERMINATED,
            closed_at=now,
            last_seq=row.instance.last_seq + 1,
            wake_at=None,
            parked=None,
            dead_letter=None,
        )
        row.paused = None
        row.deliveries = 0
        row.tried_by.clear()
        self._table.parked.pop(row.instance.execution_id, None)
        self._table.note_growth(row)
        self._table.free(row, ready=True)

    def revive(self, execution: r.Addressed) -> r.Revived | r.Missing:
        """Offer dead letters again, and parked runs to the workers that tried them."""
        row = self._table.find(execution)
        if row is None:
            return r.Missing()
        held_back = row.instance.dead_letter is not None or row.instance.parked is not None
        count = int(held_back and row.instance.archived is None)
        if count:
            row.instance = msgspec.structs.replace(row.instance, dead_letter=None)
            row.deliveries = 0
            row.tried_by.clear()
            if row.instance.status is Status.DIVERGED:
                self._table.parked[execution.execution_id] = None
            self._table.make_ready(row)
        for activity in row.activities.values():
            if activity.dead_letter is not None:
                activity.dead_letter, activity.deliveries = None, 0
                self._table.queued[execution.execution_id, activity.request.ref] = None
                count += 1
        return r.Revived(count=count)

    def purge(self, execution: r.Addressed) -> r.Purged | r.Missing | r.Unfinished:
        """Remove a closed execution."""
        row = self._table.find(execution)
        if row is None:
            return r.Missing()
        if not row.instance.status.terminal:
            return r.Unfinished(status=row.shown().status)
        self._table.remove(row)
        self._table.note_growth(row)
        return r.Purged()
