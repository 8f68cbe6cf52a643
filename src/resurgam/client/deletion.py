"""Delete everything that a store and its archive have about one entity, and record that in the log of the catalog.

1. `EntityDeletionRequested` is recorded.
2. Open executions are terminated, so that they cannot change any more. A parent that waits for one gets a failure.
3. All executions are removed with all that belongs to them, from the archive and then from the store; with *tree*, those of
   descendants first. An entity is a descendant if a row of the store or a header of the archive says so: retention may have
   removed either its row or that of its parent.
4. Values that the store keeps for itself are deleted (`Transfer.scrub`).
5. `EntityDeleted` is recorded.

A deletion that was killed is visible by its request, and the same call finishes it: children go before their parents, so that
the entity leads to all that is left of them.
"""

import getpass
import os
import socket
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, Protocol

import msgspec

from resurgam.client import termination
from resurgam.client.access import Access
from resurgam.client.catalog import CatalogClient
from resurgam.client.members import Listed, Members, trees_of
from resurgam.core import errors
from resurgam.core import flow_event as fe
from resurgam.store import records as r
from resurgam.store.archives import ArchiveNeeded
from resurgam.store.move import journal
from resurgam.store.protocol import Store


class DeletableArchive(Protocol):
    """The archives of a store, as far as a deletion needs them. No archiver may write them meanwhile."""

    async def listed(self, wanted: Callable[[Listed], bool]) -> Sequence[tuple[str, Listed]]:
        """Return the executions that are *wanted*, each with the name of its file."""
        ...

    async def remove(self, names: Iterable[str], wanted: Callable[[Listed], bool]) -> set[str]:
        """Delete executions that are *wanted* from some files; return their ids."""
        ...

    async def damaged(self) -> Sequence[str]:
        """Return the URLs of the files whose headers cannot be read."""
        ...

    async def is_elsewhere(self, url: str, execution_id: str) -> bool:
        """Whether an execution is, or may be, in a file that is in none of them."""
        ...


_TRIES: Final = 100
"""Attempts to remove an entity that others change or start again all the time."""

_AT_ONCE: Final = 50
"""Executions removed in one transaction."""

_PAGE: Final = 500


class Deletion(msgspec.Struct, frozen=True, kw_only=True):
    """A deletion, as the log of the catalog records it; without *deleted_at* it was interrupted. Moments are milliseconds."""

    entity_id: str
    reason: str
    by: str
    tree: bool
    requested_at: int
    deleted_at: int | None = None
    executions: int = 0
    archived: int = 0


class Deleted(msgspec.Struct):
    """The ids of the executions that were removed, from the store or an archive, and of those that were in an archive.

    Only this call counts: an interrupted one records no counts.
    """

    executions: set[str] = set()
    archived: set[str] = set()


async def read_deletions(store: Store) -> list[Deletion]:
    """Return all recorded deletions, in the order of their requests."""
    page = await store.inspector.list(r.Query(kind=fe.CATALOG, limit=_PAGE))
    found: list[Deletion] = []
    for catalog in reversed(page.instances):
        for entry in await store.inspector.history(catalog, forgotten=True):
            match entry:
                case fe.EntityDeletionRequested():
                    found.append(
                        Deletion(
                            entity_id=entry.entity_id,
                            reason=entry.reason,
                            by=entry.by,
                            tree=entry.tree,
                            requested_at=entry.at,
                        )
                    )
                case fe.EntityDeleted():
                    found = [_finished(one, entry) for one in found]
                case _:
                    pass
    return found


def _finished(one: Deletion, entry: fe.EntityDeleted) -> Deletion:
    if one.deleted_at is not None or one.entity_id != entry.entity_id:
        return one
    return msgspec.structs.replace(one, deleted_at=entry.at, executions=entry.executions, archived=entry.archived)


