"""The reference implementation, the one to read first: everything in dictionaries, gone with the process.

Each verb runs without giving way to other tasks, so it is atomic by itself. Two rules carry the rest:

- *fencing*: a claim raises the ``epoch`` of its row; whoever names another epoch has lost the lease;
- *no lost wake-up*: whatever enters an inbox raises the ``wake`` counter; a commit makes the row ready again exactly
  if the counter is not the one its claim saw.
"""

import asyncio
import heapq
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, assert_never

import msgspec

from resurgam.core import event as events
from resurgam.core.clock import Clock
from resurgam.core.outcome import ActivityRequest, Entry, Withdrawal
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.protocol import REDELIVERIES

P = TypeVar("P")
A = TypeVar("A")


@dataclass(slots=True)
class _Activity:
    """An activity that somebody wants, until it is answered."""

    execution_id: str
    request: ActivityRequest
    visible_at: int
    attempt: int = 1
    epoch: int = 0
    leased_until: int | None = None
    deliveries: int = 0
    dead: str | None = None


@dataclass(slots=True)
class _Row:
    """An instance with all that belongs to it."""

    instance: r.Instance
    log: list[events.Event]
    inbox: dict[int, tuple[int, Entry]] = field(default_factory=dict)
    activities: dict[int, _Activity] = field(default_factory=dict)
    ready: bool = True
    wake: int = 0
    epoch: int = 0
    leased_until: int | None = None
    deliveries: int = 0
    tried_by: set[str] = field(default_factory=set)

    def news(self, since: int) -> tuple[Entry, ...]:
        return tuple(entry for wake, entry in self.inbox.values() if wake > since)


