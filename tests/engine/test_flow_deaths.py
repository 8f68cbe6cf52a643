"""A worker dies at any of its writes, applied or not, and the flow has the same outcome."""

import pytest

from resurgam.engine import Engine
from resurgam.runtime.registry import Registry
from resurgam.store.protocol import Store
from resurgam.testing.clock import ManualClock
from resurgam.testing.contract.bench import LEASE
from support.dying import Dying, serve_until_dead
from support.engines import Engines
from support.flow_cases import CASES, FlowCase
from support.flow_checks import check

DEADLY = [
    "order_of_five",
    "for_each_in_order",
    "compensation",
    "retries",
    "child_flows",
    "workflow_as_a_step",
    "script",
]


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
        await serve_until_dead(engines, dying, clock, registry)
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
