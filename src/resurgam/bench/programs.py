"""The measured workflows. Their activities do nothing, so that only the engine is measured."""

import asyncio
import time

from resurgam.runtime.context.context import Context
from resurgam.runtime.context.durable_loop import Break, Continue
from resurgam.runtime.registry import Registry

registry = Registry()

stamps: list[float] = []
"""When each `stamped` activity ran."""

_passed: set[int] = set()
"""The runs that have called `gate` in this process."""

_stopped: set[int] = set()
"""Those that have called it a second time."""


@registry.activity
async def step(number: int) -> int:
    """Do nothing."""
    return number


@registry.activity
async def stamped(number: int) -> int:
    """Record the time."""
    stamps.append(time.perf_counter())
    return number


@registry.activity
async def echo(payload: str) -> str:
    """Return the argument."""
    return payload


@registry.activity
async def gate(run: int, runs: int) -> None:
    """Return at a run's first call in a process; at the second never return, until the process is killed.

    The last of all *runs* to call it a second time prints a line. The first call of a run may be an activity that a
    killed process left behind, which runs without its workflow. The second is called by the workflow's code, which must
    have been replayed by then.
    """
    if run not in _passed:
        _passed.add(run)
        return
    _stopped.add(run)
    if len(_stopped) == runs:
        print("reached", flush=True)  # noqa: T201 -- read by the parent process
    await asyncio.Event().wait()


@registry.workflow
async def chain(ctx: Context, length: int) -> int:
    """Run activities one after another."""
    for number in range(length):
        await ctx.activity(step, number)
    return length


@registry.workflow
async def stamped_chain(ctx: Context, length: int) -> int:
    """Run activities one after another, and record the time of each."""
    for number in range(length):
        await ctx.activity(stamped, number)
    return length


@registry.workflow
async def fan(ctx: Context, width: int) -> int:
    """Run activities at the same time."""
    return len(await asyncio.gather(*[ctx.activity(step, number) for number in range(width)]))


@registry.workflow
async def answering(ctx: Context) -> int:
    """Wait for a signal and return its value."""
    return await ctx.listen("go", type=int)


@registry.workflow
async def until_killed(ctx: Context, length: int, run: int, runs: int) -> None:
    """Run a chain, then gates for ever."""
    for number in range(length):
        await ctx.activity(step, number)
    while True:
        await ctx.activity(gate, run, runs)


@registry.workflow
async def sleeper(ctx: Context) -> None:
    """Sleep for longer than any measurement takes."""
    await ctx.sleep(86_400)


@registry.workflow
async def payloads(ctx: Context, length: int, payload: str) -> int:
    """Run a chain of activities that take and return a payload."""
    for _ in range(length):
        await ctx.activity(echo, payload)
    return length


@registry.workflow
async def looping(ctx: Context, length: int, ends: int) -> int:
    """Run a loop with one activity each, and record the times of the first and the last few."""

    async def once(ctx: Context, number: int) -> Continue[int] | Break[int]:
        at_an_end = number < ends or number >= length - ends
        await ctx.activity(stamped if at_an_end else step, number)
        return Break(number) if number + 1 == length else Continue(number + 1)

    return await ctx.loop(once, 0)
