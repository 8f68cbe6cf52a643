"""Dead letters: work that fails at every delivery is set aside with its last error."""

import asyncio

import pytest

from resurgam import Context, Engine, Registry
from resurgam.runtime.execution.execution import Execution
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


async def test_an_instance_that_always_fails_becomes_a_dead_letter_with_its_last_error(monkeypatch):
    """After twenty deliveries no worker claims it any more."""
    clock = ManualClock()
    store = MemoryStore(clock)

    def fail(*_, **__):
        raise IndexError("boom")

    monkeypatch.setattr(Execution, "advance", fail)
    async with Environment(store=store, clock=clock, registry=build(good=True)) as env:
        handle = await env.start("waits", id="x")
        description = await handle.describe()
        progress = env.engine.progress
        await env.advance(3600)

        assert env.engine.progress == progress
    assert description.error == "handed out 20 times without a commit; the last error: IndexError('boom')"
    assert (await store.inspector.stats()).dead_instances == 1


class CountingStore(MemoryStore):
    """A store that counts how often work is asked for."""

    claims = 0

    async def claim(self, *args):
        """Claim, and count it."""
        self.claims += 1
        return await super().claim(*args)


async def test_a_parked_instance_that_then_always_fails_is_not_claimed_for_ever(monkeypatch):
    """Dead letters are never offered, parked or not: a worker with no other work rests."""
    clock = ManualClock()
    store = CountingStore(clock)
    async with Environment(store=store, clock=clock, registry=build(good=True)) as env:
        await env.start("waits", id="x")
    async with Environment(store=store, clock=clock, registry=build(good=False)) as env:
        await env.engine.handle("x").signal("go")
        await env.settle()

    def fail(*_, **__):
        raise IndexError("boom")

    monkeypatch.setattr(Execution, "advance", fail)
    async with Engine(store, clock=clock, registry=build(good=True), grace=0) as engine:
        for _ in range(500):
            await asyncio.sleep(0)
        error = (await engine.handle("x").describe()).error
        before = store.claims
        for _ in range(100):
            await asyncio.sleep(0)
        after = store.claims

    assert error == "handed out 20 times without a commit; the last error: IndexError('boom')"
    assert after == before


def gpu_registry():
    registry = Registry()

    @registry.activity(queue="gpu")
    async def render() -> None: ...

    @registry.workflow
    async def asks(ctx: Context) -> None:
        await ctx.activity(render)

    return registry


async def test_an_activity_that_is_never_answered_is_shown_in_the_description():
    """After twenty deliveries it is a dead letter, and the workflow that waits for it says so."""
    clock = ManualClock()
    store = MemoryStore(clock)
    async with Environment(store=store, clock=clock, registry=gpu_registry()) as env:
        handle = await env.start("asks", id="x")
        for _ in range(21):
            await store.claim_activities("dies", ["gpu"], 5)
            clock.move_to(clock.now() + 20_000)
        description = await handle.describe()

    assert description.status == "running"
    assert description.waiting_for == ("activity 'render' on queue 'gpu' at {1}",)
    assert description.error == "activity 'render' (entry 2) was handed out 20 times without an answer"
    assert (await store.inspector.stats()).dead_activities == 1
