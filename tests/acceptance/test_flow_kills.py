"""Workers are killed at any moment while flows run, and every flow ends as if nothing had been."""

import asyncio
import os
import random
from collections import Counter

import pytest

from acceptance import bakery
from resurgam.core import flow_event as fe
from resurgam.flows.state import FlowState, FlowStatus
from resurgam.flows.steps import steps_in
from support.cluster import Cluster, eventually, options_of
from support.limits import HANGS

STORES = [
    *("sqlite", "redis", "redis-uncached", "redis-cluster", "redis-cluster-uncached"),
    *("postgres", "postgres-uncached"),
]
LEASE = 1.0
SEED = int(os.environ.get("RESURGAM_SEED") or random.SystemRandom().randrange(10**9))


@pytest.fixture
def cluster(tmp_path, request):
    cluster = Cluster(tmp_path, program=bakery, **options_of(getattr(request, "param", "sqlite")))
    try:
        yield cluster
    finally:
        cluster.close()


async def _kill_some(cluster: Cluster, rng: random.Random, kills: int) -> None:
    """Kill workers that have been at work, one after the other."""

    def at_work():
        pids = {effect.pid for effect in cluster.effects()}
        return [worker for worker in cluster.workers if worker.pid in pids]

    for _ in range(kills):
        await asyncio.sleep(rng.uniform(0, 0.8))
        cluster.kill(rng.choice(await eventually(at_work, "a worker is at work")))
        cluster.start_worker(lease=LEASE)


async def _send(engine, rng: random.Random, killing: "asyncio.Task[None]") -> range:
    """Start flows for as long as workers are killed; return their numbers."""
    number = 0
    while not killing.done():
        await engine.start_flow([bakery.GOAL], {"number": number}, id=f"flow-{number}")
        number += 1
        await asyncio.sleep(rng.uniform(0.1, 0.6))
    await killing
    return range(number)


def check_flow(history, effects) -> None:
    """Check that a log is whole, and that each work item that succeeded was done, under one key."""
    state = FlowState(history)
    assert (state.status, state.deactivated) == (FlowStatus.COMPLETED, True)
    answers = Counter(entry.ref for entry in history if isinstance(entry, fe.WorkSucceeded | fe.WorkFailed))
    assert set(answers.values()) == {1}
    # The office gives what another step gives too, and a flow that has it from there does not wait for the office. It may
    # even end before it has heard that the office began.
    completed = {entry.step for entry in history if isinstance(entry, fe.StepCompleted)}
    assert completed | {"office"} == set(state.plan.steps)
    functions = {one.id for one in steps_in(bakery.registry)} & set(state.plan.steps)
    done = {effect.key for effect in effects if effect.workflow == history[0].entity_id}
    wanted = [number for number, item in state.items.items() if item.step in functions]
    assert done == {f"{history[0].run_id}/{number}" for number in wanted}
    started = Counter(entry.item for entry in history if isinstance(entry, fe.WorkStarted))
    assert all(started[number] >= 1 for number in answers)


async def _kill_and_check(cluster: Cluster, kills: int) -> None:
    print(f"RESURGAM_SEED={SEED}")
    rng = random.Random(SEED)
    async with cluster.client() as engine:
        for one in bakery.STEPS:
            await engine.register_step(one)
        for _ in range(3):
            cluster.start_worker(lease=LEASE)
        await engine.start_flow([bakery.GOAL], {"number": -1}, id="first")
        numbers = await _send(engine, rng, asyncio.create_task(_kill_some(cluster, rng, kills)))
        results = await asyncio.gather(*(engine.handle(f"flow-{n}").result(timeout=HANGS) for n in numbers))
        assert results == [{bakery.GOAL: bakery.delivered(number)} for number in numbers]
        histories = [await engine.handle(f"flow-{number}").history() for number in numbers]
    effects = cluster.effects()
    for history in histories:
        check_flow(history, effects)
    assert not cluster.errors()
    again = len(effects) - len({(effect.workflow, effect.key) for effect in effects})
    print(f"{len(numbers)} flows, {kills} kills, {len(effects)} effects, {again} of them repeated")


@pytest.mark.parametrize("cluster", ["sqlite", "redis-cluster-uncached", "postgres"], indirect=True)
async def test_a_few_kills(cluster):
    await _kill_and_check(cluster, kills=4)


@pytest.mark.long
@pytest.mark.parametrize("cluster", STORES, indirect=True)
async def test_a_hundred_kills(cluster):
    await _kill_and_check(cluster, kills=100)
