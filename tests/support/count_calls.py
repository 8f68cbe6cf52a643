"""Counts the functions that are called for a step and for a replayed event, in a process of its own.

A profile function in a process in which other tests have interrupted ticks before can send Python 3.11 into a loop that
never ends; and a process that has done nothing else counts the same every time.
"""

import asyncio
import json
import sys
from typing import Any, Self

from resurgam import Engine, Event
from resurgam.bench import programs
from resurgam.runtime.definitions.definition import Workflow
from resurgam.runtime.execution.execution import Execution


class Calls:
    """Counts the functions that are called in this thread, Python's own and those written in C."""

    def __init__(self) -> None:
        self.number = 0

    def __enter__(self) -> Self:
        sys.setprofile(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _called(self, frame: object, event: str, argument: object) -> None:
        if event in {"call", "c_call"}:
            self.number += 1


async def of_a_step(engine: Engine, workflow: Workflow[..., Any]) -> float:
    """Return the calls of one step of a workflow."""
    numbers = []
    for length in (400, 200):
        with Calls() as calls:
            await engine.execute(workflow, length)
        numbers.append(calls.number)
    return (numbers[0] - numbers[1]) / 200


async def of_a_replayed_event(engine: Engine) -> float:
    """Return the calls that it takes to replay one entry."""
    numbers = []
    for length in (400, 200):
        history = await unfinished_history(engine, length)
        with Calls() as calls:
            execution = Execution(programs.chain, history)
            execution.replay()
        execution.close()
        numbers.append(calls.number)
    return (numbers[0] - numbers[1]) / 400


async def unfinished_history(engine: Engine, length: int) -> list[Event]:
    """Return the history of a chain up to its last activity."""
    handle = await engine.start(programs.chain, length)
    await handle.result()
    return [entry for entry in await handle.history() if not entry.type.startswith(("workflow_c", "workflow_d"))]


async def counted(url: str) -> dict[str, float]:
    """Return all counts by the names that they have in the budget."""
    async with Engine(url, registry=programs.registry) as engine:
        await engine.execute(programs.chain, 20)
        await engine.execute(programs.fan, 20)
        return {
            "calls per sequential step": await of_a_step(engine, programs.chain),
            "calls per step of a fan-out": await of_a_step(engine, programs.fan),
            "calls per replayed event": await of_a_replayed_event(engine),
        }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(counted(sys.argv[1]))))
