"""Move complete histories from a store to an archive.

Each goes through four steps, and may be cut off between any two:

1. *Reserved*: ``workflow_archiving`` or ``flow_archiving`` is the last entry of its log.
2. *Written*: its lines are in a file, which is put in its place whole, and is on disk.
3. *Verified*: the file is read back and compared with the store.
4. *Archived*: the store deletes everything but the row, and the row names the file, in one step. Until then the store
   has the history, and from then on the archive: it is always readable in exactly one place.

Another archiver, of any process, follows one that was killed. It finds the reserved executions among the oldest complete
ones, adds to the file those that are missing there, and goes on. Only one works at a time (`Lock`), and only one
writes files: a process that was stopped and has lost the lock writes nothing when it goes on.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import aclosing
from datetime import timedelta
from secrets import token_hex
from typing import Final

import msgspec
from msgspec.structs import replace

from resurgam.archive import document
from resurgam.archive.archive import OWNER, Archive, Identity, differs, owner_of
from resurgam.archive.folder import ArchiveFailed
from resurgam.archive.selection import Selection, Unit
from resurgam.core import event as events
from resurgam.core.clock import Clock
from resurgam.core.errors import CorruptHistory, StoreError
from resurgam.core.flow_event import FLOW, FlowArchiving
from resurgam.store import records as r
from resurgam.store.archives import known_archives, note_archive
from resurgam.store.identity import identity_of
from resurgam.store.import_grace import is_kept
from resurgam.store.lock import LEASE, LockLost, Sleep, archive_lock
from resurgam.store.protocol import Store
from resurgam.store.retention import interval

logger = logging.getLogger("resurgam.archive")

_SOON: Final = LEASE / 1000
"""Seconds until the next pass where another process has cut one off: a deletion must not stop archiving for an hour."""

_AT_ONCE: Final = 50
"""Executions that the store deletes in one step."""

_PAUSE: Final = 0.02
"""Seconds between two units of a worker's archiver, so that most of the time is left to other work."""


class Progress(msgspec.Struct, frozen=True):
    """How many executions were archived, in how many files, and how many could not be."""

    executions: int = 0
    files: int = 0
    failed: int = 0


