"""With retention, a store settles: what has passed through it and was removed leaves nothing that grows.

``make test`` runs a few workflows on every store, ``make test-long`` many; RESURGAM_SOAK sets how many.
"""

import asyncio
import logging
import os
import time
from collections import Counter

import pytest

from resurgam import Engine, Retain
from support.soak import Mix, Soaked, drained, open_soaked

FEW = 400
MANY = int(os.environ.get("RESURGAM_SOAK", "200000"))

SPARE = 20
"""Rows, or elements of keys, by which a count may differ: what is under way, and pages of an index."""

PARTITIONS = 16
BOUNDED = {"elements marks": PARTITIONS**2, "elements counters": PARTITIONS * (PARTITIONS + 4)}
"""Redis: a mark and a counter for each pair of partitions that have exchanged a message."""

STORES = ["memory", "sqlite", "redis", "redis-cluster", "postgres"]


@pytest.fixture(autouse=True)
def quiet():
    """Every tenth workflow fails, and is logged."""
    logger = logging.getLogger("resurgam")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)


def growth(before: Counter[str], after: Counter[str]) -> dict[str, tuple[int, int]]:
    """Return what has grown by more than the tolerance, unless it cannot grow for ever."""
    return {
        kind: (before[kind], count)
        for kind, count in after.items()
        if count > max(before[kind] + SPARE, BOUNDED.get(kind, 0))
    }


async def soak(soaked: Soaked, number: int) -> tuple[list[Counter[str]], list[int]]:
    """Run workflows in two halves; return the counts and the sizes after each, when everything is removed."""
    mix, counts, sizes = Mix(), [], []
    async with Engine(
        soaked.url, registry=mix.registry, retain=[Retain(1), Retain(1, dead_letters=True)]
    ) as mix.engine:
        for half in (range(number // 2), range(number // 2, number)):
            started = time.monotonic()
            await mix.run(half)
            ran = time.monotonic()
            full = await soaked.size()
            await drained(mix.engine)
            counts.append(await soaked.count())
            sizes.append(await soaked.size())
            print(
                f"{len(half)} workflows in {ran - started:.1f} s, removed {time.monotonic() - ran:.1f} s later; "
                f"{counts[-1].total()} rows or elements, {sizes[-1]} bytes (before that {full})"
            )
    return counts, sizes


@pytest.mark.parametrize("kind", STORES)
async def test_a_store_with_retention_settles(kind, tmp_path):
    async with open_soaked(kind, tmp_path) as soaked, asyncio.timeout(240):
        counts, _ = await soak(soaked, FEW)
    assert growth(*counts) == {}


@pytest.mark.long
@pytest.mark.parametrize("kind", STORES)
async def test_a_store_with_retention_settles_however_much_passes_through(kind, tmp_path):
    async with open_soaked(kind, tmp_path) as soaked:
        counts, sizes = await soak(soaked, MANY)
    print(f"{kind}: {dict(counts[-1])}")
    assert growth(*counts) == {}
    assert sizes[1] <= sizes[0] * 1.1 + 2_000_000
