"""A worker is listed in its store while it serves: its build, queues and slots, its load, and what it holds."""

import asyncio
import os

import msgspec
import pytest

from resurgam import Context, Engine, Registry
from resurgam.store.memory.store import MemoryStore
from resurgam.store.records import Announcement, HeldWork
from resurgam.testing import ManualClock
from resurgam.worker.build import build_of
from resurgam.worker.presence import Presence

BEATS = 9


def registry_of(constant: int, gate: asyncio.Event | None = None) -> Registry:
    registry = Registry()

    @registry.activity
    async def work() -> int:
        if gate is not None:
            await gate.wait()
        return constant

    @registry.workflow
    async def flow(ctx: Context) -> int:
        return await ctx.activity(work)

    return registry


async def listed(engine, count: int):
    """Return the live workers once there are as many."""
    while len(live := await engine.store.workers.list()) != count:
        await asyncio.sleep(0)
    return live


async def test_a_worker_is_listed_while_its_engine_is_open(tmp_path):
    url = f"sqlite:///{tmp_path}/a.db?synchronous=off"
    async with Engine(url, worker=False) as client:
        async with Engine(url, registry=registry_of(1), name="shop", queues=["default", "gpu"], max_activities=7):
            [live] = await listed(client, 1)
            assert live.worker_id.startswith("shop-")
            assert (live.pid, live.queues, live.slots, live.slots_in_use) == (os.getpid(), ("default", "gpu"), 7, 0)
            assert live.build == build_of(registry_of(1))
        assert await client.store.workers.list() == []


async def test_a_renewal_tells_how_many_slots_are_in_use():
    gate = asyncio.Event()
    async with Engine(registry=registry_of(1, gate), lease=1, grace=0) as engine:
        handle = await engine.start("flow")
        while not any(live.slots_in_use for live in await engine.store.workers.list()):
            await asyncio.sleep(0)
        gate.set()
        assert await handle.result() == 1


async def test_a_renewal_tells_what_the_worker_holds_and_its_load():
    gate = asyncio.Event()
    async with Engine(registry=registry_of(1, gate), lease=1, grace=0) as engine:
        handle = await engine.start("flow", id="order-1")
        while not (live := (await engine.store.workers.list())[:1]) or not live[0].held.activities:
            await asyncio.sleep(0)
        [found] = live
        [run], [attempt] = found.held.oldest_instances, found.held.oldest_activities
        assert (found.held.instances, found.held.activities) == (1, 1)
        assert (run.entity_id, run.name) == ("order-1", "flow")
        assert (attempt.workflow_id, attempt.name, attempt.attempt) == ("order-1", "work", 1)
        assert attempt.entity_id == f"{handle.run_id}/1"
        begin = (await handle.history())[0].at
        assert begin <= attempt.since <= found.seen_at
        assert begin <= run.since <= found.seen_at
        assert found.load.loop is None or 0 <= found.load.loop <= 1
        assert found.load.processors == os.cpu_count()
        gate.set()
        assert await handle.result() == 1


async def test_an_activity_that_was_claimed_from_a_queue_is_held_since_its_claim(tmp_path):
    gate = asyncio.Event()
    url = f"sqlite:///{tmp_path}/a.db?synchronous=off"
    clock = ManualClock()
    async with Engine(url, registry=registry_of(1), clock=clock, queues=["none"]) as client:
        await client.start("flow", id="order-1", queue="default")
        clock.move_to(clock.now() + 5)
        async with Engine(client.store, registry=registry_of(1, gate), clock=clock, grace=0) as engine:
            slots = engine._worker._slots
            while not slots.in_use:
                await asyncio.sleep(0)
            [attempt] = slots.running
            assert attempt.since == clock.now()


def test_an_announcement_of_an_older_worker_is_decoded_without_load_and_held_work():
    told = b'{"worker_id":"old","host":"h","pid":1,"build":"b","queues":["q"],"slots":4,"slots_in_use":1}'
    found = msgspec.json.decode(told, type=Announcement)
    assert (found.load, found.held) == (None, None)


def test_a_build_is_the_same_for_the_same_code_and_differs_for_other_code():
    assert build_of(registry_of(1)) == build_of(registry_of(2))  # a closure's values are no code
    changed = registry_of(1)

    @changed.activity
    async def more() -> None: ...

    assert build_of(changed) != build_of(registry_of(1))


def test_a_build_changes_with_a_constant_of_the_code():
    def registry(version: int) -> Registry:
        registry = Registry()
        if version == 1:

            @registry.activity
            async def work() -> int:
                return 1
        else:

            @registry.activity
            async def work() -> int:
                return 2

        return registry

    assert build_of(registry(1)) != build_of(registry(2))


class CountedWorkers:
    def __init__(self, workers) -> None:
        self.announced = 0
        self._workers = workers

    async def announce(self, worker, ttl):
        self.announced += 1
        return await self._workers.announce(worker, ttl)


@pytest.mark.parametrize(("in_use", "announced"), [(0, 3), (1, BEATS)])
async def test_a_busy_worker_announces_itself_at_each_beat_and_an_idle_one_once_a_lease(monkeypatch, in_use, announced):
    beats = 0

    async def beat(seconds: float) -> None:
        nonlocal beats
        assert seconds == pytest.approx(10 / 3)
        beats += 1
        if beats == BEATS:
            raise asyncio.CancelledError

    monkeypatch.setattr("resurgam.worker.presence.asyncio.sleep", beat)
    workers = CountedWorkers(MemoryStore(ManualClock()).workers)
    presence = Presence(workers, name="me", build="b", queues=("q",), lease=10_000)

    with pytest.raises(asyncio.CancelledError):
        await presence.run(lambda: (4, in_use), HeldWork)

    assert workers.announced == announced
