"""The rows of the memory store, and the indexes that say what can be claimed without looking at every row.

- ``_ready``: instances to be claimed, oldest first. A row in it may still be leased if that lease has run out. Of those
  that are put off it has none before their moment, of those that are paused none at all;
- ``_parked``: diverged instances, claimable by workers that have not tried them; never in ``_ready`` too;
- ``_queued``: activities to be claimed, oldest first, those of paused instances among them;
- ``_promises``: which execution a promise is of;
- ``_due``: what becomes claimable at a moment. Its entries are hints: `_bring_up` asks the row itself again, once at
  the beginning of every verb, so that one verb sees one moment.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence

import msgspec

from resurgam.core import event as events
from resurgam.core.clock import Clock
from resurgam.core.outcome import Entry
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.lifetime import Lifetime
from resurgam.store.protocol import REDELIVERIES
from resurgam.store.rows import ActivityRow, Row
from resurgam.store.watches import Place, growth_of


class MemoryRows:
    """Keeps rows and indexes in step, whatever a verb does to a row."""

    def __init__(self, clock: Clock, *, lease: int) -> None:
        self._clock = clock
        self._lease = lease
        self._rows: dict[str, Row] = {}
        self._current: dict[str, list[str]] = defaultdict(list)
        self._ready: dict[str, None] = {}
        self._parked: dict[str, None] = {}
        self._queued: dict[tuple[str, int], None] = {}
        self._promises: dict[str, str] = {}
        self._due: list[tuple[int, str, int]] = []
        self._next_id = 0
        self._touched: set[Place] = set()
        self._lifetime = Lifetime()

    def _let_go(self, row: Row, *, ready: bool) -> None:
        row.leased_until = None
        row.ready = False
        self._ready.pop(row.instance.execution_id, None)
        if ready:
            self._make_ready(row)
        if not row.ready and row.instance.wake_at not in (None, row.reminded):
            row.reminded = row.instance.wake_at
            self._remind(row.instance.wake_at or 0, row.instance.execution_id)

    def _put(self, row: Row, event: events.Event) -> None:
        self._next_id += 1
        self._touched.add(row.instance.execution_id)
        row.wake += 1
        row.inbox[self._next_id] = (row.wake, Entry(self._next_id, event))
        if row.leased_until is None:
            self._make_ready(row)

    def _make_ready(self, row: Row) -> None:
        if row.begins(self._clock.now()):
            row.ready = True
            self._show(row)

    def _show(self, row: Row) -> None:
        """EagerOffer what is ready, unless it was put aside or halted."""
        put_aside = row.instance.execution_id in self._parked or row.instance.dead is not None
        if row.ready and not put_aside and row.paused is None:
            self._ready[row.instance.execution_id] = None

    def _grown(self, row: Row) -> None:
        """Note that a log has more entries, or has ended."""
        self._touched |= {row.instance.execution_id, growth_of(row.instance.execution_id)}

    def _schedule(self, row: Row, activity: ActivityRow) -> None:
        row.activities[activity.request.ref] = activity
        if activity.dead is not None:
            return
        if activity.visible_at <= self._clock.now():
            self._queued[activity.execution_id, activity.request.ref] = None
        else:
            self._remind(activity.visible_at, activity.execution_id, activity.request.ref)

    def _drop(self, row: Row, ref: int) -> None:
        del row.activities[ref]
        self._queued.pop((row.instance.execution_id, ref), None)

    def _claimable(self, worker: str, queues: Sequence[str]) -> Iterator[Row]:
        now = self._clock.now()
        for execution_id in (*self._ready, *self._parked):
            row = self._rows[execution_id]
            free = row.leased_until is None or row.leased_until <= now
            if row.instance.queue in queues and free and row.paused is None and worker not in row.tried_by:
                yield row

    def _claimable_activities(self, queues: Sequence[str]) -> Iterator[ActivityRow]:
        for execution_id, ref in self._queued:
            row = self._rows[execution_id]
            if row.paused is None and row.activities[ref].request.queue in queues:
                yield row.activities[ref]

    def _remind(self, when: int, execution_id: str, ref: int = 0) -> None:
        heapq.heappush(self._due, (when, execution_id, ref))

    def _bring_up(self) -> None:
        """Make ready whatever has become due: deadlines, leases that ran out, activities to be tried again."""
        self._lifetime.check()
        now = self._clock.now()
        while self._due and self._due[0][0] <= now:
            _, execution_id, ref = heapq.heappop(self._due)
            row = self._rows.get(execution_id)
            if row is None:
                continue
            if ref == 0:
                self._bring_up_instance(row, now)
            elif (activity := row.activities.get(ref)) is not None:
                self._bring_up_activity(activity, now)

    def _bring_up_instance(self, row: Row, now: int) -> None:
        # A lease that has run out is offered to others, but its holder may use it until somebody takes it.
        expired = row.leased_until is not None and row.leased_until <= now
        waking = row.instance.wake_at is not None and row.instance.wake_at <= now
        if row.reminded is not None and row.reminded <= now:
            row.reminded = None
        if expired or (waking and row.leased_until is None):
            self._make_ready(row)

    def _bring_up_activity(self, activity: ActivityRow, now: int) -> None:
        until = activity.leased_until if activity.leased_until is not None else activity.visible_at
        if until <= now and activity.dead is None:
            self._queued[activity.execution_id, activity.request.ref] = None

    # Leases.

    def _holder(self, lease: r.Lease) -> "Row | ActivityRow | r.Refused":
        if lease.ref is None:
            return self._held(lease.execution_id, lease.epoch)
        row = self._rows.get(lease.execution_id)
        activity = None if row is None else row.activities.get(lease.ref)
        if activity is None:
            return r.Refused(reason="the activity is answered or withdrawn")
        if activity.epoch != lease.epoch or activity.leased_until is None:
            return r.Refused(reason="the lease of the activity is lost")
        return activity

    def _held(self, execution_id: str, epoch: int) -> "Row | r.Refused":
        row = self._rows.get(execution_id)
        if row is None:
            return r.Refused(reason="there is no such instance")
        if row.epoch != epoch or row.leased_until is None:
            return r.Refused(reason="the lease is lost")
        return row

    def _claim_at_once(self, row: Row, offer: r.EagerOffer | None) -> r.Claim | None:
        """Lease what was made ready to the worker that offers itself, unless older work waits in its queue."""
        if offer is None or row.instance.queue not in offer.queues or row.leased_until is not None:
            return None
        fits = row.shown().status is Status.RUNNING and row.instance.dead is None and row.deliveries < REDELIVERIES
        older = (
            execution_id
            for execution_id in self._ready
            if execution_id != row.instance.execution_id
            and self._rows[execution_id].instance.queue == row.instance.queue
        )
        if not fits or offer.worker in row.tried_by or next(older, None) is not None:
            return None
        row.worker = offer.worker
        return self._claim(row)

    def _claim(self, row: Row) -> r.Claim | None:
        execution_id = row.instance.execution_id
        self._ready.pop(execution_id, None)
        row.ready = False
        if row.deliveries >= REDELIVERIES:
            dead = f"handed out {row.deliveries} times without a commit{row.last_failure}"
            row.instance = msgspec.structs.replace(row.instance, dead=dead)
            row.leased_until = None
            self._parked.pop(execution_id, None)
            return None
        row.deliveries += 1
        row.epoch += 1
        row.leased_until = self._clock.now() + self._lease
        self._remind(row.leased_until, execution_id)
        inbox = tuple(entry for _, entry in row.inbox.values())
        return r.Claim(instance=row.instance, epoch=row.epoch, wake=row.wake, inbox=inbox)
