"""Old and new code side by side, as processes: each run ends with the build that has begun it, and none is lost."""

import asyncio
from collections import Counter

import pytest

from acceptance import depot
from resurgam.core.state import Status
from support.cluster import Cluster, options_of
from support.limits import HANGS

LEASE = 1.0
RUNS = 12


@pytest.fixture
def cluster(tmp_path, request):
    cluster = Cluster(tmp_path, program=depot, **options_of(request.param))
    try:
        yield cluster
    finally:
        cluster.close()


async def listening(engine, ids) -> None:
    """Wait until all runs wait for their signal."""
    async with asyncio.timeout(HANGS):
        while not all([(await engine.handle(one).history())[-1].type == "listen_started" for one in ids]):
            await asyncio.sleep(0.05)


async def status_becomes(engine, ids, wanted: Status) -> None:
    """Wait until all runs have a status."""
    async with asyncio.timeout(HANGS):
        while {(await engine.handle(one).describe()).status for one in ids} != {wanted}:
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("cluster", ["sqlite", "redis", "postgres"], indirect=True)
async def test_a_rolling_deployment_finishes_each_run_with_the_build_that_fits(cluster):
    """The old build leaves too early; what it has begun is parked until it comes back."""
    async with cluster.client() as engine:
        early, late = ([f"{when}-{n}" for n in range(RUNS)] for when in ("early", "late"))
        old = cluster.start_worker(lease=LEASE, DEPOT_BUILD="old")
        for one in early:
            await engine.start("parcel", id=one)
        await listening(engine, early)
        cluster.start_worker(lease=LEASE, DEPOT_BUILD="new")
        for one in early[: RUNS // 2]:  # both builds are there, and either may be offered them first
            await engine.handle(one).signal("go")
        for one in early[: RUNS // 2]:
            assert await engine.handle(one).result(timeout=HANGS) == ["old", "shipped"]
        cluster.kill(old)
        for one in late:
            await engine.start("parcel", id=one)
        for one in (*early[RUNS // 2 :], *late):
            await engine.handle(one).signal("go")
        for one in late:
            assert await engine.handle(one).result(timeout=HANGS) == ["new", "shipped"]
        await status_becomes(engine, early[RUNS // 2 :], Status.DIVERGED)
        cluster.start_worker(lease=LEASE, DEPOT_BUILD="old")
        for one in early[RUNS // 2 :]:
            assert await engine.handle(one).result(timeout=HANGS) == ["old", "shipped"]
    done = Counter((effect.workflow, effect.name) for effect in cluster.effects())
    assert done == Counter(
        {
            (one, name): 1
            for ids, first in ((early, "reserve"), (late, "check"))
            for one in ids
            for name in (first, "ship")
        }
    )
    assert not cluster.errors()
