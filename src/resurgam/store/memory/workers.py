"""The workers that serve a memory store."""

from collections.abc import Callable, Sequence

import msgspec

from resurgam.core.clock import Clock
from resurgam.store import records as r


class MemoryWorkers:
    """Announce, remove and list workers. *refresh* is called at the beginning of each verb."""

    def __init__(self, clock: Clock, refresh: Callable[[], None]) -> None:
        self._clock = clock
        self._refresh = refresh
        self._workers: dict[str, tuple[r.LiveWorker, int]] = {}

    async def announce(self, worker: r.Announcement, ttl: int) -> Sequence[r.LiveWorker]:
        """Register a worker, or renew it, for *ttl* milliseconds; return all live workers."""
        self.expire()
        now = self._clock.now()
        known = self._workers.get(worker.worker_id)
        started_at = now if known is None else known[0].started_at
        live = r.LiveWorker(**msgspec.structs.asdict(worker), started_at=started_at, seen_at=now)
        self._workers[worker.worker_id] = live, now + ttl
        return await self.list()

    async def remove(self, worker_id: str) -> None:
        """Remove a worker that has stopped."""
        self.expire()
        self._workers.pop(worker_id, None)

    async def list(self) -> Sequence[r.LiveWorker]:
        """Return the live workers, oldest first."""
        self.expire()
        live = [worker for worker, _ in self._workers.values()]
        return sorted(live, key=lambda worker: (worker.started_at, worker.worker_id))

    def expire(self) -> None:
        """Remove the workers that were not seen for too long."""
        self._refresh()
        now = self._clock.now()
        self._workers = {key: (worker, until) for key, (worker, until) in self._workers.items() if until > now}
