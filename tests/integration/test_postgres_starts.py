"""The claim of an activity that puts an entry into the inbox of its instance waits for nobody, and holds up nobody for long."""

import asyncio
from contextlib import asynccontextmanager

import asyncpg

from resurgam.core.event import decode_event
from resurgam.store.postgres.store import PostgresStore
from resurgam.testing import ManualClock
from resurgam.testing.contract.bench import LEASE, Bench, OpensStores, ids, request, values
from resurgam.testing.contract.starts import HOLDING, began, starting
from support.postgres import fresh_url, shared_server


@asynccontextmanager
async def opened():
    """Open a store with an instance that has two activities, and a connection to hold rows by."""
    url, clock = fresh_url(), ManualClock()
    store = PostgresStore(url, clock, name="store", lease=LEASE)
    holder = await asyncpg.connect(shared_server().url)
    b = Bench(store, clock, OpensStores())
    try:
        await b.create(queue=HOLDING)
        await b.want(await b.claim_one(queues=(HOLDING,)), starting(2), request(3))
        yield b, holder, url.partition("schema=")[2]
    finally:
        await holder.close()
        await store.close()


async def test_an_activity_whose_instance_another_call_holds_stays_for_the_next_claim():
    async with opened() as (b, holder, schema):
        async with holder.transaction():
            await holder.fetch(f"SELECT FROM {schema}.states FOR UPDATE")
            assert [task.request.ref for task in await b.tasks()] == [3]
            assert await holder.fetchval(f"SELECT count(*) FROM {schema}.inbox") == 0
        task = await b.task()
        assert (task.request.ref, task.deliveries) == (2, 0)
        assert [decode_event(row[0]) for row in await holder.fetch(f"SELECT body FROM {schema}.inbox")] == [began(2, 1)]


async def test_an_instance_that_a_step_changes_is_no_obstacle():
    async with opened() as (b, holder, schema):
        async with holder.transaction():
            await holder.execute(f"UPDATE {schema}.states SET commits = commits + 1")
            assert len(await b.tasks()) == 2


async def test_claims_of_one_instance_at_once_wait_for_each_other_no_more_than_others():
    async with opened() as (b, holder, schema):
        async with holder.transaction():
            await holder.fetch(f"SELECT FROM {schema}.states FOR KEY SHARE")
            assert len(await b.tasks()) == 2


async def test_a_commit_that_comes_during_a_claim_waits_for_it_and_finds_the_start():
    async with opened() as (b, holder, schema):
        await b.send_signals("order", "begin")
        claim = await b.claim_one(queues=(HOLDING,))
        async with holder.transaction():
            wake = await holder.fetchval(f"SELECT wake FROM {schema}.states FOR KEY SHARE")
            await holder.execute(
                f"INSERT INTO {schema}.inbox VALUES ($1, $2, 'work_started', $3, false)",
                *(claim.instance.execution_id, -((wake << 32) + 1)),
                '{"type":"work_started","item":2,"step":"pack"}',
            )
            signal = asyncio.ensure_future(b.send_signals("order", "x"))
            while not await holder.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
                await asyncio.sleep(0)
        await signal
        kept = await b.committed(claim, consumed=ids(claim.inbox), release=False)
        assert values(kept.inbox) == ["work_started", "x"]
