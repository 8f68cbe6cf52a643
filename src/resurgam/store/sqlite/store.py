"""The SQLite store: every verb is one piece of work for the writer, or one look at a consistent state."""

import asyncio
import contextlib
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from secrets import token_bytes
from typing import Final, TypeVar

from resurgam.core import event as events
from resurgam.core.clock import Clock
from resurgam.core.errors import StoreError
from resurgam.store import records as r
from resurgam.store.lifetime import Lifetime
from resurgam.store.sqlite.connection import Database, Session, Writer
from resurgam.store.sqlite.copies import Moving
from resurgam.store.sqlite.owner_lock import Owner
from resurgam.store.sqlite.reading import Reading, has_come, log_of
from resurgam.store.sqlite.transactions import Transactions
from resurgam.store.sqlite.wakeup import Wakeups
from resurgam.store.sqlite.writing import Turns
from resurgam.store.watches import Waiting

P = TypeVar("P")
A = TypeVar("A")
T = TypeVar("T")

_POLL: Final = 0.01
"""Seconds until the next look at whether another process has written, after one that found something."""

_IDLE: Final = 1.0
"""The same after many looks in vain, each interval twice as long: others wake this store by its pipe."""

_UNHEARD: Final = 0.1
"""The same where no pipe can be made, and for those who follow a log: no process is woken for every entry."""

_ROLL_CALL: Final = 1.0
"""Seconds between two roll calls of the owners: an idle worker, too, must notice that another is dead."""

_SOON: Final = 1500
"""Milliseconds: what becomes due within this time, others might see too late by themselves."""


