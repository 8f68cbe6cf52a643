"""One store waits, another one acts: what wakes a wait on Postgres, with notices and without."""

import asyncio
import contextlib

import pytest
from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.errors import StoreError
from resurgam.core.outcome import Publication
from resurgam.store import records as r
from resurgam.testing.contract.bench import LEASE, QUEUE, request, routed, scheduled
from resurgam.testing.contract.queries import query_task
from support.postgres import execute, fresh_url
from support.two_stores import PATIENT, two_on

WORK = r.Work(worker="waiting", queues=(QUEUE,))


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
