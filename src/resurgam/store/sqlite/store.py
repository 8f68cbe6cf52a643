"""The SQLite store: each verb runs in one transaction of the writer, or reads one consistent state."""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from resurgam.core import event as events
from resurgam.core.clock import Clock
from resurgam.core.errors import StoreError
from resurgam.store import records as r
from resurgam.store.lifetime import Lifetime
from resurgam.store.sqlite import activities, leases
from resurgam.store.sqlite.claim import claim
from resurgam.store.sqlite.connection import Database
from resurgam.store.sqlite.dead_letters import revive
from resurgam.store.sqlite.deliver import deliver
from resurgam.store.sqlite.feed import SqliteFeed
from resurgam.store.sqlite.history import decode_log
from resurgam.store.sqlite.inspector import SqliteInspector
from resurgam.store.sqlite.open_file import OpenFile
from resurgam.store.sqlite.owner_lock import Owner
from resurgam.store.sqlite.peers import Peers
from resurgam.store.sqlite.purge import purge
from resurgam.store.sqlite.query_tasks import SqliteQueries
from resurgam.store.sqlite.session import Session
from resurgam.store.sqlite.starts import prepare_start
from resurgam.store.sqlite.steps import prepare
from resurgam.store.sqlite.transaction import ReadyTimestamps, Transaction
from resurgam.store.sqlite.transfer import SqliteTransfer
from resurgam.store.sqlite.turns import Turns
from resurgam.store.sqlite.values import SqliteValues
from resurgam.store.sqlite.wakeup import Wakeups
from resurgam.store.sqlite.watcher import Watcher
from resurgam.store.sqlite.workers import SqliteWorkers
from resurgam.store.sqlite.writer import Writer

P = TypeVar("P")
A = TypeVar("A")
T = TypeVar("T")


