"""A bakery as a process of its own, which works by goal flows: functions, a workflow, a flow and a script as steps.

``python bakery.py URL`` serves until it is killed. Every effect is one line in the file ``SHOP_EFFECTS``.
"""

import argparse
import asyncio
import logging
from typing import Annotated, Any

from resurgam import Context, Engine, Registry, RetryPolicy
from resurgam.flows import FlowStep, Input, ScriptStep, StepDecorator, WorkflowStep
from support.shop import note

registry = Registry()
step = StepDecorator(registry)

SOON = RetryPolicy(max_attempts=5, initial_interval=0.05, jitter=0)
GOAL = "deliver"


@step
async def loaves(number: int) -> list[int]:
    note()
    return [number, number + 1, number + 2]


@step(parallelism=2)
async def bake(loaves: Annotated[int, Input(for_each=True)]) -> int:
    note()
    await asyncio.sleep(0.1)
    return 2 * loaves


@step(retry=SOON)
def flour(number: int) -> int:
    note()
    if number % 3 == 0 and registry.activity.info().attempt == 1:
        raise ValueError("the mill is closed")
    return 10 * number


@step
async def sign(number: int) -> str:
    note()
    return f"signed {number}"


@registry.activity
async def tie(loaf: int) -> str:
    note()
    await asyncio.sleep(0.05)
    return f"tied {loaf}"


@registry.workflow
async def wrap(ctx: Context, bake: list[dict[str, Any]]) -> list[str]:
    await ctx.sleep(0.1)
    return list(await asyncio.gather(*(ctx.activity(tie, one["bake"]) for one in bake)))


@step
async def deliver(wrap: list[str], seal: str, flour: int, weight: int) -> list[Any]:
    note()
    return [wrap, seal, flour, weight]


STEPS = [
    WorkflowStep(wrap),
    FlowStep("office", ["sign"], inputs=["number"], outputs=["sign"]),
    ScriptStep("seal", "return sign .. '!'", inputs={"sign": str}, outputs={"seal": str}),
    ScriptStep(
        "weight",
        "local sum = 0 for _, one in ipairs(bake) do sum = sum + one.bake end return sum",
        inputs={"bake": list},
        outputs={"weight": int},
    ),
]
"""The steps that are no functions."""


def delivered(number: int) -> list[Any]:
    """What the flow must lead to."""
    baked = [2 * loaf for loaf in (number, number + 1, number + 2)]
    return [[f"tied {loaf}" for loaf in baked], f"signed {number}!", 10 * number, sum(baked)]


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
