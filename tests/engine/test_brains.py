"""The worker serves any kind of instance: a counter without a coroutine runs through it as a workflow does."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from resurgam.client.access import Access
from resurgam.client.retry import retry_failed
from resurgam.core import event as events
from resurgam.core.brain import Brain
from resurgam.core.errors import StoreError
from resurgam.core.state import Status
from resurgam.engine import Engine
from resurgam.runtime.brain import CodeBrain
from resurgam.runtime.context.context import Context
from resurgam.runtime.registry import Registry
from resurgam.store import records as r
from resurgam.store.protocol import Store
from resurgam.testing.clock import ManualClock
from resurgam.testing.contract.bench import LEASE, routed
from resurgam.worker.options import WorkerOptions
from resurgam.worker.worker import Worker
from support.counter import KIND, CounterBrain, Rule, start_counter
from support.dying import Dying, settle
from support.engines import Engines, complaints, types

RULE = Rule(limit=10, every=4, patience=60_000)


class Counting:
    """A store with counters in it, and workers that may serve them."""

    def __init__(self, engines: Engines, store: Store, clock: ManualClock) -> None:
        self.engines, self.store, self.clock = engines, store, clock
        self.registry = Registry()
        self.reported: list[int] = []
        self.may_report = asyncio.Event()
        self.may_report.set()
        self._workers = 0

        @self.registry.activity
        async def report(total: int) -> None:
            self.reported.append(total)
            await self.may_report.wait()

    @asynccontextmanager
    async def worker(self, brains: Mapping[str, Brain] | None = None, store: Any = None) -> AsyncIterator[Worker]:
        """Serve the queue with these brains, by default that of counters."""
        self._workers += 1
        options = WorkerOptions(
            name=f"w{self._workers}", cache_size=self.engines.cache, lease=LEASE, grace=0.0, max_activities=10
        )
        known = {KIND: CounterBrain()} if brains is None else brains
        worker = Worker(store or self.store, known, self.registry, self.clock, options)
        worker.start()
        try:
            await settle(worker)
            yield worker
        finally:
            await worker.stop()

    async def create(self, entity_id: str = "c", **fields: Any) -> None:
        """Start a counter."""
        await self.store.create([r.Creation(started=start_counter(entity_id, self.clock.now(), RULE, **fields))])

    async def add(self, number: int, entity_id: str = "c") -> None:
        """Send a signal that adds a number."""
        signal = events.SignalReceived(name="add", id=f"{number}", at=self.clock.now(), value=Raw(str(number).encode()))
        await self.store.deliver([r.Delivery(event=signal, entity_id=entity_id)])

    async def log(self, entity_id: str = "c") -> list[events.Event]:
        """Return the log of a counter."""
        return list(await self.store.read(r.ExecutionRef(entity_id=entity_id, execution_id=f"{entity_id}-execution")))

    async def instance(self, entity_id: str = "c") -> r.Instance:
        """Return a counter as the store shows it."""
        found = await self.store.inspector.get(entity_id)
        assert found is not None
        return found


@asynccontextmanager
async def counting(engines: Engines) -> AsyncIterator[Counting]:
    """Open a store for counters."""
    clock = ManualClock()
    async with engines.open_store(clock) as store:
        yield Counting(engines, store, clock)


async def test_a_counter_folds_its_inbox_runs_activities_and_ends_at_its_limit(engines: Engines) -> None:
    """Each signal is one entry of its log, and the activities are run by the worker that holds it."""
    async with counting(engines) as world, world.worker() as worker:
        await world.create()
        for number in (3, 2, 1, 4):
            await world.add(number)
            await settle(worker)
        assert world.reported == [5]
        log = await world.log()
        assert types(log) == [
            *("workflow_started", "timer_started", "signal_received"),
            *("signal_received", "activity_scheduled", "activity_completed"),
            *("signal_received", "signal_received", "activity_scheduled", "workflow_completed"),
            *("activity_cancelled", "workflow_deactivated"),
        ]
        assert [entry.seq for entry in log] == list(range(1, 13))
        found = await world.instance()
        assert (found.kind, found.status, found.deactivated) == (KIND, Status.COMPLETED, True)


async def test_the_timer_of_a_counter_ends_it(engines: Engines) -> None:
    """The store wakes it at the moment that its commit named."""
    async with counting(engines) as world, world.worker() as worker:
        await world.create()
        await world.add(2)
        await settle(worker)
        world.clock.move_to(world.clock.now() + RULE.patience)
        await settle(worker)
        log = await world.log()
        assert types(log)[-3:] == ["timer_fired", "workflow_completed", "workflow_deactivated"]
        assert isinstance(log[-2], events.WorkflowCompleted)
        assert log[-2].result == Raw(b"2")


async def test_a_late_result_is_recorded_by_the_brain_of_its_kind(engines: Engines) -> None:
    """An activity that outlives the counter is recorded, and the log is complete only then."""
    async with counting(engines) as world, world.worker() as worker:
        world.may_report.clear()
        await world.create()
        await world.add(4)
        await settle(worker)
        assert world.reported == [4]
        await world.add(7)
        await settle(worker)
        found = await world.instance()
        assert (found.status, found.deactivated) == (Status.COMPLETED, False)
        world.may_report.set()
        await settle(worker)
        assert types(await world.log())[-2:] == ["activity_completed", "workflow_deactivated"]
        assert (await world.instance()).deactivated


async def test_a_counter_goes_on_from_its_log_wherever_a_worker_dies(engines: Engines) -> None:
    """At every write of the first worker, applied or not: the next one ends the counter with the same total."""
    deaths, at = 0, 0
    while deaths == at:
        at += 1
        for applied in (False, True):
            async with counting(engines) as world:
                dying = Dying(world.store, at, applied=applied)
                await world.create()
                await _until_dead(world, dying)
                deaths = max(deaths, at if dying.dead else 0)
                async with world.worker() as second:
                    world.clock.move_to(world.clock.now() + LEASE + 1)
                    await settle(second)
                    await world.add(10)
                    await settle(second)
                    world.clock.move_to(world.clock.now() + LEASE + 1)
                    await settle(second)
                assert set(world.reported) <= {4, 14}
                log = await world.log()
                assert types(log)[-1] == "workflow_deactivated", (at, applied)
                [ended] = [entry for entry in log if isinstance(entry, events.WorkflowCompleted)]
                assert ended.result == Raw(b"14")
                assert [entry.seq for entry in log] == list(range(1, len(log) + 1))
                assert types(log).count("signal_received") == 2
    assert at > 2


async def test_a_counter_of_a_kind_without_a_brain_is_parked_for_other_workers(engines: Engines) -> None:
    """Its log is left alone, the diagnosis names the kind, and a worker that has the brain takes it up."""
    registry = Registry()
    async with counting(engines) as world:
        await world.create()
        await world.add(2)
        with complaints("resurgam.worker") as said:
            async with world.worker({"workflow": CodeBrain(registry)}) as other:
                await settle(other)
        found = await world.instance()
        assert found.status is Status.DIVERGED
        assert "kind must be one of workflow, got 'counter'; start a worker" in (found.parked or "")
        assert len(said) == 1
        assert types(await world.log()) == ["workflow_started"]
        async with world.worker() as worker:
            await world.add(8)
            await settle(worker)
        assert (await world.instance()).status is Status.COMPLETED


async def test_a_name_that_the_brain_does_not_know_is_parked_too(engines: Engines) -> None:
    """As a workflow is whose code is not here."""
    async with counting(engines) as world, world.worker() as worker:
        await world.create("odd", name="unknown")
        await settle(worker)
        found = await world.instance("odd")
        assert (found.status, found.parked) == (Status.DIVERGED, "there is no counter 'unknown' here")


async def test_a_late_result_of_a_kind_without_a_brain_waits_for_one(engines: Engines) -> None:
    """The outcome stands, and nothing is lost: a worker that has the brain records it."""
    async with counting(engines) as world:
        world.may_report.clear()
        await world.create()
        async with world.worker() as worker:
            await world.add(4)
            await settle(worker)
            await world.add(6)
            await settle(worker)
        # The first worker gave the activity back when it stopped, and as no code waits for it, it was cancelled.
        world.may_report.set()
        with complaints("resurgam.worker") as said:
            async with world.worker({"workflow": CodeBrain(world.registry)}) as other:
                await settle(other)
                assert (await world.instance()).status is Status.COMPLETED
                assert any("late results" in line for line in said)
        async with world.worker() as worker:
            await settle(worker)
        assert types(await world.log())[-2:] == ["activity_cancelled", "workflow_deactivated"]


async def test_a_query_is_answered_by_the_brain_of_its_kind(engines: Engines) -> None:
    """From the log alone, by the same route as the query of a workflow."""
    async with counting(engines) as world, world.worker() as worker:
        await world.create()
        await world.add(3)
        await settle(worker)
        task = r.QueryTask(
            query_id=routed("q", "c"),
            entity_id="c",
            execution_id="c-execution",
            queue="default",
            name="total",
            input=Raw(b"[]"),
            until=world.clock.now() + 1000,
        )
        await world.store.queries.submit([task])
        await settle(worker)
        answer = await world.store.queries.result(task.query_id)
        assert answer is not None
        assert msgspec.json.decode(answer.result) == 3


async def test_workflows_and_counters_are_served_side_by_side(engines: Engines) -> None:
    """One worker with two brains advances each kind by its own."""
    async with counting(engines) as world:

        @world.registry.workflow
        async def tally(ctx: Context) -> str:
            return "by code"

        brains: dict[str, Brain] = {KIND: CounterBrain(), "workflow": CodeBrain(world.registry)}
        client = Engine(world.store, registry=world.registry, clock=world.clock, worker=False)
        async with client, world.worker(brains) as worker:
            coded = await client.start(tally, id="coded")
            await world.create("counted")
            await world.add(12, "counted")
            await settle(worker)
            assert await coded.result() == "by code"
            [ended] = [entry for entry in await world.log("counted") if isinstance(entry, events.WorkflowCompleted)]
            assert ended.result == Raw(b"12")
            listed = await world.store.inspector.list(r.Query(kind=KIND))
            assert [found.entity_id for found in listed.instances] == ["counted"]


@asynccontextmanager
async def namesake(engines: Engines) -> AsyncIterator[tuple[Counting, Engine, Worker]]:
    """Serve the counter ``c`` named ``tally`` beside a client that knows a workflow of the same name."""
    async with counting(engines) as world:

        @world.registry.workflow
        async def tally(ctx: Context) -> str:
            return "by code"

        await world.create()
        client = Engine(world.store, registry=world.registry, clock=world.clock, worker=False)
        async with client, world.worker({KIND: CounterBrain()}) as worker:
            yield world, client, worker


async def test_a_query_of_a_counter_named_like_a_workflow_goes_to_its_brain(engines: Engines) -> None:
    """The client replays only workflows itself."""
    async with namesake(engines) as (world, client, worker):
        await world.add(3)
        await settle(worker)
        answer = asyncio.ensure_future(client.handle("c").query("total"))
        await settle(worker)
        assert await answer == 3


async def test_the_result_of_a_counter_is_not_decoded_by_the_annotation_of_a_workflow(engines: Engines) -> None:
    """The name of a counter says nothing about workflows."""
    async with namesake(engines) as (world, client, worker):
        await world.add(12)
        await settle(worker)
        assert await client.handle("c").result() == 12


async def test_a_failed_instance_of_another_kind_is_not_retried_as_a_workflow(engines: Engines) -> None:
    """Its log is no basis for the next attempt of a workflow."""
    async with namesake(engines) as (world, _, _):
        access = Access(world.store, world.registry, world.clock)
        with pytest.raises(StoreError, match="'c' cannot be retried: only workflows can, got kind 'counter'"):
            await retry_failed(access, await world.instance())


async def _until_dead(world: Counting, dying: Dying) -> None:
    """Have a worker serve a counter that is told 4, until the store falls silent; then end it without its drain."""
    before = asyncio.all_tasks()
    options = WorkerOptions(name="dies", cache_size=world.engines.cache, lease=LEASE, max_activities=10)
    worker = Worker(dying, {KIND: CounterBrain()}, world.registry, world.clock, options)  # type: ignore[arg-type]
    worker.start()
    await settle(worker)
    await world.add(4)
    await settle(worker)
    while left := asyncio.all_tasks() - before:
        for task in left:
            task.cancel()
        await asyncio.sleep(0)
    worker._watchdog.stop()


class Preparing(CounterBrain):
    """A brain of counters that must look something up for those that have just begun; *failures* looks fail first."""

    def __init__(self, failures: int = 0) -> None:
        self.looks: list[str] = []
        self._failures = failures

    def wants_preparation(self, log: Sequence[events.Event]) -> bool:
        return len(log) == 1

    async def prepare(self) -> None:
        self.looks.append("looked")
        if len(self.looks) <= self._failures:
            raise StoreError("not now")
        await asyncio.sleep(0)

    def load(self, name: str, log: Sequence[events.Event], **state: Any) -> Any:
        self.looks.append(f"loaded {len(log)}")
        return super().load(name, log, **state)


async def test_a_brain_that_must_look_something_up_does_so_before_it_loads(engines: Engines) -> None:
    """After the claim, and only for the instances that need it."""
    async with counting(engines) as world:
        brain = Preparing()
        async with world.worker({KIND: brain}) as worker:
            await world.create()
            await settle(worker)
            await world.add(12)
            await settle(worker)
        assert brain.looks[:2] == ["looked", "loaded 1"]
        assert brain.looks.count("looked") == 1
        assert (await world.instance()).status is Status.COMPLETED


async def test_a_look_that_fails_is_a_failed_delivery_and_nothing_more(engines: Engines) -> None:
    """The instance is offered again, and its log is as it was."""
    async with counting(engines) as world:
        brain = Preparing(failures=2)
        await world.create()
        await world.add(12)
        with complaints("resurgam.worker"):
            async with world.worker({KIND: brain}) as worker:
                await settle(worker)
        assert brain.looks[:4] == ["looked", "looked", "looked", "loaded 1"]
        assert (await world.instance()).status is Status.COMPLETED
