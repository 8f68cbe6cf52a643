"""Retention: which ended executions may be removed, and the pass that removes them in batches.

An ended execution is a candidate once it is complete (`Instance.deactivated`): no activity is outstanding, and its parent
has been sent its end. It is kept while another execution needs it:

- *An open execution continues or retries it*, and it is one of the `LOOKED_UP` newest of its chain: an update that is sent
  again by its id is looked up there. Older ones are not read: a retry and a continuation begin with all they need.
- *Its parent waits for it, or may do so again*: the parent's run is open, or failed and may be retried by hand. Its history
  has a call for this child without an answer, or the current attempt has not come to the call of an earlier attempt yet.
  A detached child is not waited for.
- *It is a compensation by hand of an execution that is kept.* It is the record that the step was taken back; without it
  the step could be taken back a second time.

Stores list candidates (`Inspector.ended`) and remove what they are told to (`Store.purge`). The decision is made here,
outside of both, and stays right in between: an ended execution never opens again.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from resurgam.core.errors import CorruptHistory
from resurgam.core.state import InstanceState, Status
from resurgam.store import records as r
from resurgam.store.protocol import Store

LOOKED_UP: Final = 4
"""Executions of a chain in which an update is looked up by its id, the newest included."""


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
    """Whether an execution takes back a step of its parent by hand: its parent's key is its own id."""
    return ended.parent is not None and ended.parent.key == ended.entity_id


def _key(instance: r.Instance) -> str | None:
    return None if instance.parent is None else instance.parent.key


@dataclass(frozen=True, slots=True)
class Batch:
    """What one batch came to: how many executions were removed, and how many are kept because others need them."""

    removed: int
    kept: int


@dataclass(slots=True)
class Purge:
    """One pass over the candidates of *query*. With *dry_run* nothing is removed, only counted."""

    store: Store
    query: r.EndedQuery
    dry_run: bool = False
    _gone: set[str] = field(default_factory=set)

    async def batches(self) -> AsyncIterator[Batch]:
        """Remove candidates from the oldest on, as many at a time as the query says."""
        query = self.query
        while candidates := await self.store.inspector.ended(query):
            yield await self._remove(candidates)
            last = candidates[-1]
            query = replace(query, after=(last.closed_at or 0, last.execution_id))

    async def total(self) -> Batch:
        """Go through all batches, with a turn of the loop for others after each, and return the sums."""
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
        if parent.status.terminal and parent.status is not Status.FAILED:
            return False
        if parent.execution_id not in parents:
            parents[parent.execution_id] = await self._state(parent)
        state = parents[parent.execution_id]
        return state is None or awaits(state, ended)

    async def _state(self, execution: r.Instance) -> InstanceState | None:
        """Return the state of an execution; None if its history cannot be read, so that it may wait for anything."""
        try:
            return InstanceState(await self.store.inspector.history(execution))
        except CorruptHistory:
            return None
