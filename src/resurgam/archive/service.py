"""The archive of an engine: reads through it, and the archiver that runs beside the worker."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from resurgam.archive.archive import OWNER, Archive, ArchiveSet, Identity, open_archive, open_known, owner_of
from resurgam.archive.archiver import Archiver
from resurgam.archive.inspector import inspector_of, with_archive
from resurgam.core.clock import Clock
from resurgam.core.errors import StoreError
from resurgam.store import records as r
from resurgam.store.archives import ArchiveNeeded, known_archives, note_archive
from resurgam.store.identity import identity_of
from resurgam.store.lock import Sleep, archive_lock
from resurgam.store.protocol import Inspector, Store, Values

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
        return Archiver(store, self.require(), self._clock, age=age, name=self._name)

    def require(self) -> Archive:
        """Return the archive; raise `StoreError` if there is none."""
        if self.archive is None:
            raise StoreError("there is no archive; open the engine with archive=, the URL of a folder")
        return self.archive

    async def with_histories(self, copies: Sequence[r.Copy]) -> list[r.Copy]:
        """Return executions, with the histories of those that are archived; without an archive, log where they are."""
        return [copy if copy.instance.archived is None else await self._with_history(copy) for copy in copies]

    async def _with_history(self, copy: r.Copy) -> r.Copy:
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
    async def exclusive(self, store: Store) -> AsyncIterator[ArchiveSet]:
        """Give all archives of a store to the block, and keep archivers from writing files meanwhile.

        They are those that the store remembers, each at its last place, and that of the engine. Raise `ArchiveNeeded` if
        one of them is not there.
        """
        async with archive_lock(store.values, self._clock).taken(), AsyncExitStack() as stack:
            archives = await self._archives_of(store.values)
            for archive in archives:
                await stack.enter_async_context(archive.exclusive())
            yield ArchiveSet(archives)

    async def _archives_of(self, values: Values) -> list[Archive]:
        owner, known = owner_of(await identity_of(values)), await known_archives(values)
        found: list[Archive] = []
        if self.archive is not None and (identity := await self.archive.check_owner(owner)) is not None:
            found.append(self.archive)
            if identity.id in known:  # it may have been moved
                await note_archive(values, identity.id, self.archive.url)
            known = {one: url for one, url in known.items() if one != identity.id and url != self.archive.url}
        for archive_id, url in known.items():
            archive = open_known(url)
            identity = None if archive is None else await archive.identity()
            if archive is None or identity not in (Identity(owner, archive_id), Identity(owner, "")):
                raise ArchiveNeeded(
                    f"histories of this store are in the archive {url}, which is not there; mount its disk, or give its new "
                    f"place as archive= or --archive. If it is gone for good, write {owner} into {url}{OWNER}"
                )
            found.append(archive)
        return found
