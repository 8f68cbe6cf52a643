"""One store waits, another one acts: what wakes a wait on Redis."""

import asyncio
import contextlib

import pytest
from msgspec import Raw
from msgspec.structs import replace

from resurgam.core import event as events
from resurgam.core.errors import StoreError
from resurgam.core.outcome import Publication
from resurgam.dev.redis import Server
from resurgam.store import records as r
from resurgam.store.redis import subscriptions, watcher
from resurgam.store.redis.reaping import reap
from resurgam.store.redis.store import RedisStore
from resurgam.testing import ManualClock
from resurgam.testing.contract.bench import HOUR, LEASE, QUEUE, Bench, OpensStores, request, routed, scheduled
from resurgam.testing.contract.queries import query_task
from support.redis import fresh_cluster_url, fresh_url, shared_server, temporary_folder

WORK = r.Work(worker="waiting", queues=(QUEUE,))
PATIENT = 60


@pytest.fixture(autouse=True)
def no_look_that_nothing_asks_for(monkeypatch):
    """A wait that nothing wakes would end a little later all the same."""
    monkeypatch.setattr(watcher, "_ASSURANCE", 10.0 * PATIENT)


class Two:
    """Two stores on the same data and by the same clock: *waiting* waits, *acting* changes something."""

    def __init__(self, url):
        self.clock = ManualClock()
        self.waiting = RedisStore(url, self.clock, name="waiting", lease=LEASE)
        self.acting = RedisStore(url, self.clock, name="acting", lease=LEASE)
        self.mine, self.other = (Bench(store, self.clock, OpensStores()) for store in (self.waiting, self.acting))

    async def wait(self, watch, until=None):
        """Begin to wait; return once the store listens and has looked."""
        task = asyncio.create_task(self.waiting.wait(watch, until))
        async with asyncio.timeout(PATIENT):
            while not any(waiter.has_looked for waiter in self.waiting._watcher.waiters.all):
                await asyncio.sleep(0.001)
        assert not task.done()
        return task

    async def woken(self, task):
        return await asyncio.wait_for(task, PATIENT)

    @property
    def looks(self):
        return self.waiting._link.flights


@contextlib.asynccontextmanager
async def two_on(url):
    two = Two(url)
    try:
        yield two
    finally:
        await two.waiting.close()
        await two.acting.close()


@pytest.fixture(params=[fresh_url, fresh_cluster_url], ids=["single", "cluster"])
async def two(request):
    async with two_on(request.param()) as two:
        yield two


async def test_work_wakes_an_idle_store(two):
    task = await two.wait(WORK)
    await two.other.create("order")
    assert await two.woken(task)
    assert len(await two.mine.claim()) == 1


async def test_an_activity_wakes_an_idle_store(two):
    task = await two.wait(r.Work(worker="waiting", queues=(QUEUE,), instances=False))
    await two.other.wanting(2)
    assert await two.woken(task)


async def test_work_of_another_queue_costs_an_idle_store_nothing(two):
    task = await two.wait(WORK)
    looks = two.looks
    await two.other.create("order", queue="elsewhere")
    await two.other.create("here")
    assert await two.woken(task)
    assert two.looks == looks + 1


async def test_a_timer_wakes_an_idle_store_at_its_moment_without_a_look_before(two):
    task = await two.wait(WORK)
    looks = two.looks
    await two.other.create("sooner", begins_at=two.clock.now() + 2000)
    await two.other.create("later", begins_at=two.clock.now() + 5000)
    async with asyncio.timeout(PATIENT):  # until both are announced
        while two.clock.next_due() != two.clock.now() + 2000:
            await asyncio.sleep(0.001)
    two.clock.move_to(two.clock.now() + 1999)
    await asyncio.sleep(0)
    assert not task.done()
    assert two.looks == looks
    two.clock.move_to(two.clock.now() + 1)
    assert await two.woken(task)