class SqliteStore:
    """Instances in a SQLite file, for several engines in this process and in others."""

    def __init__(self, path: Path | None, clock: Clock, *, name: str, lease: int = 10_000, synchronous: str) -> None:
        self._temporary = None
        if path is None:
            import tempfile  # noqa: PLC0415 -- only a temporary store pays for the import

            self._temporary = tempfile.TemporaryDirectory(prefix="resurgam-")
            path = Path(self._temporary.name) / "resurgam.db"
        path = path.absolute()  # the process may change its directory
        self._clock = clock
        self._lease = lease
        self._database = Database(path, synchronous=synchronous)
        try:
            self._owner = Owner(path, name)
        except OSError as error:
            self._database.close()
            raise StoreError(f"{path}: no lock can be made beside it: {error}; may its folder be written?") from error
        self._timestamps = ReadyTimestamps()
        self._lifetime = Lifetime(after_fork=self._owner.leave_behind)
        self._file = OpenFile(self._database, self._lifetime)
        self._peers = Peers(self._owner)
        self._wakeups = Wakeups(self._peers)
        self._watcher = Watcher(
            self._database,
            clock,
            lifetime=self._lifetime,
            peers=self._peers,
            wakeups=self._wakeups,
            reap_dead_owners=self._reap_dead_owners,
        )
        self._writer = Writer(self._database, self._begin, self._watcher.note, Turns(self._peers))
        self._released = False
        self.inspector = SqliteInspector(self._file, clock)
        self.queries = SqliteQueries(self._file, self._write, clock)
        self.transfer = SqliteTransfer(self._file, self._write)
        self.feed = SqliteFeed(self._file)
        self.workers = SqliteWorkers(self._file, self._write, clock, self._reap_dead_owners)
        self.values = SqliteValues(self._file, self._write, clock)

    def create(self, parts: Sequence[r.Creation]) -> Awaitable[Sequence[r.Created | r.Exists]]:
        """Begin executions."""
        starts = [prepare_start(part) for part in parts]
        self._file.check()
        return self._writer.write(lambda t: [start(t) for start in starts])

    def deliver(
        self, parts: Sequence[r.Delivery]
    ) -> Awaitable[Sequence[r.Delivered | r.Missing | r.Ended | r.Settled | r.Outdated]]:
        """Put events into inboxes."""
        return self._each_at_once(deliver, parts)

    async def claim(self, worker: str, queues: Sequence[str], limit: int) -> Sequence[r.Claim]:
        """Lease instances that are ready."""
        if not self._watcher.polls:  # the poll reaps from time to time
            await self._reap_dead_owners()
        watch = r.Work(worker=worker, queues=tuple(queues), activities=False, queries=False)
        # A read costs no commit; most of the time there is nothing to claim.
        return await self._write(lambda t: claim(t, worker, queues, limit)) if self._watcher.is_met(watch) else []

    async def commit(self, parts: Sequence[r.Commit]) -> Sequence[r.Committed | r.Refused]:
        """Apply outcomes."""
        steps = [prepare(part) for part in parts]
        return await self._write(lambda t: [step(t) for step in steps])

    def submit(self, part: r.Commit, done: Callable[[r.Committed | r.Refused | Exception], None]) -> None:
        """Apply one outcome and call back."""
        try:
            self._file.check()
            work = prepare(part)
        except Exception as error:  # noqa: BLE001 -- handed on as any other
            done(error)
            return
        self._writer.submit(work, done)

    async def extend(self, parts: Sequence[r.Lease]) -> Sequence[r.Extended | r.Refused]:
        """Renew leases."""
        return await self._each(leases.extend, parts)

    async def release(self, parts: Sequence[r.Release]) -> Sequence[r.Released | r.Refused]:
        """Release leases."""
        return await self._each(leases.release, parts)

    async def claim_activities(self, worker: str, queues: Sequence[str], limit: int) -> Sequence[r.ActivityTask]:
        """Lease activities whose time has come."""
        watch = r.Work(worker=worker, queues=tuple(queues), instances=False, queries=False)
        if not self._watcher.is_met(watch):
            return []
        return await self._write(lambda t: activities.claim(t, queues, limit))

    async def complete_activities(self, parts: Sequence[r.ActivityResult]) -> Sequence[r.Accepted | r.Refused]:
        """Deliver the results of activities to their instances."""
        return await self._each(activities.complete, parts)

    async def read(self, execution: r.Addressed, after: int = 0) -> Sequence[events.Event]:
        """Return the log beyond *after*."""
        execution_id = execution.execution_id
        return decode_log(self._file.fetch("events_after", execution_id=execution_id, after=after), execution_id)

    def wait(self, watch: r.Watch, until: int | None = None) -> Coroutine[Any, Any, bool]:
        """Return True once what is watched for is there, False at the moment *until*."""
        return self._watcher.wait(watch, until)

    async def revive(self, executions: Sequence[r.Addressed]) -> Sequence[r.Revived | r.Missing]:
        """Hand out dead letters again."""
        return await self._each(revive, executions)

    async def purge(self, executions: Sequence[r.Addressed]) -> Sequence[r.Purged | r.Missing | r.Unfinished]:
        """Delete closed executions."""
        return await self._each(purge, executions)

    async def close(self) -> None:
        """Close the file and fail the waiters. A call that was cancelled can be repeated."""
        if self._released or self._lifetime.forked:
            return  # in a fork everything here belongs to the parent
        self._lifetime.end()
        await self._watcher.close()
        await self._writer.close()
        self._released = True
        self._wakeups.close()
        self._peers.close()
        self._owner.close()
        self._database.close()
        if self._temporary is not None:
            self._temporary.cleanup()

    @property
    def database(self) -> Database:
        """The open file, for measurements."""
        return self._database

    def _begin(self, session: Session) -> Transaction:
        now = self._clock.now()
        return Transaction(session, now, now + self._lease, self._owner.name, self._timestamps)

    async def _write(self, work: Callable[[Transaction], T]) -> T:
        self._file.check()
        return await self._writer.write(work)

    async def _each(self, verb: Callable[[Transaction, P], A], parts: Sequence[P]) -> Sequence[A]:
        if not parts:
            return []
        return await self._write(lambda t: [verb(t, part) for part in parts])

    def _each_at_once(self, verb: Callable[[Transaction, P], A], parts: Sequence[P]) -> Awaitable[Sequence[A]]:
        """Do the same without a coroutine, so that the answer of a store that is not busy is there at once."""
        self._file.check()
        return self._writer.write(lambda t: [verb(t, part) for part in parts])

    async def _reap_dead_owners(self) -> None:
        """End the leases of owners whose process is gone."""
        for owner in self._owner.dead():
            await self._write(lambda t, owner=owner: leases.end_leases_of(t, owner))  # type: ignore[misc]
            self._owner.remove(owner)
