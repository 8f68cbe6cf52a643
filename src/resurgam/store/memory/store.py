"""The reference implementation, the one to read first: everything in dictionaries, gone with the process.

Each verb runs without giving way to other tasks, so it is atomic by itself. Two rules carry the rest:

- *fencing*: a claim raises the ``epoch`` of its row; whoever names another epoch has lost the lease;
- *no lost wake-up*: whatever enters an inbox raises the ``wake`` counter; a commit makes the row ready again exactly
  if the counter is not the one its claim saw.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from secrets import token_bytes
from typing import Final, TypeVar, assert_never

import msgspec

from resurgam.core import event as events
from resurgam.core.clock import Clock
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.adoption import sort_out
from resurgam.store.memory.outbox import MemoryOutbox
from resurgam.store.memory.queries import Questions
from resurgam.store.memory.reading import MemoryReading
from resurgam.store.rows import ActivityRow, Row
from resurgam.store.rules import overtakes
from resurgam.store.watches import Waiting, reply_to

P = TypeVar("P")
A = TypeVar("A")

_NOBODY: Final = ""
"""No execution has this id; at a moment that is its, whoever waits is only asked again."""


class MemoryStore(MemoryOutbox):
    """A store in the memory of this process."""

    def __init__(self, clock: Clock, *, lease: int = 10_000) -> None:
        super().__init__(clock, lease=lease)
        self._questions = Questions()
        self._secret = token_bytes(32)
        self._reading = MemoryReading(self._rows, self._current)
        self._waiting = Waiting(clock, lambda watches: map(self._is_there, watches))

    # Store.

    async def create(self, parts: Sequence[r.Creation]) -> Sequence[r.Created | r.Exists]:
        """Begin executions."""
        return self._each(self._create, parts)

    async def deliver(self, parts: Sequence[r.Delivery]) -> Sequence[r.Delivered | r.Missing | r.Ended | r.Settled]:
        """Put events into inboxes."""
        return self._each(self._deliver, parts)

    async def ask(self, parts: Sequence[r.QueryTask]) -> Sequence[r.Asked | r.Missing]:
        """Have questions answered."""
        return self._each(self._ask, parts)

    def _ask(self, question: r.QueryTask) -> r.Asked | r.Missing:
        if question.execution_id not in self._rows:
            return r.Missing()
        self._questions.ask(question, self._clock.now())
        return r.Asked()

    async def claim_questions(self, worker: str, queues: Sequence[str], limit: int) -> Sequence[r.QueryTask]:
        """Return questions that nobody else has in hand."""
        self._bring_up()
        now = self._clock.now()
        questions = list(islice(self._questions.waiting(queues, now), limit))
        self._questions.lease(questions, now + self._lease)
        if questions:
            self._remind(now + self._lease, _NOBODY)
        self._changed()
        return questions

    async def answer(self, parts: Sequence[r.QueryResult]) -> None:
        """QueryResult to questions."""
        self._each(self._answer, parts)

    def _answer(self, reply: r.QueryResult) -> None:
        self._questions.answer(reply, self._clock.now())
        self._touched.add(reply_to(reply.question_id))

    async def secret(self) -> bytes:
        """Return what was made with this object."""
        return self._secret

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
        arriving = sort_out(part, self._reading.find, self._reading.executions_of, self._holder_of)
        if isinstance(arriving, r.Exists):
            return arriving
        for copy in arriving.copies:
            self._take_in(copy)
        self._current.update(arriving.orders)
        return arriving.answer

    def _holder_of(self, promise_id: str) -> r.Instance | None:
        return self._reading.find(self._promises.get(promise_id, ""))

    def _take_in(self, copy: r.Copy) -> None:
        execution_id = copy.instance.execution_id
        row = self._rows[execution_id] = Row(copy.instance, {entry.seq: entry for entry in copy.log}, ready=False)
        row.forget(copy.forgotten)
        row.paused = copy.paused
        for promise in copy.promises:
            self._keep(row, promise)
        if copy.instance.status is Status.DIVERGED and copy.instance.dead is None:
            self._parked[execution_id] = None
        for event in copy.inbox:
            self._put(row, event)
        for pending in copy.activities:
            activity = ActivityRow(execution_id, **msgspec.structs.asdict(pending))
            self._schedule(row, activity)
        self._let_go(row, ready=copy.ready)

    async def claim(self, worker: str, queues: Sequence[str], limit: int) -> Sequence[r.Claim]:
        """Lease instances that are ready."""
        self._bring_up()
        claimable = list(islice(self._claimable(worker, queues), limit))
        claims = [claim for row in claimable if (claim := self._claim(row)) is not None]
        for row in claimable:
            row.worker = worker
        self._changed()
        return claims

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
        if outcome.strict and overtakes(row.news(part.wake)):
            return r.Refused(reason=r.NEWS)
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
        paused = row.paused
        row.settle(part.outcome, self._clock.now())
        self._grown(row)
        self._park(row, part)
        self._send_out(row, outcome, paused)
        news = row.news(part.wake)
        if row.epoch != part.epoch:  # it has ended itself, by a message
            return r.Committed(wake=row.wake, tasks=tasks)
        if part.release and not tasks:
            self._let_go(row, ready=row.wake != part.wake)
            return r.Committed(wake=row.wake)
        return r.Committed(wake=row.wake, inbox=news, tasks=tasks)

    def _park(self, row: Row, part: r.Commit) -> None:
        """Remember who has tried a run that diverged; code that fits takes it out of the list."""
        if part.outcome.status is Status.DIVERGED:
            row.tried_by.add(part.worker)
            self._parked[part.execution_id] = None
            self._ready.pop(part.execution_id, None)
        else:
            # Who has tried it in vain stays on the list: their code does not fit, now or later.
            self._parked.pop(part.execution_id, None)
            self._show(row)  # its lease may have run out while it was parked

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
            held.details = held.details if lease.details is None else lease.details
            held.heartbeat_at = held.heartbeat_at if lease.heartbeat_at is None else lease.heartbeat_at
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
            if part.final:
                held.dead = part.failed
            else:
                self._queued[part.lease.execution_id, held.request.ref] = None
        else:
            held.last_failure = f"; the last error: {part.failed}" if part.failed else ""
            if part.final:
                held.instance = msgspec.structs.replace(held.instance, dead=part.failed)
                self._parked.pop(part.lease.execution_id, None)
            self._let_go(held, ready=not part.final)
        return r.Released()

    async def claim_activities(self, worker: str, queues: Sequence[str], limit: int) -> Sequence[r.ActivityTask]:
        """Lease activities whose time has come."""
        self._bring_up()
        claimable = list(islice(self._claimable_activities(queues), limit))
        tasks = [task for activity in claimable if (task := self._claim_activity(activity)) is not None]
        for activity in claimable:
            activity.worker = worker
        self._changed()
        return tasks

    async def complete_activities(self, parts: Sequence[r.ActivityResult]) -> Sequence[r.Accepted | r.Refused]:
        """Tell instances what became of their activities."""
        return self._each(self._complete, parts)

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
            return r.Unfinished(status=row.shown().status)
        for ref in list(row.activities):
            self._drop(row, ref)
        for promise_id in row.promises:
            del self._promises[promise_id]
        self._ready.pop(execution_id, None)
        self._current[row.instance.entity_id].remove(execution_id)
        if not self._current[row.instance.entity_id]:
            del self._current[row.instance.entity_id]
        del self._rows[execution_id]
        self._touched |= {reply_to(question_id) for question_id in self._questions.purge(execution_id)}
        self._grown(row)
        return r.Purged()

    def twin(self) -> None:
        """Return nothing: what is in this memory belongs to one thread."""

    async def close(self) -> None:
        """Refuse everything from now on, and tell whoever still waits."""
        self._lifetime.end()
        self._waiting.close()

    # Inspector.

    async def get(
        self, entity_id: str, run_id: str | None = None, *, execution_id: str | None = None
    ) -> r.Instance | None:
        """Return the newest execution of an entity, or the newest of a run, or the one with this id."""
        self._bring_up()
        return self._reading.get(entity_id, run_id, execution_id)

    async def list(self, query: r.Query) -> r.Page:
        """Return a page of instances, newest first."""
        self._bring_up()
        return self._reading.list(query)

    async def ended(self, query: r.EndedQuery) -> Sequence[r.Instance]:
        """Return ended executions, those first that ended first."""
        self._bring_up()
        return self._reading.ended(query)

    async def history(
        self, execution_id: str, last: int | None = None, *, forgotten: bool = False
    ) -> Sequence[events.Event]:
        """Return the log of an execution, or its last entries."""
        return self._reading.history(execution_id, last, forgotten=forgotten)

    async def open_work(self, execution_id: str) -> r.OpenWork | None:
        """Return what an execution has under way that its log does not show."""
        self._bring_up()
        return self._reading.open_work(execution_id)

    async def promise(self, to: r.Delivery) -> r.HeldPromise | None:
        """Return the promise that a delivery is addressed to."""
        self._bring_up()
        row, promise = self._meant(to)
        return None if row is None or promise is None else r.HeldPromise(promise=promise, instance=row.seen())

    async def copies(self, entity_id: str, run_id: str | None = None) -> Sequence[r.Copy]:
        """Return everything that is kept of an entity's executions, oldest first."""
        self._bring_up()
        return self._reading.copies(entity_id, run_id)

    async def stats(self) -> r.Stats:
        """Return the counts."""
        self._bring_up()
        return self._reading.stats()

    async def reply(self, question_id: str) -> r.QueryResult | None:
        """Return what was answered to a question."""
        return self._questions.reply(question_id, self._clock.now())

    async def messages(self, topic: str, after: int | None = None) -> r.Messages:
        """Return what was published on a topic lately."""
        return r.Messages(last=self._topics.last, values=() if after is None else self._topics.after(topic, after))

    # What is behind the verbs.

    def _each(self, verb: Callable[[P], A], parts: Sequence[P]) -> Sequence[A]:
        self._bring_up()
        answers = [verb(part) for part in parts]
        self._changed()
        return answers

    def _is_there(self, watch: r.Watch) -> bool:
        match watch:
            case r.Work():
                return self._is_work(watch)
            case r.QueryAnswered():
                return not self._questions.is_open(watch.question_id, self._clock.now())
            case r.Publishing():
                return bool(self._topics.after(watch.topic, watch.after))
            case r.Closed() | r.InboxChanged() | r.LogGrown():
                row = self._rows.get(watch.execution_id)
                return row is None or _has_come(watch, row)
            case _:
                assert_never(watch)

    def _is_work(self, watch: r.Work) -> bool:
        return (
            (watch.instances and any(True for _ in self._claimable(watch.worker, watch.queues)))
            or (watch.activities and any(True for _ in self._claimable_activities(watch.queues)))
            or (watch.questions and any(True for _ in self._questions.waiting(watch.queues, self._clock.now())))
        )

    def _changed(self) -> None:
        """Tell the waiters whose moment it is, and have them looked after again when the next thing becomes due."""
        touched, self._touched = self._touched, set()
        self._waiting.look(touched)
        self._set_alarm()

    def _set_alarm(self) -> None:
        self._waiting.set_alarm(self._due[0][0] if self._due else None, self._ring)

    def _ring(self) -> None:
        self._waiting.rang()
        if not self._lifetime.over:
            self._bring_up()
            self._changed()


def _has_come(watch: r.Closed | r.InboxChanged | r.LogGrown, row: Row) -> bool:
    if isinstance(watch, r.InboxChanged):
        return row.wake > watch.wake
    grown = isinstance(watch, r.LogGrown) and row.instance.last_seq > watch.last_seq
    return grown or row.instance.status.terminal
