"""W9 on a server: W1 and W2 beside a million idle instances.

The engine puts a few workflows to sleep. They are copied in the server under new ids, so that a million takes a minute or two
and not an hour.
"""

import asyncio
import time

from msgspec.structs import replace

from resurgam.bench import programs
from resurgam.bench.figures import Figures, percentile, rounds, sampled
from resurgam.bench.scene import Scene, at_rest, timed
from resurgam.bench.storage import Crowded
from resurgam.engine import Engine


async def crowd(scene: Scene) -> list[Figures]:
    """W9: the rates of W1 and W2 with 1,000,000 idle instances beside them, compared with those without."""
    storage = scene.storage
    assert isinstance(storage, Crowded)
    idle = scene.size(1_000_000)
    async with scene.engine("w9") as engine:
        await _rates(engine, scene)
        alone = await _rates(engine, scene)
        await _start_sleepers(engine, storage.originals)
        before = await scene.storage.memory()
        copied = await storage.copy_sleepers("w9", idle)
        grown = (await scene.storage.memory() or 0) - (before or 0)
        # The first rounds after a million copies differ from those that follow: Postgres then logs tens of thousands of
        # whole pages, and soon none. What a store does in the long run is measured, so one round before it is not counted.
        await _rates(engine, scene)
        beside = await _rates(engine, scene)
    return [
        replace(
            sampled("W9", f"{name} beside {copied:,} idle instances", "round", [1 / rate for rate in fast]),
            rate=percentile(fast, 0.5),
            more={
                "kept": percentile(fast, 0.5) / percentile(slow, 0.5),
                "idle": float(copied),
                "server_bytes_per_copy": grown / copied,
                "of_" + name: 1.0,
            },
        )
        for name, slow, fast in zip(("W1", "W2"), alone, beside, strict=True)
    ]


async def _rates(engine: Engine, scene: Scene) -> tuple[list[float], list[float]]:
    """Return the steps per second of some rounds of W1 and W2."""
    length, number = scene.size(100), scene.size(1000)
    chains, many = [], []
    for _ in range(2):
        await engine.execute(programs.chain, length)
    for _ in rounds(10):
        chains.append(length / await timed(engine.execute(programs.chain, length)))  # noqa: PERF401 -- one after another
    for _ in rounds(4):
        begin = time.perf_counter()
        await asyncio.gather(*[engine.execute(programs.chain, 10) for _ in range(number)])
        many.append(number * 10 / (time.perf_counter() - begin))
    return chains, many


async def _start_sleepers(engine: Engine, number: int) -> None:
    """Put workflows to sleep."""
    await asyncio.gather(*[engine.start(programs.sleeper) for _ in range(number)])
    await at_rest(engine)
