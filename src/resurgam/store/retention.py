"""Retention: decide which closed executions may be purged, and purge them in batches.

A closed execution is a candidate once it is complete (`Instance.deactivated`): no activity is outstanding, and its
answer was sent to its parent. It is kept while another execution needs it:

- *An open execution continues or retries it*, and it is one of the `LOOKED_UP` newest of that chain: an update that is
  sent again is looked up there by its id. Older ones are not read, because an attempt starts with all that it needs.
- *Its parent waits for it, or may do so again*: the parent's run is open, or failed and may be retried manually, and
  awaits the child (`InstanceState.awaited_children`). Detached children are not awaited.
- *It is a manual compensation of an execution that is kept.* Without this record the step could be compensated twice.
- *It is a catalog that was terminated.* Its log records which entities were deleted.

Executions whose log is in an archive are candidates too; the archive keeps its files. The log of an archived parent is not
read: if it failed, its children are kept as long as its row.

Stores list candidates (`Inspector.ended`) and delete what they are given (`Store.purge`). The decision is taken here
and stays valid in between: a closed execution never opens again.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

import msgspec
from msgspec.structs import replace

from resurgam.core.errors import CorruptHistory
from resurgam.core.flow_event import CATALOG, FLOW
from resurgam.core.state import InstanceState, Status
from resurgam.store import records as r
from resurgam.store.protocol import Inspector, Store

LOOKED_UP: Final = 4
"""Newest executions of a chain in which an update is looked up by its id."""

_SHARE: Final = 10
_SHORTEST: Final = 1_000
_LONGEST: Final = 3_600_000


def interval(age: int) -> int:
    """Return how often to look for executions of this age: a tenth of it, at least a second and at most an hour."""
    return min(max(age // _SHARE, _SHORTEST), _LONGEST)


def same_chain(one: r.Instance, other: r.Instance) -> bool:
    """Whether two executions of one entity belong together: one retries or continues the other."""
    return one.run_id == other.run_id or (one.tree_id == other.tree_id and _key(one) == _key(other))


def awaits(state: InstanceState, child: r.Instance) -> bool:
    """Whether an execution in this state still waits for the end of a child."""
    called = child.parent is not None and (child.parent.location, child.entity_id)
    return any((call.location, call.entity_id) == called for call in state.awaited_children)


def is_looked_up(ended: r.Instance, newest: r.Instance) -> bool:
    """Whether an update of the open execution *newest* may be looked up in an earlier one of its chain."""
    same_run = ended.run_id == newest.run_id
    later = newest.attempt - ended.attempt if same_run else newest.generation - ended.generation
    return not newest.status.terminal and later < LOOKED_UP


def is_compensation(ended: r.Instance) -> bool:
    """Whether an execution compensates a step of its parent manually: the key of its call is its own id."""
    return ended.parent is not None and ended.parent.key == ended.entity_id


def _key(instance: r.Instance) -> str | None:
    return None if instance.parent is None else instance.parent.key


class Batch(msgspec.Struct, frozen=True):
    """The result of a batch: how many executions were removed, and how many were kept.

    *gone* are the ids of those that the store no longer has, *needed* those that are kept, *last* is the position of the
    last one that was looked at.
    """

    removed: int = 0
    kept: int = 0
    gone: tuple[str, ...] = ()
    needed: tuple[r.Instance, ...] = ()
    last: tuple[int, str] | None = None


class Dependents:
    """Decide whether another execution needs a complete one. The state of each parent is read once.

    *gone* are the ids of executions that count as removed.
    """

    def __init__(self, inspector: Inspector, gone: AbstractSet[str] = frozenset()) -> None:
        self._inspector = inspector
        self._gone = gone
        self._parents: dict[str, InstanceState | None] = {}

    async def need(self, ended: r.Instance, newest: r.Instance | None) -> bool:
        """Whether one of them needs *ended*; *newest* is the newest execution of its entity."""
        if newest is not None and newest.execution_id != ended.execution_id and same_chain(newest, ended):
            return is_looked_up(ended, newest)
        call = ended.parent
        if call is None or (call.detached and not is_compensation(ended)):
            return False
        parent = await self._inspector.get(call.entity_id, call.run_id)
        if parent is None or parent.execution_id in self._gone:
            return False
        if is_compensation(ended):
            return True
        if parent.kind == FLOW or (parent.status.terminal and parent.status is not Status.FAILED):
            # A flow that is complete has the answers of all its children.
            return parent.kind == FLOW and not parent.deactivated
        if parent.execution_id not in self._parents:
            self._parents[parent.execution_id] = await self._state(parent)
        state = self._parents[parent.execution_id]
        return state is None or awaits(state, ended)

    async def _state(self, execution: r.Instance) -> InstanceState | None:
        """Return the state of an execution; None if its history cannot be read and may await anything."""
        if execution.archived is not None:
            return None
        try:
            return InstanceState(await self._inspector.history(execution))
        except CorruptHistory:
            return None


class Purge(msgspec.Struct):
    """One pass over the candidates of *query*, apart from those with a name in *skipped*. A *dry_run* only counts."""

    store: Store
    query: r.EndedQuery
    dry_run: bool = False
    skipped: frozenset[str] = frozenset()
    _gone: set[str] = msgspec.field(default_factory=set)

    async def batches(self, again: Sequence[r.Instance] = (), size: int | None = None) -> AsyncIterator[Batch]:
        """Purge candidates from the oldest on, at most *size* at a time, or as many as are read at a time.

        *again* are candidates that were found earlier; they come first.
        """
        size = size or self.query.limit
        for part in _parts(again, size):
            yield await self._remove(part)
        query = self.query
        while candidates := await self.store.inspector.ended(query):
            for part in _parts([one for one in candidates if one.name not in self.skipped], size):
                yield replace(await self._remove(part), last=_position(part[-1]))
            query = replace(query, after=_position(candidates[-1]))
            if candidates[-1].name in self.skipped:
                yield Batch(last=query.after)

    async def total(self) -> Batch:
        """Run all batches, yielding to other tasks after each, and return the sums."""
        removed = kept = 0
        async for batch in self.batches():
            removed, kept = removed + batch.removed, kept + batch.kept
            await asyncio.sleep(0)
        return Batch(removed, kept)

    async def _remove(self, candidates: Sequence[r.Instance]) -> Batch:
        dependents = Dependents(self.store.inspector, self._gone)
        free, needed = [], []
        # Asked for together: one by one, a store behind a network would be asked more slowly than runs end.
        newest = await asyncio.gather(*(self.store.inspector.get(one.entity_id) for one in candidates))
        for one, last in zip(candidates, newest, strict=True):
            if one.kind == CATALOG or await dependents.need(one, last):
                needed.append(one)
            else:
                free.append(one)
                self._gone.add(one.execution_id)
        if self.dry_run:
            return Batch(len(free), len(needed), needed=tuple(needed))
        answers = await self.store.purge(free)
        self._gone.clear()
        removed = sum(isinstance(answer, r.Purged) for answer in answers)
        return Batch(removed, len(needed), tuple(one.execution_id for one in free), tuple(needed))


async def purge_all(store: Store, query: r.EndedQuery, *, dry_run: bool = False) -> AsyncIterator[Batch]:
    """Purge the candidates of a query, those with a log in the store and those with a log in an archive.

    Yield to other tasks after each batch.
    """
    for archived in (False, True):
        async for batch in Purge(store, replace(query, archived=archived), dry_run=dry_run).batches():
            yield batch
            await asyncio.sleep(0)


def _parts(instances: Sequence[r.Instance], size: int) -> Iterator[Sequence[r.Instance]]:
    for start in range(0, len(instances), size):
        yield instances[start : start + size]


def _position(ended: r.Instance) -> tuple[int, str]:
    return ended.closed_at or 0, ended.execution_id