class Archiver:
    """Archive executions that closed more than *age* milliseconds ago. *name* is recorded in their logs."""

    def __init__(self, store: Store, archive: Archive, clock: Clock, *, age: int, name: str) -> None:
        self._store = store
        self._archive = archive
        self._clock = clock
        self._age = age
        self._name = name
        self._lock = archive_lock(store.values, clock)
        self.working = False
        """Whether `run` is at work: between two units and two passes it is not."""
        self.rests = 0
        self._cut_off = False

    async def run(self, sleep: Sleep) -> None:
        """Run passes until cancelled; after a failure the next pass tries again."""
        every = interval(self._age) / 1000
        while True:
            done, self.working = Progress(), True
            try:
                async with aclosing(self.units()) as units:
                    async for now in units:
                        done = now
                        await self._rest(_PAUSE, sleep)
            except StoreError as error:
                logger.error("archiving failed: %s; trying again in %s", error, timedelta(seconds=every))  # noqa: TRY400
            except Exception:
                logger.exception("archiving failed; trying again in %s", timedelta(seconds=every))
            if done.executions:
                logger.info("archived %d executions in %d files of %s", done.executions, done.files, self._archive.url)
            await self._rest(min(every, _SOON) if self._cut_off else every, sleep)

    async def _rest(self, seconds: float, sleep: Sleep) -> None:
        self.working = False
        self.rests += 1
        await sleep(seconds)
        self.working = True

    async def units(self, *, wait: bool = False) -> AsyncGenerator[Progress, None]:
        """Run one pass, and yield after each file.

        It ends where another process is archiving; with *wait*, it waits for that, and raises `StoreError` if it takes long.
        """
        done, self._cut_off = Progress(), False
        async for unit in Selection(self._store.inspector, self._clock.now() - self._age).units():
            if await is_kept(self._store.values, unit.tree_id):
                continue
            # For each file: a deletion must not wait for a whole pass.
            if wait:
                await self._lock.take(asyncio.sleep)
            elif not await self._lock.try_take():
                self._cut_off = True
                return
            async with self._lock.renewed():
                done = await self._one(unit, done)
            yield done

    async def selected(self) -> AsyncIterator[Unit]:
        """Yield the units that a pass would archive now, and change nothing."""
        async for unit in Selection(self._store.inspector, self._clock.now() - self._age).units():
            if not await is_kept(self._store.values, unit.tree_id):
                yield unit

    async def _one(self, unit: Unit, done: Progress) -> Progress:
        """Archive a unit; one that is damaged, or whose file is, must not hold up all others."""
        try:
            moved = await self._move(unit)
        except (CorruptHistory, ArchiveFailed, LockLost) as error:
            if isinstance(error, ArchiveFailed) and error.everywhere:
                raise
            logger.error("%s is not archived: %s", unit.members[0].entity_id, error)  # noqa: TRY400 -- it says enough
            return replace(done, failed=done.failed + 1)
        return replace(done, executions=done.executions + moved, files=done.files + bool(moved))

    async def _move(self, unit: Unit) -> int:
        frames = [frame for run in _runs(unit.members) for frame in await self._reserved(run)]
        if not frames:
            return 0
        async with self._archive.exclusive():
            # Only this process changes files now. One that took over before has finished; one that does later waits.
            await self._lock.confirm()
            await self._claim()
            # A deletion that was delayed may have ended since the copies were read. Its files must not come back.
            frames = [frame for frame in frames if await self._is_there(frame.instance)]
            held = await self._archive.add(unit.name, frames) if frames else {}
        # A process that took over since then may have deleted the file: the store must not delete the only copy.
        await self._lock.confirm()
        moved = 0
        for run in _runs([frame.instance for frame in frames]):
            moved += await self._switch(run, held, f"{self._archive.url}{unit.name}")
        return moved

    async def _claim(self) -> None:
        """Refuse the archive of another store, and one that has vanished; make a new one that of this store."""
        values, url = self._store.values, self._archive.url
        owner = owner_of(await identity_of(values))
        identity = await self._archive.check_owner(owner)
        if identity is None or not identity.id:
            before = next((one for one, known in (await known_archives(values)).items() if known == url), None)
            if before is not None and identity is None:
                raise ArchiveFailed(
                    f"histories of this store were moved to {url}, but there is no archive any more; mount its disk. "
                    f"If it is gone for good, write {owner} into {url}{OWNER}",
                    everywhere=True,
                )
            identity = Identity(owner, before or token_hex(8))
            await self._archive.claim(identity)
        await note_archive(values, identity.id, url)

    async def _reserved(self, run: Sequence[r.Instance]) -> Sequence[document.Frame]:
        """Return the frames of executions of a run, whose logs end with their reservation; those that are gone are left out."""
        copies = await self._copies_of(run)
        parts = [self._reservation(copy) for copy in copies if not isinstance(copy.log[-1], events.Archiving)]
        if parts:
            await self._store.transfer.reserve(parts)
            copies = [copy for copy in await self._copies_of(run) if isinstance(copy.log[-1], events.Archiving)]
        now = self._clock.now()
        return [await asyncio.to_thread(document.frame_of, copy, now) for copy in copies]

    def _reservation(self, copy: r.Copy) -> r.Reservation:
        one = copy.instance
        kind = FlowArchiving if one.kind == FLOW else events.WorkflowArchiving
        at = max(self._clock.now(), copy.log[-1].at)
        event = kind(seq=one.last_seq + 1, at=at, archiver=self._name)
        return r.Reservation(entity_id=one.entity_id, execution_id=one.execution_id, event=event)

    async def _is_there(self, member: r.Instance) -> bool:
        found = await self._store.inspector.get(member.entity_id, execution_id=member.execution_id)
        return found is not None

    async def _copies_of(self, run: Sequence[r.Instance]) -> Sequence[r.Copy]:
        """Return executions of a run that are complete, and whose logs are in the store."""
        wanted = {one.execution_id for one in run}
        copies = await self._store.transfer.copies(run[0].entity_id, run[0].run_id)
        return [
            copy for copy in copies if copy.instance.execution_id in wanted and copy.log and copy.instance.deactivated
        ]

    async def _switch(self, run: Sequence[r.Instance], held: dict[str, str], url: str) -> int:
        """Have the store delete executions of a run, if the file holds exactly the same; return how many it has deleted."""
        copies = await self._copies_of(run)
        for copy in copies:
            execution_id = copy.instance.execution_id
            if held.get(execution_id) != await asyncio.to_thread(document.digest_of, copy):
                raise differs(execution_id, url)
        moved = 0
        for start in range(0, len(copies), _AT_ONCE):
            part = tuple(copies[start : start + _AT_ONCE])
            archival = r.Archival(entity_id=run[0].entity_id, copies=part, archive=url)
            [answer] = await self._store.transfer.archive([archival])
            moved += len(part) * isinstance(answer, r.Archived)
        return moved


def _runs(members: Sequence[r.Instance]) -> Iterable[Sequence[r.Instance]]:
    """Return executions by their runs: stores read the executions of a run together."""
    by_run: dict[str, list[r.Instance]] = {}
    for one in members:
        by_run.setdefault(one.run_id, []).append(one)
    return by_run.values()
