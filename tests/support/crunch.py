"""A worker process whose activities end together, for tests of how work is shared."""

import asyncio
import os
import sys
import time
from pathlib import Path

from resurgam import Context, Engine, activity, workflow
from resurgam.worker import fair_share

LEASE = 4.0


@activity
def crunch(number: int, count: int) -> int:
    """Wait until *count* of them have begun, so that none makes room for another; return the process that did it."""
    begun = Path(os.environ["SHOP_EFFECTS"])
    with begun.open("ab", buffering=0) as file:
        file.write(b".")
    while begun.stat().st_size < count:
        time.sleep(0.01)
    return os.getpid()


@workflow
async def fan_out(ctx: Context, count: int) -> list[int]:
    """Run many activities at once."""
    return list(await asyncio.gather(*(ctx.activity(crunch, number, count) for number in range(count))))


async def main(url: str) -> None:
    fair_share.REFILL = 1500  # milliseconds: on a busy machine, a process may be that late with its turn
    async with Engine(url, lease=LEASE) as engine:
        await engine.run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
