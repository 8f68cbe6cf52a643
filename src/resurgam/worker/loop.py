"""Claim, run, commit, for as long as the engine is open."""

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from resurgam.core.clock import Clock
from resurgam.core.errors import StoreError
from resurgam.runtime import system
from resurgam.runtime.registry import Registry
from resurgam.store.protocol import Store
from resurgam.store.records import Accepted, ActivityResult, ActivityTask, Lease, Refused, Release, Work
from resurgam.worker.activities import ActivityRunner
from resurgam.worker.instances import InstanceRunner
from resurgam.worker.leases import Leases
from resurgam.worker.tasks import PAUSE_AFTER_ERROR, Tasks, pause

logger = logging.getLogger("resurgam.worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """What a worker serves, and how much of it at once."""

    name: str
    queues: tuple[str, ...] = ("default",)
    lease: int = 10_000
    grace: float = 10.0
    max_activities: int = 100
    max_instances: int = 100
    cache_size: int = 1000


class Worker:
    """Serves queues until it is stopped."""

    def __init__(self, store: Store, registry: Registry, clock: Clock, options: WorkerOptions) -> None:
        self._store = store
        self._clock = clock
        self._options = options
        self._tasks = Tasks()
        self._turns = Tasks()
        self._attempts = Tasks()
        self._leases = Leases(store, clock, self._tasks, length=options.lease)
        self._instances = InstanceRunner(
            store,
            registry,
            clock,
            worker=options.name,
            tasks=self._tasks,
            leases=self._leases,
            cache=options.cache_size,
        )
        self._activities = ActivityRunner(registry, clock, chance=system.chance)
        self._freed = asyncio.Event()
        self._instances.on_wait = self._freed.set
        self.progress = 0
        self._stopping = False
        self._resting = False
        self._main: asyncio.Task[None] | None = None

    @property
    def busy(self) -> int:
        """How many instances and activities are in hand."""
        return len(self._turns) + len(self._attempts)

    @property
    def resting(self) -> bool:
        """Whether nothing is in hand and there was nothing to claim."""
        return self._resting and not self.busy

    def start(self) -> None:
        """Begin to serve."""
        self._main = asyncio.get_running_loop().create_task(self._serve(), name=f"worker {self._options.name}")

    async def stop(self) -> None:
        """Claim nothing more, let what runs come to its end within the grace, and give the rest back."""
        if self._stopping:
            return
        self._stopping = True
        self._freed.set()
        if self._main is not None:
            await self._main
        deadline = asyncio.get_running_loop().time() + self._options.grace
        try:
            await self._turns.finish(deadline)
            await self._attempts.finish(deadline)
            await self._tasks.finish(0)
            await self._store.release([Release(lease=lease) for lease in self._leases.all()])
        except StoreError:
            logger.exception("the store failed; what this worker held is free when its leases run out")
        finally:
            self._leases.stop()
            await self._instances.forget_all()

    async def _serve(self) -> None:
        while not self._stopping:
            try:
                if not await self._claim():
                    await self._rest()
            except Exception:  # whatever it is, a worker that stands still unseen would be worse
                logger.exception("claiming failed; trying again in %g s", PAUSE_AFTER_ERROR)
                await self._pause()

    async def _pause(self) -> None:
        """Wait a while before the store is asked again, or until the worker stops."""
        waiting = asyncio.ensure_future(pause(self._clock, PAUSE_AFTER_ERROR))
        freed = asyncio.ensure_future(self._freed.wait())
        self._resting = True
        await asyncio.wait({waiting, freed}, return_when=asyncio.FIRST_COMPLETED)
        self._resting = False
        for waiter in (waiting, freed):
            waiter.cancel()

    async def _claim(self) -> bool:
        """Claim as much as there are free hands for; whether there was anything."""
        options = self._options
        before = self.progress
        self._freed.clear()
        if free := self._free_turns():
            for claim in await self._store.claim(options.name, options.queues, free):
                self._begin(self._turns, self._instances.serve(claim), f"workflow {claim.instance.entity_id}")
        if free := options.max_activities - len(self._attempts):
            for task in await self._store.claim_activities(options.name, options.queues, free):
                self._begin(self._attempts, self._perform(task), f"activity {task.request.name}")
        return self.progress > before

    def _free_turns(self) -> int:
        return max(0, self._options.max_instances - len(self._turns) + self._instances.waiting)

    def _begin(self, hands: Tasks, work: Coroutine[Any, Any, None], name: str) -> None:
        self.progress += 1
        hands.spawn(work, name).add_done_callback(self._free)

    def _free(self, _: asyncio.Task[None]) -> None:
        self.progress += 1
        self._freed.set()

    async def _rest(self) -> None:
        """Wait until there is something to claim and a free hand for it."""
        options = self._options
        watch = Work(
            worker=options.name,
            queues=options.queues,
            instances=self._free_turns() > 0,
            activities=len(self._attempts) < options.max_activities,
        )
        work = asyncio.ensure_future(self._store.wait(watch))
        freed = asyncio.ensure_future(self._freed.wait())
        self._resting = True
        try:
            await asyncio.wait({work, freed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._resting = False
            for waiter in (work, freed):
                waiter.cancel()
        if work.done():
            work.result()  # a store that fails at waiting is not asked again at once

    async def _perform(self, task: ActivityTask) -> None:
        """Run one attempt of an activity under its lease, and hand in what came of it."""
        this = asyncio.current_task()
        assert this is not None
        lease = Lease(execution_id=task.execution_id, epoch=task.epoch, ref=task.request.ref)
        self._leases.keep(lease, this.cancel)
        try:
            result = await self._activities.attempt(task)
            # The lease is kept until the result is handed in.
            answer = await self._hand_in(ActivityResult(execution_id=task.execution_id, epoch=task.epoch, event=result))
            if isinstance(answer, Refused):
                logger.warning("result of activity %r is not heard: %s", task.request.name, answer.reason)
        except asyncio.CancelledError:
            # Lost, or the worker stops: then the lease stays listed, for `stop` to give back.
            raise
        except Exception as error:
            logger.exception("running activity %r failed", task.request.name)
            # Dropped first: should giving it back fail too, it must run out by itself.
            self._leases.drop(lease)
            await self._store.release([Release(lease=lease, failed=repr(error))])
        self._leases.drop(lease)

    async def _hand_in(self, result: ActivityResult) -> Accepted | Refused:
        """Tell the store what became of an attempt; while it is out of reach the result is kept here."""
        while True:
            try:
                [answer] = await self._store.complete_activities([result])
            except StoreError:
                logger.exception("the store failed; handing a result in again in %g s", PAUSE_AFTER_ERROR)
                await pause(self._clock, PAUSE_AFTER_ERROR)
            else:
                return answer
