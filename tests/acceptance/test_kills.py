"""Workers are killed, or stand still, at any moment, and every run ends as if nothing had been."""

import asyncio
import itertools
import os
import random
import signal
import time

import pytest

from support import shop
from support.cluster import check_effects, check_run, eventually
from support.limits import HANGS

STORES = [
    *("sqlite", "redis", "redis-uncached", "redis-cluster", "redis-cluster-uncached"),
    *("postgres", "postgres-uncached"),
]
LEASE = 1.0
HOUR = 3600.0
SEED = int(os.environ.get("RESURGAM_SEED") or random.SystemRandom().randrange(10**9))


async def _order(engine, number: int, after: float) -> None:
    """Order, and approve at some time."""
    await asyncio.sleep(after)
    handle = await engine.start(shop.order, number, id=f"order-{number}")
    await handle.signal("approve", number + 1, id="the one")
    await handle.signal("approve", number + 1, id="the one")  # sent twice, counts once


async def _kill_some(cluster, rng, moments) -> None:
    begin = time.monotonic()
    for moment in moments:
        await asyncio.sleep(max(0.0, begin + moment - time.monotonic()))
        cluster.kill(rng.choice(cluster.workers))
        cluster.start_worker(lease=LEASE)


async def _stop_some(cluster, rng, moments) -> None:
    """Let workers stand still for longer than their leases last, so that others take over what they hold."""
    begin = time.monotonic()
    for moment in moments:
        await asyncio.sleep(max(0.0, begin + moment - time.monotonic()))
        await cluster.stop_for(rng.choice(cluster.workers), rng.uniform(1.2, 2) * LEASE)


async def _kill_and_check(cluster, *, runs: int, kills: int, stops: int, span: float) -> None:
    """Start *runs* runs, kill *kills* workers and stop *stops*, all at uniformly random moments within *span* seconds."""
    print(f"RESURGAM_SEED={SEED}")
    rng = random.Random(SEED)
    numbers = range(runs)
    async with cluster.client() as engine:
        for _ in range(3):
            cluster.start_worker(lease=LEASE)
        orders = [_order(engine, number, rng.uniform(0, span)) for number in numbers]
        deaths = sorted(rng.uniform(0, span) for _ in range(kills))
        pauses = sorted(rng.uniform(0, span) for _ in range(stops))
        stopping = _stop_some(cluster, random.Random(SEED + 1), pauses)
        await asyncio.gather(_kill_some(cluster, rng, deaths), stopping, *orders)
        results = await asyncio.gather(*(engine.handle(f"order-{n}").result(timeout=HANGS) for n in numbers))
        assert results == [shop.ordered(number, number + 1) for number in numbers]
        effects = cluster.effects()
        for number, result in zip(numbers, results, strict=True):
            handle = engine.handle(f"order-{number}")
            assert await handle.state("stage") == "done"
            history = await handle.history()
            await check_run(shop.order, history, result)
            check_effects(history, effects)
    assert not cluster.errors()
    again = len(effects) - len({(e.workflow, e.key) for e in effects})
    refused = len(cluster.refusals())
    print(f"{runs} runs, {kills} kills, {stops} stops, {refused} refusals")
    print(f"{len(effects)} effects, {again} of them repeated")


@pytest.mark.parametrize("cluster", ["sqlite", "redis", "redis-cluster-uncached", "postgres"], indirect=True)
async def test_ten_kills(cluster):
    await _kill_and_check(cluster, runs=40, kills=10, stops=3, span=6)


@pytest.mark.long
@pytest.mark.parametrize("cluster", STORES, indirect=True)
async def test_five_hundred_kills(cluster):
    await _kill_and_check(cluster, runs=1000, kills=500, stops=150, span=280)
    assert cluster.refusals()


@pytest.mark.parametrize("cluster", ["sqlite", "redis", "postgres"], indirect=True)
async def test_what_a_stopped_worker_has_in_hand_is_refused_when_it_goes_on(cluster):
    """It stands still with the answer of its operation in hand, and commits it when another has long committed its own."""
    stopped = cluster.start_worker(lease=LEASE, SHOP_STOP="1")
    async with cluster.client() as engine:
        handle = await engine.start(shop.long_pause, id="held")
        await cluster.stopped_itself(stopped)
        other = cluster.start_worker(lease=60)
        result = await handle.result(timeout=HANGS)
        history = await handle.history()
        stopped.send_signal(signal.SIGCONT)
        await eventually(lambda: "commit of workflow held refused: " in cluster.said(stopped), "it is refused")
        assert cluster.said(other) == ""
        assert await handle.history() == history
        await check_run(shop.long_pause, history, result)
        assert [effect.pid for effect in cluster.effects()] == [stopped.pid, other.pid]


@pytest.mark.parametrize(("workflow", "name"), [(shop.long_activity, "linger"), (shop.long_operation, "stamp")])
async def test_a_worker_that_was_stopped_is_refused_and_goes_on(cluster, workflow, name):
    """SIGSTOP beyond the lease: another worker does the work, and the results of the first are refused."""
    stopped = cluster.start_worker(lease=2, SHOP_STOP="1")

    def done_by(worker):
        return [e for e in cluster.effects() if e.pid == worker.pid and e.name == name]

    async with cluster.client() as engine:
        handle = await engine.start(workflow, 1.5, id="held")
        await cluster.stopped_itself(stopped)
        assert done_by(stopped)
        other = cluster.start_worker(lease=60)
        await eventually(lambda: done_by(other), "the second worker takes over")
        stopped.send_signal(signal.SIGCONT)
        await eventually(lambda: _was_refused(cluster.said(stopped)), "the first worker is refused")
        result = await handle.result(timeout=HANGS)
        assert result == (other.pid if name == "linger" else 42)
        history = await handle.history()
        await check_run(workflow, history, result)
        check_effects(history, cluster.effects())
        cluster.kill(other)
        await engine.start(shop.small, 4, id="afterwards")
        assert await engine.handle("afterwards").result(timeout=HANGS) == shop.SMALL_RESULT
        assert {e.pid for e in cluster.effects() if e.workflow == "afterwards"} == {stopped.pid}


