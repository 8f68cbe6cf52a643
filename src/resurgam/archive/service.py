"""The archive of an engine: reads through it, and the archiver that runs beside the worker."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from resurgam.archive.archive import Archive, open_archive, owner_of
from resurgam.archive.archiver import Archiver
from resurgam.archive.reading import inspector_of, with_archive
from resurgam.core.clock import Clock
from resurgam.core.errors import StoreError
from resurgam.store import records as r
from resurgam.store.lock import Sleep, archive_lock
from resurgam.store.protocol import Inspector, Store
from resurgam.store.secret import secret_of

logger = logging.getLogger("resurgam.archive")


class ArchiveService:
    """The archive at *url*, if there is one. *after* is the age in milliseconds at which runs move there; None: never."""

    def __init__(self, url: str | Path | None, after: int | None, clock: Clock, name: str) -> None:
        self.archive = None if url is None else open_archive(url)
        self._after = after
        self._clock = clock
        self._name = name
        self._archiving: asyncio.Task[None] | None = None
        self._archiver: Archiver | None = None

    @property
    def working(self) -> bool:
        """Whether the archiver beside the worker is at work."""
        return self._archiver is not None and self._archiver.working

    @property
    def progress(self) -> int:
        """A counter of what the archiver has done."""
        return 0 if self._archiver is None else self._archiver.rests

    def readable(self, store: Store) -> Store:
        """Return a store with the histories of the archive."""
        return with_archive(store, self.archive)

    def inspector(self, store: Store) -> Inspector:
        """Return the read side of a store, with the histories of the archive."""
        return inspector_of(store, self.archive)

    def archiver(self, store: Store, age: int) -> Archiver:
        """Return an archiver of runs that closed more than *age* milliseconds ago."""
        return Archiver(store, self.opened(), self._clock, age=age, name=self._name)

    def opened(self) -> Archive:
        """Return the archive; raise `StoreError` if there is none."""
        if self.archive is None:
            raise StoreError("there is no archive; open the engine with archive=, the URL of a folder")
        return self.archive

    async def restored(self, copies: Sequence[r.Copy]) -> list[r.Copy]:
        """Return executions, with the histories of those that are archived; without an archive, log where they are."""
        return [copy if copy.instance.archived is None else await self._restored(copy) for copy in copies]

    async def _restored(self, copy: r.Copy) -> r.Copy:
        if self.archive is not None:
            return await self.archive.copy(copy.instance)
        logger.warning(
            "the history of %r (run %s) is not exported: it is archived in %s; open the engine with archive=, or copy the file",
            *(copy.instance.entity_id, copy.instance.run_id, copy.instance.archived),
        )
        return copy

    def start(self, store: Store, sleep: Sleep) -> None:
        """Archive beside other work, if an age was given."""
        if self._after is not None:
            self._archiver = self.archiver(store, self._after)
            self._archiving = asyncio.get_running_loop().create_task(self._archiver.run(sleep), name="archiver")

    async def stop(self) -> None:
        """Stop archiving; the next archiver finishes the unit that is under way."""
        if self._archiving is not None:
            self._archiving.cancel()
            await asyncio.wait({self._archiving})
            self._archiving = self._archiver = None

    @asynccontextmanager
    async def unwritten(self, store: Store) -> AsyncIterator[Archive]:
        """Give the archive to the block, and keep all archivers from writing its files meanwhile."""
        archive = self.opened()
        async with archive_lock(store.values, self._clock).taken(), archive.exclusive():
            await archive.check_owner(owner_of(await secret_of(store.values)))
            yield archive
