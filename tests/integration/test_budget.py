"""What a step may cost, in counts: they are the same on a busy machine as on a quiet one.

The budget is `tests/budget.json`; instructions and allocations are counted in `test_instructions.py`.
"""

import sys
from typing import Self

import pytest

from budget import within
from resurgam import Engine
from resurgam.bench import programs
from resurgam.bench.figures import counting
from resurgam.core.event import decode_event, encode_event
from resurgam.runtime.execution import Execution


@pytest.fixture
async def engine(tmp_path):
    async with Engine(f"sqlite:///{tmp_path}/budget.db", registry=programs.registry) as opened:
        await opened.execute(programs.chain, 20)
        await opened.execute(programs.fan, 20)
        yield opened


class Calls:
    """Counts the functions that are called in this thread, Python's own and those written in C."""

    def __init__(self) -> None:
        self.number = 0

    def __enter__(self) -> Self:
        sys.setprofile(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _called(self, frame, event, argument) -> None:
        if event in {"call", "c_call"}:
            self.number += 1


async def test_commits_and_statements_of_a_sequential_step(engine) -> None:
    counts = []
    for length in (200, 100):
        with counting(engine.store) as count:
            await engine.execute(programs.chain, length)
        counts.append(count)
    within("commits per sequential step", (counts[0].commits - counts[1].commits) / 100)
    within("statements per sequential step", (counts[0].statements - counts[1].statements) / 100)


@pytest.mark.parametrize(
    ("what", "workflow"),
    [("calls per sequential step", programs.chain), ("calls per step of a fan-out", programs.fan)],
)
async def test_calls_of_a_step(engine, what, workflow) -> None:
    numbers = []
    for length in (400, 200):
        with Calls() as calls:
            await engine.execute(workflow, length)
        numbers.append(calls.number)
    within(what, (numbers[0] - numbers[1]) / 200)


async def unfinished_history(engine, length):
    """Return the history of a chain up to its last activity."""
    handle = await engine.start(programs.chain, length)
    await handle.result()
    return [entry for entry in await handle.history() if not entry.type.startswith(("workflow_c", "workflow_d"))]


async def test_calls_of_a_replayed_event(engine) -> None:
    numbers = []
    for length in (400, 200):
        history = await unfinished_history(engine, length)
        with Calls() as calls:
            execution = Execution(programs.chain, history)
            execution.replay()
        execution.close()
        numbers.append(calls.number)
    within("calls per replayed event", (numbers[0] - numbers[1]) / 400)


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
