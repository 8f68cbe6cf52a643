"""Runs and attempts that are over are freed at once.

Objects that refer to each other in a circle stay until the garbage collector finds them, and for that it visits every
object of the process.
"""

import asyncio
import gc
from contextlib import contextmanager

import pytest

from resurgam import Engine
from resurgam.bench import programs
from support.count_workloads import until_at_rest

MANY = 50


@pytest.fixture
async def engine(tmp_path):
    async with Engine(f"sqlite:///{tmp_path}/a.db", registry=programs.registry, lease=3600, cache_size=0) as opened:
        yield opened


@contextmanager
def nothing_left_in_circles():
    gc.collect()
    gc.disable()
    try:
        yield
        assert gc.collect() < MANY, "at least one object of each is left in a circle"
    finally:
        gc.enable()


@pytest.mark.parametrize("program", [programs.chain, programs.fan], ids=["chain", "fan"])
async def test_runs_that_have_completed_leave_nothing_behind(engine, program):
    await engine.execute(program, 3)
    with nothing_left_in_circles():
        for _ in range(MANY):
            await engine.execute(program, 3)


async def test_runs_that_are_evicted_leave_nothing_behind(engine):
    await engine.start(programs.sleeper)
    await until_at_rest(engine)
    with nothing_left_in_circles():
        await asyncio.gather(*(engine.start(programs.sleeper) for _ in range(MANY)))
        await until_at_rest(engine)


async def test_runs_that_were_signalled_leave_nothing_behind(engine):
    async def signalled() -> None:
        handle = await engine.start(programs.answering)
        await handle.signal("go", 1)
        await handle.result()

    await signalled()
    with nothing_left_in_circles():
        for _ in range(MANY):
            await signalled()
