"""The read side of the memory store."""

from collections import Counter
from collections.abc import Callable, Sequence

from resurgam.core import event as events
from resurgam.store import records as r
from resurgam.store.memory.promises import Promises
from resurgam.store.memory.table import Table
from resurgam.store.memory.topics import Topics


class MemoryInspector:
    """Read the rows of a store. *refresh* is called at the beginning of each verb."""

    def __init__(self, table: Table, promises: Promises, topics: Topics, refresh: Callable[[], None]) -> None:
        self._table = table
        self._promises = promises
        self._topics = topics
        self._refresh = refresh

    async def get(
        self, entity_id: str, run_id: str | None = None, *, execution_id: str | None = None
    ) -> r.Instance | None:
        """Return the newest execution of an entity, or the newest of a run, or the one with this id."""
        self._refresh()
        for row in reversed(self._table.executions_of(entity_id)):
            if run_id in (None, row.instance.run_id) and execution_id in (None, row.instance.execution_id):
                return row.seen()
        return None

    async def list(self, query: r.Query) -> r.Page:
        """Return a page of instances, newest first."""
        self._refresh()
        ordered = sorted((row.seen() for row in self._table.rows.values()), key=lambda i: i.cursor, reverse=True)
        newest = {executions[-1] for executions in self._table.executions.values() if executions}
        found = [
            instance
            for instance in ordered
            if query.fits(instance) and (not query.newest_only or instance.execution_id in newest)
        ]
        page = tuple(found[: query.limit])
        return r.Page(instances=page, cursor=page[-1].cursor if len(found) > len(page) > 0 else None)

    async def ended(self, query: r.EndedQuery) -> Sequence[r.Instance]:
        """Return complete executions, in the order in which they ended."""
        self._refresh()
        found = [row.instance for row in self._table.rows.values() if query.fits(row.instance)]
        return sorted(found, key=lambda i: (i.closed_at or 0, i.execution_id))[: query.limit]

    async def dead_letters(self, cursor: str | None = None, limit: int = 100) -> r.Page:
        """Return executions that are dead letters, or have activities that are, in the order of their ids."""
        self._refresh()
        dead = [
            one
            for one in (row.seen() for row in self._table.rows.values())
            if one.dead_letter or one.activity_dead_letters
        ]
        found = sorted((one for one in dead if one.execution_id > (cursor or "")), key=lambda one: one.execution_id)
        page = tuple(found[:limit])
        return r.Page(instances=page, cursor=page[-1].execution_id if len(found) > len(page) > 0 else None)

    async def history(
        self,
        execution: r.Addressed,
        last: int | None = None,
        *,
        forgotten: bool = False,
        after: int = 0,
        limit: int | None = None,
    ) -> Sequence[events.Event]:
        """Return the active entries of an execution, or all that are kept; the last of them, or a page."""
        row = self._table.find(execution)
        if row is None:
            return []
        log = row.kept() if forgotten else list(row.log.values())
        return log[-last:] if last is not None else [entry for entry in log if entry.seq > after][:limit]

    async def open_work(self, execution: r.Addressed) -> r.OpenWork | None:
        """Return the open activities, the inbox and the lease of an execution."""
        self._refresh()
        row = self._table.find(execution)
        return None if row is None else row.open_work()

    async def promise(self, to: r.Delivery) -> r.HeldPromise | None:
        """Return the promise that a delivery is addressed to."""
        self._refresh()
        row, promise = self._promises.find(to)
        return None if row is None or promise is None else r.HeldPromise(promise=promise, instance=row.seen())

    async def messages(self, topic: str, after: str | None = None) -> r.Messages:
        """Return the recent messages on a topic."""
        found = () if after is None else self._topics.after(topic, after)
        return r.Messages(cursor=self._topics.newest(topic), values=found)

    async def stats(self) -> r.Stats:
        """Return the counts."""
        self._refresh()
        rows = self._table.rows.values()
        activities = [activity for row in rows for activity in row.activities.values()]
        alive = [activity for activity in activities if activity.dead_letter is None]
        ready = Counter(
            row.instance.queue for row in rows if row.ready and row.instance.dead_letter is None and row.paused is None
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
            dead_instances=sum(row.instance.dead_letter is not None for row in rows),
        )
