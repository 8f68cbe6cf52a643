"""The workers that serve a Postgres store."""

from collections.abc import Sequence
from typing import Final

import msgspec

from resurgam.core.clock import Clock
from resurgam.store import records as r
from resurgam.store.encoding import encode
from resurgam.store.postgres.inspector import moment_of
from resurgam.store.postgres.pool import Pool

_announcements: Final = msgspec.json.Decoder(r.Announcement)


class PostgresWorkers:
    """Announce, remove and list workers."""

    def __init__(self, pool: Pool, clock: Clock) -> None:
        self._pool = pool
        self._moment = moment_of(clock)

    async def announce(self, worker: r.Announcement, ttl: int) -> Sequence[r.LiveWorker]:
        """Register a worker, or renew it, for *ttl* milliseconds; return all live workers."""
        return _workers_of(await self._pool.ask("announce_worker", [worker.worker_id, encode(worker), ttl]))

    async def remove(self, worker_id: str) -> None:
        """Remove a worker that has stopped."""
        await self._pool.ask("remove_worker", worker_id)

    async def list(self) -> Sequence[r.LiveWorker]:
        """Return the live workers, in the order in which they started."""
        return _workers_of(await self._pool.select("live_workers", self._moment()))


def _workers_of(rows: Sequence[tuple[str, int, int]]) -> Sequence[r.LiveWorker]:
    return [worker for row in rows if (worker := _worker_of(*row)) is not None]


def _worker_of(body: str, started_at: int, seen_at: int) -> r.LiveWorker | None:
    """Return a worker; None if another version announced it, in a form that this one cannot decode."""
    try:
        fields = msgspec.structs.asdict(_announcements.decode(body))
    except msgspec.MsgspecError:
        return None
    return r.LiveWorker(**fields, started_at=started_at, seen_at=seen_at)
