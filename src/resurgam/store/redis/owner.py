"""Detect dead processes: each open store holds a lock on a file of its own.

The lock ends with its process, however that ends. If another store on the same host can take it, its owner is dead, and
the leases of that owner end at once. The files are in a folder of the user below the temporary directory, which is named
after the id of the store. A process on another host, or of another user, does not see them: there leases expire by
themselves.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import tempfile
from itertools import product
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from resurgam.core.errors import StoreError
from resurgam.store.redis.link import Link

_CHECK: Final = 1.0
"""Seconds between two checks of the other owners."""

_UNNAMED: Final = "~"
"""Prefix of a lock file that is being created."""

_logger: Final = logging.getLogger("resurgam.store")


class OwnerLock:
    """A locked file that is named after an owner, beside those of the others."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._path = folder / quote(name, safe="")
        unnamed = folder / f"{_UNNAMED}{self._path.name}"
        self._file = os.open(unnamed, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        # It gets its name once it is locked, or it would look like a dead owner's.
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unnamed.rename(self._path)

    def dead(self) -> list[str]:
        """Return the owners whose lock can be taken; call `remove` for each once its leases are ended."""
        files = os.listdir(self._folder)  # noqa: PTH208 -- names are all that is needed
        return [unquote(file) for file in files if file != self._path.name and self._is_dead(file)]

    def _is_dead(self, name: str) -> bool:
        if name.startswith(_UNNAMED):
            return False
        try:
            file = os.open(self._folder / name, os.O_RDWR)
        except FileNotFoundError:
            return False  # it was closed, or another store has ended its leases
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        else:
            return True
        finally:
            os.close(file)

    def remove(self, name: str) -> None:
        """Remove the file of a dead owner."""
        with contextlib.suppress(FileNotFoundError):
            (self._folder / quote(name, safe="")).unlink()

    def leave_behind(self) -> None:
        """Close this process's copy of the lock after a fork: the child must not hold the lock of its parent."""
        os.close(self._file)

    def close(self) -> None:
        """Release the lock and remove its file."""
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        os.close(self._file)
        with contextlib.suppress(OSError):
            self._folder.rmdir()


class Owner:
    """The lock of one open store, and the end of the leases of dead ones."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._lock: OwnerLock | None = None
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

    async def _keep_checking(self, lock: OwnerLock) -> None:
        while True:
            await asyncio.sleep(_CHECK)
            with contextlib.suppress(OSError, StoreError):  # the next check follows
                await self._end_leases_of_the_dead(lock)

    async def _end_leases_of_the_dead(self, lock: OwnerLock) -> None:
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


def _lock_in(store_id: str, owner: str) -> OwnerLock:
    """Make the folder of a store and a lock in it; the last store to close removes the folder, possibly in between."""
    mine = Path(tempfile.gettempdir()) / f"resurgam-{os.getuid()}"
    mine.mkdir(0o700, exist_ok=True)
    if mine.stat().st_uid != os.getuid():
        raise PermissionError(f"{mine} belongs to another user")
    folder = mine / store_id
    while True:
        folder.mkdir(0o700, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            return OwnerLock(folder, owner)
