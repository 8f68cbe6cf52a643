"""A standby takes over from a Postgres server that dies: what is lost then, counted, and that runs go on."""

import asyncio
import contextlib
import itertools

import asyncpg
import pytest
from msgspec import Raw

from resurgam import Engine
from resurgam.core import event as events
from resurgam.core.errors import StoreError
from resurgam.runtime.system import SystemClock
from resurgam.store import records as r
from resurgam.store.postgres.store import PostgresStore
from resurgam.testing.contract.bench import Bench, OpensStores, ids
from support.chains import STEPS, WORKFLOWS, Run
from support.limits import HANGS
from support.postgres import own_server, temporary_folder

pytestmark = pytest.mark.long

WRITERS = 10
EVENTS = 3
"""Entries of each commit."""


class Pair:
    """A primary, its standby, and the URL that names both."""

    def __init__(self, *, synchronous):
        self.synchronous = synchronous
        self.primary = own_server()
        self.standby = self.primary.standby(temporary_folder(), name="standby")
        if synchronous:
            self.primary.reload("synchronous_standby_names = 'standby'", "synchronous_commit = on")
        hosts = f"127.0.0.1:{self.primary.port},127.0.0.1:{self.standby.port}"
        self.url = self.primary.url.replace(f"127.0.0.1:{self.primary.port}", hosts) + "?schema=s"

    async def until_synchronous(self):
        """Wait until commits wait for the standby."""
        connection = await asyncpg.connect(self.primary.url)
        async with asyncio.timeout(HANGS):
            while not await connection.fetch("SELECT FROM pg_stat_replication WHERE sync_state = 'sync'"):
                await asyncio.sleep(0.01)
        await connection.close()

    async def cut_off(self):
        """Let the standby receive nothing more."""
        self.standby.reload("primary_conninfo = ''")
        connection = await asyncpg.connect(self.primary.url)
        async with asyncio.timeout(HANGS):
            while await connection.fetch("SELECT FROM pg_stat_replication"):
                await asyncio.sleep(0.01)
        await connection.close()

    def fail_over(self):
        self.primary.kill()
        self.standby.promote()

    def close(self):
        self.primary.kill()
        self.standby.kill()


@pytest.fixture
async def pair(request):
    pair = Pair(synchronous=request.param)
    try:
        if request.param:
            await pair.until_synchronous()
        yield pair
    finally:
        pair.close()


class Load:
    """Writers that commit as fast as the store takes it, and note what was acknowledged."""

    def __init__(self, store):
        self.store = store
        self.acknowledged = {}
        """The last seq of each execution, by its entity."""

        self._bench = Bench(store, SystemClock(), OpensStores())
        self._commits = 0
        self._grown = asyncio.Event()

    async def write_until_it_fails(self, entity_id):
        with contextlib.suppress(StoreError):
            await self._bench.create(entity_id, queue=entity_id)
            self.acknowledged[entity_id] = 1
            claim = await self._bench.claim_one(queues=[entity_id])
            for seq in itertools.count(1, EVENTS):
                log = [
                    events.SignalReceived(seq=seq + n + 1, at=1, name="n", id=f"{seq + n}", value=Raw(b"1"))
                    for n in range(EVENTS)
                ]
                done = await self._bench.commit(claim, *log, base_seq=seq, release=False, consumed=ids(claim.inbox))
                assert isinstance(done, r.Committed)
                self.acknowledged[entity_id] = seq + EVENTS
                self._commits += 1
                self._grown.set()

    async def more(self, count):
        """Wait until *count* more commits are acknowledged."""
        wanted = self._commits + count
        while self._commits < wanted:
            self._grown.clear()
            await self._grown.wait()


@pytest.mark.parametrize("pair", [True, False], indirect=True, ids=["synchronous", "asynchronous"])
async def test_a_failover_loses_whole_commits_if_any_and_none_with_a_synchronous_standby(pair, monkeypatch):
    monkeypatch.setattr("resurgam.store.postgres.connections.PATIENCE", 0.5)
    monkeypatch.setattr("resurgam.store.postgres.pool.PATIENCE", 0.5)
    store = PostgresStore(f"{pair.primary.url}?schema=s", SystemClock(), name="load", lease=3_600_000)
    load = Load(store)
    async with asyncio.timeout(HANGS):
        writers = [asyncio.create_task(load.write_until_it_fails(f"order-{n}")) for n in range(WRITERS)]
        await load.more(300)
        if not pair.synchronous:
            await pair.cut_off()  # from now on, all is lost
        await load.more(100)
        await asyncio.to_thread(pair.primary.kill)
        await asyncio.gather(*writers)
    await store.close()
    pair.standby.promote()
    after = PostgresStore(pair.url, SystemClock(), name="counting", lease=1000)
    try:
        there = {name: await last_seq(after, name) for name in load.acknowledged}
    finally:
        await after.close()
    lost = sum(max(0, seq - there[name]) // EVENTS for name, seq in load.acknowledged.items())
    print(f"{lost} of {sum(load.acknowledged.values()) // EVENTS} commits lost")
    assert (lost == 0) if pair.synchronous else (lost >= 100)


async def last_seq(store, entity_id):
    """Return how far the log of an execution goes, which is whole: no commit is there in part."""
    instance = await store.inspector.get(entity_id)
    if instance is None:
        return 0
    log = await store.inspector.history(instance)
    assert [entry.seq for entry in log] == list(range(1, instance.last_seq + 1))
    assert (instance.last_seq - 1) % EVENTS == 0
    return instance.last_seq


@pytest.mark.parametrize("pair", [True, False], indirect=True, ids=["synchronous", "asynchronous"])
async def test_an_engine_goes_on_with_the_standby(pair):
    """The URL names both. Runs whose last commits are lost go on from what is there."""
    run = Run()
    async with asyncio.timeout(HANGS), Engine(pair.url, registry=run.registry, lease=3) as engine:
        handles = [await engine.start(run.chain, f"n{n}", id=f"n{n}") for n in range(WORKFLOWS)]
        await run.more(100)
        await asyncio.to_thread(pair.fail_over)
        found = [await engine.store.inspector.get(f"n{n}") for n in range(WORKFLOWS)]
        left = [handle for handle, instance in zip(handles, found, strict=True) if instance is not None]
        assert await asyncio.gather(*(handle.result() for handle in left)) == [STEPS] * len(left)
        for handle in left:
            history = await handle.history()
            assert [event.seq for event in history] == list(range(1, len(history) + 1))
            assert sum(event.type == "activity_completed" for event in history) == STEPS
