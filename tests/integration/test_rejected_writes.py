"""A write that SQLite can never take is told from one that it cannot take now: it is not tried again."""

import asyncio
import sqlite3

import pytest
from msgspec import Raw
from msgspec.structs import replace

from resurgam import Context, Registry, RetryPolicy, errors
from resurgam.core import event as events
from resurgam.store import records as r
from resurgam.testing import Environment
from resurgam.worker.slots import key_of, lease_of

LIMIT = 20_000
"""Bytes that a row may have here; SQLite's own limit is 1 GB."""


class World:
    """Workflows that record values of a given size, over a database that takes rows up to a limit."""

    def __init__(self):
        self.registry = Registry()
        self.calls = 0

        @self.registry.activity
        async def makes(size: int) -> str:
            self.calls += 1
            return "x" * size

        @self.registry.workflow
        async def one(ctx: Context, size: int) -> int:
            return len(await ctx.activity(makes, size))

        @self.registry.workflow(retry=RetryPolicy(max_attempts=2, initial_interval=1))
        async def again(ctx: Context, size: int) -> int:
            """Its second attempt begins with the results of the first, in one entry."""
            if ctx.info.attempt == 1:
                await asyncio.gather(*(ctx.activity(makes, size) for _ in range(3)))
                raise LookupError("again")
            return 3 * size

        self.one, self.again = one, again
        self.env = Environment(store="sqlite://", registry=self.registry)

    def limit(self, size=LIMIT):
        self.env.engine.store.database._writing.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, size)


@pytest.fixture
async def world():
    world = World()
    async with world.env:
        world.limit()
        yield world


async def test_a_workflow_whose_commit_is_too_large_is_a_dead_letter_until_it_is_retried(world, caplog):
    env = world.env
    handle, beside = await asyncio.gather(env.start(world.again, LIMIT // 2), env.start(world.one, 7))
    await env.advance(60)

    described = await handle.describe()
    assert described.status == "running"
    assert "the store cannot write its commit" in described.error
    assert "string or blob too big" in described.error
    assert "keep large values elsewhere" in described.error
    assert [record.levelname for record in caplog.records if "is a dead letter" in record.message] == ["ERROR"]
    assert await beside.result() == 7

    world.limit(1_000_000_000)
    assert await handle.retry() == 1
    assert await env.finish(handle.result()) == 3 * (LIMIT // 2)
    assert world.calls == 4


@pytest.mark.parametrize("hands", [0, 1], ids=["handed in", "committed"])
async def test_a_result_that_is_too_large_fails_its_activity(world, monkeypatch, hands):
    """Whether the worker that runs it has the workflow in hand, and commits it, or has not."""
    if not hands:
        monkeypatch.setattr("resurgam.worker.slots.Slots.reserve_share", lambda *_: frozenset())
    handle = await world.env.start(world.one, LIMIT)

    with pytest.raises(errors.WorkflowFailed) as failed:
        await world.env.finish(handle.result())

    assert isinstance(failed.value.cause, errors.ActivityFailed)
    assert isinstance(failed.value.cause.cause, errors.WriteRejected)
    assert world.calls == 1


async def test_an_activity_of_which_not_even_a_failure_can_be_written_is_a_dead_letter(world, monkeypatch):
    store = world.env.engine.store

    async def rejects(parts):
        raise errors.WriteRejected("too big")

    monkeypatch.setattr(store, "complete_activities", rejects)
    monkeypatch.setattr("resurgam.worker.slots.Slots.reserve_share", lambda *_: frozenset())
    handle = await world.env.start(world.one, 1)
    await world.env.advance(60)

    assert "cannot write any answer of the activity" in (await handle.describe()).error
    assert world.calls == 1
    monkeypatch.undo()
    assert await handle.retry() == 1
    assert await world.env.finish(handle.result()) == 1


async def test_a_start_that_is_too_large_is_rejected_and_said_to_its_caller(world):
    with pytest.raises(errors.WriteRejected, match="keep large values elsewhere"):
        await world.env.engine.start("one", LIMIT, tags={f"note {n}": "x" * 1000 for n in range(LIMIT // 1000 + 1)})
    assert (await world.env.engine.list()).instances == ()


async def test_details_of_a_heartbeat_that_are_too_large_cost_no_lease(world):
    """Leases are renewed together; the details of one are left out, and all hold."""
    engine = world.env.engine
    result = r.ActivityResult(
        entity_id="x", execution_id="x", epoch=1, event=events.ActivityCompleted(ref=2, attempt=1)
    )
    renewed = []

    async def extend(leases):
        if any(lease.details is not None for lease in leases):
            raise errors.WriteRejected("too big")
        renewed.extend(leases)
        return [r.Extended() for _ in leases]

    engine.store.extend = extend
    reporting = replace(lease_of(result), details=Raw(b"{}"), heartbeat_at=1)
    leased = type("Leased", (), {"lease": lambda _: reporting})()
    engine._worker._leases.keep(key_of(result), leased)
    await engine._worker._leases.keep_details()

    assert [lease.execution_id for lease in renewed] == ["x"]
    engine._worker._leases.drop(key_of(result))
