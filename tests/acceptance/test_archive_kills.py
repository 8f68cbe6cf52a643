"""Archivers are killed at any moment, and every history is readable in exactly one place."""

import asyncio
import os
import random
import signal
import sys
import time

import pytest

from resurgam import Engine
from resurgam.core import event as events
from resurgam.store import records as r
from support import shop
from support.cluster import check_run
from support.limits import HANGS

SEED = int(os.environ.get("RESURGAM_SEED") or random.SystemRandom().randrange(10**9))
LEASE = 1.0
MOMENT = 0.03
"""Seconds in which an archiver goes through all steps of one file."""

SAMPLE = 12
"""Histories that are read after each kill."""


def archiver(cluster, folder):
    """Start a process that archives all that is closed."""
    command = [sys.executable, "-m", "resurgam", "archive", "--older-than", "0s", f"--archive={folder}"]
    return cluster.spawn([*command, f"--store={cluster.url}"])


async def check(engine, orders) -> int:
    """Check that each order has its whole history, in the store or in the archive; return how many are archived."""
    archived = 0
    for number in orders:
        # The row first: what is in the store then may be archived by the next moment, but not the other way round.
        before = await engine.store.inspector.get(f"order-{number}")
        assert before is not None
        copies = {copy.instance.execution_id: copy for copy in await engine.store.transfer.copies(f"order-{number}")}
        live = copies[before.execution_id]
        assert bool(live.log) == (live.instance.archived is None)
        history = await engine.handle(f"order-{number}").history()
        entries = [entry for entry in history if not isinstance(entry, events.Archiving)]
        await check_run(shop.order, entries, shop.ordered(number, number + 1))
        archived += live.instance.archived is not None
    return archived


async def kill_at_work(process, folder, *, files: int, after: float) -> None:
    """Kill an archiver that has written so many files, a little later: in any of the steps of the next one."""
    before = number_of_files(folder)
    deadline = time.monotonic() + HANGS
    while process.poll() is None and number_of_files(folder) < before + files:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.001)
    await asyncio.sleep(after)
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
        process.wait(HANGS)


def number_of_files(folder) -> int:
    return sum(len(files) for _, _, files in os.walk(folder / "trees"))


async def number_archived(engine) -> int:
    """Return how many orders are archived."""
    page = await engine.store.inspector.list(r.Query(name=shop.order.name, limit=10_000))
    return sum(one.archived is not None for one in page.instances)


async def kill_and_check(cluster, tmp_path, *, orders: int, kills: int) -> None:
    print(f"RESURGAM_SEED={SEED}")
    rng, folder = random.Random(SEED), tmp_path / "archive"
    cluster.start_worker(lease=LEASE)
    async with Engine(cluster.url, registry=shop.registry, worker=False, archive=folder) as engine:
        handles = [await engine.start(shop.order, number, id=f"order-{number}") for number in range(orders)]
        for number, handle in enumerate(handles):
            await handle.signal("approve", number + 1, id="the one")
        results = await asyncio.gather(*(handle.result(timeout=HANGS) for handle in handles))
        assert results == [shop.ordered(number, number + 1) for number in range(orders)]
        seen = []
        for _ in range(kills):
            process = archiver(cluster, folder)
            files = rng.randint(1, orders // kills // 2)
            await kill_at_work(process, folder, files=files, after=rng.uniform(0, MOMENT))
            seen.append(await number_archived(engine))
            await check(engine, rng.sample(range(orders), min(orders, SAMPLE)))
        last = archiver(cluster, folder)
        assert await asyncio.to_thread(last.wait, HANGS) == 0, cluster.said(last)
        assert await check(engine, range(orders)) == orders
        assert not (await engine.store.inspector.ended(r.EndedQuery(before=engine.clock.now())))
        print(f"{kills} kills; so many archived after each: {seen}")
        # Most have died at work: some runs were archived, others were not.
        assert sum(0 < number < orders for number in seen) > kills // 2
    assert not cluster.errors()


@pytest.mark.parametrize("cluster", ["sqlite", "redis", "postgres"], indirect=True)
async def test_an_archiver_is_killed_five_times(cluster, tmp_path):
    await kill_and_check(cluster, tmp_path, orders=40, kills=5)


@pytest.mark.long
@pytest.mark.parametrize("cluster", ["sqlite", "redis", "redis-cluster", "postgres"], indirect=True)
async def test_an_archiver_is_killed_a_hundred_times(cluster, tmp_path):
    await kill_and_check(cluster, tmp_path, orders=1000, kills=100)