async def test_a_timer_of_the_year_9999_is_announced_as_any_other(two):
    task = await two.wait(WORK)
    looks, moment = two.looks, 253_402_300_799_999
    await two.other.create("last", begins_at=moment)
    async with asyncio.timeout(PATIENT):
        while two.clock.next_due() != moment:
            await asyncio.sleep(0.001)
    assert two.looks == looks  # a message that cannot be read ends the connection, and the store looks at everything
    two.clock.move_to(moment)
    assert await two.woken(task)


async def test_the_end_of_a_lease_wakes_an_idle_store(two):
    await two.other.create("order")
    assert len(await two.other.claim("acting")) == 1
    task = await two.wait(WORK)
    two.clock.move_to(two.clock.now() + LEASE)
    assert await two.woken(task)
    assert len(await two.mine.claim("waiting")) == 1


@pytest.mark.parametrize("reaper", ["waiting", "acting"])
@pytest.mark.parametrize("kind", ["instances", "activities"])
async def test_the_end_of_the_leases_of_a_dead_process_wakes_an_idle_store(two, reaper, kind):
    """The store that ends them, and every other one."""
    await two.other.wanting(2, entity_id="wanting")
    await two.other.create("order")
    assert len(await two.other.claim("dead")) == 1
    assert len(await two.other.tasks("dead")) == 1
    task = await two.wait(replace(WORK, instances=kind == "instances", activities=kind == "activities"))
    await reap(getattr(two, reaper)._link, two.acting._link.owner)
    assert await two.woken(task)


async def test_an_end_wakes_who_waits_for_it(two):
    instance = await two.other.create("order")
    task = await two.wait(r.Closed(entity_id="order", execution_id=instance.execution_id))
    await two.other.end(await two.other.claim_one(), consumed=())
    assert await two.woken(task)


async def near_end(two):
    """Begin to wait for the end of an execution that the waiting store leases; return the lease, the wait and its cost."""
    await two.mine.create("order")
    claim = await two.mine.claim_one("waiting")
    looks = two.looks
    task = asyncio.create_task(two.waiting.wait(r.Closed(entity_id="order", execution_id=claim.instance.execution_id)))
    async with asyncio.timeout(PATIENT):
        while not any(waiter.near for waiter in two.waiting._watcher.waiters.all):
            await asyncio.sleep(0)
    return claim, task, two.looks - looks


async def test_a_store_that_leases_an_execution_waits_for_its_end_without_asking_for_it(two):
    claim, task, looks = await near_end(two)
    channels = set(two.waiting._watcher.subscriptions.channels)
    await two.mine.end(claim, consumed=())
    assert await two.woken(task)
    assert looks == 0
    assert not any("closed:" in channel for channel in channels)


async def test_the_owner_of_a_lease_hears_that_another_store_has_ended_the_execution(two):
    _, task, _ = await near_end(two)
    await two.other.deliver(events.WorkflowTerminated(reason="no longer wanted"), "order")
    assert await two.woken(task)


async def test_an_end_after_the_lease_was_released_wakes_who_waits_for_it(two):
    claim, task, _ = await near_end(two)
    await two.mine.release(claim)
    await two.other.end(await two.other.claim_one("acting"), consumed=())
    assert await two.woken(task)


async def test_an_end_after_the_lease_has_expired_wakes_who_waits_for_it(two):
    _, task, _ = await near_end(two)
    two.clock.move_to(two.clock.now() + LEASE)
    await two.other.end(await two.other.claim_one("acting"), consumed=())
    assert await two.woken(task)


async def test_an_entry_wakes_who_holds_the_instance(two):
    instance = await two.other.create("order")
    claim = await two.mine.claim_one()
    watch = r.InboxChanged(entity_id="order", execution_id=instance.execution_id, wake=claim.wake)
    task = await two.wait(watch)
    await two.other.send_signals("order", "news")
    assert await two.woken(task)


