"""Serve queues: claim instances, activities and queries, and run them until the worker is stopped."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from resurgam.core.brain import Brain
from resurgam.core.clock import Clock
from resurgam.core.codec import MAX_PAYLOAD
from resurgam.core.errors import StoreError
from resurgam.core.event import Started
from resurgam.core.flow_event import SCRIPT_ACTIVITY
from resurgam.runtime import system
from resurgam.runtime.registry import Registry
from resurgam.store.protocol import Store
from resurgam.store.records import Claim, Committed, EagerOffer, HeldWork, Release, Work
from resurgam.worker.attempts import ActivityRunner
from resurgam.worker.brains import ServiceActivity, script_activity
from resurgam.worker.build import build_of
from resurgam.worker.commit import Committer
from resurgam.worker.held import HeldInstance
from resurgam.worker.held_work import held_work
from resurgam.worker.instances import InstanceRunner
from resurgam.worker.leases import Leases
from resurgam.worker.memo import Memos
from resurgam.worker.options import WorkerOptions
from resurgam.worker.presence import Presence
from resurgam.worker.queries import QueryRunner
from resurgam.worker.retention import Retention
from resurgam.worker.slots import Slots
from resurgam.worker.tasks import RETRY_DELAY, Grace, Tasks, log_failure, sleep
from resurgam.worker.watchdog import Watchdog

_QUERY_INTERVAL: Final = 1000
"""Milliseconds after which a busy worker claims queries; an idle one does so at once."""

_QUERIES: Final = 10
"""The number of queries claimed at a time: each is a replay, and blocks other work while it runs."""


class Worker:
    """Serves queues until it is stopped. *brains* advance instances, by kind; *registry* has the activities."""

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
        self._leases = Leases(store, clock, self._tasks, length=options.lease)
        runner = _activity_runner(store, registry, clock, options, max_payload)
        self._presence = Presence(
            store.workers, name=options.name, build=build_of(registry), queues=options.queues, lease=options.lease
        )
        self._announcing: asyncio.Task[None] | None = None
        self._slots = Slots(
            store, clock, runner, leases=self._leases, presence=self._presence, limit=options.max_activities
        )
        self._slots.on_free = self._note_end
        self._slots.is_cancelled = self._is_cancelled
        self._watchdog = Watchdog(self._leases, lease=options.lease / 1000, limit=options.tick_limit, reopen=reopen)
        self._instances = InstanceRunner(
            Committer(store, clock, self._leases, self._slots, worker=options.name),
            brains,
            tasks=self._tasks,
            watchdog=self._watchdog,
            cache=options.cache_size,
        )
        self._query_runner = QueryRunner(store, brains, self._watchdog)
        self._queries = Tasks(on_end=self._note_end)
        self._queries_at = 0
        self._freed = asyncio.Event()
        self._instances.on_wait = self._wake
        self._instances.on_end = self._note_end
        self.progress = 0
        self._reserved = 0
        self._offer = EagerOffer(worker=options.name, queues=options.queues)
        self._offers: set[asyncio.Future[Any]] = set()
        self._stopping = self._resting = self._was_full = False
        self._grace = Grace(options.grace)
        self._drained: asyncio.Task[None] | None = None
        self._main: asyncio.Task[None] | None = None

    @property
    def busy(self) -> int:
        """The number of instances, activities and queries that are being served."""
        return len(self._instances) + len(self._slots) + len(self._queries)

    @property
    def running(self) -> int:
        """The number of activities that run."""
        return len(self._slots)

    @property
    def resting(self) -> bool:
        """Whether nothing is being served and there was nothing to claim."""
        return self._resting and not self.busy

    def start(self) -> None:
        """Start serving."""
        loop = asyncio.get_running_loop()
        self._announcing = loop.create_task(self._presence.run(self._count_slots, self._held_work), name="presence")
        self._watchdog.start()
        self._main = loop.create_task(self._claim_loop(), name=f"worker {self._options.name}")
        if self._options.retain:
            options = self._options
            retention = Retention(self._store, self._clock, options.retain, options.archive_after)
            self._tasks.spawn(retention.run(), "retention")

    async def stop(self) -> None:
        """Claim nothing more, let running work finish within the grace, and release the rest.

        Any number of callers may wait for it. If one is cancelled, the rest of the grace is skipped and the worker
        still stops.
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
        """Stop; may be called again from the beginning if it is cancelled."""
        self._stopping = True
        self._slots.closed = True
        self._freed.set()
        if self._announcing is not None:
            self._announcing.cancel()
            await asyncio.wait({self._announcing})
        if self._main is not None:
            await asyncio.wait({self._main})
        while self._offers:
            # A store waits a few seconds for its file at most; what it claims meanwhile must be released.
            await asyncio.wait(self._offers)
        self._grace.begin()
        try:
            await self._queries.finish(self._grace)
            await self._instances.finish(self._grace)
            await self._slots.finish(self._grace)
            await self._tasks.finish()
            await self._store.release([Release(lease=lease) for lease in self._leases.all()])
            await self._presence.end()
        except StoreError as error:
            log_failure("the store failed; the leases of this worker will expire", error)
        finally:
            self._leases.stop()
            await self._instances.evict_all()
            self._watchdog.stop()
            self._slots.close()

    async def _claim_loop(self) -> None:
        while not self._stopping:
            try:
                if not await self._claim():
                    await self._rest()
            except Exception as error:  # noqa: BLE001 -- a worker that stops without a word would be worse
                log_failure(f"claiming failed; trying again in {RETRY_DELAY:g} s", error)
                await self._back_off()

    async def _back_off(self) -> None:
        """Wait before the store is called again, or until the worker stops."""
        waiting = asyncio.ensure_future(sleep(self._clock, RETRY_DELAY))
        freed = asyncio.ensure_future(self._freed.wait())
        self._resting = True
        await asyncio.wait({waiting, freed}, return_when=asyncio.FIRST_COMPLETED)
        self._resting = False
        for waiter in (waiting, freed):
            waiter.cancel()

    def offer(self) -> EagerOffer | None:
        """Offer to serve instances that are started; None if the worker stops."""
        return None if self._stopping else self._offer

    def reserve(self, count: int) -> EagerOffer | None:
        """Reserve room for *count* instances until `unreserve`, and offer to serve them; None if there is not enough."""
        if self._stopping or self._free_instances() < count:
            return None
        self._reserved += count
        return self._offer

    def unreserve(self, count: int) -> None:
        """Free reserved room, after what was claimed has been started."""
        self._reserved -= count
        self._wake()

    def track(self, offered: "asyncio.Future[Any]") -> None:
        """Have `stop` wait for the answer to an offer until `untrack`."""
        self._offers.add(offered)

    def untrack(self, offered: "asyncio.Future[Any]") -> None:
        """Forget an offer that is answered."""
        self._offers.discard(offered)

    def serve(self, claim: Claim) -> None:
        """Start serving a claimed instance."""
        self.progress += 1
        self._instances.serve(claim)

    def begin(self, started: Started) -> HeldInstance | None:
        """Make the first advance of an execution before its start is stored; None if that is not possible here."""
        return self._instances.begin(started)

    def serve_begun(self, begun: HeldInstance, claim: Claim, committed: Committed) -> None:
        """Serve an execution that was begun, now that its start and its first commit are stored."""
        self.progress += 1
        self._instances.serve_begun(begun, claim, committed)

    def discard(self, begun: HeldInstance) -> None:
        """Drop an execution that was begun and is not to be served."""
        self._instances.discard(begun)

    async def _claim(self) -> bool:
        """Claim as much as there is room for; return whether there was anything."""
        options = self._options
        before = self.progress
        self._freed.clear()
        if free := self._free_instances():
            for claim in await self._store.claim(options.name, options.queues, free):
                self.serve(claim)
        if free := self._slots.reserve(self._slots.claimable):
            try:
                tasks = await self._store.claim_activities(options.name, options.queues, free)
            finally:
                self._slots.unreserve(free)
            for task in tasks:
                self.progress += 1
                self._slots.run(task)
        if self.progress == before or self._clock.now() - self._queries_at >= _QUERY_INTERVAL:
            await self._claim_queries()
        return self.progress > before

    async def _claim_queries(self) -> None:
        """Start answering queries; they need no slot, since they wait for nothing but the store."""
        options = self._options
        self._queries_at = self._clock.now()
        for task in await self._store.queries.claim(options.name, options.queues, _QUERIES):
            self.progress += 1
            self._queries.spawn(self._query_runner.run(task), f"query {task.name}")

    def _is_cancelled(self) -> bool:
        return self._main is not None and (self._main.done() or self._main.cancelling() > 0)

    def _count_slots(self) -> tuple[int, int]:
        return self._options.max_activities, self._slots.in_use

    def _held_work(self) -> HeldWork:
        return held_work(self._instances.held, self._slots.running)

    def _free_instances(self) -> int:
        return max(0, self._options.max_instances - self._instances.advancing - self._reserved)

    def _note_end(self, _: object = None) -> None:
        self.progress += 1
        if self._was_full:
            self._freed.set()

    def _wake(self) -> None:
        """Wake the claim loop, if it waits because there was no room."""
        if self._was_full:
            self._freed.set()

    async def _rest(self) -> None:
        """Wait until there is something to claim and room for it."""
        options = self._options
        watch = Work(
            worker=options.name,
            queues=options.queues,
            instances=self._free_instances() > 0,
            activities=self._slots.claimable > 0,
        )
        self._was_full = self._instances.crowded = not (watch.instances and watch.activities)
        refill_at = self._slots.refill_at
        cancel_refill = None if refill_at is None else self._clock.call_at(refill_at, self._freed.set)
        work = asyncio.ensure_future(self._store.wait(watch))
        freed = asyncio.ensure_future(self._freed.wait())
        self._resting = True
        try:
            await asyncio.wait({work, freed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._resting = False
            if cancel_refill is not None:
                cancel_refill()
            for waiter in (work, freed):
                waiter.cancel()
        if work.done():
            work.result()  # raises if the store failed, so that it is not called again at once


def _activity_runner(
    store: Store, registry: Registry, clock: Clock, options: WorkerOptions, max_payload: int
) -> ActivityRunner:
    """Return what runs attempts: of registered activities, and of the engine's own."""
    registry.activities.provide(SCRIPT_ACTIVITY, script_activity)
    return ActivityRunner(
        registry,
        clock,
        chance=system.chance,
        max_payload=max_payload,
        memos=Memos(store.values, clock),
        services=ServiceActivity(store, clock, options.outbound, max_payload=max_payload),
    )
