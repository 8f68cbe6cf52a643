"""Claim, run, commit, for as long as the engine is open."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final

from resurgam.core.brain import Brain
from resurgam.core.clock import Clock
from resurgam.core.codec import MAX_PAYLOAD
from resurgam.core.errors import StoreError
from resurgam.runtime import system
from resurgam.runtime.registry import Registry
from resurgam.store.protocol import Store
from resurgam.store.records import Claim, EagerOffer, Release, Work
from resurgam.worker.attempts import ActivityRunner
from resurgam.worker.held import Committer, HeldInstance
from resurgam.worker.instances import InstanceRunner
from resurgam.worker.leases import Leases
from resurgam.worker.queries import Questions
from resurgam.worker.retention import Retention
from resurgam.worker.slots import Slots
from resurgam.worker.tasks import PAUSE_AFTER_ERROR, Grace, Tasks, complain, pause
from resurgam.worker.watchdog import Watchdog

_LISTEN_EVERY: Final = 1000
"""Milliseconds after which a worker that always finds work looks for questions all the same; at rest it does at once."""

_QUESTIONS: Final = 10
"""How many questions are taken at a time; each is a replay, and holds up the neighbours for as long as it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """What a worker serves, and how much of it at once."""

    name: str
    queues: tuple[str, ...] = ("default",)
    lease: int = 10_000
    grace: float = 10.0
    max_activities: int = 1000
    max_instances: int = 100
    cache_size: int = 1000
    tick_limit: float = 10.0
    retain: int | None = None

    def __post_init__(self) -> None:
        for option in ("max_activities", "cache_size"):
            if not isinstance(getattr(self, option), int):
                raise TypeError(f"{option} is {getattr(self, option)!r}; it is a whole number")
        if self.max_activities < 1 or self.cache_size < 0 or self.lease < 1:
            raise ValueError("max_activities is at least 1, cache_size at least 0, and a lease longer than nothing")
        if self.grace < 0:
            raise ValueError(f"grace is {self.grace:g}; it is 0 or more")
        if self.tick_limit <= 0:
            raise ValueError(f"tick_limit is {self.tick_limit:g}; it is more than 0")
        if self.retain is not None and self.retain < 1:
            raise ValueError(
                f"retain must be longer than 0, got {self.retain / 1000:g} s; leave it out to keep every run"
            )


