"""One store waits, another one acts: what wakes a wait on Postgres, with notices and without."""

import asyncio
import contextlib
import json

import asyncpg
import pytest
from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.errors import StoreError
from resurgam.core.outcome import Publication
from resurgam.store import records as r
from resurgam.store.postgres.functions import channel_of
from resurgam.store.postgres.store import PostgresStore
from resurgam.store.postgres.url import parse
from resurgam.testing import ManualClock
from resurgam.testing.contract.bench import LEASE, QUEUE, Bench, OpensStores, request, routed, scheduled
from resurgam.testing.contract.queries import query_task
from support.postgres import execute, fresh_url, own_server, shared_server

WORK = r.Work(worker="waiting", queues=(QUEUE,))
PATIENT = 60


class Two:
    """Two stores on the same data and by the same clock: *waiting* waits, *acting* changes something."""

    def __init__(self, url, options=""):
        self.url = url
        self.schema = parse(url).schema
        self.clock = ManualClock()
        self.waiting = PostgresStore(url + options, self.clock, name="waiting", lease=LEASE)
        self.acting = PostgresStore(url, self.clock, name="acting", lease=LEASE)
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
        return self.waiting._pool.flights

    @contextlib.asynccontextmanager
    async def locked(self, table, execution_id):
        """Hold the row of an execution in a transaction of its own."""
        connection = await asyncpg.connect(shared_server().url)
        try:
            async with connection.transaction():
                rows = await connection.fetch(
                    f"SELECT FROM {self.schema}.{table} WHERE execution_id = $1 FOR UPDATE", execution_id
                )
                assert len(rows) == 1
                yield
        finally:
            await connection.close()


@contextlib.asynccontextmanager
async def two_on(url, options=""):
    two = Two(url, options)
    try:
        yield two
    finally:
        await two.waiting.close()
        await two.acting.close()


@pytest.fixture
async def listening():
    async with two_on(fresh_url()) as two:
        yield two


@pytest.fixture(params=["", "&pooler=transaction"], ids=["listening", "polling"])
async def two(request):
    async with two_on(fresh_url(), request.param) as two:
        yield two


# Everything that can be waited for, with notices and without.


async def test_work_wakes_an_idle_store(two):
    task = await two.wait(WORK)
    await two.other.create("order")
    assert await two.woken(task)
    assert len(await two.mine.claim("waiting")) == 1


async def test_an_activity_wakes_an_idle_store(two):
    task = await two.wait(r.Work(worker="waiting", queues=(QUEUE,), instances=False))
    await two.other.wanting(2)
    assert await two.woken(task)


async def test_the_end_of_a_lease_wakes_an_idle_store(two):
    await two.other.create("order")
    assert len(await two.other.claim("acting")) == 1
    task = await two.wait(WORK)
    two.clock.move_to(two.clock.now() + LEASE)
    assert await two.woken(task)
    assert len(await two.mine.claim("waiting")) == 1


async def test_an_end_wakes_who_waits_for_it(two):
    instance = await two.other.create("order")
    task = await two.wait(r.Closed(entity_id="order", execution_id=instance.execution_id))
    await two.other.end(await two.other.claim_one(), consumed=())
    assert await two.woken(task)


async def test_an_entry_wakes_who_holds_the_instance(two):
    instance = await two.other.create("order")
    claim = await two.mine.claim_one()
    task = await two.wait(r.InboxChanged(entity_id="order", execution_id=instance.execution_id, wake=claim.wake))
    await two.other.send_signals("order", "news")
    assert await two.woken(task)


async def test_an_entry_of_a_log_wakes_who_follows_it(two):
    instance = await two.other.create("order")
    task = await two.wait(r.LogGrown(entity_id="order", execution_id=instance.execution_id, last_seq=1))
    claim = await two.other.claim_one()
    await two.other.committed(claim, scheduled(request(2)), activities=(request(2),))
    assert await two.woken(task)


async def test_a_step_wakes_who_follows_its_log(two):
    instance = await two.other.create("order")
    claim = await two.other.claim_one()
    task = await two.wait(r.LogGrown(entity_id="order", execution_id=instance.execution_id, last_seq=1))
    options = {"activities": (request(2),), "eager": frozenset({2}), "covers": True, "release": False}
    await two.other.committed(claim, scheduled(request(2)), **options)
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


