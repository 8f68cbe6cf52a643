"""Announce a worker to its store, and know the other workers that serve its queues."""

import asyncio
import os
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from resurgam.store.protocol import Workers
from resurgam.store.records import Announcement, LiveWorker
from resurgam.worker.tasks import log_failure

_EXPIRY: Final = 3
"""Lease lengths for which a worker is listed after its last announcement: a tick that does not yield delays the next."""

_BEATS: Final = 3
"""Renewals of a busy worker in a lease."""


class Presence:
    """The record of a worker in its store, and the other workers that the last renewal listed.

    It is renewed three times a lease while activities run, else once: each renewal wakes the other processes of a file.

    *alone*: no other worker serves any of its queues.
    """

    def __init__(self, workers: Workers, *, name: str, build: str, queues: tuple[str, ...], lease: int) -> None:
        self._workers = workers
        self._name = name
        self._build = build
        self.queues = queues
        self._lease = lease
        self._others: Counter[str] = Counter()
        self.alone = True

    def workers_of(self, queue: str) -> int:
        """Return how many workers serve a queue, this one among them."""
        return 1 + self._others[queue]

    async def run(self, slots: Callable[[], tuple[int, int]]) -> None:
        """Announce the worker until cancelled. *slots* returns how many it has, and how many of them are in use."""
        failed, idle = False, 0
        while True:
            limit, in_use = slots()
            idle = 0 if in_use else idle + 1
            try:
                if not idle or idle % _BEATS == 1:
                    self.note(await self._workers.announce(self._announcement(limit, in_use), _EXPIRY * self._lease))
                    failed = False
            except Exception as error:  # noqa: BLE001 -- a worker that is not listed must still be tried again
                if not failed:  # said once: claims and commits say the rest
                    log_failure("the store failed at listing this worker; it is tried again", error)
                failed = True
            # Real time, not the engine's clock: a test that skips years must not stop at each renewal.
            await asyncio.sleep(self._lease / 1000 / _BEATS)

    async def end(self) -> None:
        """Remove the record."""
        await self._workers.remove(self._name)

    def _announcement(self, slots: int, in_use: int) -> Announcement:
        return Announcement(
            worker_id=self._name,
            host=socket.gethostname(),
            pid=os.getpid(),
            build=self._build,
            queues=self.queues,
            slots=slots,
            slots_in_use=in_use,
        )

    def note(self, live: Sequence[LiveWorker]) -> None:
        """Take over which workers are live."""
        others = [worker for worker in live if worker.worker_id != self._name]
        self._others = Counter(queue for worker in others for queue in set(worker.queues))
        self.alone = not any(self._others[queue] for queue in self.queues)
