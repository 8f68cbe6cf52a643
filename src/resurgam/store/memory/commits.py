"""The commit of the memory store: fence, log, inbox, activities, status, effects.

*No lost wake-up*: every event that enters an inbox raises the ``wake`` counter. A commit makes the row ready again
exactly if the counter is not the one that its claim saw.
"""

from resurgam.core import event as events
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.memory.activities import Activities
from resurgam.store.memory.effects import Effects
from resurgam.store.memory.leases import Leases
from resurgam.store.memory.rows import Row
from resurgam.store.memory.table import Table
from resurgam.store.rules import TRIED_KEPT, overtakes


class Commits:
    """Apply outcomes, each whole or not at all."""

    def __init__(self, table: Table, leases: Leases, activities: Activities, effects: Effects) -> None:
        self._table = table
        self._leases = leases
        self._activities = activities
        self._effects = effects

    def commit(self, part: r.Commit) -> r.Committed | r.Refused:
        """Apply an outcome if the lease holds and the log is where the advance began."""
        row = self._leases.held(part, part.epoch)
        if isinstance(row, r.Refused):
            return row
        if row.instance.last_seq != part.base_seq:
            return r.Refused(reason=f"the log is at {row.instance.last_seq}, not at {part.base_seq}")
        if part.outcome.strict and overtakes(row.entries_since(part.wake)):
            return r.Refused(reason=r.INBOX_CHANGED)
        tasks = self._apply(row, part)
        if row.epoch != part.epoch:  # a message has terminated its own sender
            return r.Committed(wake=row.wake, tasks=tasks)
        if part.release and not tasks:
            self._table.lease_alone(row, until=self._table.clock.now() + self._table.lease)
            self._table.free(row, ready=row.wake != part.wake)
            return r.Committed(wake=row.wake)
        return r.Committed(wake=row.wake, inbox=row.entries_since(part.wake), tasks=tasks)

    def _apply(self, row: Row, part: r.Commit) -> tuple[r.ActivityTask, ...]:
        outcome = part.outcome
        self._table.log(row, outcome.events)
        row.forget(outcome.forgotten)
        row.drop(outcome.dropped)
        for entry_id in outcome.consumed:
            row.inbox.pop(entry_id, None)
        self._activities.note_running(row, part.running)
        tasks = self._activities.dispatch(row, part)
        # Results that the commit carries itself; those from the inbox have no row any more.
        final = [e.ref for e in outcome.events if isinstance(e, events.ActivityCompleted | events.ActivityFailed)]
        for ref in (*final, *part.answered):
            if ref in row.activities:
                self._table.drop(row, ref)
        self._activities.retry(row, part.retries)
        for withdrawal in outcome.withdrawals:
            self._activities.withdraw(row, withdrawal)
        row.deliveries = 0
        row.last_failure = ""
        paused = row.paused
        row.update(outcome, self._table.clock.now())
        self._table.note_growth(row)
        self._park(row, part)
        self._effects.send(row, outcome, paused)
        return tasks

    def _park(self, row: Row, part: r.Commit) -> None:
        """List a diverged run with the worker that tried it; take a run whose code fits off the list."""
        if part.outcome.status is Status.DIVERGED:
            if len(row.tried_by - {part.worker}) >= TRIED_KEPT:
                row.tried_by.pop()
            row.tried_by.add(part.worker)
            self._table.parked[part.execution_id] = None
            self._table.ready.pop(part.execution_id, None)
        else:
            # Workers that tried it stay excluded: their code does not fit, now or later.
            self._table.parked.pop(part.execution_id, None)
            self._table.withhold(row)
            self._table.offer(row)  # its lease may have expired while it was parked