async def test_an_entry_of_a_log_wakes_who_follows_it(two):
    instance = await two.other.create("order")
    task = await two.wait(r.LogGrown(entity_id="order", execution_id=instance.execution_id, last_seq=1))
    await two.other.committed(await two.other.claim_one(), scheduled(request(2)), activities=(request(2),))
    assert await two.woken(task)


@pytest.mark.parametrize("followed", [0, 1])
async def test_of_two_logs_that_grow_in_one_call_each_wakes_who_follows_it(followed):
    async with two_on(fresh_url("partitions=1")) as two:
        instances = [await two.other.create(name) for name in ("one", "other")]
        claims = await two.other.claim()
        watched = instances[followed]
        watch = r.LogGrown(entity_id=watched.entity_id, execution_id=watched.execution_id, last_seq=1)
        task = await two.wait(watch)
        flights = two.acting.flights
        await asyncio.gather(*(two.other.want(claim, request(2)) for claim in claims))
        assert two.acting.flights == flights + 1
        assert await two.woken(task)


async def test_the_log_of_an_imported_id_with_spaces_wakes_who_follows_it(two):
    instance = await two.other.create("order", execution_id="order of 1999, first")
    task = await two.wait(r.LogGrown(entity_id="order", execution_id=instance.execution_id, last_seq=1))
    await two.other.want(await two.other.claim_one(), request(2))
    assert await two.woken(task)


async def test_an_event_wakes_who_reads_the_feed(two):
    task = await two.wait(r.FeedGrown(after=await two.waiting.feed.now()))
    await two.other.create("order")
    assert await two.woken(task)


async def test_a_message_wakes_who_has_subscribed(two):
    await two.other.create("order")
    cursor = (await two.waiting.inspector.messages("prices")).cursor
    task = await two.wait(r.Published(topic="prices", after=cursor))
    publication = Publication(topic="prices", value=Raw(b"1"))
    await two.other.committed(await two.other.claim_one(), publications=(publication,))
    assert await two.woken(task)


async def test_a_result_wakes_who_has_asked(two):
    instance = await two.other.create("order")
    name = routed("question")
    await two.waiting.queries.submit([query_task("question", instance, two.clock.now() + LEASE)])
    task = await two.wait(r.QueryAnswered(query_id=name))
    await two.acting.queries.complete([r.QueryResult(query_id=name, result=Raw(b"1"))])
    assert await two.woken(task)


async def test_a_purge_ends_every_wait_for_the_execution(two):
    ended = await two.other.ended("order")
    task = await two.wait(r.InboxChanged(entity_id="order", execution_id=ended.execution_id, wake=100))
    await two.acting.purge([ended])
    two.waiting._watcher.look_at_all()
    assert await two.woken(task)


async def test_a_wait_that_is_cancelled_holds_no_channel():
    async with two_on(fresh_url()) as two:
        instance = await two.other.create("order")
        task = await two.wait(r.Closed(entity_id="order", execution_id=instance.execution_id))
        channel = f"{two.waiting._link.address.prefix}closed:{instance.execution_id}"
        assert shared_server().ask("PUBSUB", "NUMSUB", channel)[1] == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        async with asyncio.timeout(PATIENT):
            while shared_server().ask("PUBSUB", "NUMSUB", channel)[1]:
                await asyncio.sleep(0.001)
        assert two.waiting._watcher.waiters.all == []


async def test_closing_fails_the_waits():
    async with two_on(fresh_url()) as two:
        task = await two.wait(WORK)
        await two.waiting.close()
        with pytest.raises(StoreError, match="closed"):
            await task


async def test_what_happened_while_the_channels_were_lost_is_found():
    server = Server(temporary_folder(), "--appendonly", "yes").start()
    try:
        async with two_on(server.url) as two:
            task = await two.wait(WORK)
            server.pause()
            server.kill()
            server.start()
            async with asyncio.timeout(PATIENT):
                while True:  # a creation whose outcome is unknown is repeated
                    with contextlib.suppress(StoreError):
                        await two.other.create("order")
                        break
            assert await two.woken(task)
    finally:
        server.kill()


