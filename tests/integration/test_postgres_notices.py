"""What Postgres stores notify each other of, and what they do about notices that they have missed."""

import asyncio
import contextlib
import json

import asyncpg
import pytest
from msgspec import Raw

from resurgam.core import event as events
from resurgam.store import records as r
from resurgam.store.postgres.functions import channel_of
from resurgam.testing.contract.bench import QUEUE, request, scheduled
from support.postgres import execute, fresh_url, own_server, shared_server
from support.two_stores import PATIENT, two_on

WORK = r.Work(worker="waiting", queues=(QUEUE,))


@pytest.fixture
async def listening():
    async with two_on(fresh_url()) as two:
        yield two


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


@pytest.mark.parametrize("payload", ["", "[]", "hello", "{}", "[1]"])
async def test_a_notice_that_no_store_has_sent_makes_it_look(listening, payload):
    two, failures = listening, []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    task = await two.wait(WORK)
    looks = two.looks
    await execute("SELECT pg_notify($1, $2)", channel_of(two.schema), payload)
    async with asyncio.timeout(PATIENT):
        while two.looks == looks:
            await asyncio.sleep(0.001)
    await two.other.create("order")
    assert await two.woken(task)
    assert failures == []


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
