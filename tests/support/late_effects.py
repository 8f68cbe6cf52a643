"""A memory store that behaves like one with partitions.

Effects on other instances and on topics are durable with the commit and arrive exactly once, but a few turns of the
event loop later: no caller may look for them in the reply of the commit. They keep their order for each pair of sender
and target only; here the pairs arrive in reverse. Work is claimed in the order of its partition. The ids of promises and
queries must begin with the route of their entity, and a delivery to an execution names its entity.
"""

import asyncio
from collections.abc import Sequence
from typing import ClassVar, Final

from msgspec.structs import replace

from resurgam.core.clock import Clock
from resurgam.core.identity import route_of
from resurgam.core.outcome import ChildRequest, Message, Outcome
from resurgam.store import records as r
from resurgam.store.memory.effects import Effects
from resurgam.store.memory.lifecycle import Lifecycle
from resurgam.store.memory.promises import Promises
from resurgam.store.memory.queries import MemoryQueries
from resurgam.store.memory.rows import Row
from resurgam.store.memory.store import MemoryStore
from resurgam.store.memory.table import Table
from resurgam.store.memory.topics import Topics
from resurgam.store.memory.transfer import MemoryTransfer
from support.partitioned_claims import PartitionedTable, partition_of, partition_of_route

TURNS: Final = 3
"""Turns of the event loop until an effect arrives: callers that await the commit have gone on by then."""


class LateEffects(Effects):
    """Keep children, messages and publications back until `arrive`; everything of the own entity is applied at once."""

    def __init__(self, table: Table, lifecycle: Lifecycle, promises: Promises, topics: Topics) -> None:
        super().__init__(table, lifecycle, promises, topics)
        self._waiting: dict[tuple[str, str], list[tuple[Row, Outcome, r.Pause | None]]] = {}

    def send(self, row: Row, outcome: Outcome, paused: r.Pause | None) -> None:
        """Apply promises and the successor; keep the rest back."""
        for promise_id in (*(promise.promise_id for promise in outcome.promises), *outcome.closed):
            _check_route(promise_id, row.instance.entity_id)
        super().send(row, replace(outcome, children=(), messages=(), publications=()), paused)
        parts = (
            *((_target(request), Outcome(children=(request,))) for request in outcome.children),
            *((_target(message), Outcome(messages=(message,))) for message in outcome.messages),
            *((f"topic {news.topic}", Outcome(publications=(news,))) for news in outcome.publications),
        )
        for target, part in parts:
            self._waiting.setdefault((row.instance.entity_id, target), []).append((row, part, paused))

    @property
    def waits(self) -> bool:
        """Whether effects have not arrived yet."""
        return bool(self._waiting)

    def arrive(self) -> None:
        """Apply the effects that were kept back: those of a pair in their order, the pairs in reverse."""
        while self._waiting:
            _, effects = self._waiting.popitem()
            for effect in effects:
                super().send(*effect)


def _target(part: ChildRequest | Message) -> str:
    """Return the route of the target: a settlement names its promise alone."""
    if isinstance(part, ChildRequest):
        return route_of(part.started.entity_id)
    return route_of(part.entity_id) if part.promise_id is None else part.promise_id[:4]


class LateEffectsStore(MemoryStore):
    """The memory store, with effects that arrive late and ids that must be routable."""

    effects: ClassVar[type[LateEffects]] = LateEffects

    def __init__(self, clock: Clock, *, lease: int = 10_000) -> None:
        super().__init__(clock, lease=lease, rows=PartitionedTable, effects=self.effects)
        self._planned = False
        self.queries = RoutedQueries(self._table, self._refresh, self._changed)
        self.transfer = RoutedTransfer(self._table, Promises(self._table), self.queries, self._refresh, self._changed)

    async def deliver(
        self, parts: Sequence[r.Delivery]
    ) -> Sequence[r.Delivered | r.Missing | r.Ended | r.Settled | r.Outdated]:
        """Check that each part says where it is to be delivered, and deliver."""
        for part in parts:
            assert part.entity_id or part.promise_id is not None, f"{part} must name its entity"
        return await super().deliver(parts)

    def _changed(self) -> None:
        super()._changed()
        assert isinstance(self._effects, LateEffects)
        if self._effects.waits and not self._planned:
            self._planned = True
            self._plan(TURNS)

    def _plan(self, turns: int) -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(self._arrive if turns == 0 else lambda: self._plan(turns - 1))

    def _arrive(self) -> None:
        assert isinstance(self._effects, LateEffects)
        self._planned = False
        self._refresh()
        self._effects.arrive()
        self._changed()


class PartitionEffects(LateEffects):
    """Apply the effects within the partition of the sender at once, and keep the others back."""

    def send(self, row: Row, outcome: Outcome, paused: r.Pause | None) -> None:
        """Apply what stays in the partition; keep the rest back."""
        home = partition_of(row.instance.entity_id)
        children = tuple(one for one in outcome.children if partition_of(one.started.entity_id) == home)
        messages = tuple(one for one in outcome.messages if partition_of_route(_target(one)) == home)
        others = Outcome(
            children=tuple(one for one in outcome.children if one not in children),
            messages=tuple(one for one in outcome.messages if one not in messages),
        )
        Effects.send(self, row, replace(outcome, children=children, messages=messages), paused)
        super().send(row, others, paused)


class PartitionedStore(LateEffectsStore):
    """The memory store with partitions as the Redis store has them; `settle` lets all effects arrive."""

    effects: ClassVar[type[LateEffects]] = PartitionEffects

    async def settle(self) -> None:
        """Let all effects arrive."""
        self._arrive()


class RoutedQueries(MemoryQueries):
    """Queries whose ids must begin with the route of their entity."""

    async def submit(self, parts: Sequence[r.QueryTask]) -> Sequence[r.Submitted | r.Missing]:
        """Check the ids, and submit."""
        for task in parts:
            _check_route(task.query_id, task.entity_id)
        return await super().submit(parts)


class RoutedTransfer(MemoryTransfer):
    """Copies with promises whose ids must begin with the route of their entity."""

    async def adopt(self, parts: Sequence[r.Adoption]) -> Sequence[r.Adopted | r.Exists]:
        """Check the ids, and adopt."""
        for part in parts:
            for promise in (promise for copy in part.copies for promise in copy.promises):
                _check_route(promise.promise_id, part.entity_id)
        return await super().adopt(parts)

    async def flush(self) -> None:
        """Let the effects arrive, and those that follow from them."""
        for _ in range(10 * TURNS):
            await asyncio.sleep(0)
        await super().flush()


def _check_route(routed_id: str, entity_id: str) -> None:
    assert routed_id.startswith(route_of(entity_id)), f"{routed_id!r} must begin with the route of {entity_id!r}"
