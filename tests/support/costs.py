"""What the workloads of the budgets cost on a store. Each kind of cost is counted: commits and statements, or round trips."""

from collections.abc import Callable
from contextlib import AbstractContextManager

from resurgam import Engine
from resurgam.bench import programs
from support.count_workloads import until_at_rest

Costs = dict[str, float]
"""Counts by their kind."""

Counting = Callable[[Engine], AbstractContextManager[Costs]]
"""Count what is done inside the ``with``; the counts are there behind it."""

_TIMES = 20


async def of_a_sequential_step(engine: Engine, counting: Counting) -> Costs:
    """Return what one step more costs in a chain of activities."""
    long, short = [await _of_a_chain(engine, counting, length) for length in (200, 100)]
    return {f"{kind} per sequential step": (count - short[kind]) / 100 for kind, count in long.items()}


async def _of_a_chain(engine: Engine, counting: Counting, length: int) -> Costs:
    with counting(engine) as counts:
        await engine.execute(programs.chain, length)
    return counts


async def of_a_start_with_one_step(engine: Engine, counting: Counting) -> Costs:
    """Return what a workflow of one activity costs."""
    with counting(engine) as counts:
        for _ in range(_TIMES):
            await engine.execute(programs.chain, 1)
    return {f"{kind} per start and step": count / _TIMES for kind, count in counts.items()}


async def of_a_signal(engine: Engine, counting: Counting) -> Costs:
    """Return what a signal costs, and the result that it brings."""
    handles = [await engine.start(programs.answering) for _ in range(_TIMES)]
    await until_at_rest(engine)
    with counting(engine) as counts:
        for handle in handles:
            await handle.signal("go", 1)
            await handle.result()
    return {f"{kind} per signal": count / _TIMES for kind, count in counts.items()}
