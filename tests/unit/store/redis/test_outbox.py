"""Effects on other partitions arrive once and in order, whoever carries them."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from resurgam.core import event as events
from resurgam.core.outcome import Outcome
from resurgam.store import records as r
from resurgam.store.redis import watcher
from resurgam.store.redis.outbox import OutboxDriver
from resurgam.store.redis.store import RedisStore
from resurgam.testing.clock import ManualClock
from resurgam.testing.contract.bench import LEASE, Bench, OpensStores, ids, signal, values
from resurgam.testing.contract.messages import message
from support.redis import effects_arrived, fresh_url, shared_server

PATIENT = 60
"""Seconds within which what must come has come, on a busy machine."""


class Dead(OutboxDriver):
    """A driver whose process ended right after the commit."""

    def drive(self, source, target):
        pass


@pytest.fixture(autouse=True)
def no_assurance(monkeypatch):
    """Have a store look only where something has told it to."""
    monkeypatch.setattr(watcher, "_ASSURANCE", 1e6)


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


class Halfway(OutboxDriver):
    """A driver whose process ended when the effects had arrived, before it carried the answers to ``order``."""

    def drive(self, source, target):
        if target != self._link.partition_of("order"):
            super().drive(source, target)


async def send(store, clock, *names):
    """Commit signals from ``order`` to ``other``, which is in another partition."""
    b = Bench(store, clock, OpensStores())
    assert store._link.partition_of("order") != store._link.partition_of("other")
    await b.create("order", queue="sender")
    await b.create("other", queue="target")
    await send_more(store, *names)


async def send_more(store, *names):
    """Commit further signals from the ``order`` that is ready."""
    [claim] = await store.claim("first", ["sender"], 1)
    messages = tuple(message(signal(name), "other") for name in names)
    part = r.Commit(
        entity_id="order", execution_id=claim.instance.execution_id, epoch=claim.epoch, base_seq=1, wake=claim.wake,
        outcome=Outcome(messages=messages, consumed=ids(claim.inbox)), worker="first",
    )  # fmt: skip
    [answer] = await store.commit([part])
    assert isinstance(answer, r.Committed)


@asynccontextmanager
async def idle_worker(store):
    """Have a worker wait for work that it never gets; it has looked everywhere."""
    await store.claim("second", ["sender"], 10)

    async def wait():
        while True:
            await store.wait(r.Work(worker="second", queues=("sender",)))
            await asyncio.sleep(0)

    waiting = asyncio.create_task(wait())
    try:
        yield
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def received(store, entity_id="other"):
    work = await store.inspector.open_work(await store.inspector.get(entity_id))
    return [event.id if isinstance(event, events.SignalReceived) else event.type for event in work.inbox]


async def until(condition):
    async with asyncio.timeout(PATIENT):
        while not await condition():
            await asyncio.sleep(0.001)


async def test_effects_arrive_in_the_order_of_their_commit():
    names = [str(number) for number in range(250)]
    async with open_stores(1) as (clock, [store]):
        await send(store, clock, *names)

        await arrived(store, *names)


async def arrived(store, *names):
    async def have():
        return await received(store) == list(names)

    await until(have)


def key(store, entity_id, name):
    return f"{store._link.keys[store._link.partition_of(entity_id)]}{name}"


async def test_a_target_that_has_lost_its_last_effects_is_sent_the_next():
    """Its server was killed, and has lost the end of its data: effects that it had acknowledged are gone."""
    async with open_stores(1) as (clock, [store]):
        await send(store, clock, "one")
        await arrived(store, "one")
        shared_server().ask("HDEL", key(store, "other", "marks"), store._link.partition_of("order"))
        await store.deliver([r.Delivery(event=signal("x"), entity_id="order")])
        await send_more(store, "two")
        await arrived(store, "one", "two")


async def test_effects_after_a_loss_are_none_of_those_that_the_target_has_applied_before():
    """The server of their source was killed, and has lost the numbers that it had given out."""
    async with open_stores(1) as (clock, [store]):
        await send(store, clock, "one", "two")
        await arrived(store, "one", "two")
        target = store._link.partition_of("other")
        shared_server().ask("HDEL", key(store, "order", "counters"), f"outbox-{target}")
        clock.move_to(clock.now() + 1)
        await store.deliver([r.Delivery(event=signal("x"), entity_id="order")])
        await send_more(store, "three")
        await arrived(store, "one", "two", "three")


async def test_effects_of_a_dead_process_are_carried_by_one_that_claims():
    async with open_stores(2) as (clock, [dead, other]):
        dead._outbox = Dead(dead._link)
        await send(dead, clock, "one", "two")
        assert await other.claim("second", ["sender"], 10) == []
        await effects_arrived(other)
        assert await received(other) == []  # its process may still be alive
        clock.move_to(clock.now() + LEASE)
        assert await other.claim("second", ["sender"], 10) == []

        await arrived(other, "one", "two")


@pytest.mark.parametrize("before", [True, False], ids=["waits already", "waits later"])
async def test_effects_of_a_dead_process_wake_an_idle_worker(before):
    async with open_stores(2) as (clock, [dead, other]):
        dead._outbox = Dead(dead._link)
        if not before:
            await send(dead, clock, "one")
        async with idle_worker(other):
            if before:
                await send(dead, clock, "one")
            assert await received(other) == []
            clock.move_to(clock.now() + LEASE)
            await arrived(other, "one")


async def test_answers_of_a_dead_process_wake_an_idle_worker():
    """They are in a partition in which the worker has found nothing, and no lease ends there."""
    async with open_stores(2) as (clock, [dead, other]):
        dead._outbox = Halfway(dead._link)
        async with idle_worker(other):
            await send(dead, clock, "one")
            await arrived(other, "one")
            await effects_arrived(dead)
            assert await received(other, "order") == []
            clock.move_to(clock.now() + LEASE)

            async def answered():
                return len(await received(other, "order")) == 1

            await until(answered)


async def test_effects_that_two_stores_carry_arrive_once():
    names = [str(number) for number in range(150)]
    async with open_stores(3) as (clock, [dead, *others]):
        dead._outbox = Dead(dead._link)
        await send(dead, clock, *names)
        source, target = (dead._link.partition_of(name) for name in ("order", "other"))
        for other in others:
            other._outbox.drive(source, target)

        for other in others:
            await effects_arrived(other)
        assert await received(dead) == names
        [claim] = await dead.claim("first", ["target"], 1)
        assert values(claim.inbox) == names
