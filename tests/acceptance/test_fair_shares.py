"""Several processes that serve one queue share what one run schedules."""

import asyncio
from collections import Counter

import pytest

from resurgam import Engine
from support import crunch
from support.cluster import Cluster
from support.postgres import fresh_url

PROCESSES, ACTIVITIES = 3, 60


@pytest.mark.parametrize("url", [lambda: None, fresh_url], ids=["sqlite", "postgres"])
async def test_no_process_takes_more_than_half_of_sixty_activities(tmp_path, url):
    cluster = Cluster(tmp_path, program=crunch, url=url())
    try:
        for _ in range(PROCESSES):
            cluster.spawn(cluster.command())
        async with Engine(cluster.url, worker=False) as client:
            while len(await client.store.workers.list()) < PROCESSES:
                await asyncio.sleep(0.05)
            # Each of them hears of the others with its own next renewal, within a lease.
            seen = {live.worker_id: live.seen_at for live in await client.store.workers.list()}
            while any(live.seen_at <= seen[live.worker_id] for live in await client.store.workers.list()):
                await asyncio.sleep(0.05)
            done = await client.execute(crunch.fan_out, ACTIVITIES)
    finally:
        cluster.close()
    shares = Counter(done)
    assert sum(shares.values()) == ACTIVITIES
    assert len(shares) == PROCESSES
    assert max(shares.values()) <= ACTIVITIES / 2, shares
