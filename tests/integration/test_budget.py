"""What a step may cost, in counts: they are the same on a busy machine as on a quiet one.

The budget is `tests/budget.json`; instructions and allocations are counted in `test_instructions.py`.
"""

import json
import subprocess
import sys

import pytest

from resurgam import Engine
from resurgam.bench import programs
from resurgam.bench.figures import counting
from resurgam.core.event import decode_event, encode_event
from resurgam.runtime.execution.execution import Execution
from support import count_calls
from support.budget import within
from support.count_calls import unfinished_history


@pytest.fixture
async def engine(tmp_path):
    async with Engine(f"sqlite:///{tmp_path}/budget.db", registry=programs.registry) as opened:
        await opened.execute(programs.chain, 20)
        await opened.execute(programs.fan, 20)
        yield opened


async def test_commits_and_statements_of_a_sequential_step(engine) -> None:
    counts = []
    for length in (200, 100):
        with counting(engine.store) as count:
            await engine.execute(programs.chain, length)
        counts.append(count)
    within("commits per sequential step", (counts[0].commits - counts[1].commits) / 100)
    within("statements per sequential step", (counts[0].statements - counts[1].statements) / 100)


def test_calls_of_a_step_and_of_a_replayed_event(tmp_path) -> None:
    command = [sys.executable, count_calls.__file__, f"sqlite:///{tmp_path}/calls.db"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    numbers = json.loads(done.stdout)
    assert len(numbers) == 3
    for what, number in numbers.items():
        within(what, number)


async def test_memory_that_a_step_of_a_live_workflow_takes(engine) -> None:
    kept = []
    for length in (400, 200):
        written = [encode_event(entry) for entry in await unfinished_history(engine, length)]
        before = sys.getallocatedblocks()
        execution = Execution(programs.chain, [decode_event(entry) for entry in written])
        execution.advance([], execution.started.at)
        kept.append(sys.getallocatedblocks() - before)
        execution.close()
    within("blocks kept per step", (kept[0] - kept[1]) / 200)
