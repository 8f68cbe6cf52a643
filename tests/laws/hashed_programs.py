"""Programs whose payloads hold sets of every kind, and the histories that they write in a process of another hash seed.

Run as a script it prints one JSON line per program: its number, and every history of its world.
"""

import asyncio
import json
import os
import random
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pydantic

from resurgam import Context, Registry, RetryPolicy
from resurgam.core import event as events
from resurgam.testing import Simulation

PROGRAMS = 12
WORDS = ("red", "green", "blue", "yellow", "pink", "cyan", "grey", "black")
registry = Registry()


@dataclass
class Basket:
    tags: set[str]
    nested: dict[str, frozenset[str]] = field(default_factory=dict)


class Parcel(msgspec.Struct, array_like=True, tag=True):
    pairs: set[tuple[str, int]]


class Order(pydantic.BaseModel):
    tags: set[str] = pydantic.Field(alias="Tags")
    groups: list[frozenset[str]] = []


@registry.activity
def plain(tags: set[str], groups: frozenset[frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*groups) | tags


@registry.activity
def shaped(basket: Basket, parcel: Parcel, order: Order) -> Basket:
    return basket


@registry.activity
def anything(value: Any, /, **more: Any) -> Any:
    return value


@registry.workflow(input_check="strict")
async def child(ctx: Context, tags: set[str]) -> int:
    return len(await ctx.activity(anything, tags))


@registry.workflow(input_check="strict", retry=RetryPolicy(max_attempts=2, jitter=0))
async def program(ctx: Context, number: int) -> int:
    """Say all that can be said with sets in it, fail once, and say it again."""
    chance = random.Random(number)

    def some() -> set[str]:
        return set(chance.sample(WORDS, chance.randint(2, len(WORDS))))

    def groups() -> frozenset[frozenset[str]]:
        return frozenset(frozenset(some()) for _ in range(3))

    await ctx.activity(plain, some(), groups())
    await ctx.activity(
        shaped,
        Basket(some(), {"a": frozenset(some())}),
        Parcel({(word, 1) for word in some()}),
        Order(Tags=some(), groups=[frozenset(some())]),
    )
    await ctx.activity(anything, {"deep": [groups(), Basket(some())]}, more=some())
    ctx.set("tags", some())
    await ctx.workflow(child, some())
    await ctx.publish("tags", some())
    found = await ctx.map(anything, [some(), some()])
    if ctx.info.attempt == 1:
        raise ValueError("once")
    return len(found)


async def histories() -> list[dict[str, list[str]]]:
    """Run every program, and return the histories of each world as JSON lines."""
    written = []
    for number in range(PROGRAMS):
        world = Simulation(program, number, registry=registry)
        await world.run()
        written.append({key: [entry.to_json() for entry in log] for key, log in world.histories.items()})
    return written


def histories_under(seed: int) -> list[dict[str, list[events.Event]]]:
    """Return what `histories` gives in a process with this PYTHONHASHSEED."""
    tests = Path(__file__).parents[1]
    path = os.pathsep.join([str(tests), str(tests.parent / "src")])
    environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": path}
    run = subprocess.run(
        [sys.executable, "-m", "laws.hashed_programs"], env=environment, capture_output=True, check=True
    )
    worlds: list[dict[str, list[str]]] = json.loads(run.stdout)
    return [{key: [events.decode_event(line) for line in log] for key, log in world.items()} for world in worlds]


if __name__ == "__main__":
    print(json.dumps(asyncio.run(histories())))
