"""The reference implementation, the one to read first: everything in dictionaries, gone with the process.

Each verb runs without giving way to other tasks, so it is atomic by itself. Two rules carry the rest:

- *fencing*: a claim raises the ``epoch`` of its row; whoever names another epoch has lost the lease;
- *no lost wake-up*: whatever enters an inbox raises the ``wake`` counter; a commit makes the row ready again exactly
  if the counter is not the one its claim saw.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TypeVar, assert_never

import msgspec

from resurgam.core import event as events
from resurgam.core.clock import Clock
from resurgam.core.outcome import Withdrawal
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.arriving import sort_out
from resurgam.store.memory_reading import MemoryReading
from resurgam.store.memory_rows import MemoryRows
from resurgam.store.protocol import REDELIVERIES
from resurgam.store.rows import ActivityRow, Row
from resurgam.store.waiting import Waiting

P = TypeVar("P")
A = TypeVar("A")


class MemoryStore(MemoryRows):
    """A store in the memory of this process."""

    def __init__(self, clock: Clock, *, lease: int = 10_000) -> None:
        super().__init__(clock)
        self._lease = lease
        self._reading = MemoryReading(self._rows, self._current)
        self._waiting = Waiting(clock, lambda watches: map(self._is_there, watches))

    # Store.

    async def create(self, parts: Sequence[r.Creation]) -> Sequence[r.Created | r.Exists]:
        """Begin executions."""
        return self._each(self._create, parts)

    def _create(self, part: r.Creation) -> r.Created | r.Exists:
        started = part.started
        known = [self._rows[execution].instance for execution in self._current[started.entity_id]]
        for instance in known:
            if (instance.run_id, instance.attempt) == (started.run_id, started.attempt):
                return r.Created(instance=instance)
        if known and (part.attach or not known[-1].status.terminal):
            return r.Exists(instance=known[-1])
        instance = r.Instance.of(started)
        self._rows[instance.execution_id] = Row(instance, {started.seq: started})
        self._current[started.entity_id].append(instance.execution_id)
        self._ready[instance.execution_id] = None
        claim = self._claim_at_once(self._rows[instance.execution_id], part.offer)
        return r.Created(instance=instance, claim=claim and msgspec.structs.replace(claim, log=(started,)))

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
        if isinstance(part.event, events.WorkflowTerminated):
            self._terminate(row, part.event)
        else:
            self._put(row, part.event)
            return r.Delivered(claim=self._claim_at_once(row, part.offer))
        return r.Delivered()

    def _terminate(self, row: Row, event: events.WorkflowTerminated) -> None:
        """End an instance whatever its code does; a new epoch fences whoever holds it."""
        at = max([self._clock.now(), *(entry.at for entry in row.kept()[-1:])])
        row.append([msgspec.structs.replace(event, seq=row.instance.last_seq + 1, at=at)])
        row.epoch += 1
        row.instance = msgspec.structs.replace(
            row.instance,
            status=Status.TERMINATED,
            closed_at=self._clock.now(),
            last_seq=row.instance.last_seq + 1,
            wake_at=None,
            parked=None,
            dead=None,
        )
        row.deliveries = 0
        row.tried_by.clear()
        self._parked.pop(row.instance.execution_id, None)
        self._touched.add(row.instance.execution_id)
        self._let_go(row, ready=True)

    async def revive(self, execution_ids: Sequence[str]) -> Sequence[r.Revived | r.Missing]:
        """Hand out again what was put aside."""
        return self._each(self._revive, execution_ids)

    def _revive(self, execution_id: str) -> r.Revived | r.Missing:
        row = self._rows.get(execution_id)
        if row is None:
            return r.Missing()
        count = int(row.instance.dead is not None or row.instance.parked is not None)
        if count:
            row.instance = msgspec.structs.replace(row.instance, dead=None)
            row.deliveries = 0
            row.tried_by.clear()
            if row.instance.status is Status.DIVERGED:
                self._parked[execution_id] = None
            self._make_ready(row)
        for activity in row.activities.values():
            if activity.dead is not None:
                activity.dead, activity.deliveries = None, 0
                self._queued[execution_id, activity.request.ref] = None
                count += 1
        return r.Revived(count=count)

    async def adopt(self, parts: Sequence[r.Adoption]) -> Sequence[r.Adopted | r.Exists]:
        """Take in executions from another store."""
        return self._each(self._adopt, parts)

    def _adopt(self, part: r.Adoption) -> r.Adopted | r.Exists:
        arriving = sort_out(part, self._reading.find, self._reading.executions_of)
        if isinstance(arriving, r.Exists):
            return arriving
        for copy in arriving.copies:
            self._take_in(copy)
        self._current.update(arriving.orders)
        return arriving.answer

    def _take_in(self, copy: r.Copy) -> None:
        execution_id = copy.instance.execution_id
        row = self._rows[execution_id] = Row(copy.instance, {entry.seq: entry for entry in copy.log}, ready=False)
        row.forget(copy.forgotten)
        if copy.instance.status is Status.DIVERGED and copy.instance.dead is None:
            self._parked[execution_id] = None
        for event in copy.inbox:
            self._put(row, event)
        for pending in copy.activities:
            activity = ActivityRow(execution_id, **msgspec.structs.asdict(pending))
            self._schedule(row, activity)
        if copy.ready:
            self._make_ready(row)

    async def claim(self, worker: str, queues: Sequence[str], limit: int) -> Sequence[r.Claim]:
        """Lease instances that are ready."""
        self._bring_up()
        claimable = list(islice(self._claimable(worker, queues), limit))
        claims = [claim for row in claimable if (claim := self._claim(row)) is not None]
        self._changed()
        return claims

    def _claim_at_once(self, row: Row, offer: r.Offer | None) -> r.Claim | None:
        """Lease what was made ready to the worker that offers itself, unless older work waits in its queue."""
        if offer is None or row.instance.queue not in offer.queues or row.leased_until is not None:
            return None
        fits = row.instance.status is Status.RUNNING and row.instance.dead is None and row.deliveries < REDELIVERIES
        older = (
            execution_id
            for execution_id in self._ready
            if execution_id != row.instance.execution_id
            and self._rows[execution_id].instance.queue == row.instance.queue
        )
        if not fits or offer.worker in row.tried_by or next(older, None) is not None:
            return None
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
        row.append(outcome.events)
        row.forget(outcome.forgotten)
        row.drop(outcome.dropped)
        for entry_id in outcome.consumed:
            row.inbox.pop(entry_id, None)
        tasks = self._dispatch(row, part)
        for entry in outcome.events:
            # What the worker that held the instance answered itself; answers from the inbox have no row any more.
            if isinstance(entry, events.ActivityCompleted | events.ActivityFailed) and entry.ref in row.activities:
                self._drop(row, entry.ref)
        for withdrawal in outcome.withdrawals:
            self._withdraw(row, withdrawal)
        row.deliveries = 0
        row.last_failure = ""
        row.settle(part.outcome, self._clock.now())
        self._touched.add(part.execution_id)
        self._park(row, part)
        news = row.news(part.wake)
        if part.release and not tasks:
            self._let_go(row, ready=row.wake != part.wake)
            return r.Committed(wake=row.wake)
        return r.Committed(wake=row.wake, inbox=news, tasks=tasks)

    def _dispatch(self, row: Row, part: r.Commit) -> tuple[r.ActivityTask, ...]:
        """Put activities on their queues, and hand out as many as the worker has free hands for."""
        older = {self._rows[execution].activities[ref].request.queue for execution, ref in self._queued}
        tasks: list[r.ActivityTask] = []
        for request in part.outcome.activities:
            activity = ActivityRow(part.execution_id, request, visible_at=self._clock.now())
            self._schedule(row, activity)
            if len(tasks) < part.hands and request.queue in part.queues and request.queue not in older:
                task = self._claim_activity(activity)
                assert task is not None
                tasks.append(task)
            else:
                activity.epoch = 1  # whoever claims it later has another: this one is the commit's own
        return tuple(tasks)

    def _withdraw(self, row: Row, withdrawal: Withdrawal) -> None:
        activity = row.activities.get(withdrawal.ref)
        if activity is not None and (withdrawal.answered or activity.leased_until is None):
            self._drop(row, withdrawal.ref)
            if withdrawal.entry is not None:
                # This raises the counter too, so that the instance hears of it.
                self._put(row, withdrawal.entry)

    def _park(self, row: Row, part: r.Commit) -> None:
        """Remember who has tried a run that diverged; code that fits takes it out of the list."""
        if part.outcome.status is Status.DIVERGED:
            row.tried_by.add(part.worker)
            self._parked[part.execution_id] = None
        else:
            # Who has tried it in vain stays on the list: their code does not fit, now or later.
            self._parked.pop(part.execution_id, None)

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
        if isinstance(held, ActivityRow):
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
            held.deliveries = max(0, held.deliveries - 1)
        if isinstance(held, ActivityRow):
            held.leased_until = None
            self._queued[part.lease.execution_id, held.request.ref] = None
        else:
            held.last_failure = f"; the last error: {part.failed}" if part.failed else ""
            self._let_go(held, ready=True)
        return r.Released()

    async def claim_activities(self, worker: str, queues: Sequence[str], limit: int) -> Sequence[r.ActivityTask]:
        """Lease activities whose time has come."""
        self._bring_up()
        claimable = list(islice(self._claimable_activities(queues), limit))
        tasks = [task for activity in claimable if (task := self._claim_activity(activity)) is not None]
        self._changed()
        return tasks

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
        )

    async def complete_activities(self, parts: Sequence[r.ActivityResult]) -> Sequence[r.Accepted | r.Refused]:
        """Tell instances what became of their activities."""
        return self._each(self._complete, parts)

    def _complete(self, part: r.ActivityResult) -> r.Accepted | r.Refused:
        held = self._holder(r.Lease(execution_id=part.execution_id, epoch=part.epoch, ref=part.event.ref))
        if isinstance(held, r.Refused):
            return held
        assert isinstance(held, ActivityRow)
        row = self._rows[part.execution_id]
        self._drop(row, part.event.ref)
        if isinstance(part.event, events.ActivityRetryScheduled):
            again = ActivityRow(part.execution_id, held.request, part.event.next_at, held.attempt + 1, held.epoch)
            self._schedule(row, again)
        self._put(row, part.event)
        return r.Accepted()

    async def read(self, execution_id: str, after: int = 0) -> Sequence[events.Event]:
        """Return the log beyond *after*."""
        row = self._rows.get(execution_id)
        return [] if row is None else [entry for seq, entry in row.log.items() if seq > after]

    async def wait(self, watch: r.Watch, until: int | None = None) -> bool:
        """Return True once what is watched for is there."""
        self._bring_up()
        self._changed()  # what was brought up now, others may have waited for
        return await self._waiting.wait(watch, until)

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
        if not self._current[row.instance.entity_id]:
            del self._current[row.instance.entity_id]
        del self._rows[execution_id]
        self._touched.add(execution_id)
        return r.Purged()

    def twin(self) -> None:
        """Return nothing: what is in this memory belongs to one thread."""

    async def close(self) -> None:
        """Refuse everything from now on, and tell whoever still waits."""
        self._closed = True
        self._waiting.close()

    # Inspector.

    async def get(self, entity_id: str, run_id: str | None = None) -> r.Instance | None:
        """Return the newest execution of an entity, or the one of a run."""
        self._bring_up()
        return self._reading.get(entity_id, run_id)

    async def list(self, query: r.Query) -> r.Page:
        """Return a page of instances, newest first."""
        self._bring_up()
        return self._reading.list(query)

    async def history(
        self, execution_id: str, last: int | None = None, *, forgotten: bool = False
    ) -> Sequence[events.Event]:
        """Return the log of an execution, or its last entries."""
        return self._reading.history(execution_id, last, forgotten=forgotten)

    async def copies(self, entity_id: str, run_id: str | None = None) -> Sequence[r.Copy]:
        """Return everything that is kept of an entity's executions, oldest first."""
        self._bring_up()
        return self._reading.copies(entity_id, run_id)

    async def stats(self) -> r.Stats:
        """Return the counts."""
        self._bring_up()
        return self._reading.stats()

    # What is behind the verbs.

    def _each(self, verb: Callable[[P], A], parts: Sequence[P]) -> Sequence[A]:
        self._bring_up()
        answers = [verb(part) for part in parts]
        self._changed()
        return answers

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

    def _is_there(self, watch: r.Watch) -> bool:
        match watch:
            case r.Work():
                return (watch.instances and any(True for _ in self._claimable(watch.worker, watch.queues))) or (
                    watch.activities and any(True for _ in self._claimable_activities(watch.queues))
                )
            case r.Closing():
                row = self._rows.get(watch.execution_id)
                return row is None or row.instance.status.terminal
            case r.News():
                row = self._rows.get(watch.execution_id)
                return row is None or row.wake > watch.wake
            case _:
                assert_never(watch)

    def _changed(self) -> None:
        """Tell the waiters whose moment it is, and have them looked after again when the next thing becomes due."""
        touched, self._touched = self._touched, set()
        self._waiting.look(touched)
        self._set_alarm()

    def _set_alarm(self) -> None:
        self._waiting.set_alarm(self._due[0][0] if self._due else None, self._ring)

    def _ring(self) -> None:
        self._waiting.rang()
        if not self._closed:
            self._bring_up()
            self._changed()