async def test_a_claim_finds_what_has_become_due(two):
    await two.other.create("later", begins_at=two.clock.now() + 2000)
    assert await two.mine.claim("waiting") == []
    two.clock.move_to(two.clock.now() + 2000)
    assert len(await two.mine.claim("waiting")) == 1


async def test_closing_fails_the_waits(two):
    task = await two.wait(WORK)
    await two.waiting.close()
    with pytest.raises(StoreError, match="closed"):
        await task


# What an idle store spares.


async def test_a_timer_wakes_an_idle_store_at_its_moment_without_a_look_before(listening):
    two = listening
    task = await two.wait(WORK)
    await two.other.create("sooner", begins_at=two.clock.now() + 2000)
    await two.other.create("later", begins_at=two.clock.now() + 5000)
    async with asyncio.timeout(PATIENT):  # until both are announced
        while two.clock.next_due() != two.clock.now() + 2000:
            await asyncio.sleep(0.001)
    looks = two.looks
    two.clock.move_to(two.clock.now() + 1999)
    await asyncio.sleep(0)
    assert not task.done()
    assert two.looks == looks
    two.clock.move_to(two.clock.now() + 1)
    assert await two.woken(task)


async def test_work_of_another_queue_costs_an_idle_store_nothing(listening):
    two = listening
    task = await two.wait(WORK)
    looks = two.looks
    await two.other.create("order", queue="elsewhere")
    await two.other.create("here")
    assert await two.woken(task)
    assert two.looks == looks + 1


async def test_a_store_that_has_found_nothing_asks_for_nothing_again(listening):
    two = listening
    task = await two.wait(WORK)
    assert await two.mine.claim("waiting") == await two.mine.tasks("waiting") == []
    looks = two.looks
    for _ in range(3):
        assert await two.mine.claim("waiting") == await two.mine.tasks("waiting") == []
    assert two.looks == looks
    await two.other.create("order")
    assert await two.woken(task)
    assert len(await two.mine.claim("waiting")) == 1


async def test_a_moment_after_an_announced_one_that_is_void_is_not_missed(listening):
    """The end of the first lease was announced; that of the second is not, because it comes later."""
    two = listening
    task = await two.wait(WORK)
    await two.other.create("order")
    assert await two.woken(task)
    first = await two.other.claim_one()
    two.clock.move_to(two.clock.now() + 10)
    await two.other.committed(first, wake_at=two.clock.now() + 2 * LEASE)
    assert await two.mine.claim("waiting") == []
    await two.other.send_signals("order", "news")
    assert len(await two.other.claim("acting")) == 1
    two.clock.move_to(two.clock.now() + LEASE)
    assert len(await two.mine.claim("waiting")) == 1


async def near_end(two):
    """Begin to wait for the end of an execution that the waiting store leases; return the lease, the wait and its cost."""
    await two.mine.create("order")
    claim = await two.mine.claim_one("waiting")
    await two.waiting._watcher._listener.start()
    looks = two.looks
    task = asyncio.create_task(two.waiting.wait(r.Closed(entity_id="order", execution_id=claim.instance.execution_id)))
    await asyncio.sleep(0.05)
    assert not task.done()
    return claim, task, two.looks - looks


async def test_a_store_that_leases_an_execution_waits_for_its_end_without_asking_for_it(listening):
    claim, task, looks = await near_end(listening)
    await listening.mine.end(claim, consumed=())
    assert await listening.woken(task)
    assert looks == 0


async def test_the_owner_of_a_lease_hears_that_another_store_has_ended_the_execution(listening):
    _, task, _ = await near_end(listening)
    await listening.other.deliver(events.WorkflowTerminated(reason="no longer wanted"), "order")
    assert await listening.woken(task)


async def test_an_end_after_the_lease_was_released_wakes_who_waits_for_it(listening):
    claim, task, _ = await near_end(listening)
    await listening.mine.release(claim)
    await listening.other.end(await listening.other.claim_one("acting"), consumed=())
    assert await listening.woken(task)


