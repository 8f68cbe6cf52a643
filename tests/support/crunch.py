"""A worker process whose activities keep a core busy, for tests of how work is shared."""

import asyncio
import os
import sys
import time

from resurgam import Context, Engine, activity, workflow


@activity
def crunch(number: int) -> int:
    """Keep a core busy, and return the process that did."""
    until = time.process_time() + 0.02
    while time.process_time() < until:
        pass
    return os.getpid()


@workflow
async def fan_out(ctx: Context, count: int) -> list[int]:
    """Run many activities at once."""
    return list(await asyncio.gather(*(ctx.activity(crunch, number) for number in range(count))))


async def main(url: str) -> None:
    async with Engine(url, lease=2) as engine:
        await engine.run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
