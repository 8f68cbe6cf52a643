"""What a step costs on a Redis server, in counts: they are the same on a busy machine as on a quiet one.

The budget is `tests/budget.json`. Calls that are pipelined are one round trip. Commands are those that functions call.
"""

import asyncio
from contextlib import contextmanager

import pytest

from resurgam import Engine
from resurgam.bench import programs
from resurgam.bench.figures import counting
from support.budget import all_within
from support.costs import of_a_sequential_step, of_a_signal, of_a_start_with_one_step
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


@contextmanager
def round_trips_and_commands(engine):
    counts, before = {}, commands_of_functions()
    with counting(engine.store) as count:
        yield counts
    counts.update({"round trips": count.round_trips, "commands": commands_of_functions() - before})


@pytest.mark.parametrize("costs", [of_a_sequential_step, of_a_start_with_one_step, of_a_signal])
async def test_round_trips_and_commands(engine, costs) -> None:
    all_within(await costs(engine, round_trips_and_commands))


async def test_round_trips_of_a_step_of_many_at_once(engine) -> None:
    with counting(engine.store) as count:
        await asyncio.gather(*(engine.execute(programs.chain, 10) for _ in range(200)))
    assert count.round_trips / 2000 <= 0.05  # how many share a flight depends on the machine