class Worker:
    """Serves queues until it is stopped."""

    def __init__(
        self,
        store: Store,
        brains: Mapping[str, Brain],
        registry: Registry,
        clock: Clock,
        options: WorkerOptions,
        *,
        max_payload: int = MAX_PAYLOAD,
        reopen: Callable[[], Store] | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._options = options
        self._tasks = Tasks()
        self._turns = Tasks(on_end=self._free)
        self._leases = Leases(store, clock, self._tasks, length=options.lease)
        runner = ActivityRunner(registry, clock, chance=system.chance, max_payload=max_payload)
        self._hands = Slots(store, clock, runner, leases=self._leases, limit=options.max_activities)
        self._hands.on_free = self._free
        self._watchdog = Watchdog(self._leases, lease=options.lease / 1000, limit=options.tick_limit, reopen=reopen)
        self._instances = InstanceRunner(
            Committer(store, clock, self._leases, self._hands, worker=options.name, queues=options.queues),
            brains,
            tasks=self._tasks,
            watchdog=self._watchdog,
            cache=options.cache_size,
        )
        self._questions = Questions(store, brains, self._watchdog)
        self._answering = Tasks(on_end=self._free)
        self._asked_at = 0
        self._freed = asyncio.Event()
        self._instances.on_wait = self._nudge
        self.progress = 0
        self._reserved = 0
        self._offers: set[asyncio.Task[Any]] = set()
        self._stopping = False
        self._grace = Grace(options.grace)
        self._drained: asyncio.Task[None] | None = None
        self._resting = False
        self._short = False
        self._main: asyncio.Task[None] | None = None

    @property
    def busy(self) -> int:
        """How many instances, activities and questions are in hand."""
        return len(self._turns) + len(self._hands) + len(self._answering)

    @property
    def resting(self) -> bool:
        """Whether nothing is in hand and there was nothing to claim."""
        return self._resting and not self.busy

    def start(self) -> None:
        """Begin to serve."""
        self._watchdog.start()
        self._main = asyncio.get_running_loop().create_task(self._serve(), name=f"worker {self._options.name}")
        if self._options.retain is not None:
            self._tasks.spawn(Retention(self._store, self._clock, self._options.retain).run(), "retention")

    async def stop(self) -> None:
        """Claim nothing more, let running work finish within the grace, and give the rest back.

        Any number of callers may wait for it. If one is cancelled, the rest of the grace is skipped and the worker stops
        all the same.
        """
        if self._drained is None or self._drained.cancelled():
            self._drained = asyncio.get_running_loop().create_task(self._drain(), name="drain")
        try:
            await asyncio.shield(self._drained)
        except asyncio.CancelledError:
            self._grace.skip()
            raise

    def skip_grace(self) -> None:
        """Cancel running work as soon as the worker stops, or now if it is stopping."""
        self._grace.skip()

    async def _drain(self) -> None:
        """Stop; may be repeated from the beginning if it is cancelled on its way."""
        self._stopping = True
        self._hands.closed = True
        self._freed.set()
        if self._main is not None:
            await asyncio.wait({self._main})
        if self._offers:
            # A store waits for its file no longer than some seconds; what it claims meanwhile is to be given back.
            await asyncio.wait(self._offers)
        self._grace.begin()
        try:
            await self._answering.finish(self._grace)
            await self._turns.finish(self._grace)
            await self._hands.finish(self._grace)
            await self._tasks.finish()
            await self._store.release([Release(lease=lease) for lease in self._leases.all()])
        except StoreError as error:
            complain("the store failed; what this worker held is free when its leases run out", error)
        finally:
            self._leases.stop()
            await self._instances.forget_all()
            self._watchdog.stop()
            self._hands.close()

    async def _serve(self) -> None:
        while not self._stopping:
            try:
                if not await self._claim():
                    await self._rest()
            except Exception as error:  # noqa: BLE001 -- whatever it is, a worker that stands still unseen would be worse
                complain(f"claiming failed; trying again in {PAUSE_AFTER_ERROR:g} s", error)
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

    def reserve(self, turns: int) -> EagerOffer | None:
        """Keep free hands for instances that may be claimed until `unreserve`; None if there are not as many."""
        if self._stopping or self._free_turns() < turns:
            return None
        self._reserved += turns
        return EagerOffer(worker=self._options.name, queues=self._options.queues)

    def unreserve(self, turns: int) -> None:
        """What was claimed has begun; hands that were not needed may be somebody else's."""
        self._reserved -= turns
        self._nudge()

    def sheltered(self, coroutine: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Run what must come to its end though its caller is cancelled; `stop` waits for it."""
        task = asyncio.get_running_loop().create_task(coroutine, name="offer")
        self._offers.add(task)
        task.add_done_callback(self._offers.discard)
        return task

    def begin(self, claim: Claim) -> None:
        """Advance a claimed instance."""
        self.progress += 1
        turn = HeldInstance.of(claim)
        task = self._turns.spawn(self._instances.serve(turn), claim.instance.entity_id)
        # Before it begins: should somebody else's tick come first and not yield, the watchdog must know of it.
        turn.call_off = task.cancel
        self._leases.keep(turn.lease, turn.call_off)

    async def _claim(self) -> bool:
        """Claim as much as there are free hands for; whether there was anything."""
        options = self._options
        before = self.progress
        self._freed.clear()
        if free := self._free_turns():
            for claim in await self._store.claim(options.name, options.queues, free):
                self.begin(claim)
        if free := self._hands.reserve(self._hands.free):
            try:
                tasks = await self._store.claim_activities(options.name, options.queues, free)
            finally:
                self._hands.unreserve(free)
            for task in tasks:
                self.progress += 1
                self._hands.perform(task)
        if self.progress == before or self._clock.now() - self._asked_at >= _LISTEN_EVERY:
            await self._hear_questions()
        return self.progress > before

    async def _hear_questions(self) -> None:
        """Begin to answer what is asked; they take no hands, for none waits for anything but the store."""
        options = self._options
        self._asked_at = self._clock.now()
        for question in await self._store.queries.claim(options.name, options.queues, _QUESTIONS):
            self.progress += 1
            self._answering.spawn(self._questions.answer(question), f"query {question.name}")

    def _free_turns(self) -> int:
        return max(0, self._options.max_instances - len(self._turns) - self._reserved + self._instances.waiting)

    def _free(self, _: object = None) -> None:
        self.progress += 1
        self._nudge()

    def _nudge(self) -> None:
        """There is a free hand: of interest only if there was none when the worker went to rest."""
        if self._short:
            self._freed.set()

    async def _rest(self) -> None:
        """Wait until there is something to claim and a free hand for it."""
        options = self._options
        watch = Work(
            worker=options.name,
            queues=options.queues,
            instances=self._free_turns() > 0,
            activities=self._hands.free > 0,
        )
        self._short = not (watch.instances and watch.activities)
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
