"""The rows of the memory store, and the indexes that find claimable work without a look at every row.

- ``ready``: instances to be claimed, oldest first. A row in it may be leased, if that lease has expired. Scheduled
  instances are added when their moment has come, paused ones never;
- ``parked``: diverged instances, claimable by workers that have not tried them; never in ``ready`` too;
- ``queued``: activities to be claimed, oldest first, those of paused instances among them;
- ``promises``: the execution that each promise belongs to;
- the due list: what becomes claimable at a moment. Its entries are hints: `Table.wake_due` checks the row itself, once at
  the beginning of every verb, so that one verb sees one moment.
"""

import heapq
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter

from resurgam.core import event as events
from resurgam.core.clock import Clock
from resurgam.core.outcome import ActivityRequest, Entry
from resurgam.store import records as r
from resurgam.store.memory.rows import ActivityRow, Row
from resurgam.store.watches import FEED, WatchKey, log_key


class Table:
    """Rows and indexes, kept in step.

    *touched* collects the keys that a verb has changed, for the waiters. *lease* is the length of one in milliseconds.
    """

    def __init__(self, clock: Clock, *, lease: int) -> None:
        self.clock = clock
        self.lease = lease
        self.rows: dict[str, Row] = {}
        self.executions: dict[str, list[str]] = defaultdict(list)
        self.ready: dict[str, None] = {}
        self.parked: dict[str, None] = {}
        self.queued: dict[tuple[str, int], None] = {}
        self.promises: dict[str, str] = {}
        self.touched: set[WatchKey] = set()
        self.last_position = 0
        self._logged: list[tuple[int, Row, int]] = []
        self._removed = 0
        self._due: list[tuple[int, str, int]] = []
        self._next_id = 0

    def add(self, row: Row) -> None:
        """Add a new execution, as the newest of its entity."""
        self.rows[row.instance.execution_id] = row
        self.executions[row.instance.entity_id].append(row.instance.execution_id)

    def remove(self, row: Row) -> None:
        """Remove an execution with its activities and promises."""
        for ref in list(row.activities):
            self.drop(row, ref)
        for promise_id in row.promises:
            del self.promises[promise_id]
        instance = row.instance
        self.ready.pop(instance.execution_id, None)
        self.parked.pop(instance.execution_id, None)
        self.executions[instance.entity_id].remove(instance.execution_id)
        if not self.executions[instance.entity_id]:
            del self.executions[instance.entity_id]
        del self.rows[instance.execution_id]
        self._removed += instance.last_seq
        if 2 * self._removed > len(self._logged):  # not for each execution: that would be quadratic
            self._logged = [logged for logged in self._logged if self._has(logged[1])]
            self._removed = 0

    def _has(self, row: Row) -> bool:
        """Whether a row is still here; an execution that was archived or adopted again has another one."""
        return self.rows.get(row.instance.execution_id) is row

    def find(self, execution: r.Addressed) -> Row | None:
        """Return an execution; None if there is none of this id, or it belongs to another entity."""
        row = self.rows.get(execution.execution_id)
        return row if row is not None and row.instance.entity_id == execution.entity_id else None

    def newest(self, entity_id: str) -> Row | None:
        """Return the newest execution of an entity."""
        execution_id = next(reversed(self.executions.get(entity_id, [])), None)
        return None if execution_id is None else self.rows[execution_id]

    def executions_of(self, entity_id: str) -> list[Row]:
        """Return the executions of an entity, oldest first."""
        return [self.rows[execution_id] for execution_id in self.executions.get(entity_id, ())]

    def put(self, row: Row, event: events.Event) -> None:
        """Append an event to an inbox and raise the wake counter."""
        self._next_id += 1
        self.touched.add(row.instance.execution_id)
        row.wake += 1
        row.inbox[self._next_id] = (row.wake, Entry(self._next_id, event))
        if row.leased_until is None or row.leased_until <= self.clock.now():
            self.make_ready(row)

    def put_quietly(self, row: Row, event: events.Event) -> None:
        """Append an event to an inbox that comes with the next one that raises the wake counter."""
        self._next_id += 1
        row.inbox[self._next_id] = (row.wake + 1, Entry(self._next_id, event))

    def free(self, row: Row, *, ready: bool) -> None:
        """End the lease of an instance, and offer it again if it is *ready*."""
        row.leased_until = None
        row.ready = False
        self.ready.pop(row.instance.execution_id, None)
        if ready:
            self.make_ready(row)
        if not row.ready and row.instance.wake_at not in (None, row.reminded):
            row.reminded = row.instance.wake_at
            self.remind(row.instance.wake_at or 0, row.instance.execution_id)

    def make_ready(self, row: Row) -> None:
        """Mark an instance as ready, unless it is scheduled for later."""
        if row.begins(self.clock.now()):
            row.ready = True
            self.offer(row)

    def withhold(self, row: Row) -> None:
        """Take an instance back whose lease has expired if its holder has scheduled it for later meanwhile."""
        if row.ready and not row.begins(self.clock.now()):
            row.ready = False
            self.ready.pop(row.instance.execution_id, None)
            if row.instance.wake_at is not None:
                self.remind(row.instance.wake_at, row.instance.execution_id)

    def offer(self, row: Row) -> None:
        """List an instance that is ready, unless it is parked, paused or a dead letter."""
        held_back = row.instance.execution_id in self.parked or row.instance.dead_letter is not None
        if row.ready and not held_back and row.paused is None:
            self.ready[row.instance.execution_id] = None

    def log(self, row: Row, entries: Iterable[events.Event]) -> None:
        """Append entries to a log, and to the order of commits."""
        row.append(entries)
        for entry in entries:
            self.last_position += 1
            self._logged.append((self.last_position, row, entry.seq))
        self.touched.add(FEED)

    def logged_after(self, position: int) -> Iterator[tuple[int, str, int]]:
        """Yield the position, execution and ``seq`` of all entries after a position, in the order of commits."""
        begin = bisect_right(self._logged, position, key=itemgetter(0))
        for number, row, seq in islice(self._logged, begin, None):
            if self._has(row):
                yield number, row.instance.execution_id, seq

    def note_growth(self, row: Row) -> None:
        """Note that a log has more entries, or is closed."""
        self.touched |= {row.instance.execution_id, log_key(row.instance.execution_id)}

    def schedule(self, row: Row, activity: ActivityRow) -> None:
        """Put an activity on its queue, now or at its moment."""
        row.activities[activity.request.ref] = activity
        if activity.dead_letter is not None:
            return
        if activity.visible_at <= self.clock.now():
            self.queued[activity.execution_id, activity.request.ref] = None
        else:
            self.remind(activity.visible_at, activity.execution_id, activity.request.ref)

    def cover(self, row: Row, request: ActivityRequest) -> None:
        """Add an activity that the lease on its instance covers."""
        entry = row.entry(request.ref)
        activity = ActivityRow(row.instance.execution_id, request, visible_at=0 if entry is None else entry.at)
        activity.covered, activity.deliveries = True, 1
        activity.worker, activity.leased_until = row.worker, row.leased_until
        row.activities[request.ref] = activity

    def put_back(self, row: Row, *, deliveries: int) -> None:
        """Put what the lease on an instance has covered back on its queues."""
        for activity in row.activities.values():
            if activity.covered:
                activity.covered, activity.leased_until, activity.deliveries = False, None, deliveries
                self.queued[activity.execution_id, activity.request.ref] = None

    def lease_alone(self, row: Row, until: int | None = None) -> None:
        """Give what the lease on an instance has covered leases of its own, for the same time or *until* a moment."""
        for activity in row.activities.values():
            if activity.covered:
                self.lease_one(activity, until)

    def lease_one(self, activity: ActivityRow, until: int | None = None) -> None:
        """Give a covered activity a lease of its own."""
        activity.covered = False
        activity.leased_until = activity.leased_until if until is None else until
        self.remind(activity.leased_until or 0, activity.execution_id, activity.request.ref)

    def drop(self, row: Row, ref: int) -> None:
        """Remove an activity."""
        del row.activities[ref]
        self.queued.pop((row.instance.execution_id, ref), None)

    def claimable(self, worker: str, queues: Sequence[str]) -> Iterator[Row]:
        """Yield the instances that a worker may claim, in the order in which they became ready."""
        now = self.clock.now()
        for execution_id in (*self.ready, *self.parked):
            row = self.rows[execution_id]
            free = row.leased_until is None or row.leased_until <= now
            if row.instance.queue in queues and free and row.paused is None and worker not in row.tried_by:
                yield row

    def older(self, row: Row) -> Iterator[Row]:
        """Yield the instances that are ready in the queue of another, before which they must be claimed."""
        for execution_id in self.ready:
            other = self.rows[execution_id]
            if other is not row and other.instance.queue == row.instance.queue:
                yield other

    def older_activities(self, row: Row, queues: Sequence[str]) -> Iterator[ActivityRow]:
        """Yield the activities before which those that an instance adds to these queues must not be claimed."""
        return self.claimable_activities(queues)

    def claimable_activities(self, queues: Sequence[str]) -> Iterator[ActivityRow]:
        """Yield the activities that may be claimed, in the order in which they became available."""
        for execution_id, ref in self.queued:
            row = self.rows[execution_id]
            if row.paused is None and row.activities[ref].request.queue in queues:
                yield row.activities[ref]

    # Moments.

    @property
    def next_due(self) -> int | None:
        """The next moment at which something may become claimable."""
        return self._due[0][0] if self._due else None

    def remind(self, when: int, execution_id: str, ref: int = 0) -> None:
        """Check an instance, or one of its activities, again at a moment."""
        heapq.heappush(self._due, (when, execution_id, ref))

    def wake_due(self) -> None:
        """Make ready whatever is due: deadlines, expired leases, activities to be retried."""
        now = self.clock.now()
        while self._due and self._due[0][0] <= now:
            _, execution_id, ref = heapq.heappop(self._due)
            row = self.rows.get(execution_id)
            if row is None:
                continue
            if ref == 0:
                self.wake_instance(row, now)
            elif (activity := row.activities.get(ref)) is not None:
                self._wake_activity(activity, now)

    def wake_instance(self, row: Row, now: int) -> None:
        """Make an instance ready if its deadline has come or its lease has expired."""
        # An expired lease is offered to others, but its holder may use it until another worker takes it.
        expired = row.leased_until is not None and row.leased_until <= now
        waking = row.instance.wake_at is not None and row.instance.wake_at <= now
        if row.reminded is not None and row.reminded <= now:
            row.reminded = None
        if expired or (waking and row.leased_until is None):
            self.make_ready(row)
        if expired and not row.begins(now) and row.instance.wake_at is not None:
            self.remind(row.instance.wake_at, row.instance.execution_id)

    def _wake_activity(self, activity: ActivityRow, now: int) -> None:
        until = activity.leased_until if activity.leased_until is not None else activity.visible_at
        if until <= now and activity.dead_letter is None:
            self.queued[activity.execution_id, activity.request.ref] = None