class SqliteStore:
    """Instances in a SQLite file, for several engines in this process and in others."""

    def __init__(self, path: Path | None, clock: Clock, *, name: str, lease: int = 10_000, synchronous: str) -> None:
        self._temporary = None
        if path is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="resurgam-")
            path = Path(self._temporary.name) / "resurgam.db"
        path = path.absolute()  # the process may go to another folder
        self._clock = clock
        self._lease = lease
        self._database = Database(path, synchronous=synchronous)
        self._writer = Writer(self._database, self._begin, self._note)
        try:
            self._owner = Owner(path, name)
        except OSError as error:
            self._database.close()
            raise StoreError(f"{path}: no lock can be made beside it: {error}; may its folder be written?") from error
        self._turns = Turns()
        self._waiting = Waiting(clock, self._are_there)
        # None if a look has failed: then whoever waits has not been told, and the next poll looks again.
        self._version: int | None = self._database.version()
        self._poll: asyncio.Task[None] | None = None
        self._interval = _POLL
        self._sleep: asyncio.Future[None] | None = None
        self._wakeups = Wakeups(self._owner.pipe, self._owner.mode)
        self._lifetime = Lifetime(after_fork=self._owner.leave_behind)
        self._released = False

    # Store.

    async def create(self, parts: Sequence[r.Creation]) -> Sequence[r.Created | r.Exists]:
        """Begin executions."""
        return await self._each(parts, lambda t, part: t.create(part))

    async def deliver(self, parts: Sequence[r.Delivery]) -> Sequence[r.Delivered | r.Missing | r.Ended | r.Settled]:
        """Put events into inboxes."""
        return await self._each(parts, lambda t, part: t.deliver(part))

    async def ask(self, parts: Sequence[r.QueryTask]) -> Sequence[r.Asked | r.Missing]:
        """Have questions answered."""
        return await self._each(parts, lambda t, part: t.ask(part))

    async def claim_questions(self, worker: str, queues: Sequence[str], limit: int) -> Sequence[r.QueryTask]:
        """Return questions that nobody else has in hand."""
        watch = r.Work(worker=worker, queues=tuple(queues), instances=False, activities=False)
        return await self._write(lambda t: t.claim_questions(queues, limit)) if self._is_there(watch) else []

    async def answer(self, parts: Sequence[r.QueryResult]) -> None:
        """QueryResult to questions."""
        await self._each(parts, lambda t, part: t.answer(part))

    async def secret(self) -> bytes:
        """Return what the first who asked has made, of all processes."""
        self._check_open()
        if not self._database.glance("secret"):
            await self._write(lambda t: t.keep_secret(token_bytes(32)))
        [row] = self._database.glance("secret")
        return bytes(row["value"])

    async def revive(self, execution_ids: Sequence[str]) -> Sequence[r.Revived | r.Missing]:
        """Hand out again what was put aside."""
        return await self._each(execution_ids, lambda t, execution_id: t.revive(execution_id))

    async def adopt(self, parts: Sequence[r.Adoption]) -> Sequence[r.Adopted | r.Exists]:
        """Take in executions from another store."""

        def adopt(transactions: Transactions, part: r.Adoption) -> r.Adopted | r.Exists:
            transactions.note_adoption(part)
            return Moving(transactions.session).adopt(part, transactions.turn())

        return await self._each(parts, adopt)

    async def claim(self, worker: str, queues: Sequence[str], limit: int) -> Sequence[r.Claim]:
        """Lease instances that are ready."""
        if self._poll is None:  # which calls the roll from time to time
            await self._reap_dead_owners()
        watch = r.Work(worker=worker, queues=tuple(queues), activities=False, questions=False)
        # A look costs no commit; most of the time there is nothing to be claimed.
        return await self._write(lambda t: t.claim(worker, queues, limit)) if self._is_there(watch) else []

    async def commit(self, parts: Sequence[r.Commit]) -> Sequence[r.Committed | r.Refused]:
        """Apply outcomes."""
        self._check_open()
        # Without a detour: this is the hottest path there is.
        return await self._writer.write(lambda transactions: [transactions.commit(part) for part in parts])

    async def extend(self, leases: Sequence[r.Lease]) -> Sequence[r.Extended | r.Refused]:
        """Renew leases."""
        return await self._each(leases, lambda t, lease: t.extend(lease))

    async def release(self, parts: Sequence[r.Release]) -> Sequence[r.Released | r.Refused]:
        """Give leases back."""
        return await self._each(parts, lambda t, part: t.release(part))

    async def claim_activities(self, worker: str, queues: Sequence[str], limit: int) -> Sequence[r.ActivityTask]:
        """Lease activities whose time has come."""
        watch = r.Work(worker=worker, queues=tuple(queues), instances=False, questions=False)
        return await self._write(lambda t: t.claim_activities(queues, limit)) if self._is_there(watch) else []

    async def complete_activities(self, parts: Sequence[r.ActivityResult]) -> Sequence[r.Accepted | r.Refused]:
        """Tell instances what became of their activities."""
        return await self._each(parts, lambda t, part: t.complete_activity(part))

    async def read(self, execution_id: str, after: int = 0) -> Sequence[events.Event]:
        """Return the log beyond *after*."""
        self._check_open()
        rows = self._database.glance("events_after", execution_id=execution_id, after=after)
        return log_of(rows, execution_id)

    async def wait(self, watch: r.Watch, until: int | None = None) -> bool:
        """Return True once what is watched for is there."""
        self._check_open()
        if self._poll is None:
            self._wakeups.listen(self._look_soon)
            self._poll = asyncio.get_running_loop().create_task(self._watch_others(), name="sqlite poll")
            # From now on every change, our own or others', sets the alarm by what it makes due.
            moment = self._look(lambda reading: reading.next_due())
            if moment is not None:
                self._waiting.set_alarm_by(moment, self._ring)
        return await self._waiting.wait(watch, until)

    async def purge(self, execution_ids: Sequence[str]) -> Sequence[r.Purged | r.Missing | r.Unfinished]:
        """Remove ended executions."""
        return await self._each(execution_ids, lambda t, execution_id: t.purge(execution_id))

    def twin(self) -> "SqliteStore":
        """Open the same file once more."""
        self._database.check_in_place()  # opening creates what is not there
        name = f"{self._owner.name}-twin"
        path, synchronous = self._database.path, self._database.synchronous
        return SqliteStore(path, self._clock, name=name, lease=self._lease, synchronous=synchronous)

    async def close(self) -> None:
        """Close the file, and tell those who still wait. If it is cancelled on its way, call it again."""
        if self._released or self._lifetime.forked:
            return  # in a fork everything here is the parent's
        self._lifetime.end()
        self._waiting.close()
        if self._poll is not None:
            self._poll.cancel()
            await asyncio.gather(self._poll, return_exceptions=True)
        await self._writer.close()
        self._released = True
        self._wakeups.close()
        self._owner.close()
        self._database.close()
        if self._temporary is not None:
            self._temporary.cleanup()

    # Inspector.

    async def get(
        self, entity_id: str, run_id: str | None = None, *, execution_id: str | None = None
    ) -> r.Instance | None:
        """Return the newest execution of an entity, or the newest of a run, or the one with this id."""
        return self._look(lambda reading: reading.get(entity_id, run_id, execution_id))

    async def list(self, query: r.Query) -> r.Page:
        """Return a page of instances, newest first."""
        return self._look(lambda reading: reading.list(query))

    async def ended(self, query: r.EndedQuery) -> Sequence[r.Instance]:
        """Return ended executions, those first that ended first."""
        return self._look(lambda reading: reading.ended(query))

    async def history(
        self, execution_id: str, last: int | None = None, *, forgotten: bool = False
    ) -> Sequence[events.Event]:
        """Return the log of an execution, or its last entries."""
        if last is None and not forgotten:
            return await self.read(execution_id)
        self._check_open()
        end = -1 if last is None else last
        rows = self._database.glance("last_events", execution_id=execution_id, last=end, forgotten=forgotten)
        return log_of(rows, execution_id)

    async def open_work(self, execution_id: str) -> r.OpenWork | None:
        """Return what an execution has under way that its log does not show."""
        return self._look(lambda reading: reading.open_work(execution_id))

    async def promise(self, to: r.Delivery) -> r.HeldPromise | None:
        """Return the promise that a delivery is addressed to."""
        return self._look(lambda reading: reading.promise(to))

    async def copies(self, entity_id: str, run_id: str | None = None) -> Sequence[r.Copy]:
        """Return everything that is kept of an entity's executions, oldest first."""
        self._check_open()
        return self._database.read(lambda session: Moving(session).copies(entity_id, run_id))

    async def stats(self) -> r.Stats:
        """Return the counts."""
        return self._look(lambda reading: reading.stats())

    async def reply(self, question_id: str) -> r.QueryResult | None:
        """Return what was answered to a question."""
        return self._look(lambda reading: reading.reply(question_id))

    async def messages(self, topic: str, after: int | None = None) -> r.Messages:
        """Return what was published on a topic lately."""
        return self._look(lambda reading: reading.messages(topic, after))

    @property
    def database(self) -> Database:
        """The open file, for those who measure it."""
        return self._database

    # What is behind the verbs.

    def _check_open(self) -> None:
        if self._lifetime.refusal is not None:
            self._lifetime.check()
        if self._database.lost:
            self._database.check_files()

    def _begin(self, session: Session) -> Transactions:
        now, owner = self._clock.now(), self._owner.name
        return Transactions(session, now=now, lease=self._lease, owner=owner, turns=self._turns)

    async def _write(self, work: Callable[[Transactions], T]) -> T:
        self._check_open()
        return await self._writer.write(work)

    async def _each(self, parts: Sequence[P], verb: Callable[[Transactions, P], A]) -> Sequence[A]:
        if not parts:
            return []
        return await self._write(lambda transactions: [verb(transactions, part) for part in parts])

    def _look(self, look: Callable[[Reading], T]) -> T:
        self._check_open()
        now = self._clock.now()
        return self._database.read(lambda session: look(Reading(session, now=now)))

    def _are_there(self, watches: Sequence[r.Watch]) -> Sequence[bool]:
        watch = watches[0]
        if len(watches) == 1 and isinstance(watch, r.Closed | r.InboxChanged | r.LogGrown):
            # By far the most looks are at one instance; a single statement needs no transaction around it.
            self._check_open()
            rows = self._database.glance("progress", execution_id=watch.execution_id)
            return [has_come(watch, rows[0] if rows else None)]
        return self._look(lambda reading: list(reading.are_there(watches)))

    def _is_there(self, watch: r.Watch) -> bool:
        [there] = self._are_there([watch])
        return there

    async def _reap_dead_owners(self) -> None:
        """End the leases of owners whose process is gone."""
        for owner in self._owner.dead():
            await self._write(lambda transactions, owner=owner: transactions.end_leases_of(owner))  # type: ignore[misc]
            self._owner.bury(owner)

    async def _watch_others(self) -> None:
        """Look from time to time whether another connection has written, and tell the waiters."""
        loop = asyncio.get_running_loop()
        roll_call = loop.time()
        while True:
            found = False
            with contextlib.suppress(StoreError, OSError):
                if loop.time() >= roll_call:
                    roll_call = loop.time() + _ROLL_CALL
                    self._check_files()
                    await self._reap_dead_owners()
                found = self._look_around()
            patience = _IDLE if self._wakeups.heard and not self._waiting.follows else _UNHEARD
            self._interval = _POLL if found else min(2 * self._interval, patience)
            self._sleep = loop.create_future()
            timer = loop.call_later(self._interval, _end, self._sleep)
            await self._sleep
            timer.cancel()

    def _look_around(self) -> bool:
        """Tell the waiters if another connection has written; whether it has."""
        version = self._database.version()
        if version == self._version:
            return False
        self._version = version
        self._changed()
        return True

    def _look_soon(self) -> None:
        """Have the next look come now."""
        if self._sleep is not None:
            _end(self._sleep)

    def _check_files(self) -> None:
        """Tell the waiters if the file is gone: nothing will ever come out of it."""
        try:
            self._database.check_files()
        except StoreError as error:
            self._waiting.fail(error)
            raise

    def _note(self, transactions: Transactions) -> None:
        """Tell those whom a durable transaction of this store's own concerns, here and in other processes."""
        if self._lifetime.refusal is not None:
            return
        changes = transactions.changes
        if changes.moment is not None:
            self._waiting.set_alarm_by(changes.moment, self._ring)
        try:
            self._waiting.look(changes.touched, changes.grown, work=changes.work)
        except StoreError:  # not the writer's: what was written is written
            self._version = None
            self._look_soon()
        soon = changes.moment is not None and changes.moment < transactions.now + _SOON
        if changes.work or changes.touched or soon:  # those who follow a log look for themselves
            self._wakeups.wake_others()

    def _changed(self) -> None:
        """Something may have changed anywhere."""
        if self._lifetime.over:
            return
        try:
            # The alarm first: what becomes due between the two is then seen by the look.
            self._set_alarm()
            self._waiting.look_at_all()
        except StoreError:
            self._version = None

    def _set_alarm(self) -> None:
        self._waiting.set_alarm(self._look(lambda reading: reading.next_due()), self._ring)

    def _ring(self) -> None:
        self._waiting.rang()
        self._changed()
        if self._version is None:
            self._look_soon()


def _end(sleep: asyncio.Future[None]) -> None:
    if not sleep.done():
        sleep.set_result(None)
