"""A store that falls silent at a write of its worker, as if the worker had died there."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from resurgam.core.lifecycle import WORKFLOW
from resurgam.runtime.brain import CodeBrain
from resurgam.runtime.registry import Registry
from resurgam.store import records as r
from resurgam.store.protocol import Store
from resurgam.testing.clock import ManualClock
from resurgam.testing.contract.bench import LEASE
from resurgam.worker.brains import Brains
from resurgam.worker.options import WorkerOptions
from resurgam.worker.worker import Worker
from support.engines import Engines
from support.stores import answered
from support.submitting import submit_by_commit


class Dying:
    """A store that falls silent at the n-th write of its worker, before it is applied or after, or when it is *dead*."""

    def __init__(self, store: Store, at: int | None = None, *, applied: bool = False) -> None:
        self._store = store
        self._at, self._applied = at, applied
        self._writes = 0
        self.dead = False

    def submit(self, part: r.Commit, done: Callable[[Any], None]) -> None:
        submit_by_commit(self.commit, part, done)

    def __getattr__(self, verb: str) -> Any:
        member = getattr(self._store, verb)
        if not callable(member):
            return member

        async def call(*args: Any, **options: Any) -> Any:
            self._writes += verb in ("commit", "complete_activities")
            fatal = not self.dead and self._writes == self._at
            if self.dead or (fatal and not self._applied):
                await self._die()
            answer = await member(*args, **options)
            if fatal or self.dead:
                await self._die()
            return answer

        return call

    async def _die(self) -> None:
        self.dead = True
        await asyncio.get_running_loop().create_future()


async def settle(worker: Worker) -> None:
    """Let a worker do all that it can without time passing."""
    quiet, progress = 0, -1
    while quiet < 50:
        waited = await answered(worker._store)
        await asyncio.sleep(0)
        quiet = quiet + 1 if progress == worker.progress and not waited else 0
        progress = worker.progress


@asynccontextmanager
async def doomed(
    engines: Engines, store: Dying, clock: ManualClock, registry: Registry, **options: Any
) -> AsyncIterator[Worker]:
    """Serve a store by a worker that ends without its drain. It is opened before other engines, and closed after them."""
    before = asyncio.all_tasks()
    given = {"name": "dies", "cache_size": engines.cache, "lease": LEASE, "max_activities": 10, **options}
    served: Any = store
    brains = Brains({WORKFLOW: CodeBrain(registry)}, served)
    worker = Worker(served, brains, registry, clock, WorkerOptions(**given))
    worker.start()
    try:
        yield worker
    finally:
        while left := asyncio.all_tasks() - before:
            for task in left:
                task.cancel()
            await asyncio.sleep(0)
        await worker._instances.evict_all()
        worker._watchdog.stop()


def kill(worker: Worker, store: Dying) -> None:
    """Let a worker die beside others: its store is silent from now on, and what it runs is gone."""
    store.dead = True
    for running in list(worker._slots._running):
        running.cancel()


async def serve_until_dead(
    engines: Engines, store: Dying, clock: ManualClock, registry: Registry, *, seconds: float = 7200, **options: Any
) -> None:
    """Serve a store until it falls silent, or everything is done; then end the worker without its drain."""
    async with doomed(engines, store, clock, registry, **options) as worker:
        await settle(worker)
        end = clock.now() + seconds * 1000
        while not store.dead and (due := clock.next_due()) is not None and due < end:
            clock.move_to(due)
            await settle(worker)
