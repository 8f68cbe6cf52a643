"""End the leases of dead processes at once, if they ran on the same host.

The lock files of the open stores are in a folder of the user below the temporary directory, which is named after the id of
the store. A process on another host, or of another user, does not see them: there leases expire by themselves.
"""

import asyncio
import contextlib
import logging
import os
import tempfile
from itertools import product
from pathlib import Path
from typing import Final

from resurgam.core.errors import StoreError
from resurgam.store.owner_file import OwnerFile
from resurgam.store.redis.link import Link

_CHECK: Final = 1.0
"""Seconds between two checks of the other owners."""

_logger: Final = logging.getLogger("resurgam.store")


class Owner:
    """The lock of one open store, and the end of the leases of dead ones."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._lock: OwnerFile | None = None
        self._checks: asyncio.Task[None] | None = None
        link.on_open = self._enter
        link.after_fork = self._leave_behind

    async def _enter(self) -> None:
        """Take the lock and end the leases of the dead, before the first call of the store."""
        if self._lock is None:
            try:
                self._lock = _lock_in(self._link.store_id, self._link.owner)
            except OSError as error:
                _logger.info("the leases of dead processes expire by themselves: there is no lock: %s", error)
                return
            with contextlib.suppress(OSError, StoreError):  # the next check follows
                await self._end_leases_of_the_dead(self._lock)
            self._checks = asyncio.get_running_loop().create_task(self._keep_checking(self._lock), name="redis owners")

    async def close(self) -> None:
        """Release the lock."""
        if self._checks is not None:
            self._checks.cancel()
            await asyncio.gather(self._checks, return_exceptions=True)
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    async def _keep_checking(self, lock: OwnerFile) -> None:
        while True:
            await asyncio.sleep(_CHECK)
            with contextlib.suppress(OSError, StoreError):  # the next check follows
                await self._end_leases_of_the_dead(lock)

    async def _end_leases_of_the_dead(self, lock: OwnerFile) -> None:
        for owner in lock.dead():
            await asyncio.gather(*(self._reap(partition, owner) for partition in range(self._link.partitions)))
            lock.remove(owner)

    async def _reap(self, partition: int, owner: str) -> None:
        """End the leases of an owner in one partition, list by list."""
        queues = await self._link.ask(partition, "reap", [owner])
        lists = [("by-status-paused", b""), *product(("ready-", "parked-", "activities-"), queues)]
        for kind, queue in lists:
            position = None
            while True:
                part = [owner, kind, queue.decode(), position]
                if (found := await self._link.ask(partition, "reap_list", part)) is None:
                    break
                score, member = found
                position = [score, member.decode()]

    def _leave_behind(self) -> None:
        if self._lock is not None:
            self._lock.leave_behind()


def _lock_in(store_id: str, owner: str) -> OwnerFile:
    """Make the folder of a store and a lock in it; the last store to close removes the folder, possibly in between."""
    mine = Path(tempfile.gettempdir()) / f"resurgam-{os.getuid()}"
    mine.mkdir(0o700, exist_ok=True)
    if mine.stat().st_uid != os.getuid():
        raise PermissionError(f"{mine} belongs to another user")
    folder = mine / store_id
    while True:
        folder.mkdir(0o700, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            return OwnerFile(folder, owner)
