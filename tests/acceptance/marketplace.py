"""A market as a process of its own: workflows that begin, tell and pay each other. ``python marketplace.py URL`` serves.

Every effect is one line in the file ``SHOP_EFFECTS``, as of the shop; from them the balance of each party follows.
"""

import argparse
import asyncio
import logging
from typing import Any

from resurgam import Context, Engine, NonRetryable, Registry, RetryPolicy
from resurgam.errors import ActivityFailed
from support.shop import note

registry = Registry()
activity, workflow = registry.activity, registry.workflow

DOCKS = "docks"
"""The queue of the children."""

CLERK = "clerk"
TRIPS = 3
PAGE = 5
"""Tolls that the clerk enters on one page of the book, which is one generation."""

SOON = RetryPolicy(initial_interval=0.05, jitter=0)


async def _work() -> None:
    """Leave a trace, and take some time, in which one may be killed."""
    note()
    await asyncio.sleep(0.05)


@activity
async def pay(number: int) -> int:
    await _work()
    return 10 * number


@activity
async def refund(cents: int) -> None:
    await _work()


@activity(retry=SOON)
async def hire(number: int) -> str:
    await _work()
    if activity.info().attempt == 1:
        raise ValueError("not there yet")
    return f"camel {number}"


@activity
async def dismiss(camel: str) -> None:
    await _work()


@activity
async def depart(number: int) -> None:
    await _work()
    if is_lost(number):
        raise NonRetryable(f"caravan {number} is lost")


@activity
async def stow(number: int, trip: int) -> int:
    await _work()
    return number + trip


@workflow
async def load(ctx: Context, number: int, trip: int, stowed: list[int]) -> list[int]:
    """Trip by trip, each in a generation of its own."""
    stowed = [*stowed, await ctx.activity(stow, number, trip)]
    if trip < TRIPS:
        ctx.continue_as_new(number, trip + 1, stowed)
    return stowed


@workflow
async def caravan(ctx: Context, number: int) -> list[Any]:
    """Load elsewhere, pay and hire or take it all back, and have the toll entered by the clerk."""
    loading = ctx.workflow(load, number, 1, [], id=f"load-{number}", queue=DOCKS)
    try:
        async with ctx.saga() as saga:
            paid = await saga.step(pay, number, undo=refund)
            hired = await saga.step(hire, number, undo=dismiss)
            await saga.step(depart, number)
    except ActivityFailed:
        paid, hired = 0, "lost"
    toll = ctx.promise("toll", type=int)
    await ctx.signal(CLERK, "toll", [toll.promise_id, number])
    await ctx.sleep(0.05)
    return [await loading, paid, hired, await toll]


def is_lost(number: int) -> bool:
    """Whether a caravan fails at the last step of its saga."""
    return number % 3 == 0


def arrived(number: int) -> list[Any]:
    """What `caravan` must return."""
    saga = [0, "lost"] if is_lost(number) else [10 * number, f"camel {number}"]
    return [[number + trip for trip in range(1, TRIPS + 1)], *saga, number + 1]


@workflow
async def clerk(ctx: Context, entered: list[int]) -> list[int]:
    """Enter every toll once and answer its sender; continue as new now and then."""
    for _ in range(PAGE):
        name, (promise_id, number) = await ctx.listen("toll", "close", type=tuple[str, int])
        if name == "close":
            return entered
        entered.append(number)
        await ctx.resolve(promise_id, number + 1)
    return ctx.continue_as_new(entered)


async def _serve(url: str, lease: float, queue: str, cache: int) -> None:
    async with Engine(url, registry=registry, lease=lease, queues=[queue], cache_size=cache) as engine:
        await engine.run()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--lease", type=float, default=2)
    parser.add_argument("--queue", default="default")
    parser.add_argument("--cache", type=int, default=1000)
    options = parser.parse_args()
    # Attempts fail here as they should; whatever else is said with a traceback is an error.
    logging.getLogger("resurgam.activity").setLevel(logging.CRITICAL)
    asyncio.run(_serve(options.url, options.lease, options.queue, options.cache))
