"""Whole executions, out of the memory store and into it."""

from collections.abc import Callable, Sequence

import msgspec

from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.adoption import plan_adoption
from resurgam.store.memory.promises import Promises
from resurgam.store.memory.queries import MemoryQueries
from resurgam.store.memory.rows import ActivityRow, Row
from resurgam.store.memory.table import Table


class MemoryTransfer:
    """Copy executions, and adopt copies. *refresh* and *changed* are called around each verb."""

    def __init__(
        self,
        table: Table,
        promises: Promises,
        queries: MemoryQueries,
        refresh: Callable[[], None],
        changed: Callable[[], None],
    ) -> None:
        self._table = table
        self._promises = promises
        self._queries = queries
        self._refresh = refresh
        self._changed = changed

    async def copies(self, entity_id: str, run_id: str | None = None) -> Sequence[r.Copy]:
        """Return everything that is kept of an entity's executions, or of one run's, oldest first."""
        self._refresh()
        return [row.copy() for row in self._table.executions_of(entity_id) if run_id in (None, row.instance.run_id)]

    async def adopt(self, parts: Sequence[r.Adoption]) -> Sequence[r.Adopted | r.Exists]:
        """Take in executions from another store."""
        self._refresh()
        answers = [self.adopt_part(part) for part in parts]
        self._changed()
        return answers

    async def remove(self, parts: Sequence[r.Removal]) -> Sequence[r.Removed | r.Changed]:
        """Delete executions that another store has adopted."""
        self._refresh()
        answers = [self.remove_part(part) for part in parts]
        self._changed()
        return answers

    def remove_part(self, part: r.Removal) -> r.Removed | r.Changed:
        """Delete executions of an entity, unless one of them has changed."""
        rows = self._unchanged(part)
        if rows is None:
            return r.Changed()
        for row in rows:
            self._forget(row)
        return r.Removed()

    async def reserve(self, parts: Sequence[r.Reservation]) -> Sequence[r.Reserved | r.Changed]:
        """Append the entries that say that complete executions are being archived."""
        self._refresh()
        answers = [self.reserve_part(part) for part in parts]
        self._changed()
        return answers

    def reserve_part(self, part: r.Reservation) -> r.Reserved | r.Changed:
        """Append one entry, unless there is more to come in its log."""
        row = self._table.find(part)
        if row is None or not row.instance.deactivated or row.instance.archived is not None or row.inbox:
            return r.Changed()
        if part.event.seq != row.instance.last_seq + 1:
            return r.Changed()
        self._table.log(row, (part.event,))
        row.instance = msgspec.structs.replace(row.instance, last_seq=part.event.seq)
        self._table.note_growth(row)
        return r.Reserved()

    async def archive(self, parts: Sequence[r.Archival]) -> Sequence[r.Archived | r.Changed]:
        """Delete everything but the rows of executions that an archive holds."""
        self._refresh()
        answers = [self.archive_part(part) for part in parts]
        self._changed()
        return answers

    def archive_part(self, part: r.Archival) -> r.Archived | r.Changed:
        """Keep only the rows of executions of an entity, unless one of them has changed or is not complete."""
        rows = self._unchanged(part)
        if rows is None or not all(row.instance.deactivated and row.instance.archived is None for row in rows):
            return r.Changed()
        order = list(self._table.executions[part.entity_id])
        for row in rows:
            self._forget(row)
            instance = msgspec.structs.replace(row.instance, archived=part.archive)
            self._table.rows[instance.execution_id] = Row(instance, {}, ready=False, answer=row.answer)
        self._table.executions[part.entity_id] = order
        return r.Archived()

    def _unchanged(self, part: r.Removal | r.Archival) -> list[Row] | None:
        """Return the rows of copies; None if one of them has changed or is gone."""
        named = {copy.instance.execution_id for copy in part.copies}
        rows = [row for row in self._table.executions_of(part.entity_id) if row.instance.execution_id in named]
        return rows if tuple(row.copy() for row in rows) == part.copies else None

    def _forget(self, row: Row) -> None:
        self._table.remove(row)
        self._table.note_growth(row)
        self._queries.purge(row.instance.execution_id)

    async def flush(self) -> None:
        """Do nothing: effects are applied by the commit."""
        self._refresh()

    async def scrub(self) -> None:
        """Do nothing: no answers are kept."""

    def adopt_part(self, part: r.Adoption) -> r.Adopted | r.Exists:
        """Take in all executions of a part, or none."""
        plan = plan_adoption(part, self._find, self._executions_of, self.holder_of)
        if isinstance(plan, r.Exists):
            return plan
        for execution_id in plan.restored:
            self._forget(self._table.rows[execution_id])
        for copy in plan.copies:
            self.take_in(copy)
        self._table.executions[part.entity_id] = plan.order
        return plan.answer

    def _find(self, execution_id: str) -> r.Instance | None:
        row = self._table.rows.get(execution_id)
        return None if row is None else row.shown()

    def _executions_of(self, entity_id: str) -> Sequence[r.Instance]:
        return [row.shown() for row in self._table.executions_of(entity_id)]

    def holder_of(self, promise_id: str) -> r.Instance | None:
        """Return the execution that a promise belongs to here."""
        return self._promises.holder(promise_id)

    def take_in(self, copy: r.Copy) -> None:
        """Add the execution of a copy, without leases."""
        table, execution_id = self._table, copy.instance.execution_id
        row = table.rows[execution_id] = Row(copy.instance, {}, ready=False)
        table.log(row, copy.log)
        row.forget(copy.forgotten)
        row.paused = copy.paused
        row.answer = copy.answer
        for promise in copy.promises:
            self._promises.keep(row, promise)
        if copy.instance.status is Status.DIVERGED and copy.instance.dead_letter is None:
            table.parked[execution_id] = None
        for event in copy.inbox:
            table.put(row, event)
        for pending in copy.activities:
            table.schedule(row, ActivityRow(execution_id, **msgspec.structs.asdict(pending)))
        table.free(row, ready=copy.ready)
