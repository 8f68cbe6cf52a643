"""CPU-bound work: a function in a process of its own does not block the worker, and cancellation stops it.

Watch for: the endless search is cancelled while it runs, and its process ends at once.
"""

import asyncio
import os
import time

from resurgam import Context, Engine, activity, workflow


@activity(executor="process")
def largest_prime_below(limit: int) -> int:
    """Find it by trial division."""
    for number in range(limit - 1, 1, -1):
        if all(number % divisor for divisor in range(2, int(number**0.5) + 1)):
            return number
    raise ValueError(f"no prime number is less than {limit}")


@activity(executor="process")
def search_for_ever() -> None:
    print(f"attempt {activity.info().attempt} searches in process {os.getpid()}")
    while True:
        time.sleep(0.01)


@workflow
async def primes(ctx: Context, limits: list[int]) -> list[int]:
    found = await asyncio.gather(*(ctx.activity(largest_prime_below, limit) for limit in limits))
    endless = ctx.activity(search_for_ever)
    await ctx.sleep(1)
    endless.cancel()  # kills the process
    return found


async def main() -> None:
    async with Engine() as engine:
        handle = await engine.start(primes, [1_000_000, 10**10])
        print(await handle.result())
        print([event.type for event in await handle.history() if event.type.startswith("activity")])


if __name__ == "__main__":
    asyncio.run(main())
