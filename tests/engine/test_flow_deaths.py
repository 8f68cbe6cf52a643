"""A worker dies at any of its writes, applied or not, and the flow has the same outcome."""

import asyncio
from typing import Any

import pytest

from resurgam.core.lifecycle import WORKFLOW
from resurgam.engine import Engine
from resurgam.runtime.brain import CodeBrain
from resurgam.runtime.registry import Registry
from resurgam.store.protocol import Store
from resurgam.testing.clock import ManualClock
from resurgam.testing.contract.bench import LEASE
from resurgam.worker.brains import Brains
from resurgam.worker.options import WorkerOptions
from resurgam.worker.worker import Worker
from support.dying import Dying, settle
from support.engines import Engines
from support.flow_cases import CASES, FlowCase
from support.flow_checks import MINUTES, check

DEADLY = [
    "order_of_five",
    "for_each_in_order",
    "compensation",
    "retries",
    "child_flows",
    "workflow_as_a_step",
    "script",
]


async def _serve_until_dead(engines: Engines, store: Any, clock: ManualClock, registry: Registry) -> None:
    """Serve the flow until the store falls silent, or everything is done; then end the worker without its drain."""
    before = asyncio.all_tasks()
    options = WorkerOptions(name="dies", cache_size=engines.cache, lease=LEASE, max_activities=10)
    brains = Brains({WORKFLOW: CodeBrain(registry)}, store)
    worker = Worker(store, brains, registry, clock, options)
    worker.start()
    await settle(worker)
    end = clock.now() + MINUTES * 1000
    while not store.dead and (due := clock.next_due()) is not None and due < end:
        clock.move_to(due)
        await settle(worker)
    while left := asyncio.all_tasks() - before:
        for task in left:
            task.cancel()
        await asyncio.sleep(0)
    await worker._instances.evict_all()
    worker._watchdog.stop()


async def _start(store: Store, clock: ManualClock, flow: FlowCase) -> Registry:
    registry, steps = flow.defined()
    async with Engine(store, registry=registry, clock=clock, worker=False) as client:
        for one in steps:
            await client.register_step(one)
        await client.start_flow(flow.goals, flow.init, id="flow")
    return registry


async def _dies(engines: Engines, flow: FlowCase, at: int, *, applied: bool) -> bool:
    """Let a worker die, and another take over; return whether the first came as far as that."""
    clock = ManualClock()
    async with engines.open_store(clock) as store:
        registry = await _start(store, clock, flow)
        dying = Dying(store, at, applied=applied)
        await _serve_until_dead(engines, dying, clock, registry)
        async with engines.serve(store, clock, registry) as env:
            await env.advance(2 * LEASE / 1000)
            await check(env, flow, env.handle("flow"))
    return dying.dead


@pytest.mark.engines("memory-cached", "memory-replayed")
@pytest.mark.parametrize("name", DEADLY)
async def test_a_flow_goes_on_wherever_its_worker_dies(engines: Engines, name: str) -> None:
    at = 1
    while await _dies(engines, CASES[name], at, applied=at % 2 == 0):
        at += 1
    assert at > 2


@pytest.mark.long
@pytest.mark.engines("memory-cached", "sqlite-cached", "sqlite-replayed", "redis-cached", "postgres-cached")
@pytest.mark.parametrize("name", DEADLY)
async def test_a_flow_goes_on_wherever_its_worker_dies_on_any_store(engines: Engines, name: str) -> None:
    for applied in (False, True):
        at = 1
        while await _dies(engines, CASES[name], at, applied=applied):
            at += 1


@pytest.mark.parametrize("at", [2, 5])
async def test_a_flow_goes_on_where_its_worker_has_died_on_every_store(engines: Engines, at: int) -> None:
    assert await _dies(engines, CASES["child_flows"], at, applied=at == 2)
