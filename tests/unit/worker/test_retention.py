"""`Engine(retain=...)`: the worker removes runs of a certain age beside its work, and no run that another one needs."""

import logging
from datetime import timedelta

import pytest

from resurgam import Context, Engine, Registry
from resurgam.errors import StoreError
from resurgam.store.memory.effects import Effects
from resurgam.store.memory.store import MemoryStore
from resurgam.testing import Environment
from resurgam.worker.retention import BATCH

registry = Registry()
DAY = timedelta(days=1)


@registry.workflow
async def brief(ctx: Context) -> int:
    return 1


@registry.workflow
async def endless(ctx: Context, number: int) -> int:
    await ctx.sleep(DAY)
    ctx.continue_as_new(number + 1)
    return number


@registry.workflow
async def waiting(ctx: Context) -> int:
    child = ctx.workflow(brief, id="child")
    await ctx.sleep(3 * DAY)
    return await child


async def kept(env):
    return sorted(one.entity_id for one in (await env.engine.list(limit=1000)).instances)


async def test_the_worker_logs_what_it_removes(caplog):
    caplog.set_level(logging.INFO, "resurgam.worker")
    async with Environment(registry=registry, retain=30 * DAY) as env:
        await env.start(brief, id="old")
        await env.advance(20 * DAY)
        await env.start(brief, id="young")
        await env.advance(9 * DAY)
        assert await kept(env) == ["old", "young"]
        await env.advance(1 * DAY + timedelta(hours=2))
        assert await kept(env) == ["young"]
        await env.advance(20 * DAY)
        assert await kept(env) == []
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    text = "removed 1 ended executions older than 30 days, 0:00:00; 0 are kept for executions that need them"
    assert said == [text, text]


async def test_without_retain_every_run_is_kept():
    async with Environment(registry=registry) as env:
        await env.start(brief, id="old")
        await env.advance(1000 * DAY)
        assert await kept(env) == ["old"]


async def test_of_an_endless_chain_only_the_last_generations_are_kept():
    async with Environment(registry=registry, retain=2 * DAY) as env:
        await env.start(endless, 1, id="chain")
        await env.advance(30 * DAY)
        assert len(await kept(env)) <= 6
        assert (await env.handle("chain").describe()).generation == 31


async def test_a_child_is_kept_until_its_parent_has_recorded_its_end():
    class Withholds(Effects):
        """Keep the end of a child from its parent, as a store does whose messages are on their way."""

        def send_message(self, sender, message):
            return None if message.event.type == "child_completed" else super().send_message(sender, message)

    async with Environment(registry=registry) as env:
        store = MemoryStore(env.clock, lease=10**9, effects=Withholds)
    async with Environment(store=store, registry=registry, clock=env.clock, retain=DAY) as env:
        await env.start(waiting, id="parent")
        await env.advance(10 * DAY)
        assert await kept(env) == ["child", "parent"]
        await env.handle("parent").terminate()
        await env.advance(2 * DAY)
        assert await kept(env) == []


async def test_runs_are_removed_in_small_batches_with_pauses_between_them():
    sizes = []

    class Counts(MemoryStore):
        async def purge(self, execution_ids):
            sizes.append((self._clock.now(), len(execution_ids)))
            return await super().purge(execution_ids)

    async with Environment(registry=registry) as env:
        store = Counts(env.clock, lease=10**9)
        async with Environment(store=store, registry=registry, clock=env.clock) as first:
            for _ in range(2 * BATCH + 1):
                await first.start(brief)
            await first.advance(DAY)
        async with Environment(store=store, registry=registry, clock=env.clock, retain=60) as second:
            await second.advance(1)
    assert [size for _, size in sizes] == [BATCH, BATCH, 1]
    assert len({at for at, _ in sizes}) == 3


async def test_a_pass_that_fails_is_logged_and_repeated(caplog, monkeypatch):
    failures = [StoreError("the disk is full")] * 2

    async def ended(query):
        if failures:
            raise failures.pop()
        return await find(query)

    async with Environment(registry=registry) as env:
        store = MemoryStore(env.clock, lease=10**9)
    find = store.inspector.ended
    monkeypatch.setattr(store.inspector, "ended", ended)
    async with Environment(store=store, registry=registry, clock=env.clock, retain=100) as env:
        await env.start(brief, id="old")
        await env.advance(125)
        assert await kept(env) == []
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert errors == ["removing ended runs failed; trying again in 0:00:10: the disk is full"] * 2


@pytest.mark.parametrize(
    ("retain", "kind", "text"),
    [
        (0, ValueError, "retain must be longer than 0, got 0 s; leave it out to keep every run"),
        (-timedelta(days=1), ValueError, "retain must be longer than 0, got -86400 s"),
        ("30d", ValueError, "a duration must be seconds or a timedelta, got '30d'"),
    ],
)
def test_a_retain_that_is_no_length_of_time_is_refused(retain, kind, text):
    with pytest.raises(kind, match=text):
        Engine(retain=retain)


def test_retain_without_a_worker_is_refused():
    with pytest.raises(ValueError, match="retain needs a worker"):
        Engine(retain=DAY, worker=False)
