"""The workers that serve a SQLite file."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from resurgam.core.clock import Clock
from resurgam.store import records as r
from resurgam.store.encoding import encode
from resurgam.store.sqlite.session import Row, Session, Snapshots
from resurgam.store.sqlite.transaction import Transaction, Write

_announcements: Final = msgspec.json.Decoder(r.Announcement)


class SqliteWorkers:
    """Announce, remove and list workers."""

    def __init__(
        self, file: Snapshots, write: Write, clock: Clock, reap_dead_owners: Callable[[], Awaitable[None]]
    ) -> None:
        self._file = file
        self._write = write
        self._clock = clock
        self._reap_dead_owners = reap_dead_owners

    async def announce(self, worker: r.Announcement, ttl: int) -> Sequence[r.LiveWorker]:
        """Register a worker, or renew it, for *ttl* milliseconds; return all live workers."""
        # A worker of a process that was killed must not count: its successor would leave it a share of the work.
        await self._reap_dead_owners()
        return await self._write(lambda t: announce(t, worker, ttl))

    async def remove(self, worker_id: str) -> None:
        """Remove a worker that has stopped."""
        await self._write(lambda t: t.session.execute("remove_worker", worker_id=worker_id))

    async def list(self) -> Sequence[r.LiveWorker]:
        """Return the live workers, oldest first."""
        now = self._clock.now()
        return self._file.read(lambda session: live_workers(session, now))


def announce(t: Transaction, worker: r.Announcement, ttl: int) -> Sequence[r.LiveWorker]:
    """Delete the workers that have expired, and insert or renew one."""
    t.session.execute("expire_workers", now=t.now)
    t.session.execute(
        "announce_worker",
        worker_id=worker.worker_id,
        owner=t.owner,
        body=encode(worker),
        now=t.now,
        expires_at=t.now + ttl,
    )
    return live_workers(t.session, t.now)


def live_workers(session: Session, now: int) -> Sequence[r.LiveWorker]:
    """Return the workers that have not expired, oldest first."""
    workers = (_worker_of(row) for row in session.fetch("live_workers", now=now))
    return [worker for worker in workers if worker is not None]


def _worker_of(row: Row) -> r.LiveWorker | None:
    """Return a worker; None if another version announced it, in a form that this one cannot decode."""
    try:
        fields = msgspec.structs.asdict(_announcements.decode(row["body"]))
    except msgspec.MsgspecError:
        return None
    return r.LiveWorker(**fields, started_at=row["started_at"], seen_at=row["seen_at"])
