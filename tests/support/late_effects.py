"""A memory store whose effects on other instances arrive after the commit, as in a store with partitions.

They are durable with the commit, arrive exactly once and in order, but a few turns of the event loop later: no caller may
look for them in the reply of the commit.
"""

import asyncio
from collections import deque
from typing import Final

from msgspec.structs import replace

from resurgam.core.clock import Clock
from resurgam.core.outcome import Outcome
from resurgam.store import records as r
from resurgam.store.memory.effects import Effects
from resurgam.store.memory.lifecycle import Lifecycle
from resurgam.store.memory.promises import Promises
from resurgam.store.memory.rows import Row
from resurgam.store.memory.store import MemoryStore
from resurgam.store.memory.table import Table
from resurgam.store.memory.topics import Topics

TURNS: Final = 3
"""Turns of the event loop until an effect arrives: callers that await the commit have gone on by then."""


class LateEffects(Effects):
    """Keep children, messages and publications back until `arrive`; everything of the own entity is applied at once."""

    def __init__(self, table: Table, lifecycle: Lifecycle, promises: Promises, topics: Topics) -> None:
        super().__init__(table, lifecycle, promises, topics)
        self._waiting: deque[tuple[Row, Outcome, r.Pause | None]] = deque()

    def send(self, row: Row, outcome: Outcome, paused: r.Pause | None) -> None:
        """Apply promises and the successor; keep the rest back."""
        super().send(row, replace(outcome, children=(), messages=(), publications=()), paused)
        if outcome.children or outcome.messages or outcome.publications:
            kept = Outcome(children=outcome.children, messages=outcome.messages, publications=outcome.publications)
            self._waiting.append((row, kept, paused))

    @property
    def waits(self) -> bool:
        """Whether effects have not arrived yet."""
        return bool(self._waiting)

    def arrive(self) -> None:
        """Apply the effects that were kept back, in their order."""
        while self.waits:
            super().send(*self._waiting.popleft())


class LateEffectsStore(MemoryStore):
    """The memory store, with effects that arrive late."""

    def __init__(self, clock: Clock, *, lease: int = 10_000) -> None:
        super().__init__(clock, lease=lease, effects=LateEffects)
        self._planned = False

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
