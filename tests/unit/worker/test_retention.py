"""`Engine(retain=...)`: the worker removes runs of a certain age beside its work, and no run that another one needs."""

import logging
from datetime import timedelta

import pytest

from resurgam import Context, Engine, Registry, Retain
from resurgam.errors import CorruptHistory, StoreError
from resurgam.runtime.execution.execution import Execution
from resurgam.store.memory.effects import Effects
from resurgam.store.memory.store import MemoryStore
from resurgam.testing import Environment
from resurgam.worker import retention
from resurgam.worker.retention import BATCH

registry = Registry()
DAY = timedelta(days=1)


@registry.workflow
async def brief(ctx: Context) -> int:
    return 1


@registry.workflow
async def other(ctx: Context) -> int:
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


class Withholds(Effects):
    """Keep the end of a child from its parent, as a store does whose messages are on their way."""

    def send_message(self, sender, message):
        return None if message.event.type == "child_completed" else super().send_message(sender, message)


async def test_what_a_rule_keeps_longer_is_read_once_and_not_in_every_pass(monkeypatch):
    read = []

    async def ended(query):
        found = await find(query)
        read.extend(one for one in found if query.name is None)
        return found

    async with Environment(registry=registry) as env:
        store = MemoryStore(env.clock, lease=10**9)
    find = store.inspector.ended
    monkeypatch.setattr(store.inspector, "ended", ended)
    rules = [Retain(60), Retain(30 * DAY, "brief")]
    async with Environment(store=store, registry=registry, clock=env.clock, retain=rules) as env:
        for _ in range(50):
            await env.start(brief)
        for _ in range(20):
            await env.start(other)
            await env.advance(60)
        assert {one.name for one in (await env.engine.list(limit=1000)).instances} <= {"brief", "other"}
        await env.advance(120)
        assert len(await kept(env)) == 50
        assert len(read) == 50 + 20
        await env.advance(DAY)
        assert len(read) == 50 + 20 + 50


async def test_a_run_that_was_needed_is_removed_soon_after_though_later_ones_were_read(monkeypatch):
    async with Environment(registry=registry) as env:
        store = MemoryStore(env.clock, lease=10**9, effects=Withholds)
    rules = [Retain(60), Retain(None, "other")]
    async with Environment(store=store, registry=registry, clock=env.clock, retain=rules) as env:
        await env.start(waiting, id="parent")
        await env.start(other, id="other")
        await env.advance(3600)
        assert await kept(env) == ["child", "other", "parent"]
        await env.handle("parent").terminate()
        await env.advance(120)
        assert await kept(env) == ["other"]


async def test_more_needed_runs_than_can_be_remembered_are_listed_again(monkeypatch):
    monkeypatch.setattr(retention, "_REMEMBERED", 0)
    async with Environment(registry=registry) as env:
        store = MemoryStore(env.clock, lease=10**9, effects=Withholds)
    rules = [Retain(60), Retain(None, "other")]
    async with Environment(store=store, registry=registry, clock=env.clock, retain=rules) as env:
        await env.start(waiting, id="parent")
        await env.advance(3600)
        assert await kept(env) == ["child", "parent"]
        await env.handle("parent").terminate()
        await env.advance(120)
        assert await kept(env) == []


async def test_a_run_that_arrives_long_after_its_end_is_removed_within_a_day():
    async with Environment(registry=registry) as env:
        await env.start(brief, id="old")
        await env.advance(60)
        lines = await env.engine.export("old")
    rules = [Retain(60), Retain(None, "other")]
    async with Environment(registry=registry, clock=env.clock, retain=rules) as env:
        await env.start(other, id="other")
        await env.advance(3600)
        await env.engine.import_(lines)
        await env.advance(DAY)
        assert await kept(env) == ["other"]


async def test_a_dead_letter_whose_history_cannot_be_decoded_is_left(monkeypatch, caplog):
    """An older release may have met the entries of a newer one: its runs go on after the next deployment."""
    caplog.set_level("CRITICAL", logger="resurgam")

    def fail(*_, **__):
        raise IndexError("boom")

    async def history(*_, **__):
        raise CorruptHistory("no such event")

    async with Environment(registry=registry, retain=[Retain(60, dead_letters=True)]) as env:
        with monkeypatch.context() as patch:
            patch.setattr(Execution, "advance", fail)
            await env.start(waiting, id="parent")
        with monkeypatch.context() as patch:
            patch.setattr(env.engine.store.inspector, "history", history)
            await env.advance(DAY)
        assert (await env.handle("parent").describe()).status == "running"
        await env.advance(DAY)
        assert (await env.handle("parent").describe()).status == "terminated"


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
