"""Effects on other partitions arrive once and in order, whoever carries them."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from resurgam.core.outcome import Message, Outcome
from resurgam.store import records as r
from resurgam.store.redis.outbox import OutboxDriver
from resurgam.store.redis.store import RedisStore
from resurgam.testing.clock import ManualClock
from resurgam.testing.contract.bench import LEASE, Bench, OpensStores, signal, values
from support.redis import fresh_url


class Dead(OutboxDriver):
    """A driver whose process ended right after the commit."""

    def drive(self, source, target):
        pass


@asynccontextmanager
async def open_stores(count):
    """Open one store several times."""
    clock, url = ManualClock(), fresh_url()
    stores = [RedisStore(url, clock, name=f"store-{number}", lease=LEASE) for number in range(count)]
    try:
        yield clock, stores
    finally:
        for store in stores:
            await store.close()


async def send(store, clock, *names):
    """Commit signals from ``order`` to ``other``, which is in another partition."""
    b = Bench(store, clock, OpensStores())
    assert store._link.partition_of("order") != store._link.partition_of("other")
    await b.create("order", queue="sender")
    await b.create("other", queue="target")
    [claim] = await store.claim("first", ["sender"], 1)
    messages = tuple(Message(event=signal(name), entity_id="other") for name in names)
    part = r.Commit(
        entity_id="order", execution_id=claim.instance.execution_id, epoch=claim.epoch, base_seq=1, wake=claim.wake,
        outcome=Outcome(messages=messages), worker="first",
    )  # fmt: skip
    [answer] = await store.commit([part])
    assert isinstance(answer, r.Committed)


async def wait_for_work(store):
    """Wait as a worker does that never gets any."""
    while True:
        await store.wait(r.Work(worker="second", queues=("sender",)))
        await asyncio.sleep(0.01)


async def received(store):
    work = await store.inspector.open_work(await store.inspector.get("other"))
    return [event.id for event in work.inbox]


async def until(condition):
    async with asyncio.timeout(10):
        while not await condition():
            await asyncio.sleep(0.001)


async def test_effects_arrive_in_the_order_of_their_commit():
    names = [str(number) for number in range(250)]
    async with open_stores(1) as (clock, [store]):
        await send(store, clock, *names)

        async def all_arrived():
            return len(await received(store)) == len(names)

        await until(all_arrived)
        assert await received(store) == names


async def test_effects_of_a_dead_process_are_carried_by_one_that_claims():
    async with open_stores(2) as (clock, [dead, other]):
        dead._outbox = Dead(dead._link)
        await send(dead, clock, "one", "two")
        assert await other.claim("second", ["sender"], 10) == []
        await asyncio.sleep(0.02)
        assert await received(other) == []  # its process may still be alive
        clock.move_to(clock.now() + LEASE)
        assert await other.claim("second", ["sender"], 10) == []

        async def both_arrived():
            return await received(other) == ["one", "two"]

        await until(both_arrived)


@pytest.mark.parametrize("before", [True, False], ids=["waits already", "waits later"])
async def test_effects_of_a_dead_process_wake_an_idle_worker(before):
    async with open_stores(2) as (clock, [dead, other]):
        dead._outbox = Dead(dead._link)
        if before:
            waiting = asyncio.create_task(wait_for_work(other))
            await asyncio.sleep(0.05)
        await send(dead, clock, "one")
        if not before:
            waiting = asyncio.create_task(wait_for_work(other))
        await asyncio.sleep(0.05)
        clock.move_to(clock.now() + LEASE)

        async def arrived():
            return await received(other) == ["one"]

        await until(arrived)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def test_effects_that_two_stores_carry_arrive_once():
    names = [str(number) for number in range(150)]
    async with open_stores(3) as (clock, [dead, *others]):
        dead._outbox = Dead(dead._link)
        await send(dead, clock, *names)
        source, target = (dead._link.partition_of(name) for name in ("order", "other"))
        for other in others:
            other._outbox.drive(source, target)

        async def all_arrived():
            return len(await received(dead)) >= len(names)

        await until(all_arrived)
        await asyncio.sleep(0.02)
        assert await received(dead) == names
        [claim] = await dead.claim("first", ["target"], 1)
        assert values(claim.inbox) == names
