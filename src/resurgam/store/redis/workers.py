"""The workers that serve a Redis store, all of them in one partition: they are few, and always read together."""

from collections.abc import Sequence
from typing import Final

import msgspec

from resurgam.store import records as r
from resurgam.store.encoding import encode
from resurgam.store.redis.link import Link

PARTITION: Final = 0
"""The partition of the workers."""

_announcements: Final = msgspec.json.Decoder(r.Announcement)


class RedisWorkers:
    """Announce, remove and list workers."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def announce(self, worker: r.Announcement, ttl: int) -> Sequence[r.LiveWorker]:
        """Register a worker, or renew it, for *ttl* milliseconds; return all live workers."""
        part = [worker.worker_id, encode(worker), ttl]
        return _workers_of(await self._link.ask(PARTITION, "announce_worker", part))

    async def remove(self, worker_id: str) -> None:
        """Remove a worker that has stopped."""
        await self._link.ask(PARTITION, "remove_worker", [worker_id])

    async def list(self) -> Sequence[r.LiveWorker]:
        """Return the live workers, in the order in which they started."""
        return _workers_of(await self._link.ask(PARTITION, "list_workers", []))


def _workers_of(rows: Sequence[tuple[bytes, bytes, bytes]]) -> Sequence[r.LiveWorker]:
    return [worker for row in rows if (worker := _worker_of(*row)) is not None]


def _worker_of(body: bytes, started_at: bytes, seen_at: bytes) -> r.LiveWorker | None:
    """Return a worker; None if another version announced it, in a form that this one cannot decode."""
    try:
        fields = msgspec.structs.asdict(_announcements.decode(body))
    except msgspec.MsgspecError:
        return None
    return r.LiveWorker(**fields, started_at=int(started_at), seen_at=int(seen_at))
