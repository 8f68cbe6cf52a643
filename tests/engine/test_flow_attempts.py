"""Every attempt of a work item is in the log of its flow, a lost one too, whoever runs it and however it was claimed."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any

import msgspec
import pytest

from resurgam.core import event as events
from resurgam.core import flow_event as fe
from resurgam.core.errors import RetryAfter
from resurgam.flows.brain import FlowBrain
from resurgam.flows.state import LOST
from resurgam.flows.steps import Input
from resurgam.store import export
from resurgam.store import records as r
from resurgam.store.protocol import Store
from resurgam.testing.clock import ManualClock
from resurgam.testing.contract.bench import LEASE
from resurgam.worker.options import WorkerOptions
from resurgam.worker.worker import Worker
from support.dying import Dying
from support.engines import Engines, of_kind
from support.flow_worlds import FlowWorld

Each = Annotated[int, Input(for_each=True)]

FLOW = r.ExecutionRef(entity_id="flow", execution_id="flow-execution")


class Flowing(FlowWorld):
    """A flow world with workers for several queues. *may_end* lets attempts end that wait for it."""

    def __init__(self, engines: Engines, store: Store, clock: ManualClock) -> None:
        super().__init__(engines, store, clock)
        self.may_end = asyncio.Event()
        self.calls: list[str] = []

    @asynccontextmanager
    async def serving(self, *queues: str, **options: Any) -> AsyncIterator[Worker]:
        """Serve some queues."""
        worker = self.begin_worker(self.store, *queues, **options)
        try:
            await self.settle(worker)
            yield worker
        finally:
            await worker.stop()

    def begin_worker(self, store: Any, *queues: str, **options: Any) -> Worker:
        given = {"queues": queues or ("default",), "cache_size": self.engines.cache, "grace": 0.0, **options}
        name = f"{'+'.join(given['queues'])} {len(asyncio.all_tasks())}"
        brains = {fe.FLOW: FlowBrain(self.judge)}
        worker = Worker(store, brains, self.registry, self.clock, WorkerOptions(name=name, lease=LEASE, **given))
        worker.start()
        return worker

    async def reached(self, *kinds: str) -> None:
        """Wait until the log ends with these kinds of entries."""
        async with asyncio.timeout(60):
            while (await self.types())[-len(kinds) :] != list(kinds):
                await asyncio.sleep(0)

    async def inbox(self, count: int) -> list[events.Event]:
        """Return the inbox of the flow, once it has so many entries."""
        async with asyncio.timeout(60):
            while True:
                work = await self.store.inspector.open_work(FLOW)
                assert work is not None
                if len(work.inbox) >= count:
                    return list(work.inbox)
                await asyncio.sleep(0)

    async def called(self) -> None:
        """Wait until an attempt has begun."""
        async with asyncio.timeout(60):
            while not self.calls:
                await asyncio.sleep(0)

    async def lose_claim(self, worker: str, queue: str) -> None:
        """Claim an activity by hand, for a worker that is never heard of again."""
        async with asyncio.timeout(60):
            while not await self.store.claim_activities(worker, (queue,), 10):
                await asyncio.sleep(0)
        self.clock.move_to(self.clock.now() + LEASE + 1)

    async def attempts(self) -> list[tuple[str, int]]:
        """Return what the log says about attempts: its kind, and the number of an attempt or of the item."""
        return [
            (entry.type.removeprefix("work_"), entry.attempt if isinstance(entry, fe.WorkStarted) else entry.ref or 0)
            for entry in await self.log()
            if entry.type.startswith("work_")
        ]


@asynccontextmanager
async def flowing(engines: Engines) -> AsyncIterator[Flowing]:
    """Open a store for flows."""
    clock = ManualClock()
    async with engines.open_store(clock) as store:
        yield Flowing(engines, store, clock)


async def test_an_attempt_that_a_commit_claims_is_recorded_by_that_commit(engines: Engines) -> None:
    """Before it has a result: the log shows what runs."""
    async with flowing(engines) as world:

        @world.step
        async def pack() -> str:
            await world.may_end.wait()
            return "packed"

        async with world.serving():
            await world.start(["pack"])
            await world.reached("flow_started", "flow_activated", "step_started", "work_started")
            world.may_end.set()
            await world.ended()
        assert (await world.types())[4:] == [
            *("work_succeeded", "attribute_set", "step_completed"),
            *("flow_completed", "flow_digest_updated", "flow_deactivated"),
        ]


async def test_an_attempt_that_another_worker_claims_is_recorded_without_waking_the_flow(engines: Engines) -> None:
    """It waits in the inbox until something else wakes the flow, and precedes its result in the log."""
    async with flowing(engines) as world:

        @world.step(queue="gpu")
        async def render() -> str:
            await world.may_end.wait()
            return "image"

        await world.start(["render"])
        async with world.serving() as own, world.serving("gpu") as other:
            assert await world.inbox(1) == [fe.WorkStarted(item=1, step="render", attempt=1)]
            await world.settle(own)
            await world.settle(other)
            assert await world.attempts() == []
            work = await world.store.inspector.open_work(FLOW)
            assert work is not None
            assert (work.worker, work.deliveries) == (None, 0)
            world.may_end.set()
            await world.ended()
        assert await world.attempts() == [("started", 1), ("succeeded", 1)]


async def test_both_attempts_are_in_the_log_if_the_worker_that_holds_the_flow_is_lost(engines: Engines) -> None:
    """The first one was claimed by the commit that handed the item over, the second one from its queue."""
    async with flowing(engines) as world:

        @world.step
        async def pack() -> str:
            world.calls.append("pack")
            await world.may_end.wait()
            return "packed"

        await lose_worker(world, "pack")
        assert await world.attempts() == [("started", 1)]
        world.may_end.set()
        async with world.serving():
            await world.ended()
        assert world.calls == ["pack", "pack"]
        assert await world.attempts() == [("started", 1), ("not_completed", 1), ("started", 2), ("succeeded", 1)]
        [lost] = of_kind(await world.log(), fe.WorkNotCompleted)
        assert lost.failure == LOST


@pytest.mark.parametrize("queue", ["default", "gpu"], ids=["claimed by a commit", "claimed from a queue"])
async def test_both_attempts_are_in_the_log_if_a_worker_is_stopped_before_the_result(
    engines: Engines, queue: str
) -> None:
    """It gives the item back at once, and no time passes until the next worker has it."""
    async with flowing(engines) as world:

        @world.step(queue=queue)
        async def pack() -> str:
            world.calls.append("pack")
            await world.may_end.wait()
            return "packed"

        async with world.serving(), world.serving("gpu"):
            await world.start(["pack"])
            await world.called()
        world.may_end.set()
        async with world.serving("default", "gpu"):
            await world.ended()
        assert world.calls == ["pack", "pack"]
        assert await world.attempts() == [("started", 1), ("not_completed", 1), ("started", 2), ("succeeded", 1)]


async def test_all_attempts_are_in_the_log_if_workers_that_claimed_from_a_queue_are_lost(engines: Engines) -> None:
    """The flow sleeps meanwhile, and learns of all of them with the result."""
    async with flowing(engines) as world:

        @world.step(queue="gpu")
        async def render() -> str:
            return "image"

        await world.start(["render"])
        async with world.serving():
            await world.lose_claim("one", "gpu")
            await world.lose_claim("two", "gpu")
            assert [getattr(entry, "attempt", 0) for entry in await world.inbox(2)] == [1, 2]
            async with world.serving("gpu"):
                await world.ended()
        kinds = ("started", "not_completed", "started", "not_completed", "started", "succeeded")
        assert [kind for kind, _ in await world.attempts()] == list(kinds)
        assert [one.attempt for one in of_kind(await world.log(), fe.WorkStarted)] == [1, 2, 3]


async def test_each_retry_is_an_attempt_of_its_own(engines: Engines) -> None:
    """Retries are claimed from the queue; deliveries that were lost before count on."""
    async with flowing(engines) as world:

        @world.step
        async def pack() -> str:
            world.calls.append("pack")
            if len(world.calls) < 4:
                await world.may_end.wait()
                raise RetryAfter(0)
            return "packed"

        await lose_worker(world, "pack")
        world.may_end.set()
        async with world.serving():
            await world.ended()
        failed = ("not_completed", 1)
        assert await world.attempts() == [
            *(("started", 1), failed, ("started", 2), failed, ("started", 3), failed, ("started", 4), ("succeeded", 1)),
        ]
        assert [one.retry_count for one in of_kind(await world.log(), fe.RetryScheduled)] == [1, 2]


async def test_an_attempt_is_recorded_once_though_the_store_left_it_to_others(engines: Engines) -> None:
    """Older work waited in the queue: the commit claimed nothing, and the claim that came later says the same."""
    async with flowing(engines) as world:

        @world.step
        async def pack() -> str:
            world.calls.append("pack")
            return "packed"

        busy = Busy(world.store)
        worker = world.begin_worker(busy)
        await world.settle(worker)
        await world.start(["pack"])
        await world.ended()
        await worker.stop()
        assert busy.declined == [1]
        assert world.calls == ["pack"]
        assert await world.attempts() == [("started", 1), ("succeeded", 1)]


async def test_every_item_of_a_step_has_its_attempt_before_its_result(engines: Engines) -> None:
    """Some run where the flow is held, with leases of their own and without, and others wait for a slot."""
    async with flowing(engines) as world:

        @world.step
        async def numbers() -> list[int]:
            return list(range(20))

        @world.step(parallelism=20)
        async def double(numbers: Each) -> int:
            return 2 * numbers

        await world.start(["double"])
        async with world.serving(max_activities=12):
            await world.ended()
        log = await world.log()
        begun = {one.item: one.seq for one in of_kind(log, fe.WorkStarted)}
        answered = {one.ref: one.seq for one in of_kind(log, fe.WorkSucceeded)}
        assert sorted(begun) == sorted(answered) == list(range(1, 22))
        assert len(of_kind(log, fe.WorkStarted)) == 21
        assert all(begun[item] < seq for item, seq in answered.items())


async def test_attempts_are_counted_on_where_a_flow_was_imported(engines: Engines) -> None:
    """The entries of the inbox and the prepared ones of its activities go along, as lines of an export."""
    async with flowing(engines) as here, flowing(engines) as there:
        for world in (here, there):

            @world.step(queue="gpu")
            async def render() -> str:
                return "image"

        await here.start(["render"])
        async with here.serving():
            await here.lose_claim("one", "gpu")
        lines = export.write(await here.store.transfer.copies(FLOW.entity_id))
        adoption = r.Adoption(entity_id=FLOW.entity_id, copies=export.read(lines))
        [answer] = await there.store.transfer.adopt([adoption])
        assert isinstance(answer, r.Adopted)
        async with there.serving("default", "gpu"):
            await there.ended()
        assert await there.attempts() == [("started", 1), ("not_completed", 1), ("started", 2), ("succeeded", 1)]


class Busy:
    """A store in which older work waits whenever a commit would claim something."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.declined: list[int] = []

    def submit(self, part: r.Commit, done: Callable[[Any], None]) -> None:
        self.declined += part.eager
        self._store.submit(msgspec.structs.replace(part, eager=frozenset()), done)

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._store, verb)


async def lose_worker(world: Flowing, goal: str) -> None:
    """Have a worker begin a new flow and its first attempt, and end it without a word to the store."""
    before = asyncio.all_tasks()
    store = Dying(world.store)
    worker = world.begin_worker(store)
    await world.settle(worker)  # until it knows that it is alone
    await world.start([goal])
    await world.called()
    store.dead = True
    while left := asyncio.all_tasks() - before:
        for task in left:
            task.cancel()
        await asyncio.sleep(0)
    worker._watchdog.stop()
    world.clock.move_to(world.clock.now() + LEASE + 1)
