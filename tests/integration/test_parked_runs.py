"""Parked runs and fleets of mixed builds: a run waits for a worker whose code fits."""

import asyncio

import pytest

from resurgam import Context, Engine, Registry
from resurgam.store.memory.store import MemoryStore
from resurgam.testing import Environment, ManualClock


@pytest.fixture(autouse=True)
def quiet(caplog):
    """Divergences are logged; they are expected here."""
    caplog.set_level("CRITICAL", logger="resurgam")


def build(*, good):
    """Return a registry with a workflow that listens, and is served by the same code only if both are *good*."""
    registry = Registry()

    @registry.activity
    async def a() -> int:
        return 1

    @registry.activity
    async def b() -> int:
        return 1

    @registry.workflow
    async def waits(ctx: Context) -> str:
        await ctx.activity(a if good else b)
        await ctx.listen("go")
        return "ok"

    return registry


async def test_a_repaired_worker_of_the_same_name_is_offered_the_parked_run_again():
    """A name says which machine it is, not which build: each start is a worker of its own."""
    clock = ManualClock()
    store = MemoryStore(clock)
    async with Environment(store=store, clock=clock, registry=build(good=True), name="worker-1") as env:
        await env.start("waits", id="x")
    async with Environment(store=store, clock=clock, registry=build(good=False), name="worker-1") as env:
        await env.engine.handle("x").signal("go")
        await env.settle()
        parked = await env.engine.handle("x").describe()
    async with Environment(store=store, clock=clock, registry=build(good=True), name="worker-1") as env:
        result = await env.finish(env.engine.handle("x").result())

    assert parked.status == "diverged"
    assert result == "ok"


async def test_a_worker_that_does_not_know_a_workflow_writes_nothing_into_its_history():
    """In a mixed fleet, the worker that has the workflow takes the run."""
    clock = ManualClock()
    store = MemoryStore(clock)
    ignorant_of_it = Registry()

    @ignorant_of_it.activity
    async def a() -> int:
        return 1

    async with Engine(store, clock=clock, registry=ignorant_of_it, name="ignorant", grace=0) as ignorant:
        async with Engine(store, clock=clock, worker=False, registry=build(good=True)) as client:
            handle = await client.start("waits", id="x")
        for _ in range(30):
            await asyncio.sleep(0)
        alone = await handle.history()
        told = (await ignorant.handle("x").describe()).error
        async with Environment(store=store, clock=clock, registry=build(good=True), name="knowing") as knowing:
            await knowing.settle()
            await handle.signal("go")
            result = await knowing.finish(handle.result())
        history = await handle.history()

    assert [entry.type for entry in alone] == ["workflow_started"]
    assert "workflow 'waits' is not registered here" in str(told)
    assert result == "ok"
    assert [entry.type for entry in history] == [
        "workflow_started",
        "activity_scheduled",
        "activity_completed",
        "listen_started",
        "signal_received",
        "signals_consumed",
        "workflow_completed",
        "workflow_deactivated",
    ]
