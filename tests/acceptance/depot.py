"""A depot as a process of its own, in two builds of its code: ``DEPOT_BUILD`` is ``old`` or ``new``.

``python depot.py URL`` serves until it is killed. Neither build can continue what the other has begun. Every effect is one
line in the file ``SHOP_EFFECTS``.
"""

import argparse
import asyncio
import logging
import os

from resurgam import Context, Engine, Registry
from support.shop import note

registry = Registry()
BUILD = os.environ.get("DEPOT_BUILD", "old")
FIRST = {"old": "reserve", "new": "check"}


@registry.activity
async def reserve() -> str:
    note()
    return "old"


@registry.activity
async def check() -> str:
    note()
    return "new"


@registry.activity
async def ship() -> str:
    note()
    return "shipped"


@registry.workflow
async def parcel(ctx: Context) -> list[str]:
    """Return the build that has begun it, and what was done at last."""
    begun_by: str = await ctx.activity(FIRST[BUILD])
    await ctx.listen("go")
    return [begun_by, await ctx.activity(ship)]


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
    logging.getLogger("resurgam.runtime").setLevel(logging.CRITICAL)  # divergences are meant to happen here
    asyncio.run(_serve(options.url, options.lease, options.queue, options.cache))
