"""Measure memory: of an instance in the cache and outside of it, and of a worker in the large workloads."""

import asyncio
from typing import Any

from results import print_progress
from resurgam import Engine
from resurgam.bench import programs
from resurgam.bench.figures import level_of, peak, rss
from resurgam.bench.scene import Scene, at_rest

Curve = dict[str, Any]


async def memory(scene: Scene) -> Curve:
    """Measure bytes per sleeper in the cache, and per sleeper outside of it."""
    points = []
    few, more = scene.size(2_000), scene.size(5_000)
    # Cold ones first: they would reuse the memory that hot ones free.
    for kind, cache in (("cold", 0), ("hot", 1_000_000)):
        async with Engine(scene.storage.url(f"memory-{kind}"), registry=programs.registry, cache_size=cache) as engine:
            held = [await sleeping(engine, few), await sleeping(engine, more)]
            level = level_of(engine.store)
        points.append({"x": kind, "bytes": (held[1] - held[0]) / more})
    return {"x": "instance", "y": "bytes", "points": points, "level": level}


async def sleeping(engine: Engine, number: int, at_once: int = 500) -> int:
    """Start sleepers, and return the memory of the process when all are asleep."""
    for begun in range(0, number, at_once):
        await asyncio.gather(*[engine.start(programs.sleeper) for _ in range(min(at_once, number - begun))])
        if begun and begun % 10_000 == 0:
            print_progress(f"  {begun:,} of {number:,} sleepers")
    await at_rest(engine)
    return rss()


async def through_chains(scene: Scene) -> Curve:
    """Run W2 without its raw limit, whose memory would count too, with a cache and queues of default size."""
    async with scene.engine("chains") as engine:
        for _ in range(3):
            await asyncio.gather(*[engine.execute(programs.chain, 10) for _ in range(scene.size(1_000))])
        return {"x": "W2", "rss": rss(), "peak": peak(), "level": level_of(engine.store)}


async def through_sleepers(scene: Scene) -> Curve:
    """Run W7 at ten times its size, likewise."""
    async with scene.engine("sleepers") as engine:
        held = await sleeping(engine, scene.size(100_000), at_once=1000)
        return {"x": "W7 x 10: 100,000 sleepers", "rss": held, "peak": peak(), "level": level_of(engine.store)}
