"""The memory store, which is the reference implementation: everything in dictionaries, gone with the process.

Each verb runs without giving way to other tasks, so it is atomic by itself.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TypeVar, assert_never

from resurgam.core import event as events
from resurgam.core.clock import Clock
from resurgam.core.errors import StoreError
from resurgam.store import records as r
from resurgam.store.lifetime import Lifetime
from resurgam.store.memory.activities import Activities
from resurgam.store.memory.commits import Commits
from resurgam.store.memory.effects import Effects
from resurgam.store.memory.feed import MemoryFeed
from resurgam.store.memory.inspector import MemoryInspector
from resurgam.store.memory.leases import Leases
from resurgam.store.memory.lifecycle import Lifecycle
from resurgam.store.memory.promises import Promises
from resurgam.store.memory.queries import MemoryQueries
from resurgam.store.memory.rows import Row
from resurgam.store.memory.table import Table
from resurgam.store.memory.topics import Topics
from resurgam.store.memory.transfer import MemoryTransfer
from resurgam.store.memory.values import MemoryValues
from resurgam.store.memory.workers import MemoryWorkers
from resurgam.store.watches import Waiters

P = TypeVar("P")
A = TypeVar("A")


class MemoryStore:
    """A store in the memory of this process."""

    def __init__(
        self,
        clock: Clock,
        *,
        lease: int = 10_000,
        rows: type[Table] | None = None,
        effects: type[Effects] | None = None,
    ) -> None:
        self._clock = clock
        self._lifetime = Lifetime()
        self._table = table = (rows or Table)(clock, lease=lease)
        topics, promises = Topics(), Promises(table)
        self._topics = topics
        self._leases = Leases(table)
        self._activities = Activities(table, self._leases)
        self._lifecycle = Lifecycle(table, self._leases, promises)
        self._effects = (effects or Effects)(table, self._lifecycle, promises, topics)
        self._commits = Commits(table, self._leases, self._activities, self._effects)
        self._waiting = Waiters(clock, lambda watches: map(self._is_there, watches))
        self.inspector = MemoryInspector(table, promises, topics, self._refresh)
        self.queries = MemoryQueries(table, self._refresh, self._changed)
        self.feed = MemoryFeed(table, self._refresh)
        self.workers = MemoryWorkers(clock, self._refresh)
        self.values = MemoryValues(clock, self._refresh)
        self.transfer = MemoryTransfer(table, promises, self.queries, self._refresh, self._changed)

    async def create(self, parts: Sequence[r.Creation]) -> Sequence[r.Created | r.Exists]:
        """Begin executions."""
        return self._each(self._create, parts)

    def _create(self, part: r.Creation) -> r.Created | r.Exists:
        created = self._lifecycle.create(part)
        if isinstance(created, r.Exists) or created.claim is None or part.first is None:
            return created
        committed = self._commits.commit(part.first)
        assert isinstance(committed, r.Committed), committed
        shown = self._table.rows[created.instance.execution_id].shown()
        return r.Created(instance=shown, claim=created.claim, committed=committed)

    async def deliver(
        self, parts: Sequence[r.Delivery]
    ) -> Sequence[r.Delivered | r.Missing | r.Ended | r.Settled | r.Outdated]:
        """Put events into inboxes."""
        return self._each(self._lifecycle.deliver, parts)

    async def revive(self, executions: Sequence[r.Addressed]) -> Sequence[r.Revived | r.Missing]:
        """Offer dead letters again."""
        return self._each(self._lifecycle.revive, executions)

    async def claim(self, worker: str, queues: Sequence[str], limit: int) -> Sequence[r.Claim]:
        """Lease instances that are ready."""
        self._refresh()
        claimable = list(islice(self._table.claimable(worker, queues), limit))
        claims = [claim for row in claimable if (claim := self._leases.claim(row, worker)) is not None]
        self._changed()
        return claims

    async def commit(self, parts: Sequence[r.Commit]) -> Sequence[r.Committed | r.Refused]:
        """Apply outcomes."""
        return self._each(self._commits.commit, parts)

    def submit(self, part: r.Commit, done: Callable[[r.Committed | r.Refused | Exception], None]) -> None:
        """Apply one outcome and call back."""
        answer: r.Committed | r.Refused | Exception
        try:
            [answer] = self._each(self._commits.commit, [part])
        except StoreError as error:
            answer = error
        done(answer)

    async def extend(self, leases: Sequence[r.Lease]) -> Sequence[r.Extended | r.Refused]:
        """Renew leases."""
        return self._each(self._leases.extend, leases)

    async def release(self, parts: Sequence[r.Release]) -> Sequence[r.Released | r.Refused]:
        """End leases."""
        return self._each(self._leases.release, parts)

    async def claim_activities(self, worker: str, queues: Sequence[str], limit: int) -> Sequence[r.ActivityTask]:
        """Lease activities whose time has come."""
        self._refresh()
        claimable = list(islice(self._table.claimable_activities(queues), limit))
        tasks = [task for activity in claimable if (task := self._activities.claim(activity, worker)) is not None]
        self._changed()
        return tasks

    async def complete_activities(self, parts: Sequence[r.ActivityResult]) -> Sequence[r.Accepted | r.Refused]:
        """Put the results of attempts into inboxes."""
        return self._each(self._activities.complete, parts)

    async def read(self, execution: r.Addressed, after: int = 0) -> Sequence[events.Event]:
        """Return the log beyond *after*."""
        row = self._table.find(execution)
        return [] if row is None else [entry for seq, entry in row.log.items() if seq > after]

    async def wait(self, watch: r.Watch, until: int | None = None) -> bool:
        """Return True once the watch is fulfilled."""
        self._refresh()
        self._changed()  # others may wait for what has become due just now
        return await self._waiting.wait(watch, until)

    async def purge(self, executions: Sequence[r.Addressed]) -> Sequence[r.Purged | r.Missing | r.Unfinished]:
        """Remove closed executions."""
        return self._each(self._purge, executions)

    def _purge(self, execution: r.Addressed) -> r.Purged | r.Missing | r.Unfinished:
        answer = self._lifecycle.purge(execution)
        if isinstance(answer, r.Purged):
            self.queries.purge(execution.execution_id)
        return answer

    async def close(self) -> None:
        """Refuse all further use, and raise in calls that still wait."""
        self._lifetime.end()
        self._waiting.close()

    def _each(self, verb: Callable[[P], A], parts: Sequence[P]) -> Sequence[A]:
        self._refresh()
        answers = [verb(part) for part in parts]
        self._changed()
        return answers

    def _refresh(self) -> None:
        """Begin a verb: everything that is due by now is ready."""
        self._lifetime.check()
        self._table.wake_due()

    def _changed(self) -> None:
        """End a verb: settle the waiters whose watch is fulfilled, and set the alarm for the next due moment."""
        touched, self._table.touched = self._table.touched, set()
        self._waiting.look(touched)
        self._waiting.set_alarm(self._table.next_due, self._ring)

    def _ring(self) -> None:
        self._waiting.rang()
        if not self._lifetime.over:
            self._refresh()
            self._changed()

    def _is_there(self, watch: r.Watch) -> bool:
        match watch:
            case r.Work():
                return self._is_work(watch)
            case r.QueryAnswered():
                return not self.queries.is_open(watch.query_id)
            case r.FeedGrown():
                return self._table.last_position > int(watch.after or 0)
            case r.Published():
                return bool(self._topics.after(watch.topic, watch.after))
            case r.Closed() | r.InboxChanged() | r.LogGrown():
                row = self._table.find(watch)
                return row is None or _has_come(watch, row)
            case _:
                assert_never(watch)

    def _is_work(self, watch: r.Work) -> bool:
        return (
            (watch.instances and any(True for _ in self._table.claimable(watch.worker, watch.queues)))
            or (watch.activities and any(True for _ in self._table.claimable_activities(watch.queues)))
            or (watch.queries and any(True for _ in self.queries.claimable(watch.queues)))
        )


def _has_come(watch: r.Closed | r.InboxChanged | r.LogGrown, row: Row) -> bool:
    if isinstance(watch, r.InboxChanged):
        return row.wake > watch.wake
    grown = isinstance(watch, r.LogGrown) and row.instance.last_seq > watch.last_seq
    return grown or row.instance.status.terminal
