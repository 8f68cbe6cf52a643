"""What a step costs on a Redis server, in counts: they are the same on a busy machine as on a quiet one.

The budget is `tests/budget.json`. Calls that are pipelined are one round trip. Commands are those that functions call.
"""

import asyncio

import pytest

from resurgam import Engine
from resurgam.bench import programs
from resurgam.bench.figures import counting
from support.budget import within
from support.count_workloads import until_at_rest
from support.redis import commands_of_functions, fresh_url


@pytest.fixture
async def engine():
    # A long lease: the round trips of a renewal would be counted as those of the steps.
    async with Engine(fresh_url(), registry=programs.registry, lease=3600) as opened:
        await opened.execute(programs.chain, 20)
        await opened.execute(programs.fan, 20)
        await until_at_rest(opened)
        yield opened


async def test_round_trips_of_a_sequential_step(engine) -> None:
    counts = []
    for length in (200, 100):
        with counting(engine.store) as count:
            await engine.execute(programs.chain, length)
        counts.append(count)
    within("round trips per sequential step", (counts[0].round_trips - counts[1].round_trips) / 100)


async def test_round_trips_of_a_step_of_many_at_once(engine) -> None:
    with counting(engine.store) as count:
        await asyncio.gather(*(engine.execute(programs.chain, 10) for _ in range(200)))
    assert count.round_trips / 2000 <= 0.05  # how many share a flight depends on the machine


async def test_round_trips_of_a_start_with_one_step(engine) -> None:
    with counting(engine.store) as count:
        for _ in range(20):
            await engine.execute(programs.chain, 1)
    within("round trips per start and step", count.round_trips / 20)


async def test_round_trips_of_a_signal_and_the_result_that_it_brings(engine) -> None:
    handles = [await engine.start(programs.answering) for _ in range(20)]
    await until_at_rest(engine)
    with counting(engine.store) as count:
        for handle in handles:
            await handle.signal("go", 1)
            await handle.result()
    within("round trips per signal", count.round_trips / 20)


async def test_commands_of_a_sequential_step(engine) -> None:
    counts = []
    for length in (200, 100):
        before = commands_of_functions()
        await engine.execute(programs.chain, length)
        counts.append(commands_of_functions() - before)
    within("commands per sequential step", (counts[0] - counts[1]) / 100)


async def test_commands_of_a_start_with_one_step(engine) -> None:
    before = commands_of_functions()
    for _ in range(20):
        await engine.execute(programs.chain, 1)
    within("commands per start and step", (commands_of_functions() - before) / 20)