async def test_an_end_after_the_lease_has_expired_wakes_who_waits_for_it(listening):
    _, task, _ = await near_end(listening)
    listening.clock.move_to(listening.clock.now() + LEASE)
    await listening.other.end(await listening.other.claim_one("acting"), consumed=())
    assert await listening.woken(task)


# Notices.


@contextlib.asynccontextmanager
async def heard(schema):
    """Collect what the stores of a schema notify."""
    connection = await asyncpg.connect(shared_server().url)
    payloads = []
    await connection.add_listener(channel_of(schema), lambda *arguments: payloads.append(json.loads(arguments[-1])))

    async def collected():
        """Return what has come; the notice of this call is the last."""
        await connection.execute("SELECT pg_notify($1, '[]')", channel_of(schema))
        async with asyncio.timeout(PATIENT):
            while [] not in payloads:
                await asyncio.sleep(0.001)
        found = [payload for payload in payloads if payload]
        payloads.clear()
        return found

    try:
        yield collected
    finally:
        await connection.close()


async def test_a_call_notifies_once_whatever_it_changes(listening):
    two = listening
    await two.other.create("first")
    async with heard(two.schema) as collected:
        await asyncio.gather(*(two.other.create(f"order {n}") for n in range(20)))
        told = await collected()
    assert 1 <= len(told) <= 2  # two flights at most: the first call, and those that came while it was under way
    assert all(len(payload) == 3 and payload[1:] == ["work", QUEUE] for payload in told)


async def test_a_step_notifies_nobody_unless_somebody_follows(listening):
    two = listening
    instance = await two.other.create("order")
    claim = await two.other.claim_one()
    options = {"eager": frozenset({2}), "covers": True, "release": False}
    async with heard(two.schema) as collected:
        await two.other.committed(claim, scheduled(request(2)), activities=(request(2),), **options)
        assert await collected() == []
        task = await two.wait(r.LogGrown(entity_id="order", execution_id=instance.execution_id, last_seq=2))
        done = events.ActivityCompleted(seq=3, ref=2, result=Raw(b"1"))
        await two.other.committed(claim, done, release=False, covers=True, base_seq=2)
        assert await two.woken(task)
        assert [payload[1:] for payload in await collected()] == [["log", instance.execution_id]]


async def test_what_does_not_fit_into_a_notice_makes_all_look(listening):
    two = listening
    async with heard(two.schema) as collected:
        task = await two.wait(WORK)
        queues = [f"{number:04}-{'x' * 200}" for number in range(50)]
        await asyncio.gather(*(two.other.create(queue, queue=queue) for queue in queues))
        await two.other.create("order")
        assert await two.woken(task)
        assert any(payload[1] == "*" for payload in await collected())


async def test_who_begins_to_follow_misses_no_commit_that_was_under_way():
    """A transaction that saw no follower commits after one has looked."""
    async with two_on(fresh_url()) as two:
        instance = await two.other.create("order")
        connection = await asyncpg.connect(shared_server().url)
        try:
            writing = connection.transaction()
            await writing.start()
            await connection.execute(
                f"UPDATE {two.schema}.states SET last_seq = 2 WHERE execution_id = $1", instance.execution_id
            )
            task = await two.wait(r.LogGrown(entity_id="order", execution_id=instance.execution_id, last_seq=1))
            await writing.commit()
            assert await two.woken(task)
        finally:
            await connection.close()


# Locks that others hold.


async def test_a_claim_passes_over_what_another_transaction_holds(two):
    held, free = await two.other.create("held"), await two.other.create("free")
    async with two.locked("states", held.execution_id):
        assert [claim.instance.execution_id for claim in await two.mine.claim("waiting")] == [free.execution_id]
        task = asyncio.create_task(two.waiting.wait(WORK))
    assert await two.woken(task)
    async with asyncio.timeout(PATIENT):
        while not (claims := await two.mine.claim("waiting")):
            await two.waiting.wait(WORK)
    assert [claim.instance.execution_id for claim in claims] == [held.execution_id]