class MemoryStore:
    """A store in the memory of this process."""

    def __init__(self, clock: Clock, *, lease: int = 10_000) -> None:
        self._clock = clock
        self._lease = lease
        self._rows: dict[str, _Row] = {}
        self._current: dict[str, list[str]] = defaultdict(list)
        self._ready: dict[str, None] = {}
        self._parked: dict[str, None] = {}
        self._queued: dict[tuple[str, int], None] = {}
        # What becomes due: (moment, execution, activity or 0). Entries are hints; the row itself is asked again.
        self._due: list[tuple[int, str, int]] = []
        self._next_id = 0
        self._waiting: list[tuple[r.Watch, asyncio.Future[bool]]] = []
        self._alarm: Callable[[], None] | None = None

    # Store.

    async def create(self, parts: Sequence[r.Creation]) -> Sequence[r.Created | r.Exists]:
        """Begin executions."""
        return self._each(self._create, parts)

    def _create(self, part: r.Creation) -> r.Created | r.Exists:
        started = part.started
        known = [self._rows[execution].instance for execution in self._current[started.entity_id]]
        for instance in known:
            if instance.run_id == started.run_id:
                return r.Created(instance=instance)
        if known and (part.attach or not known[-1].status.terminal):
            return r.Exists(instance=known[-1])
        instance = r.Instance.of(started)
        self._rows[instance.execution_id] = _Row(instance, [started])
        self._current[started.entity_id].append(instance.execution_id)
        self._ready[instance.execution_id] = None
        return r.Created(instance=instance)

    async def deliver(self, parts: Sequence[r.Delivery]) -> Sequence[r.Delivered | r.Missing | r.Ended]:
        """Put events into inboxes."""
        return self._each(self._deliver, parts)

    def _deliver(self, part: r.Delivery) -> r.Delivered | r.Missing | r.Ended:
        execution_id = part.execution_id or next(reversed(self._current.get(part.entity_id, [])), None)
        row = self._rows.get(execution_id or "")
        if row is None:
            return r.Missing()
        if row.instance.status.terminal:
            return r.Ended(status=row.instance.status)
        self._put(row, part.event)
        return r.Delivered()

    async def claim(self, worker: str, queues: Sequence[str], limit: int) -> Sequence[r.Claim]:
        """Lease instances that are ready."""
        claimable = list(self._claimable(worker, queues))
        claims = [claim for row in claimable[:limit] if (claim := self._claim(row)) is not None]
        self._changed()
        return claims

    def _claim(self, row: _Row) -> r.Claim | None:
        execution_id = row.instance.execution_id
        self._ready.pop(execution_id, None)
        row.ready = False
        if row.deliveries >= REDELIVERIES:
            dead = f"handed out {row.deliveries} times without a commit"
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

    async def commit(self, parts: Sequence[r.Commit]) -> Sequence[r.Committed | r.Refused]:
        """Apply outcomes."""
        return self._each(self._commit, parts)

    def _commit(self, part: r.Commit) -> r.Committed | r.Refused:
        row = self._held(part.execution_id, part.epoch)
        if isinstance(row, r.Refused):
            return row
        if row.instance.last_seq != part.base_seq:
            return r.Refused(reason=f"the log is at {row.instance.last_seq}, not at {part.base_seq}")
        outcome = part.outcome
        row.log += outcome.events
        for entry_id in outcome.consumed:
            row.inbox.pop(entry_id, None)
        for request in outcome.activities:
            self._schedule(row, _Activity(part.execution_id, request, visible_at=self._clock.now()))
        for withdrawal in outcome.withdrawals:
            self._withdraw(row, withdrawal)
        row.deliveries = 0
        row.instance = self._after(row.instance, part)
        self._park(row, part)
        news = row.news(part.wake)
        if part.release:
            self._let_go(row, ready=row.wake != part.wake)
        return r.Committed(wake=row.wake, inbox=() if part.release else news)

    def _withdraw(self, row: _Row, withdrawal: Withdrawal) -> None:
        activity = row.activities.get(withdrawal.ref)
        if activity is not None and (withdrawal.answered or activity.leased_until is None):
            self._drop(row, withdrawal.ref)
            if withdrawal.entry is not None:
                # This raises the counter too, so that the instance hears of it.
                self._put(row, withdrawal.entry)

    def _park(self, row: _Row, part: r.Commit) -> None:
        """Remember who has tried a run that diverged; code that fits takes it out of the list."""
        if part.outcome.status is Status.DIVERGED:
            row.tried_by.add(part.worker)
            self._parked[part.execution_id] = None
        elif part.execution_id in self._parked:
            del self._parked[part.execution_id]
            row.tried_by.clear()

    def _after(self, instance: r.Instance, part: r.Commit) -> r.Instance:
        outcome = part.outcome
        diagnoses = [entry.diagnosis for entry in outcome.events if isinstance(entry, events.WorkflowDiverged)]
        parked = next(reversed(diagnoses), instance.parked) if outcome.status is Status.DIVERGED else None
        closed_at = instance.closed_at or (self._clock.now() if outcome.status.terminal else None)
        return msgspec.structs.replace(
            instance,
            status=outcome.status,
            closed_at=closed_at,
            deactivated=outcome.deactivated,
            last_seq=instance.last_seq + len(outcome.events),
            wake_at=outcome.wake_at,
            parked=parked,
        )

    async def extend(self, leases: Sequence[r.Lease]) -> Sequence[r.Extended | r.Refused]:
        """Renew leases."""
        return self._each(self._extend, leases)

    def _extend(self, lease: r.Lease) -> r.Extended | r.Refused:
        held = self._holder(lease)
        if isinstance(held, r.Refused):
            return held
        held.leased_until = self._clock.now() + self._lease
        self._remind(held.leased_until, lease.execution_id, lease.ref or 0)
        # It may have run out and been offered to others already; nobody took it.
        if isinstance(held, _Activity):
            self._queued.pop((lease.execution_id, held.request.ref), None)
            return r.Extended()
        held.ready = False
        self._ready.pop(lease.execution_id, None)
        return r.Extended(wake=held.wake, inbox=held.news(lease.wake))

    async def release(self, parts: Sequence[r.Release]) -> Sequence[r.Released | r.Refused]:
        """Give leases back."""
        return self._each(self._release, parts)

    def _release(self, part: r.Release) -> r.Released | r.Refused:
        held = self._holder(part.lease)
        if isinstance(held, r.Refused):
            return held
        if part.failed is None:
            held.deliveries -= 1
        if isinstance(held, _Activity):
            held.leased_until = None
            self._queued[part.lease.execution_id, held.request.ref] = None
        else:
            self._let_go(held, ready=True)
        return r.Released()

    async def claim_activities(self, worker: str, queues: Sequence[str], limit: int) -> Sequence[r.ActivityTask]:
        """Lease activities whose time has come."""
        claimable = list(self._claimable_activities(queues))
        tasks = [task for activity in claimable[:limit] if (task := self._claim_activity(activity)) is not None]
        self._changed()
        return tasks

    def _claim_activity(self, activity: _Activity) -> r.ActivityTask | None:
        del self._queued[activity.execution_id, activity.request.ref]
        if activity.deliveries >= REDELIVERIES:
            activity.dead = f"handed out {activity.deliveries} times without an answer"
            activity.leased_until = None
            return None
        activity.deliveries += 1
        activity.epoch += 1
        activity.leased_until = self._clock.now() + self._lease
        self._remind(activity.leased_until, activity.execution_id, activity.request.ref)
        return r.ActivityTask(
            execution_id=activity.execution_id,
            workflow_id=self._rows[activity.execution_id].instance.entity_id,
            epoch=activity.epoch,
            attempt=activity.attempt,
            deliveries=activity.deliveries - 1,
            request=activity.request,
        )

    async def complete_activities(self, parts: Sequence[r.ActivityResult]) -> Sequence[r.Accepted | r.Refused]:
        """Tell instances what became of their activities."""
        return self._each(self._complete, parts)

    def _complete(self, part: r.ActivityResult) -> r.Accepted | r.Refused:
        held = self._holder(r.Lease(execution_id=part.execution_id, epoch=part.epoch, ref=part.event.ref))
        if isinstance(held, r.Refused):
            return held
        assert isinstance(held, _Activity)
        row = self._rows[part.execution_id]
        self._drop(row, part.event.ref)
        if isinstance(part.event, events.ActivityRetryScheduled):
            again = _Activity(part.execution_id, held.request, part.event.next_at, held.attempt + 1, held.epoch)
            self._schedule(row, again)
        self._put(row, part.event)
        return r.Accepted()

    async def read(self, execution_id: str, after: int = 0) -> Sequence[events.Event]:
        """Return the log beyond *after*."""
        row = self._rows.get(execution_id)
        return [] if row is None else row.log[after:]

    async def wait(self, watch: r.Watch, until: int | None = None) -> bool:
        """Return True once what is watched for is there."""
        if self._is_there(watch):
            return True
        if until is not None and until <= self._clock.now():
            return False
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((watch, waiter))
        self._set_alarm()
        call_off = self._clock.call_at(until, lambda: _settle(waiter, there=False)) if until is not None else None
        try:
            return await waiter
        finally:
            self._waiting = [(w, f) for w, f in self._waiting if f is not waiter]
            if call_off is not None:
                call_off()

    async def purge(self, execution_ids: Sequence[str]) -> Sequence[r.Purged | r.Missing | r.Unfinished]:
        """Remove ended executions."""
        return self._each(self._purge, execution_ids)

    def _purge(self, execution_id: str) -> r.Purged | r.Missing | r.Unfinished:
        row = self._rows.get(execution_id)
        if row is None:
            return r.Missing()
        if not row.instance.status.terminal:
            return r.Unfinished(status=row.instance.status)
        for ref in list(row.activities):
            self._drop(row, ref)
        self._ready.pop(execution_id, None)
        self._current[row.instance.entity_id].remove(execution_id)
        del self._rows[execution_id]
        return r.Purged()

    async def close(self) -> None:
        """Wake whoever still waits."""
        for _, waiter in self._waiting:
            _settle(waiter, there=False)
        if self._alarm is not None:
            self._alarm()

    # Inspector.

    async def get(self, entity_id: str, run_id: str | None = None) -> r.Instance | None:
        """Return the newest execution of an entity, or the one of a run."""
        known = [self._rows[execution].instance for execution in self._current.get(entity_id, [])]
        return next((i for i in reversed(known) if run_id in (None, i.run_id)), None)

    async def list(self, query: r.Query) -> r.Page:
        """Return a page of instances, newest first."""
        ordered = sorted((row.instance for row in self._rows.values()), key=lambda i: i.cursor, reverse=True)
        found = [instance for instance in ordered if query.fits(instance)]
        page = tuple(found[: query.limit])
        return r.Page(instances=page, cursor=page[-1].cursor if len(found) > len(page) > 0 else None)

    async def history(self, execution_id: str) -> Sequence[events.Event]:
        """Return the log of an execution."""
        return list(await self.read(execution_id))

    async def stats(self) -> r.Stats:
        """Return the counts."""
        statuses: dict[str, int] = defaultdict(int)
        ready: dict[str, int] = defaultdict(int)
        queued: dict[str, int] = defaultdict(int)
        claimed: dict[str, int] = defaultdict(int)
        for row in self._rows.values():
            statuses[row.instance.status] += 1
            ready[row.instance.queue] += row.ready and row.instance.dead is None
        activities = [activity for row in self._rows.values() for activity in row.activities.values()]
        for activity in activities:
            (queued if activity.leased_until is None else claimed)[activity.request.queue] += activity.dead is None
        return r.Stats(
            instances=dict(statuses),
            queues={
                queue: r.QueueStats(instances=ready[queue], activities=queued[queue], claimed_activities=claimed[queue])
                for queue in sorted(ready.keys() | queued.keys() | claimed.keys())
            },
            dead_activities=sum(activity.dead is not None for activity in activities),
            dead_instances=sum(row.instance.dead is not None for row in self._rows.values()),
        )

    # What is behind the verbs.

    def _each(self, verb: Callable[[P], A], parts: Sequence[P]) -> Sequence[A]:
        answers = [verb(part) for part in parts]
        self._changed()
        return answers

    def _holder(self, lease: r.Lease) -> "_Row | _Activity | r.Refused":
        if lease.ref is None:
            return self._held(lease.execution_id, lease.epoch)
        row = self._rows.get(lease.execution_id)
        activity = None if row is None else row.activities.get(lease.ref)
        if activity is None:
            return r.Refused(reason="the activity is answered or withdrawn")
        if activity.epoch != lease.epoch or activity.leased_until is None:
            return r.Refused(reason="the lease of the activity is lost")
        return activity

    def _held(self, execution_id: str, epoch: int) -> "_Row | r.Refused":
        row = self._rows.get(execution_id)
        if row is None:
            return r.Refused(reason="there is no such instance")
        if row.epoch != epoch or row.leased_until is None:
            return r.Refused(reason="the lease is lost")
        return row

    def _let_go(self, row: _Row, *, ready: bool) -> None:
        row.leased_until = None
        row.ready = False
        self._ready.pop(row.instance.execution_id, None)
        if ready:
            self._make_ready(row)
        elif row.instance.wake_at is not None:
            self._remind(row.instance.wake_at, row.instance.execution_id)

    def _put(self, row: _Row, event: events.Event) -> None:
        self._next_id += 1
        row.wake += 1
        row.inbox[self._next_id] = (row.wake, Entry(self._next_id, event))
        if row.leased_until is None:
            self._make_ready(row)

    def _make_ready(self, row: _Row) -> None:
        row.ready = True
        if row.instance.execution_id not in self._parked and row.instance.dead is None:
            self._ready[row.instance.execution_id] = None

    def _schedule(self, row: _Row, activity: _Activity) -> None:
        row.activities[activity.request.ref] = activity
        if activity.visible_at <= self._clock.now():
            self._queued[activity.execution_id, activity.request.ref] = None
        else:
            self._remind(activity.visible_at, activity.execution_id, activity.request.ref)

    def _drop(self, row: _Row, ref: int) -> None:
        del row.activities[ref]
        self._queued.pop((row.instance.execution_id, ref), None)

    def _claimable(self, worker: str, queues: Sequence[str]) -> Iterator[_Row]:
        self._bring_up()
        now = self._clock.now()
        for execution_id in (*self._ready, *self._parked):
            row = self._rows[execution_id]
            free = row.leased_until is None or row.leased_until <= now
            if row.instance.queue in queues and free and worker not in row.tried_by:
                yield row

    def _claimable_activities(self, queues: Sequence[str]) -> Iterator[_Activity]:
        self._bring_up()
        for execution_id, ref in self._queued:
            activity = self._rows[execution_id].activities[ref]
            if activity.request.queue in queues:
                yield activity

    def _remind(self, when: int, execution_id: str, ref: int = 0) -> None:
        heapq.heappush(self._due, (when, execution_id, ref))

    def _bring_up(self) -> None:
        """Make ready whatever has become due: deadlines, leases that ran out, activities to be tried again."""
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

    def _bring_up_instance(self, row: _Row, now: int) -> None:
        # A lease that has run out is offered to others, but its holder may use it until somebody takes it.
        expired = row.leased_until is not None and row.leased_until <= now
        waking = row.instance.wake_at is not None and row.instance.wake_at <= now
        if expired or (waking and row.leased_until is None):
            self._make_ready(row)

    def _bring_up_activity(self, activity: _Activity, now: int) -> None:
        until = activity.leased_until if activity.leased_until is not None else activity.visible_at
        if until <= now and activity.dead is None:
            self._queued[activity.execution_id, activity.request.ref] = None

    def _is_there(self, watch: r.Watch) -> bool:
        match watch:
            case r.Work():
                return (watch.instances and any(True for _ in self._claimable(watch.worker, watch.queues))) or (
                    watch.activities and any(True for _ in self._claimable_activities(watch.queues))
                )
            case r.Closing():
                row = self._rows.get(watch.execution_id)
                return row is None or row.instance.status.terminal or (watch.parked and row.instance.parked is not None)
            case r.News():
                row = self._rows.get(watch.execution_id)
                return row is None or row.wake > watch.wake
            case _:
                assert_never(watch)

    def _changed(self) -> None:
        """Tell the waiters whose moment it is."""
        for watch, waiter in self._waiting:
            if self._is_there(watch):
                _settle(waiter, there=True)
        self._set_alarm()

    def _set_alarm(self) -> None:
        """Have the waiters looked after again when the next thing becomes due."""
        if self._alarm is not None:
            self._alarm()
            self._alarm = None
        self._bring_up()
        if self._due and self._waiting:
            self._alarm = self._clock.call_at(self._due[0][0], self._changed)


def _settle(waiter: asyncio.Future[bool], *, there: bool) -> None:
    if not waiter.done():
        waiter.set_result(there)