@pytest.mark.parametrize("url", [fresh_url, fresh_cluster_url])
async def test_what_no_message_tells_of_is_found_by_the_next_look(monkeypatch, url):
    """A cluster may lose a message between its servers."""
    monkeypatch.setattr(watcher, "_ASSURANCE", 0.05)
    monkeypatch.setattr(watcher.Watcher, "_heard", lambda *_: None)
    async with two_on(url()) as two:
        task = await two.wait(WORK)
        await two.other.create("order")
        assert await two.woken(task)


async def test_a_claim_finds_work_while_the_channels_are_lost(monkeypatch):
    """Nobody tells the store that it is there."""
    never = asyncio.Event()
    async with two_on(fresh_url()) as two:
        assert not await two.waiting.wait(WORK, 0)
        monkeypatch.setattr(subscriptions, "connect", lambda *_: never.wait())
        two.waiting._watcher.subscriptions._connection.close("lost")
        await two.other.create("order")
        assert await two.waiting.wait(WORK, 0)
        assert len(await two.mine.claim("waiting")) == 1


async def test_a_wait_lasts_until_the_message_that_is_under_way(two):
    """Before that the store knows nothing of what the other has done."""
    assert not await two.waiting.wait(WORK, 0)
    channels, held = two.waiting._watcher.subscriptions, []
    hear, channels.on_message = channels.on_message, lambda *message: held.append(message)
    task = await two.wait(WORK)
    await two.other.create("order")
    async with asyncio.timeout(PATIENT):
        while not held:
            await asyncio.sleep(0.001)
    assert not await two.waiting.wait(WORK, 0)
    assert not task.done()
    for message in held:
        hear(*message)
    assert await two.woken(task)
    assert await two.waiting.wait(WORK, 0)


async def test_an_idle_store_sends_nothing():
    async with two_on(fresh_url()) as two:
        task = await two.wait(WORK)
        looks = two.looks
        processed = commands_of_stores()
        two.clock.move_to(two.clock.now() + HOUR)
        for _ in range(100):
            await asyncio.sleep(0)
        assert two.looks == looks
        assert commands_of_stores() - processed <= 1  # a sign of life of the channels
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def commands_of_stores():
    """Return how many commands the connections of all stores have sent."""
    clients = shared_server().ask("CLIENT", "LIST").decode().splitlines()
    own = [line for line in clients if "name=resurgam" in line]
    return sum(int(line.partition("tot-cmds=")[2].split()[0]) for line in own if "tot-cmds=" in line)


async def test_a_store_that_has_found_nothing_asks_for_nothing_again(two):
    assert await two.mine.claim() == await two.mine.tasks() == []
    looks = two.looks
    for _ in range(3):
        assert await two.mine.claim() == await two.mine.tasks() == []
    assert two.looks == looks


async def test_a_claim_finds_what_another_store_has_made_claimable(two):
    assert await two.mine.claim() == []
    task = await two.wait(WORK)
    await two.other.create("order")
    assert await two.woken(task)
    assert len(await two.mine.claim()) == 1


async def test_a_claim_finds_what_has_become_due(two):
    await two.other.create("later", begins_at=two.clock.now() + 2000)
    assert await two.mine.claim() == []
    two.clock.move_to(two.clock.now() + 2000)
    assert len(await two.mine.claim()) == 1


async def test_a_moment_after_an_announced_one_that_is_void_is_not_missed(two):
    """The end of the first lease was announced; that of the second is not, because it comes later."""
    await two.other.create("order")
    first = await two.other.claim_one()
    two.clock.move_to(two.clock.now() + 10)
    await two.other.committed(first, wake_at=two.clock.now() + 2 * LEASE)
    assert await two.mine.claim("waiting") == []
    await two.other.send_signals("order", "news")
    assert len(await two.other.claim("acting")) == 1
    two.clock.move_to(two.clock.now() + LEASE)
    assert len(await two.mine.claim("waiting")) == 1
