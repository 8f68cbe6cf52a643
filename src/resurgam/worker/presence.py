"""Announce a worker to its store, and know the other workers that serve its queues."""

import asyncio
import os
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from resurgam.store.protocol import Workers
from resurgam.store.records import Announcement, HeldWork, LiveWorker
from resurgam.worker.load import LoadMeter
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
        self._load = LoadMeter()
        self._others: Counter[str] = Counter()
        self._other_builds: set[str] = set()
        self.alone = True

    def workers_of(self, queue: str) -> int:
        """Return how many workers serve a queue, this one among them."""
        return 1 + self._others[queue]

    async def has_other_builds(self, queue: str) -> bool:
        """Whether workers with other code serve a queue; the store is asked if none was known of at the last renewal."""
        if queue not in self._other_builds:
            self.note(await self._workers.list())
        return queue in self._other_builds

    async def run(self, slots: Callable[[], tuple[int, int]], held: Callable[[], HeldWork]) -> None:
        """Announce the worker until cancelled.

        *slots* returns how many it has, and how many of them are in use; *held* returns what it holds.
        """
        failed, idle = False, 0
        while True:
            limit, in_use = slots()
            idle = 0 if in_use else idle + 1
            try:
                if not idle or idle % _BEATS == 1:
                    announcement = self._announcement(limit, in_use, held())
                    self.note(await self._workers.announce(announcement, _EXPIRY * self._lease))
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

    def _announcement(self, slots: int, in_use: int, held: HeldWork) -> Announcement:
        return Announcement(
            worker_id=self._name,
            host=socket.gethostname(),
            pid=os.getpid(),
            build=self._build,
            queues=self.queues,
            slots=slots,
            slots_in_use=in_use,
            load=self._load.read(),
            held=held,
        )

    def note(self, live: Sequence[LiveWorker]) -> None:
        """Take over which workers are live."""
        others = [worker for worker in live if worker.worker_id != self._name]
        self._others = Counter(queue for worker in others for queue in set(worker.queues))
        self._other_builds = {queue for worker in others if worker.build != self._build for queue in worker.queues}
        self.alone = not any(self._others[queue] for queue in self.queues)
