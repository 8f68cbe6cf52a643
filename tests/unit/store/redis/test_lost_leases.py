"""Leases that no caller knows of are given back, and not held until they expire."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from resurgam.core.errors import StoreError
from resurgam.store import records as r
from resurgam.store.redis import lost_leases
from resurgam.store.redis.store import RedisStore
from resurgam.testing import ManualClock
from resurgam.testing.contract.bench import HOUR, LEASE, QUEUE, Bench, OpensStores, signal
from resurgam.testing.contract.queries import query_task
from support.limits import HANGS
from support.redis import fresh_url, is_busy


class Backend(OpensStores):
    partitions = 16


OFFER = r.EagerOffer(worker="first", queues=(QUEUE,))


class Pair:
    """Two openings of one store; time stands still, so no lease expires."""

    def __init__(self, url, options=""):
        self.clock = ManualClock()
        self.stores = [RedisStore(f"{url}{options}", self.clock, name="one", lease=LEASE)]
        self.stores.append(RedisStore(url, self.clock, name="two", lease=LEASE))
        self.one, self.two = (Bench(store, self.clock, Backend()) for store in self.stores)

    async def lose_next_answer(self):
        """Have the first store lose its connection when the next answer arrives: the server has executed the call."""
        while is_busy(self.stores[0]):
            await asyncio.sleep(0)
        for node in self.stores[0]._link.nodes:
            connection = node._connection
            connection.buffer_updated = lambda _, lost=connection: lost.close("its cable was cut")

    @asynccontextmanager
    async def loses_its_answer(self):
        """Expect that the call of the block fails because its answer is lost; return once its leases are given back."""
        await self.lose_next_answer()
        with pytest.raises(StoreError, match="it is unknown whether"):
            yield
        await self.given_back()

    async def given_back(self):
        while tasks := list(self.stores[0]._lost._tasks):
            await asyncio.wait(tasks, timeout=HANGS)


@pytest.fixture
async def pair():
    pair = Pair(fresh_url())
    try:
        yield pair
    finally:
        for store in pair.stores:
            await store.close()


async def test_instances_whose_claim_got_no_answer_are_offered_again(pair):
    for name in ("order", pair.one.beside("beside"), "elsewhere"):
        await pair.one.create(name)
    async with pair.loses_its_answer():
        await pair.one.claim()
    claims = await pair.two.claim("second")
    assert len(claims) == 3
    assert {claim.epoch for claim in claims} == {2}  # the lost claim had the first


async def test_a_claim_without_an_answer_does_not_count_as_a_delivery(pair):
    await pair.one.create()
    for _ in range(25):  # more than an instance is handed out without a commit
        async with pair.loses_its_answer():
            await pair.one.claim()
    assert (await pair.two.claim_one("second")).epoch == 26


async def test_leases_that_the_caller_knows_of_are_kept(pair):
    await pair.one.create()
    known = await pair.one.claim_one()
    await pair.one.create(pair.one.beside("other"))
    async with pair.loses_its_answer():
        await pair.one.claim()
    assert len(await pair.two.claim("second")) == 1
    assert isinstance(await pair.one.extend(known), r.Extended)


async def test_activities_whose_claim_got_no_answer_are_offered_again(pair):
    await pair.one.wanting(2, 3)
    async with pair.loses_its_answer():
        await pair.one.tasks()
    tasks = await pair.two.tasks("second")
    assert [task.request.ref for task in tasks] == [2, 3]
    assert [task.deliveries for task in tasks] == [0, 0]


async def test_a_query_whose_claim_got_no_answer_is_offered_again(pair):
    task = query_task("q-1", await pair.one.create(), pair.clock.now() + HOUR)
    await pair.one.store.queries.submit([task])
    async with pair.loses_its_answer():
        await pair.one.store.queries.claim("first", [QUEUE], 10)
    assert await pair.two.store.queries.claim("second", [QUEUE], 10) == [task]


async def test_an_instance_that_was_claimed_by_its_creation_is_offered_again(pair):
    await pair.one.queue()  # the store is open
    async with pair.loses_its_answer():
        await pair.one.store.create([r.Creation(started=pair.one.started(), offer=OFFER)])
    assert (await pair.two.claim_one("second")).instance.entity_id == "order"


async def test_an_instance_that_was_claimed_by_a_signal_is_offered_again(pair):
    await pair.one.create()
    await pair.one.committed(await pair.one.claim_one())
    async with pair.loses_its_answer():
        await pair.one.store.deliver([r.Delivery(entity_id="order", event=signal("hello"), offer=OFFER)])
    assert len((await pair.two.claim_one("second")).inbox) == 1


async def test_a_worker_that_waits_hears_of_what_is_given_back(pair):
    await pair.one.create()
    work = r.Work(worker="second", queues=(QUEUE,))
    await pair.lose_next_answer()
    claiming = asyncio.create_task(pair.one.claim())
    with pytest.raises(StoreError):
        await claiming
    assert await asyncio.wait_for(pair.two.store.wait(work), HANGS)


async def test_what_too_few_replicas_acknowledge_is_offered_again():
    pair = Pair(fresh_url(), "&wait=1")  # the server has no replica
    try:
        await pair.two.create()
        with pytest.raises(StoreError, match="0 of 1 replicas acknowledged"):
            await pair.one.claim()
        await asyncio.gather(*pair.stores[0]._lost._tasks, return_exceptions=True)
        assert len(await pair.two.claim("second")) == 1
    finally:
        for store in pair.stores:
            await store.close()


async def test_what_a_claim_brings_for_a_caller_who_was_cancelled_is_offered_again(pair):
    await pair.one.create()
    await pair.one.wanting(2, entity_id="elsewhere")
    await pair.one.claim(queues=("none",))  # the store is open and listens
    for claim in (pair.one.claim, pair.one.tasks):
        claiming, flights = asyncio.create_task(claim()), pair.stores[0].flights
        while pair.stores[0].flights == flights:
            await asyncio.sleep(0)
        claiming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claiming
        await pair.one.queue("none")  # comes after the answers to the claim
        await pair.given_back()
    assert len(await pair.two.claim("second")) == 1
    assert len(await pair.two.tasks("second")) == 1


class Withheld:
    """Withhold the answers of a verb from all partitions but one."""

    def __init__(self, store, verb, home):
        self._link, self._call = store._link, store._link.call
        self._verb, self._home = verb, home
        self.held = []
        self._link.call = self

    def __call__(self, partition, verb, part, done, **options):
        if verb == self._verb and partition != self._home:
            self.held.append((partition, part, done))
        else:
            self._call(partition, verb, part, done, **options)

    def fail(self):
        held, self.held = self.held, []
        for partition, _, done in held:
            done(StoreError(f"partition {partition} is out of reach"))

    def answer(self):
        """Have the partitions answer after all, now and from now on."""
        self._link.call = self._call
        for partition, part, done in self.held:
            self._call(partition, self._verb, part, done)


async def held_back(withheld):
    """Wait until claims are held back, and the home partition has answered."""
    while len(withheld.held) < 15:
        await asyncio.sleep(0)


async def test_a_partition_that_cannot_be_asked_does_not_fail_the_claims_from_others(pair):
    await pair.one.create()
    await pair.one.create("elsewhere")
    await pair.one.claim(queues=("none",))
    withheld = Withheld(pair.stores[0], "claim", pair.stores[0]._link.partition_of("order"))
    claiming = asyncio.create_task(pair.one.claim())
    await held_back(withheld)
    withheld.fail()
    assert [claim.instance.entity_id for claim in await claiming] == ["order"]
    claiming = asyncio.create_task(pair.one.claim())
    await held_back(withheld)
    withheld.fail()
    with pytest.raises(StoreError, match="out of reach"):
        await claiming


async def test_a_claim_does_not_wait_for_a_partition_that_is_late(pair):
    await pair.one.create()
    await pair.one.create("elsewhere")
    await pair.one.claim(queues=("none",))
    withheld = Withheld(pair.stores[0], "claim", pair.stores[0]._link.partition_of("order"))
    claiming = asyncio.create_task(pair.one.claim())
    await held_back(withheld)
    await pair.two.queue()
    while pair.stores[0]._link._routes[0]._under_way:
        await asyncio.sleep(0)
    pair.clock.move_to(pair.clock.now() + 200)
    assert [claim.instance.entity_id for claim in await claiming] == ["order"]

    withheld.answer()
    assert await asyncio.wait_for(pair.one.store.wait(r.Work(worker="first", queues=(QUEUE,))), HANGS)
    assert [claim.instance.entity_id for claim in await pair.one.claim()] == ["elsewhere"]


async def test_late_claims_are_offered_again_by_a_store_that_closes(pair):
    await pair.one.create("elsewhere")
    await pair.one.claim(queues=("none",))
    withheld = Withheld(pair.stores[0], "claim", None)
    claiming = asyncio.create_task(pair.one.claim())
    while len(withheld.held) < 16:
        await asyncio.sleep(0)
    pair.clock.move_to(pair.clock.now() + 200)
    assert await claiming == []
    withheld.answer()
    await pair.one.queue("none")  # comes after the answers
    await pair.stores[0].close()
    assert len(await pair.two.claim("second")) == 1


async def test_a_lease_that_cannot_be_given_back_just_now_is_given_back_later(pair, monkeypatch):
    monkeypatch.setattr(lost_leases, "_RETRY", 0)
    await pair.one.create()
    link, asked = pair.stores[0]._link, []
    ask = link.ask

    async def failing_once(partition, verb, part):
        asked.append(verb)
        if asked == ["give_back"]:
            raise StoreError("not now")
        return await ask(partition, verb, part)

    link.ask = failing_once
    async with pair.loses_its_answer():
        await pair.one.claim()
    assert len(await pair.two.claim("second")) == 1


# Calls that only read.


async def test_a_call_that_only_reads_is_sent_again_if_its_answer_is_lost(pair):
    created = await pair.one.create()
    await pair.lose_next_answer()
    assert await pair.one.get() == created
    await pair.lose_next_answer()
    assert len(await pair.one.store.read(r.ExecutionRef(created.entity_id, created.execution_id))) == 1


async def test_a_call_that_writes_is_never_sent_again(pair):
    await pair.one.create()
    await pair.lose_next_answer()
    with pytest.raises(StoreError, match="it is unknown whether 'deliver' was done"):
        await pair.one.send_signal("order", "hello")
    assert len((await pair.two.claim_one("second")).inbox) == 1
