"""Flows on a store, served by workers that a test starts and stops. Only the store and the worker decide about time."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from msgspec import Raw

from resurgam.core import event as events
from resurgam.core import flow_event as fe
from resurgam.core.brain import Brain
from resurgam.core.event import Event
from resurgam.core.lifecycle import WORKFLOW
from resurgam.core.state import Status
from resurgam.flows import model as m
from resurgam.flows.brain import FlowBrain
from resurgam.flows.catalog import Catalog
from resurgam.flows.expressions import Expressions
from resurgam.flows.planner import plan
from resurgam.flows.state import FlowInput, FlowState
from resurgam.flows.steps import StepDecorator
from resurgam.flows.wiring import encode_plan
from resurgam.runtime.brain import CodeBrain
from resurgam.runtime.registry import Registry
from resurgam.store import records as r
from resurgam.store.protocol import Store
from resurgam.testing.clock import ManualClock
from resurgam.testing.contract.bench import LEASE
from resurgam.worker.options import WorkerOptions
from resurgam.worker.worker import Worker
from support.engines import Engines
from support.stores import answered


class FlowWorld:
    """A store with flows in it. *step* defines steps, *steps* are those that were added otherwise."""

    def __init__(self, engines: Engines, store: Store, clock: ManualClock) -> None:
        self.engines, self.store, self.clock = engines, store, clock
        self.registry = Registry()
        self.step = StepDecorator(self.registry)
        self.steps: list[m.Step] = []
        self.judge = Expressions()
        self._workers = 0

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[Worker]:
        """Serve the queue."""
        self._workers += 1
        options = WorkerOptions(
            name=f"w{self._workers}", cache_size=self.engines.cache, lease=LEASE, grace=0.0, max_activities=10
        )
        brains: dict[str, Brain] = {WORKFLOW: CodeBrain(self.registry), fe.FLOW: FlowBrain(self.judge, self)}
        worker = Worker(self.store, brains, self.registry, self.clock, options)
        worker.start()
        try:
            await self.settle(worker)
            yield worker
        finally:
            await worker.stop()

    async def settle(self, worker: Worker) -> None:
        """Let a worker do all that it can without time passing."""
        quiet, progress = 0, -1
        while quiet < 50:
            waited = await answered(self.store)
            await asyncio.sleep(0)
            quiet = quiet + 1 if progress == worker.progress and not waited else 0
            progress = worker.progress

    async def start(
        self,
        goals: Sequence[str],
        init: Mapping[str, object] = {},
        entity_id: str = "flow",
        metadata: Mapping[str, object] = {},
    ) -> None:
        """Start a flow."""
        catalog = await self.read()
        values = {name: [value] for name, value in init.items()}
        made = plan(catalog, goals, values, "strict", self.judge.matches)
        given: dict[str, tuple[Raw, ...]] = {name: (Raw(msgspec.json.encode(value)),) for name, value in init.items()}
        about = {name: Raw(msgspec.json.encode(value)) for name, value in metadata.items()}
        started = fe.FlowStarted(
            seq=1,
            at=self.clock.now(),
            name=",".join(goals),
            queue="default",
            entity_id=entity_id,
            execution_id=f"{entity_id}-execution",
            run_id=f"{entity_id}-run",
            tree_id=f"{entity_id}-run",
            input=Raw(msgspec.json.encode(FlowInput(encode_plan(made), given, about))),
        )
        await self.create(started)

    async def create(self, started: events.Started) -> None:
        """Start any instance by its first entry."""
        await self.store.create([r.Creation(started=started)])

    def children_of(self, entity_id: str) -> r.Query:
        """Return the query for the children of an instance."""
        return r.Query(parent=entity_id, limit=100)

    async def read(self) -> Catalog:
        """Return the catalog, for flows that are planned when they begin."""
        return Catalog([*self.step.defined.values(), *self.steps])

    async def send(self, event: events.Event, entity_id: str = "flow") -> None:
        """Deliver an event."""
        [answer] = await self.store.deliver([r.Delivery(event=event, entity_id=entity_id)])
        assert isinstance(answer, r.Delivered), answer

    async def log(self, entity_id: str = "flow") -> list[Event]:
        """Return the log of a flow."""
        where = r.ExecutionRef(entity_id=entity_id, execution_id=f"{entity_id}-execution")
        return list(await self.store.read(where))

    async def instance(self, entity_id: str = "flow") -> r.Instance:
        """Return a flow as the store shows it."""
        found = await self.store.inspector.get(entity_id)
        assert found is not None
        return found

    async def ended(self, entity_id: str = "flow") -> FlowState:
        """Wait until a flow is deactivated, and return its state."""
        async with asyncio.timeout(60):
            while not (await self.instance(entity_id)).deactivated:
                await asyncio.sleep(0)
        return FlowState(await self.log(entity_id))

    async def until(self, status: Status, entity_id: str = "flow") -> None:
        """Wait until a flow has a status: its worker looks for what arrives only now and then."""
        async with asyncio.timeout(60):
            while (await self.instance(entity_id)).status is not status:
                await asyncio.sleep(0)

    async def types(self, entity_id: str = "flow") -> list[str]:
        """Return the kinds of the entries of a flow."""
        return [entry.type for entry in await self.log(entity_id)]


@asynccontextmanager
async def flow_world(engines: Engines) -> AsyncIterator[FlowWorld]:
    """Open a store for flows."""
    clock = ManualClock()
    async with engines.open_store(clock) as store:
        yield FlowWorld(engines, store, clock)


def result_of(state: FlowState) -> Any:
    """Return the result of a flow."""
    return msgspec.json.decode(state.result)
