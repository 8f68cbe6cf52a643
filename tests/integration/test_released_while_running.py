"""An instance is given back while activities of it run that its lease covers: they go on, and nobody starts them again."""

import asyncio
import sqlite3

import pytest

from resurgam import Context, Registry, RetryPolicy
from resurgam.testing import Environment
from resurgam.worker.watchdog import TickTooLong

LIMIT = 20_000
"""Bytes that a row may have here; SQLite's own limit is 1 GB."""

ONCE = RetryPolicy(redeliver=False)


class World:
    """A workflow with two activities: *slow* ends when it may, *makes* returns a value of some size."""

    def __init__(self, retry: RetryPolicy):
        self.registry = Registry()
        self.began = 0
        self.may_end = asyncio.Event()

        @self.registry.activity(retry=retry)
        async def slow() -> str:
            self.began += 1
            await self.may_end.wait()
            return "slow"

        @self.registry.activity
        async def makes(size: int) -> str:
            return "x" * size

        @self.registry.workflow
        async def both(ctx: Context, size: int) -> list[str]:
            results = await asyncio.gather(ctx.activity(slow), ctx.activity(makes, size), return_exceptions=True)
            return [type(one).__name__ if isinstance(one, BaseException) else one[:4] for one in results]

        self.both = both
        self.env = Environment(store="sqlite://", registry=self.registry)


@pytest.mark.parametrize("retry", [RetryPolicy(), ONCE], ids=["redelivered", "not redelivered"])
async def test_an_activity_that_runs_beside_a_result_that_is_too_large_is_started_once(retry):
    world = World(retry)
    async with world.env as env:
        env.engine.store.database._writing.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LIMIT)
        handle = await env.start(world.both, LIMIT)
        await env.settle()
        assert world.began == 1
        world.may_end.set()
        assert await env.finish(handle.result()) == ["slow", "ActivityFailed"]
    assert world.began == 1


@pytest.mark.parametrize("retry", [RetryPolicy(), ONCE], ids=["redelivered", "not redelivered"])
async def test_an_activity_that_runs_while_the_code_is_interrupted_is_started_once(retry, monkeypatch):
    world = World(retry)
    async with world.env as env:
        watchdog = env.engine._worker._watchdog
        run, ticks = watchdog.run, []

        def run_twice_then_interrupt(execution, function, *args):
            if function == execution.advance:
                ticks.append(args)
                if len(ticks) == 2:
                    raise TickTooLong(1)
            return run(execution, function, *args)

        monkeypatch.setattr(watchdog, "run", run_twice_then_interrupt)
        handle = await env.start(world.both, 4)
        await env.advance(2)
        assert world.began == 1
        world.may_end.set()
        assert await env.finish(handle.result()) == ["slow", "xxxx"]
    assert world.began == 1
