"""Retention: decide which closed executions may be purged, and purge them in batches.

A closed execution is a candidate once it is complete (`Instance.deactivated`): no activity is outstanding, and its
answer was sent to its parent. It is kept while another execution needs it:

- *An open execution continues or retries it*, and it is one of the `LOOKED_UP` newest of that chain: an update that is
  sent again is looked up there by its id. Older ones are not read, because an attempt starts with all that it needs.
- *Its parent waits for it, or may do so again*: the parent's run is open, or failed and may be retried manually, and
  awaits the child (`InstanceState.awaited_children`). Detached children are not awaited.
- *It is a manual compensation of an execution that is kept.* Without this record the step could be compensated twice.

Stores list candidates (`Inspector.ended`) and delete what they are given (`Store.purge`). The decision is taken here
and stays valid in between: a closed execution never opens again.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from resurgam.core.errors import CorruptHistory
from resurgam.core.flow_event import FLOW
from resurgam.core.state import InstanceState, Status
from resurgam.store import records as r
from resurgam.store.protocol import Store

LOOKED_UP: Final = 4
"""Newest executions of a chain in which an update is looked up by its id."""


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
    """The result of a batch: how many executions were removed, and how many were kept."""

    removed: int
    kept: int


class Purge(msgspec.Struct):
    """One pass over the candidates of *query*. A *dry_run* only counts."""

    store: Store
    query: r.EndedQuery
    dry_run: bool = False
    _gone: set[str] = msgspec.field(default_factory=set)

    async def batches(self) -> AsyncIterator[Batch]:
        """Purge candidates from the oldest on, in batches of the query's limit."""
        query = self.query
        while candidates := await self.store.inspector.ended(query):
            yield await self._remove(candidates)
            last = candidates[-1]
            query = replace(query, after=(last.closed_at or 0, last.execution_id))

    async def total(self) -> Batch:
        """Run all batches, yielding to other tasks after each, and return the sums."""
        removed = kept = 0
        async for batch in self.batches():
            removed, kept = removed + batch.removed, kept + batch.kept
            await asyncio.sleep(0)
        return Batch(removed, kept)

    async def _remove(self, candidates: Sequence[r.Instance]) -> Batch:
        parents: dict[str, InstanceState | None] = {}
        free = []
        for one in candidates:
            if not await self._is_needed(one, parents):
                free.append(one)
                self._gone.add(one.execution_id)
        if self.dry_run:
            return Batch(len(free), len(candidates) - len(free))
        answers = await self.store.purge(free)
        self._gone.clear()
        removed = sum(isinstance(answer, r.Purged) for answer in answers)
        return Batch(removed, len(candidates) - len(free))

    async def _is_needed(self, ended: r.Instance, parents: dict[str, InstanceState | None]) -> bool:
        newest = await self.store.inspector.get(ended.entity_id)
        if newest is not None and newest.execution_id != ended.execution_id and same_chain(newest, ended):
            return is_looked_up(ended, newest)
        call = ended.parent
        if call is None or (call.detached and not is_compensation(ended)):
            return False
        parent = await self.store.inspector.get(call.entity_id, call.run_id)
        if parent is None or parent.execution_id in self._gone:
            return False
        if is_compensation(ended):
            return True
        if parent.kind == FLOW or (parent.status.terminal and parent.status is not Status.FAILED):
            # A flow that is complete has the answers of all its children.
            return parent.kind == FLOW and not parent.deactivated
        if parent.execution_id not in parents:
            parents[parent.execution_id] = await self._state(parent)
        state = parents[parent.execution_id]
        return state is None or awaits(state, ended)

    async def _state(self, execution: r.Instance) -> InstanceState | None:
        """Return the state of an execution; None if its history cannot be decoded and may await anything."""
        try:
            return InstanceState(await self.store.inspector.history(execution))
        except CorruptHistory:
            return None
