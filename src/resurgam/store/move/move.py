"""The course of a move.

1. All live runs of the source are paused, with a mark, and the move waits until no worker holds anything of them.
2. Group by group, the executions are copied to the target, where they arrive paused; what has arrived is compared with the
   source by its digest; then the source deletes them, unless they have changed.
3. The runs that have arrived are resumed in the target.

At no time is a run offered in both stores: in the source it is paused from the first step on, and in the target until the
third. A move that was interrupted at any point is finished by another one: what is paused with its mark belongs to it, a run
in both stores has not moved yet, and one in the target alone has.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack
from typing import Final

import msgspec
from msgspec.structs import replace

from resurgam.core.clock import Clock, iso_time
from resurgam.core.errors import StoreError, WriteRejected
from resurgam.core.flow_event import CATALOG
from resurgam.store import records as r
from resurgam.store.lock import Lock, archive_lock
from resurgam.store.move import journal, pauses
from resurgam.store.move.digest import digest_of
from resurgam.store.move.groups import Group, Member, groups_in
from resurgam.store.protocol import Store
from resurgam.store.secret import share_secret

_TRIES: Final = 20
"""Copies of a group that others may change before it is left where it is."""

_PASSES: Final = 100
"""Looks for runs that were started meanwhile."""

_POLL: Final = 0.2
"""Seconds between two looks whether workers have let go."""

_AT_ONCE: Final = 16
"""Calls that are under way at the same time."""

_IN_BOTH: Final = "it is in both stores, and goes on in neither; terminate one of them"


class Progress(msgspec.Struct, frozen=True):
    """How far a move is: what is being done, to how many of how many."""

    step: str
    done: int
    total: int


class Options(msgspec.Struct, frozen=True):
    """What to move: the groups of some workflows, or of all; those without a live run too, if *closed*.

    *patience*: how long to wait for work that is under way, in milliseconds.
    """

    entity_ids: frozenset[str] = frozenset()
    closed: bool = False
    patience: int = 60_000


class Moved(msgspec.Struct, frozen=True):
    """What a move has done: workflows and executions that have moved, and workflows that were left with the reason.

    *same_secret*: promises that are opened later get the ids that they would have had in the source.
    """

    workflows: int
    executions: int
    left: dict[str, str]
    same_secret: bool


class Move:
    """Move live runs from *source* to *target*, with all that belongs to them; *url* names the target to people."""

    def __init__(
        self,
        source: Store,
        target: Store,
        clock: Clock,
        *,
        url: str,
        options: Options | None = None,
        tell: Callable[[Progress], None] = lambda _: None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._source = source
        self._target = target
        self._clock = clock
        self._url = url
        self._options = options or Options()
        self._tell = tell
        self._sleep = sleep
        # Archivers would change what is copied.
        archivers = [archive_lock(store.values, clock) for store in (source, target)]
        self._locks = [journal.lock_of(source.values, clock), *archivers]
        self._workflows = 0
        self._executions = 0
        self._left: dict[str, str] = {}

    async def run(self) -> Moved:
        """Move, or finish a move that was interrupted."""
        return await self._locked(self._move_all)

    async def abort(self) -> Moved:
        """End a move that was interrupted: what has arrived goes on in the target, everything else in the source."""
        return await self._locked(self._take_all_back, abort=True)

    async def _locked(self, course: Callable[[journal.Record], Awaitable[None]], *, abort: bool = False) -> Moved:
        given = self._options
        async with AsyncExitStack() as stack:
            await self._take(self._locks[0], stack)
            begun = await journal.unfinished(self._source.values)
            if abort and begun is not None:  # what it has not begun to move must be left alone
                given = replace(given, entity_ids=begun.entity_ids, closed=begun.closed)
            record = await journal.begin(
                self._source.values, self._target.values, self._url, given.entity_ids, closed=given.closed
            )
            for lock in self._locks[1:]:
                await self._take(lock, stack)
            self._options = replace(given, entity_ids=record.entity_ids, closed=record.closed)
            same_secret = await share_secret(self._source.values, self._target.values)
            await course(record)
            if self._left:
                await self._take_all_back(record)
            await self._go_on(record)
            await journal.end(self._source.values)
        return Moved(self._workflows, self._executions, self._left, same_secret)

    async def _take(self, lock: Lock, stack: AsyncExitStack) -> None:
        await lock.take(self._sleep)
        await stack.enter_async_context(lock.renewed())

    # The steps.

    async def _move_all(self, record: journal.Record) -> None:
        for _ in range(_PASSES):
            groups = await self._still()
            if not groups:
                return
            await self._quieten(groups, record)
            if self._left:
                return
            await self._source.transfer.flush()
            if any(_to_pause(group) for group in await self._still()):
                continue  # runs that were started by those that have stopped by now
            await self._carry_all(groups, record)
            if self._left:
                return
        raise StoreError(f"workflows were started in each of {_PASSES} passes; stop the clients of the source first")

    async def _still(self) -> Sequence[Group]:
        """Return the groups that are still in the source, and are to move."""
        await self._renew()
        found = await groups_in(self._source, self._options.entity_ids, closed=self._options.closed)
        there = await self._target.inspector.get(CATALOG)
        if there is None or there.kind != CATALOG:
            return found
        # The target has a catalog of its own. Flows do not need that of the source: each has its steps in its plan.
        return [group for group in found if CATALOG not in group.entity_ids or _has(group, there)]

    async def _quieten(self, groups: Sequence[Group], record: journal.Record) -> None:
        """Pause all runs, and wait until nothing of them is under way; note those that take too long."""
        await self._pause([member for group in groups for member in _to_pause(group)], record)
        waiting = [member for group in groups for member in group.members if not member.complete]
        total, until = len(waiting), self._clock.now() + self._options.patience
        while busy := await self._busy(waiting):
            self._tell(Progress("stopped", total - len(busy), total))
            await self._renew()
            if self._clock.now() >= until:
                self._left |= {member.entity_id: reason for member, reason in busy.items()}
                return
            await self._sleep(_POLL)
            waiting = list(busy)
        self._tell(Progress("stopped", total, total))

    async def _pause(self, members: Sequence[Member], record: journal.Record) -> None:
        reason = f"moving to {self._url} {record.mark}"
        for start in range(0, len(members), pauses.BATCH):
            await self._renew()
            self._tell(Progress("paused", start, len(members)))
            await pauses.pause(self._source, members[start : start + pauses.BATCH], reason, self._clock.now())
        self._tell(Progress("paused", len(members), len(members)))

    async def _busy(self, members: Collection[Member]) -> dict[Member, str]:
        """Return those members of which something is under way, each with what that is."""
        found: dict[Member, str] = {}
        waiting = list(members)
        for start in range(0, len(waiting), _AT_ONCE):
            some = waiting[start : start + _AT_ONCE]
            reasons = await asyncio.gather(*(self._work_of(member) for member in some))
            found |= {member: reason for member, reason in zip(some, reasons, strict=True) if reason is not None}
        return found

    async def _work_of(self, member: Member) -> str | None:
        """Return what is under way of an execution; None if nothing is."""
        instance = await self._source.inspector.get(member.entity_id, execution_id=member.execution_id)
        if instance is None:
            return None
        work, now = await self._source.inspector.open_work(instance), self._clock.now()
        if instance.status.terminal and not instance.deactivated:
            return _end_of(work, now)
        if work is None:
            return None
        running = [one for one in work.activities if one.leased_until is not None and one.leased_until > now]
        if running:
            return f"activity {running[0].request.name!r} runs on worker {running[0].worker}"
        if work.leased_until is not None and work.leased_until > now:
            return f"worker {work.worker} holds it"
        return None

    async def _carry_all(self, groups: Sequence[Group], record: journal.Record) -> None:
        for start in range(0, len(groups), _AT_ONCE):
            await self._renew()
            self._tell(Progress("moved", start, len(groups)))
            some = groups[start : start + _AT_ONCE]
            ends = await asyncio.gather(*(self._carry(group, record) for group in some), return_exceptions=True)
            for failure in filter(None, ends):
                raise failure
        self._tell(Progress("moved", len(groups), len(groups)))

    async def _carry(self, group: Group, record: journal.Record) -> None:
        """Copy a group, compare it, and delete it in the source; once more for what has changed meanwhile."""
        entity_ids = group.entity_ids
        for _ in range(_TRIES):
            copies = {name: found for name in entity_ids if (found := tuple(await self._source.transfer.copies(name)))}
            loose = [copy for found in copies.values() for copy in found if not _is_at_rest(copy)]
            if loose:  # it was resumed by hand, or terminated
                await self._quieten([Group([_member_of(copy) for copy in loose])], record)
                if self._left:
                    return
            elif not await self._place(copies):
                return
            else:
                entity_ids = await self._delete(copies)
                if not entity_ids:
                    return
        self._left |= dict.fromkeys(entity_ids, f"it has changed while it was copied, {_TRIES} times")

    async def _place(self, copies: dict[str, tuple[r.Copy, ...]]) -> bool:
        """Bring copies to the target, and compare what has arrived; return whether all of it is there."""
        missing = {entity_id: await self._not_archived_there(found) for entity_id, found in copies.items()}
        parts = [r.Adoption(entity_id=entity_id, copies=found) for entity_id, found in missing.items() if found]
        for part in parts:
            try:
                [answer] = await self._target.transfer.adopt([part])
            except WriteRejected as error:
                self._left[part.entity_id] = f"the target cannot store it: {error}"
                continue
            if isinstance(answer, r.Exists):
                self._left[part.entity_id] = _conflict(part.entity_id, answer.instance)
        for part in parts:
            if part.entity_id not in self._left and not await self._has_arrived(part.entity_id, part.copies):
                self._left[part.entity_id] = (
                    "another run of it is in the target, and differs from the one in the source"
                )
        return self._left.keys().isdisjoint(copies)

    async def _not_archived_there(self, copies: tuple[r.Copy, ...]) -> tuple[r.Copy, ...]:
        """Return the copies that are not complete in the target already, with their history in its archive."""
        rows = {
            copy.instance.execution_id: await self._target.inspector.get(
                copy.instance.entity_id, execution_id=copy.instance.execution_id
            )
            for copy in copies
            if copy.instance.deactivated
        }
        return tuple(copy for copy in copies if not _is_archived(rows.get(copy.instance.execution_id), copy.instance))

    async def _has_arrived(self, entity_id: str, copies: tuple[r.Copy, ...]) -> bool:
        """Whether the target has what was copied; what an interrupted move has brought before is replaced."""
        there = await self._there(entity_id, copies)
        if digest_of(there) == digest_of(copies):
            return True
        if not await self._take_back(entity_id, copies):
            return False
        await self._target.transfer.adopt([r.Adoption(entity_id=entity_id, copies=copies)])
        if digest_of(await self._there(entity_id, copies)) != digest_of(copies):
            raise StoreError(f"{entity_id!r} differs in the target from what was copied; it was not moved")
        return True

    async def _there(self, entity_id: str, copies: tuple[r.Copy, ...]) -> tuple[r.Copy, ...]:
        """Return the executions of copies as they are in the target, without what has come for them since."""
        known = {copy.instance.execution_id: copy for copy in copies}
        found = await self._target.transfer.copies(entity_id)
        return tuple(
            replace(copy, inbox=copy.inbox[: len(known[copy.instance.execution_id].inbox)])
            for copy in found
            if copy.instance.execution_id in known
        )

    async def _delete(self, copies: dict[str, tuple[r.Copy, ...]]) -> Sequence[str]:
        """Delete in the source what has moved; return the entities that have changed."""
        await self._confirm()
        parts = [r.Removal(entity_id=entity_id, copies=found) for entity_id, found in copies.items()]
        answers = await self._source.transfer.remove(parts)
        gone = [part for part, answer in zip(parts, answers, strict=True) if isinstance(answer, r.Removed)]
        self._workflows += len(gone)
        self._executions += sum(len(part.copies) for part in gone)
        return [part.entity_id for part, answer in zip(parts, answers, strict=True) if isinstance(answer, r.Changed)]

    # Both stores.

    async def _take_all_back(self, _: journal.Record) -> None:
        """Delete in the target what is still in the source."""
        for group in await self._still():
            await self._renew()
            for entity_id in group.entity_ids:
                copies = tuple(await self._source.transfer.copies(entity_id))
                if await self._there(entity_id, copies) and not await self._take_back(entity_id, copies):
                    self._left.setdefault(entity_id, _IN_BOTH)

    async def _take_back(self, entity_id: str, copies: tuple[r.Copy, ...]) -> bool:
        """Delete in the target what a move has brought there; return whether that could be done without a loss."""
        known = {copy.instance.execution_id: copy for copy in copies}
        found = [copy for copy in await self._target.transfer.copies(entity_id) if copy.instance.execution_id in known]
        found = [copy for copy in found if not _is_archived(copy.instance, known[copy.instance.execution_id].instance)]
        if not all(_is_staged(copy, known[copy.instance.execution_id]) for copy in found):
            return False
        await self._confirm()
        [answer] = await self._target.transfer.remove([r.Removal(entity_id=entity_id, copies=tuple(found))])
        return isinstance(answer, r.Removed)

    async def _confirm(self) -> None:
        """Raise `StoreError` if another process may have taken over, before anything is deleted.

        A process that is suspended between this and the deletion for longer than a lease may still delete what the other
        one has decided to keep: the stores have no transaction in common.
        """
        for lock in self._locks:
            await lock.confirm()

    async def _renew(self) -> None:
        for lock in self._locks:
            await lock.renew()

    async def _go_on(self, record: journal.Record) -> None:
        """Resume what this move has paused: in each store what is there alone."""
        for store, other in ((self._target, self._source), (self._source, self._target)):
            found = [one async for one in pauses.paused_by(store, record.mark)]
            for start in range(0, len(found), pauses.BATCH):
                await self._renew()
                self._tell(Progress("resumed", start, len(found)))
                batch = found[start : start + pauses.BATCH]
                alone = [one for one in batch if not await _is_in(other, one)]
                await pauses.resume(store, alone, self._clock.now())
                if store is self._target:
                    await self._take_back_both({one.entity_id for one in batch} - {one.entity_id for one in alone})
            self._tell(Progress("resumed", len(found), len(found)))

    async def _take_back_both(self, entity_ids: Collection[str]) -> None:
        """Delete in the target what is in both stores: it was closed in the source after an interrupted move copied it."""
        for entity_id in entity_ids:
            copies = tuple(await self._source.transfer.copies(entity_id))
            if not await self._take_back(entity_id, copies):
                self._left.setdefault(entity_id, _IN_BOTH)


def _has(group: Group, instance: r.Instance) -> bool:
    return any(member.execution_id == instance.execution_id for member in group.members)


async def _is_in(store: Store, execution: r.Addressed) -> bool:
    return await store.inspector.get(execution.entity_id, execution_id=execution.execution_id) is not None


def _to_pause(group: Group) -> Sequence[Member]:
    return [member for member in group.members if not (member.closed or member.paused)]


def _end_of(work: r.OpenWork | None, now: int) -> str:
    """Return what must happen before a closed execution is complete. It cannot be paused, so that it is waited for."""
    until = max((one.visible_at for one in work.activities), default=now) if work is not None else now
    if until > now:
        return f"it is closed, but its work may still be answered until {iso_time(until)}; wait, or move others by id"
    return "it is closed, but a worker must still record the end of its work"


def _member_of(copy: r.Copy) -> Member:
    instance = copy.instance
    return Member(
        entity_id=instance.entity_id,
        execution_id=instance.execution_id,
        paused=copy.paused is not None,
        closed=instance.status.terminal,
        complete=instance.deactivated,
    )


def _is_at_rest(copy: r.Copy) -> bool:
    """Whether no worker may take up an execution: it is paused, or complete."""
    return copy.instance.deactivated or copy.paused is not None


def _is_staged(copy: r.Copy, known: r.Copy) -> bool:
    """Whether an execution in the target can be deleted: it is not offered, and holds nothing that the source does not."""
    if not _is_at_rest(copy):
        return False
    if known.instance.archived is not None:  # the archive of the source has its history
        return copy.instance.deactivated
    grown = len(copy.log) < len(known.log)
    same_inbox = copy.inbox == known.inbox[: len(copy.inbox)]
    return copy.log == known.log[: len(copy.log)] and (grown or same_inbox)


def _is_archived(there: r.Instance | None, here: r.Instance) -> bool:
    """Whether the target has the end of an execution, and its history in its archive, while the source has the history."""
    return there is not None and there.archived is not None and here.archived is None


def _conflict(entity_id: str, found: r.Instance) -> str:
    if found.entity_id == entity_id:
        return f"the target has an open run of it already ({found.run_id})"
    return f"the target has one of its promises already, in {found.entity_id!r}"