class Deleter:
    """Delete entities of one store and its *archives*; *worker* is the name under which the catalog is served."""

    def __init__(self, access: Access, worker: str, archives: DeletableArchive) -> None:
        self._access = access
        self._store = access.store
        self._catalog = CatalogClient(access, worker)
        self._archives = archives

    async def delete(self, entity_id: str, *, reason: str, tree: bool) -> Deleted:
        """Delete an entity, and with *tree* its descendants; raise `NotFound` if there is none."""
        if entity_id == fe.CATALOG:
            raise errors.WrongState(
                "the catalog of steps cannot be deleted: it records the deletions; `resurgam step remove` removes a step"
            )
        if (move := await journal.unfinished(self._store.values)) is not None:
            raise errors.StoreError(
                f"a move of runs to {move.url} is not finished, and may have copied {entity_id!r}; finish it by `resurgam move`, "
                "or end it with --abort, and call delete again"
            )
        removed = Deleted()
        copies = await self._copies(entity_id)
        open_requests = [one for one in await self._recorded(entity_id) if one.deleted_at is None]
        unfinished = bool(open_requests)
        tree = tree or any(one.tree for one in open_requests)  # the first call may have removed a part of the tree
        members = await self._members(entity_id, copies, tree=tree)
        if copies or members.files or members.leads_on:
            await self._check(copies, members, unfinished=unfinished)
            await self._catalog.request_deletion(entity_id, reason=reason, by=_caller(), tree=tree)
            await self._delete_all(members, removed)
        elif not unfinished:
            raise errors.NotFound(f"there is no workflow with id {entity_id!r}")
        await self._store.transfer.scrub()
        if damaged := await self._archives.damaged():
            raise errors.CorruptHistory(
                f"the archive file {damaged[0]} is damaged and may hold {entity_id!r}, of which everything else is deleted; "
                "restore or remove the file, and call delete again"
            )
        await self._catalog.confirm_deletion(
            entity_id, executions=len(removed.executions), archived=len(removed.archived)
        )
        return removed

    async def _recorded(self, entity_id: str) -> Sequence[Deletion]:
        return [one for one in await read_deletions(self._store) if one.entity_id == entity_id]

    async def _delete_all(self, members: Members, removed: Deleted) -> None:
        """Delete an entity, and again in other trees if it was started there meanwhile."""
        for _ in range(_TRIES):
            await self._delete(members, removed)
            copies = await self._copies(members.entity_id)
            if not copies:
                return
            members = await self._members(members.entity_id, copies, tree=members.with_descendants)
        raise _keeps_changing(members.entity_id)

    async def _delete(self, members: Members, removed: Deleted) -> None:
        reason = f"everything about {members.entity_id!r} is deleted"
        for level in reversed(await self._stopped(members, reason)):
            await self._forget(level, members, removed)
            for entity_id in level:
                await self._remove(entity_id, members, removed, reason)

    # The executions that there are.

    async def _copies(self, entity_id: str) -> Sequence[r.Copy]:
        """Return all executions of an entity; the newest without its log, if the logs cannot be decoded."""
        try:
            return await self._store.transfer.copies(entity_id)
        except errors.CorruptHistory:
            newest = await self._store.inspector.get(entity_id)
            return () if newest is None else (r.Copy(instance=newest, log=()),)

    async def _members(self, entity_id: str, copies: Sequence[r.Copy], *, tree: bool) -> Members:
        mine = await self._archives.listed(lambda one: one.entity_id == entity_id)
        if not tree:
            return Members(self._store.inspector, entity_id, mine)
        executions = [copy.instance for copy in copies]
        trees = await trees_of(self._store.inspector, entity_id, executions, mine)
        all_archived = await self._archives.listed(lambda one: one.entity_id == entity_id or one.tree_id in trees.ids)
        return Members(self._store.inspector, entity_id, all_archived, trees)

    async def _stopped(self, members: Members, reason: str) -> Sequence[Sequence[str]]:
        """Terminate an entity and its descendants; return their ids, by levels."""
        for _ in range(_TRIES):
            levels, found = await members.levels()
            open_ones = [one for one in found if not one.status.terminal]
            if not open_ones:
                return levels
            for one in open_ones:
                await termination.terminate(self._access, one, reason)
            # Messages that they have sent before, and children that they have requested, have arrived after this.
            await self._store.transfer.flush()
        raise _keeps_changing(members.entity_id)

    # Executions that cannot be deleted completely.

    async def _check(self, copies: Sequence[r.Copy], members: Members, *, unfinished: bool) -> None:
        """Refuse a deletion that would leave executions in an archive.

        One that is *unfinished* was checked before, and may have deleted the files that rows still name.
        """
        _, found = await members.levels()
        known = (*(copy.instance for copy in copies), *found)
        for one in () if unfinished else known:
            if one.archived is not None and await self._archives.is_elsewhere(one.archived, one.execution_id):
                raise ArchiveNeeded(
                    f"{one.entity_id!r} is in the archive file {one.archived}, which is in no archive of this store; give the "
                    "archive that has it as archive= or --archive, or delete it first in the store that the archive belongs to"
                )

    # Removal.

    async def _forget(self, level: Collection[str], members: Members, removed: Deleted) -> None:
        """Delete entities from the archive."""
        names = frozenset(level)
        found = await self._archives.remove(members.files, lambda one: one.entity_id in names and members.includes(one))
        removed.archived |= found
        removed.executions |= found

    async def _remove(self, entity_id: str, members: Members, removed: Deleted, reason: str) -> None:
        """Remove the executions of an entity from the store; one that was started meanwhile is terminated first."""
        for _ in range(_TRIES):
            copies = [copy for copy in await self._copies(entity_id) if members.includes(copy.instance)]
            if not copies:
                return
            unfinished = [copy.instance for copy in copies if not copy.instance.status.terminal]
            for one in unfinished:
                await termination.terminate(self._access, one, reason)
            if unfinished:
                await self._store.transfer.flush()
                continue
            if entity_id == members.entity_id:  # the parent of a descendant goes too
                for copy in copies:
                    await termination.notify_parent(self._access, copy.instance, reason)
            await self._remove_closed(entity_id, copies, removed, close_children=not members.with_descendants)
        raise _keeps_changing(entity_id)

    async def _remove_closed(
        self, entity_id: str, copies: Sequence[r.Copy], removed: Deleted, *, close_children: bool
    ) -> None:
        """Remove executions, as long as none has changed."""
        for start in range(0, len(copies), _AT_ONCE):
            part = tuple(copies[start : start + _AT_ONCE])
            if not await self._remove_part(entity_id, part):
                return
            removed.executions |= {copy.instance.execution_id for copy in part}
            if close_children:
                await termination.notify_children(self._access, part)

    async def _remove_part(self, entity_id: str, part: tuple[r.Copy, ...]) -> bool:
        if any(not copy.log for copy in part):  # it is archived, or cannot be decoded: there is nothing to compare
            purged = await self._store.purge([copy.instance for copy in part])
            return all(isinstance(one, r.Purged) for one in purged)
        [answer] = await self._store.transfer.remove([r.Removal(entity_id=entity_id, copies=part)])
        return isinstance(answer, r.Removed)


def _keeps_changing(entity_id: str) -> errors.StoreError:
    return errors.StoreError(
        f"{entity_id!r} kept changing, or was started again, in {_TRIES} attempts; stop the programs that start it, and call "
        "delete again"
    )


def _caller() -> str:
    """Return the user and the host of this process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
