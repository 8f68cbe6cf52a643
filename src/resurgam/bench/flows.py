"""W13: goal flows of five Python functions, beside the workflows of W2."""

import asyncio
import time
from typing import Any, Final

from msgspec.structs import replace

from resurgam.bench import programs
from resurgam.bench.figures import Figures, level_of, percentile, rounds, rss, sampled
from resurgam.bench.scene import Scene, count_of, per_step, timed
from resurgam.engine import Engine
from resurgam.flows.steps import StepDecorator
from resurgam.runtime.registry import Registry

registry = Registry()
step = StepDecorator(registry)

GOAL: Final = "ship"
STEPS: Final = 5


@step
async def price(order_id: int) -> int:
    """Do nothing."""
    return order_id


@step
async def pay(order_id: int, price: int) -> int:
    """Do nothing."""
    return price


@step
async def pack(order_id: int, pay: int) -> int:
    """Do nothing."""
    return pay


@step
async def label(pack: int) -> int:
    """Do nothing."""
    return pack


@step
async def ship(pack: int, label: int) -> int:
    """Do nothing."""
    return label


async def run_flow(engine: Engine, number: int) -> dict[str, Any]:
    """Run one flow to its result."""
    handle = await engine.start_flow([GOAL], {"order_id": number})
    return await handle.result()


async def flows(scene: Scene) -> list[Figures]:
    """W13: 1,000 flows of five steps at once; in turns with them 1,000 workflows of five activities."""
    number = scene.size(1000)
    latencies: list[float] = []
    rates: list[float] = []
    beside: list[float] = []

    async def all_of(engine: Engine, many: int) -> list[float]:
        return await asyncio.gather(*[timed(run_flow(engine, one)) for one in range(many)])

    async with (
        Engine(scene.storage.url("w13"), registry=registry) as engine,
        scene.engine("w13-workflows") as other,
    ):
        await all_of(engine, scene.size(100))
        for _ in rounds(3):
            begin = time.perf_counter()
            latencies += await all_of(engine, number)
            between = time.perf_counter()
            await asyncio.gather(*[other.execute(programs.chain, STEPS) for _ in range(number)])
            rates.append(number * STEPS / (between - begin))
            beside.append(number * STEPS / (time.perf_counter() - between))
        memory = rss()
        count = await count_of(engine, all_of(engine, number))
        handle = await engine.start_flow([GOAL], {"order_id": 0})
        await handle.result()
        history = await handle.history()
        level = level_of(engine.store)
    raw = scene.raw(f"a commit for each step of all {number}", history, instances=number, times=3)
    return [
        replace(
            sampled("W13", f"{number:,} flows x {STEPS} steps at once", "flow", latencies),
            rate=percentile(rates, 0.5),
            raw=raw and raw.whole(number * STEPS),
            level=level,
            rss=memory,
            more={"to_workflows": percentile(rates, 0.5) / percentile(beside, 0.5)},
            **per_step(count, number * STEPS),
        )
    ]
