"""The setting of a workload: storage for its stores, its size, and an engine with default options."""

import asyncio
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from resurgam.bench.figures import Count, Raw, counting, percentile
from resurgam.bench.programs import registry
from resurgam.bench.storage import Storage
from resurgam.core import event as events
from resurgam.engine import Engine

T = TypeVar("T")

_POLL = 0.001
"""Seconds between two checks whether a worker is idle."""


@dataclass(frozen=True)
class Scene:
    """Where a workload runs, and its *scale*: 1 is the full size."""

    storage: Storage
    scale: float = 1.0

    def size(self, full: int) -> int:
        """Return a size of the workload at this scale."""
        return max(1, round(full * self.scale))

    def engine(self, name: str) -> Engine:
        """Return an engine on the store with this name."""
        return Engine(self.storage.url(name), registry=registry)

    def raw(self, of: str, history: Sequence[events.Event], *, instances: int = 1, times: int = 1) -> "RawLimit | None":
        """Write the rows of a history without an engine, for some instances together, several times."""
        with self.storage.raw() as writer:
            return None if writer is None else RawLimit(of, [writer.write(history, instances) for _ in range(times)])


@dataclass(frozen=True)
class RawLimit:
    """The seconds of each commit, for each repetition."""

    of: str
    commits: Sequence[Sequence[float]]

    def per_commit(self, steps: int) -> Raw:
        """Return the limit of one commit after another, each with one of *steps*."""
        each = [seconds for written in self.commits for seconds in written]
        return Raw(of=self.of, p50=percentile(each, 0.5), rate=self._rate(steps))

    def whole(self, steps: int | None = None) -> Raw:
        """Return the limit of the whole history."""
        totals = [sum(written) for written in self.commits]
        return Raw(of=self.of, p50=percentile(totals, 0.5), rate=None if steps is None else self._rate(steps))

    def _rate(self, steps: int) -> float:
        return steps / percentile([sum(written) for written in self.commits], 0.5)


async def timed(work: Awaitable[object]) -> float:
    """Return how many seconds *work* takes."""
    begin = time.perf_counter()
    await work
    return time.perf_counter() - begin


async def count_of(engine: Engine, work: Awaitable[object]) -> Count | None:
    """Return the statements or round trips of the store during *work*, in a pass that is not timed."""
    with counting(engine.store) as count:
        await work
    return count


def per_step(count: Count | None, steps: int) -> dict[str, float]:
    """Return the counts per step, as fields of `Figures`."""
    if count is None:
        return {}
    if count.round_trips is not None:
        return {"round_trips": count.round_trips / steps}
    return {"commits": count.commits / steps, "statements": count.statements / steps}


async def at_rest(engine: Engine) -> None:
    """Wait until a worker holds nothing and its queues are empty."""
    while True:
        await asyncio.sleep(_POLL)
        if engine.resting:
            queues = (await engine.store.inspector.stats()).queues.values()
            if not any(queue.instances or queue.activities or queue.claimed_activities for queue in queues):
                return