async def test_who_waits_for_work_that_others_hold_asks_seldom(listening):
    two = listening
    held = await two.other.create("held")
    async with two.locked("states", held.execution_id):
        looks, rounds = two.looks, 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                while not await two.mine.claim("waiting"):
                    await two.waiting.wait(WORK)
                    rounds += 1
        assert two.looks - looks < 60, rounds


async def test_an_activity_whose_closed_workflow_another_holds_stays_for_the_next_claim(listening):
    two = listening
    await two.other.wanting(2)
    await two.other.deliver(events.WorkflowTerminated(reason="no"), "order")
    instance = await two.acting.inspector.get("order")
    async with two.locked("states", instance.execution_id):
        assert await two.mine.tasks("waiting") == []
    assert await two.mine.tasks("waiting") == []
    rows = await execute(f"SELECT type FROM {two.schema}.inbox WHERE execution_id = $1", instance.execution_id)
    assert [row["type"] for row in rows] == ["activity_cancelled"]


async def test_stores_that_claim_at_once_share_what_there_is():
    async with two_on(fresh_url()) as two:
        for number in range(40):
            await two.other.create(f"order {number}")
        benches = [two.mine, two.other] * 4
        shares = await asyncio.gather(*(bench.claim(f"worker {n}", limit=5) for n, bench in enumerate(benches)))
        claimed = [claim.instance.execution_id for share in shares for claim in share]
        assert len(claimed) == len(set(claimed)) == 40


async def announce(two, *names):
    for name in names:
        worker = r.Announcement(worker_id=name, host="here", pid=1, build="1", queues=(QUEUE,), slots=1)
        await two.acting.workers.announce(worker, 10 * LEASE)


async def test_a_worker_with_peers_takes_its_share_and_leaves_the_rest_to_them(listening):
    two = listening
    await announce(two, "waiting", "acting", "third")
    for number in range(30):
        await two.other.create(f"order {number}")
    assert len(await two.mine.claim("waiting")) == 10
    assert len(await two.other.claim("acting")) == 7


async def test_a_worker_whose_peers_do_nothing_takes_the_rest_after_their_turn(listening):
    two = listening
    await announce(two, "waiting", "full")
    for number in range(30):
        await two.other.create(f"order {number}")
    shares = []
    async with asyncio.timeout(PATIENT):
        while sum(shares) < 30:
            shares.append(len(await two.mine.claim("waiting")))
            if not shares[-1]:
                assert await two.waiting.wait(WORK)
    assert max(shares) == 15


# Connections that are lost.


async def lose_the_listener(two):
    """End the connection on which the waiting store listens."""
    [row] = await execute(
        "SELECT pg_terminate_backend(pid) AS done FROM pg_stat_activity "
        "WHERE application_name LIKE '%waiting%' AND query ~ 'LISTEN|advisory|xmin|SELECT 1'"
    )
    assert row["done"]


async def test_what_happened_while_the_connection_was_lost_is_found(listening):
    two = listening
    task = await two.wait(WORK)
    await lose_the_listener(two)
    await two.other.create("order")
    assert await two.woken(task)


async def test_a_store_listens_again_after_its_connection_was_lost(listening):
    two = listening
    instance = await two.other.create("order")
    task = await two.wait(r.LogGrown(entity_id="order", execution_id=instance.execution_id, last_seq=1))
    await lose_the_listener(two)
    listener = two.waiting._watcher._listener
    async with asyncio.timeout(PATIENT):
        while listener.listens:
            await asyncio.sleep(0.001)
        while not listener.listens:
            await asyncio.sleep(0.001)
    assert not task.done()
    await two.other.committed(await two.other.claim_one(), scheduled(request(2)), activities=(request(2),))
    assert await two.woken(task)


async def test_a_restart_of_the_server_wakes_who_waits_for_what_came_after_it():
    server = own_server()
    try:
        async with two_on(f"{server.url}?schema=resurgam") as two:
            task = await two.wait(WORK)
            server.kill()
            server.start()
            await two.other.create("order")
            assert await two.woken(task)
    finally:
        server.kill()


async def test_an_idle_store_sends_nothing(listening):
    two = listening
    task = await two.wait(WORK)
    looks = two.looks
    await asyncio.sleep(0.5)
    assert two.looks == looks
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not two.waiting._watcher.waiters
