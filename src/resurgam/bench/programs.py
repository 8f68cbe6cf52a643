"""The workflows that are measured. Their activities do nothing, so that what is seen is the engine."""

import asyncio
import itertools
import time

from resurgam.runtime.context.context import Context
from resurgam.runtime.context.durable_loop import Break, Continue
from resurgam.runtime.registry import Registry

registry = Registry()

stamps: list[float] = []
"""When each `stamped` activity ran."""

_gates = itertools.count()


@registry.activity
async def step(number: int) -> int:
    """Do nothing."""
    return number


@registry.activity
async def stamped(number: int) -> int:
    """Note the moment."""
    stamps.append(time.perf_counter())
    return number


@registry.activity
async def echo(payload: str) -> str:
    """Give back what was brought."""
    return payload


@registry.activity
async def gate() -> None:
    """Let the first one of a process through; at the second say so and never end, until somebody kills this process.

    The first may be what a killed process left behind, which runs without its workflow. The second is asked for by
    the workflow's code, so it must have been replayed.
    """
    if next(_gates) > 0:
        print("reached", flush=True)  # noqa: T201 -- the line is for the process that waits for it
        await asyncio.Event().wait()


@registry.workflow
async def chain(ctx: Context, length: int) -> int:
    """Some activities, one after another."""
    for number in range(length):
        await ctx.activity(step, number)
    return length


@registry.workflow
async def stamped_chain(ctx: Context, length: int) -> int:
    """The same, with the moment of each."""
    for number in range(length):
        await ctx.activity(stamped, number)
    return length


@registry.workflow
async def fan(ctx: Context, width: int) -> int:
    """Some activities at once."""
    return len(await asyncio.gather(*[ctx.activity(step, number) for number in range(width)]))


@registry.workflow
async def answering(ctx: Context) -> int:
    """Wait for a signal and end with its value."""
    return await ctx.listen("go", type=int)


@registry.workflow
async def until_killed(ctx: Context, length: int) -> None:
    """A chain, then gates for ever."""
    for number in range(length):
        await ctx.activity(step, number)
    while True:
        await ctx.activity(gate)


@registry.workflow
async def sleeper(ctx: Context) -> None:
    """Sleep for longer than any measurement takes."""
    await ctx.sleep(86_400)


@registry.workflow
async def carrying(ctx: Context, length: int, payload: str) -> int:
    """A chain whose activities take and give a payload."""
    for _ in range(length):
        await ctx.activity(echo, payload)
    return length


@registry.workflow
async def looping(ctx: Context, length: int, ends: int) -> int:
    """A loop of one activity after another, with the moments of the first and the last few."""

    async def once(ctx: Context, number: int) -> Continue[int] | Break[int]:
        at_an_end = number < ends or number >= length - ends
        await ctx.activity(stamped if at_an_end else step, number)
        return Break(number) if number + 1 == length else Continue(number + 1)

    return await ctx.loop(once, 0)