def _was_refused(said: str) -> bool:
    return "is lost" in said or "refused" in said or "is not heard" in said


async def _until_it_works(cluster, engine, worker) -> None:
    """Give work out until *worker* has done some of it, and all of it is done."""
    deadline = time.monotonic() + HANGS
    for number in itertools.count():
        handle = await engine.start(shop.small, 4, id=f"warm-up-{number}")
        await handle.result(timeout=HANGS)
        if any(effect.pid == worker.pid for effect in cluster.effects()):
            return
        assert time.monotonic() < deadline, "the worker did nothing"


def _held_by(cluster, worker) -> bool:
    return any(effect.workflow == "held" and effect.pid == worker.pid for effect in cluster.effects())


@pytest.mark.parametrize("cluster", ["sqlite", "redis", "redis-cluster", "postgres"], indirect=True)
@pytest.mark.parametrize("workflow", [shop.long_activity, shop.long_operation])
async def test_leases_of_the_dead_end_at_once(cluster, workflow):
    """The lease is longer than the test may take, but its holder is dead; the other worker is idle."""
    first = cluster.start_worker(lease=HOUR)
    async with cluster.client() as engine:
        await engine.start(workflow, HOUR, id="held")
        await eventually(lambda: _held_by(cluster, first), "the first worker begins")
        second = cluster.start_worker(lease=HOUR)
        await _until_it_works(cluster, engine, second)
        assert not _held_by(cluster, second)
        cluster.kill(first)
        killed = time.monotonic()
        await eventually(lambda: _held_by(cluster, second), "the second worker takes over")
        print(f"taken over after {time.monotonic() - killed:.2f} s")


@pytest.mark.parametrize("cluster", ["sqlite", "redis", "postgres"], indirect=True)
async def test_a_new_worker_finds_the_dead_at_once(cluster):
    first = cluster.start_worker(lease=HOUR)
    async with cluster.client() as engine:
        await engine.start(shop.long_activity, HOUR, id="held")
        await eventually(lambda: _held_by(cluster, first), "the first worker begins")
        cluster.kill(first)
        second = cluster.start_worker(lease=HOUR)
        await eventually(lambda: _held_by(cluster, second), "the second worker starts and takes over")


@pytest.mark.parametrize("cluster", ["sqlite", "redis-cluster", "postgres"], indirect=True)
async def test_two_processes_share_one_store(cluster):
    """Both make progress, and nothing is done by both."""
    cluster.start_worker(lease=HOUR)
    cluster.start_worker(lease=HOUR)
    pids = {worker.pid for worker in cluster.workers}
    async with cluster.client() as engine:
        while len(await engine.store.workers.list()) < len(pids):
            await asyncio.sleep(0.05)
        for number in range(200):
            await _order(engine, number, 0)
            if {e.pid for e in cluster.effects()} >= pids:
                break
            await asyncio.sleep(0.05)
        numbers = range(number + 1)
        results = await asyncio.gather(*(engine.handle(f"order-{n}").result(timeout=HANGS) for n in numbers))
        assert results == [shop.ordered(n, n + 1) for n in numbers]
    effects = cluster.effects()
    assert {e.pid for e in effects} == pids
    keys = [e.key for e in effects if e.key]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("cluster", ["sqlite", "redis", "postgres"], indirect=True)
async def test_a_loop_that_forgets_is_killed_again_and_again(cluster):
    """Every number is entered once and in order, though nothing before the last checkpoint can be read again."""
    numbers = list(range(60))
    async with cluster.client() as engine:
        handle = await engine.start(shop.ledger, id="ledger")
        for _ in range(2):
            cluster.start_worker(lease=LEASE)
        rng = random.Random(SEED)
        sending = asyncio.create_task(_enter(handle, numbers))
        await _kill_some(cluster, rng, sorted(rng.uniform(0, 5) for _ in range(8)))
        await sending
        assert await handle.result(timeout=HANGS) == [3 * number + 1 for number in numbers]
        assert await handle.state("last") == numbers[-1]
        history, kept = await handle.history(), await handle.history(forgotten=True)
    assert len(history) < 12
    assert {
        entry.location.coordinates[1][0] for entry in kept if entry.location and len(entry.location.coordinates) > 1
    } <= {*range(len(numbers) - 4, len(numbers) + 2)}
    # An effect may be had again after a kill, under the same key; none is left out.
    assert len({effect.key for effect in cluster.effects()}) == 2 * len(numbers)
    assert not cluster.errors()


async def _enter(handle, numbers) -> None:
    for number in numbers:
        await handle.signal("enter", number, id=f"number {number}")
        await handle.signal("enter", number, id=f"number {number}")  # sent twice, counts once
        await asyncio.sleep(0.08)
    await handle.signal("enter", -1)
