"""What a step may cost, in counts: they are the same on a busy machine as on a quiet one.

The budget is `tests/budget.json`; instructions are counted in `test_instructions.py`.
"""

import asyncio
import gc
import sys
from contextlib import contextmanager

import pytest

from resurgam import Engine
from resurgam.bench import programs
from resurgam.bench.figures import counting
from resurgam.core.event import decode_event, encode_event
from resurgam.runtime.execution.execution import Execution
from support.budget import all_within, within
from support.costs import of_a_sequential_step, of_a_signal, of_a_start_with_one_step
from support.count_calls import calls_per_unit
from support.count_workloads import WORKLOADS, unfinished_history, until_at_rest


@pytest.fixture
async def engine(tmp_path):
    # A long lease: the commits of a renewal would be counted as those of the steps.
    async with Engine(f"sqlite:///{tmp_path}/budget.db", registry=programs.registry, lease=3600) as opened:
        await opened.execute(programs.chain, 20)
        await opened.execute(programs.fan, 20)
        yield opened


@contextmanager
def commits_and_statements(engine):
    counts = {}
    with counting(engine.store) as count:
        yield counts
    counts.update({"commits": count.commits, "statements": count.statements})


@pytest.mark.parametrize("costs", [of_a_sequential_step, of_a_start_with_one_step, of_a_signal])
async def test_commits_and_statements(engine, costs) -> None:
    all_within(await costs(engine, commits_and_statements))


async def test_commits_of_a_sleeper(engine) -> None:
    with counting(engine.store) as count:
        for _ in range(20):
            await engine.start(programs.sleeper)
            await until_at_rest(engine)
    within("commits per sleeper", count.commits / 20)


def test_calls() -> None:
    counted = calls_per_unit(list(WORKLOADS))
    all_within({f"calls per {WORKLOADS[name].unit}": sum(calls.values()) for name, calls in counted.items()})


async def test_memory_that_a_step_of_a_live_workflow_takes(engine) -> None:
    kept = []
    for length in (400, 200):
        written = [encode_event(entry) for entry in await unfinished_history(engine, length)]
        before = sys.getallocatedblocks()
        execution = Execution(programs.chain, [decode_event(entry) for entry in written])
        execution.advance([], execution.started.at)
        kept.append(sys.getallocatedblocks() - before)
        execution.close()
        del execution, written  # before the next one is made
    within("blocks kept per step", (kept[0] - kept[1]) / 200)


async def test_objects_of_a_live_run_that_the_garbage_collector_visits(engine) -> None:
    """Every full collection visits them all, and with many live runs most of its time goes there."""
    counts = []
    for _ in range(2):
        await asyncio.gather(*(engine.start(programs.sleeper) for _ in range(100)))
        await until_at_rest(engine)
        gc.collect()
        # Which dicts and tuples it tracks depends on the version of Python.
        counts.append(sum(type(found) not in (dict, tuple) for found in gc.get_objects()))
    within("tracked objects per live run", (counts[1] - counts[0]) / 100)
