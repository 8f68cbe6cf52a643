"""Claim, run, commit, for as long as the engine is open."""

import asyncio
import logging
from dataclasses import dataclass

from resurgam.core.clock import Clock
from resurgam.core.errors import StoreError
from resurgam.runtime import system
from resurgam.runtime.registry import Registry
from resurgam.store.protocol import Store
from resurgam.store.records import Accepted, ActivityResult, ActivityTask, Claim, Lease, Refused, Release, Work
from resurgam.worker.activities import ActivityRunner
from resurgam.worker.instances import InstanceRunner
from resurgam.worker.leases import Leases
from resurgam.worker.tasks import Tasks

logger = logging.getLogger("resurgam.worker")

_PAUSE_AFTER_ERROR = 1.0
"""Seconds to wait before a store that failed is asked again."""


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
        self._activities = ActivityRunner(
            registry, clock, self._tasks, threads=options.max_activities, chance=system.chance
        )
        self._freed = asyncio.Event()
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
        self._stopping = True
        self._freed.set()
        if self._main is not None:
            await self._main
        # Turns first: a workflow at rest needs no grace, while an activity may need all of it.
        await self._turns.finish(self._options.grace)
        await self._attempts.finish(self._options.grace)
        self._leases.stop()
        await self._tasks.finish(0)
        held = [Release(lease=lease) for lease in self._leases.all()]
        if held:
            await self._store.release(held)
        await self._instances.forget_all()
        self._activities.close()

    async def _serve(self) -> None:
        while not self._stopping:
            try:
                if not await self._claim():
                    await self._rest()
            except StoreError:
                logger.exception("the store failed; asking it again in %g s", _PAUSE_AFTER_ERROR)
                await asyncio.sleep(_PAUSE_AFTER_ERROR)

    async def _claim(self) -> bool:
        """Claim as much as there are free hands for; whether there was anything."""
        options = self._options
        self._freed.clear()
        claims: list[Claim] = []
        tasks: list[ActivityTask] = []
        if free := options.max_instances - len(self._turns):
            claims = list(await self._store.claim(options.name, options.queues, free))
        if free := options.max_activities - len(self._attempts):
            tasks = list(await self._store.claim_activities(options.name, options.queues, free))
        for claim in claims:
            turn = self._turns.spawn(self._instances.serve(claim), f"workflow {claim.instance.entity_id}")
            turn.add_done_callback(self._free)
        for task in tasks:
            attempt = self._attempts.spawn(self._perform(task), f"activity {task.request.name}")
            attempt.add_done_callback(self._free)
        self.progress += len(claims) + len(tasks)
        return bool(claims or tasks)

    def _free(self, _: asyncio.Task[None]) -> None:
        self.progress += 1
        self._freed.set()

    async def _rest(self) -> None:
        """Wait until there is something to claim and a free hand for it."""
        options = self._options
        watch = Work(
            worker=options.name,
            queues=options.queues,
            instances=len(self._turns) < options.max_instances,
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
            await asyncio.gather(work, freed, return_exceptions=True)

    async def _perform(self, task: ActivityTask) -> None:
        """Run one attempt of an activity under its lease, and hand in what came of it."""
        this = asyncio.current_task()
        assert this is not None
        lease = Lease(execution_id=task.execution_id, epoch=task.epoch, ref=task.request.ref)
        self._leases.keep(lease, this.cancel)
        result = await self._activities.attempt(task)
        # The lease is kept until the result is handed in; a cancelled attempt keeps it too, for `stop` to give back.
        answer = await self._hand_in(ActivityResult(execution_id=task.execution_id, epoch=task.epoch, event=result))
        self._leases.drop(lease)
        if isinstance(answer, Refused):
            logger.warning("result of activity %r is not heard: %s", task.request.name, answer.reason)

    async def _hand_in(self, result: ActivityResult) -> Accepted | Refused:
        """Tell the store what became of an attempt; while it is out of reach the result is kept here."""
        while True:
            try:
                [answer] = await self._store.complete_activities([result])
            except StoreError:
                logger.exception("the store failed; handing a result in again in %g s", _PAUSE_AFTER_ERROR)
                await asyncio.sleep(_PAUSE_AFTER_ERROR)
            else:
                return answer
