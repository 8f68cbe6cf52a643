"""The read side of the memory store: what is there, without touching it."""

from collections import Counter
from collections.abc import Mapping, Sequence

from resurgam.core import event as events
from resurgam.store import records as r
from resurgam.store.rows import Row


class MemoryReading:
    """What an `Inspector` answers, over the rows of a store."""

    def __init__(self, rows: Mapping[str, Row], executions: Mapping[str, Sequence[str]]) -> None:
        self._rows = rows
        self._executions = executions

    def get(self, entity_id: str, run_id: str | None, execution_id: str | None) -> r.Instance | None:
        """Return the newest execution of an entity or of one of its runs, or the one with this id."""
        for known in reversed(self._executions.get(entity_id, [])):
            row = self._rows[known]
            if run_id in (None, row.instance.run_id) and execution_id in (None, known):
                return row.seen()
        return None

    def history(self, execution_id: str, last: int | None, *, forgotten: bool) -> Sequence[events.Event]:
        """Return the active entries of an execution, or all that are kept; or the last of them."""
        row = self._rows.get(execution_id)
        if row is None:
            return []
        log = row.kept() if forgotten else list(row.log.values())
        return log if last is None else log[-last:]

    def open_work(self, execution_id: str) -> r.OpenWork | None:
        """Return what an execution has under way that its log does not show."""
        row = self._rows.get(execution_id)
        return None if row is None else row.open_work()

    def find(self, execution_id: str) -> r.Instance | None:
        """Return an execution."""
        row = self._rows.get(execution_id)
        return None if row is None else row.instance

    def executions_of(self, entity_id: str) -> Sequence[r.Instance]:
        """Return the executions of an entity, oldest first."""
        return [self._rows[execution].instance for execution in self._executions.get(entity_id, [])]

    def copies(self, entity_id: str, run_id: str | None) -> Sequence[r.Copy]:
        """Return everything that is kept of an entity's executions, or of one run's, oldest first."""
        known = self.executions_of(entity_id)
        return [self._rows[i.execution_id].copy() for i in known if run_id in (None, i.run_id)]

    def list(self, query: r.Query) -> r.Page:
        """Return a page of instances, newest first."""
        ordered = sorted((row.seen() for row in self._rows.values()), key=lambda i: i.cursor, reverse=True)
        newest = {executions[-1] for executions in self._executions.values() if executions}
        found = [
            instance
            for instance in ordered
            if query.fits(instance) and (not query.newest_only or instance.execution_id in newest)
        ]
        page = tuple(found[: query.limit])
        return r.Page(instances=page, cursor=page[-1].cursor if len(found) > len(page) > 0 else None)

    def ended(self, query: r.EndedQuery) -> Sequence[r.Instance]:
        """Return ended executions, those first that ended first."""
        found = [row.instance for row in self._rows.values() if query.fits(row.instance)]
        return sorted(found, key=lambda i: (i.closed_at or 0, i.execution_id))[: query.limit]

    def stats(self) -> r.Stats:
        """Return the counts."""
        rows = self._rows.values()
        activities = [activity for row in rows for activity in row.activities.values()]
        alive = [activity for activity in activities if activity.dead is None]
        ready = Counter(
            row.instance.queue for row in rows if row.ready and row.instance.dead is None and row.paused is None
        )
        queued = Counter(activity.request.queue for activity in alive if activity.leased_until is None)
        claimed = Counter(activity.request.queue for activity in alive if activity.leased_until is not None)
        queues = {row.instance.queue for row in rows} | {activity.request.queue for activity in activities}
        return r.Stats(
            instances=dict(Counter(str(row.shown().status) for row in rows)),
            queues={
                queue: r.QueueStats(instances=ready[queue], activities=queued[queue], claimed_activities=claimed[queue])
                for queue in sorted(queues)
            },
            dead_activities=len(activities) - len(alive),
            dead_instances=sum(row.instance.dead is not None for row in rows),
        )
