"""Workers are killed at any moment while workflows start, signal and pay each other: no effect is lost or doubled."""

import asyncio
import itertools
import os
import random
from collections import Counter

import pytest

from acceptance import marketplace
from resurgam.testing import replay
from support.cluster import Cluster, check_log, eventually, options_of
from support.limits import HANGS

STORES = [
    *("sqlite", "redis", "redis-uncached", "redis-cluster", "redis-cluster-uncached"),
    *("postgres", "postgres-uncached"),
]
LEASE = 1.0
MOST = 30
"""Caravans under way at a time."""

SEED = int(os.environ.get("RESURGAM_SEED") or random.SystemRandom().randrange(10**9))


@pytest.fixture
def cluster(tmp_path, request):
    cluster = Cluster(tmp_path, program=marketplace, **options_of(getattr(request, "param", "sqlite")))
    try:
        yield cluster
    finally:
        cluster.close()


async def _kill_some(cluster: Cluster, rng: random.Random, kills: int) -> None:
    """Kill workers that have been at work, one after the other; one that is only about to open is no loss.

    They have gone on from one activity of a workflow to the next. On a busy machine, workers that are killed as soon as
    they begin get nothing done, and what is handed out 20 times in vain is a dead letter.
    """

    def at_work():
        done = Counter((effect.pid, effect.workflow) for effect in cluster.effects())
        pids = {pid for (pid, _), times in done.items() if times > 1}
        return [worker for worker in cluster.workers if worker.pid in pids]

    for _ in range(kills):
        await asyncio.sleep(rng.uniform(0, 1))
        worker = rng.choice(await eventually(at_work, "a worker is at work"))
        cluster.kill(worker)
        cluster.start_worker(lease=LEASE, queue=worker.args[-1])


async def _send(engine, rng: random.Random, killing: "asyncio.Task[None]") -> range:
    """Send caravans off for as long as workers are killed; return their numbers."""
    under_way: set[asyncio.Task] = set()
    for number in itertools.count():
        if killing.done():
            await asyncio.gather(*under_way)
            return range(number)
        caravan = await engine.start(marketplace.caravan, number, id=f"caravan-{number}")
        under_way.add(asyncio.create_task(caravan.result(timeout=HANGS)))
        await asyncio.sleep(rng.uniform(0, 0.3))
        while len(under_way) > MOST:  # a slow machine has fewer of them to bring home, not more
            _, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
    raise AssertionError


async def _trade(cluster: Cluster, kills: int) -> None:
    """Let caravans go and workers die, at random moments; then do the accounts."""
    print(f"RESURGAM_SEED={SEED}")
    for queue in ("default", "default", marketplace.DOCKS):
        cluster.start_worker(lease=LEASE, queue=queue)
    async with cluster.client() as engine:
        book = await engine.start(marketplace.clerk, [], id=marketplace.CLERK)
        killing = asyncio.create_task(_kill_some(cluster, random.Random(SEED), kills))
        numbers = await _send(engine, random.Random(SEED + 1), killing)
        await killing
        results = await asyncio.gather(*(engine.handle(f"caravan-{n}").result(timeout=HANGS) for n in numbers))
        assert results == [marketplace.arrived(number) for number in numbers]
        await book.signal("close", ("", 0))
        assert sorted(await book.result(timeout=HANGS)) == list(numbers)
        await _check_histories(engine, len(numbers))
    _check_accounts(cluster, len(numbers))
    assert not cluster.errors()
    effects = Counter((effect.key, effect.attempt) for effect in cluster.effects())
    print(
        f"{len(numbers)} caravans, {kills} kills, {effects.total()} effects, {effects.total() - len(effects)} of them repeated"
    )


async def _check_histories(engine, caravans: int) -> None:
    """Check that there is one child to each call, that every log is whole, and that the code still gives the same."""
    expected = Counter(
        {"caravan": caravans, "load": marketplace.TRIPS * caravans, "clerk": caravans // marketplace.PAGE + 1}
    )
    found = []
    page = await engine.list(limit=1000)
    while True:
        found += page.instances
        if page.cursor is None:
            break
        page = await engine.list(limit=1000, cursor=page.cursor)
    assert Counter(one.name for one in found) == expected
    assert all(one.deactivated for one in found)
    for one in found:
        history = list(await engine.store.inspector.history(one))
        check_log(history)
        report = await replay(marketplace.registry.workflows.find(one.name), history)
        assert (report.diverged, report.new) == (None, ())


def _check_accounts(cluster: Cluster, caravans: int) -> None:
    """Check who has what: under each key something was done once, however often it was tried."""
    done = Counter(name for name, _ in {(effect.name, effect.key) for effect in cluster.effects()})
    lost = sum(marketplace.is_lost(number) for number in range(caravans))
    assert done == {
        **dict.fromkeys(("pay", "hire", "depart"), caravans),
        "refund": lost,
        "dismiss": lost,
        "stow": marketplace.TRIPS * caravans,
    }


@pytest.mark.parametrize("cluster", ["sqlite", "redis-uncached", "redis-cluster", "postgres-uncached"], indirect=True)
async def test_four_kills_in_the_market(cluster):
    await _trade(cluster, kills=4)


@pytest.mark.long
@pytest.mark.parametrize("cluster", STORES, indirect=True)
async def test_three_hundred_kills_in_the_market(cluster):
    await _trade(cluster, kills=300)
