"""What survives the death of a Redis server: docs/concepts/redis-losses.md says so, and here it is counted."""

import asyncio
import contextlib
import itertools

import pytest

from resurgam.core import event as events
from resurgam.core.errors import StoreError
from resurgam.dev.redis import Server, start_replica
from resurgam.runtime.system import SystemClock
from resurgam.store import records as r
from resurgam.store.redis.store import RedisStore
from resurgam.testing.contract.bench import Bench, OpensStores
from support.limits import HANGS
from support.redis import temporary_folder

WRITERS = 20


class Load:
    """Writers that create executions as fast as the store takes them, and note what it has acknowledged."""

    def __init__(self, store):
        self.store = store
        self.acknowledged = []
        self._bench = Bench(store, SystemClock(), OpensStores())
        self._numbers = itertools.count()
        self._grown = asyncio.Event()

    async def write_until_it_fails(self):
        with contextlib.suppress(StoreError):
            while True:
                entity_id = f"order-{next(self._numbers)}"
                await self._bench.create(entity_id)
                self.acknowledged.append(entity_id)
                self._grown.set()

    async def more(self, count):
        """Wait until *count* more executions are acknowledged."""
        wanted = len(self.acknowledged) + count
        while len(self.acknowledged) < wanted:
            self._grown.clear()
            await self._grown.wait()


async def lost(url, acknowledged):
    """Return the acknowledged executions that are gone; those that are there must be whole."""
    store = RedisStore(url, SystemClock(), name="counting", lease=1000)
    try:
        found = await asyncio.gather(*(store.inspector.get(entity_id) for entity_id in acknowledged))
        missing = [name for name, instance in zip(acknowledged, found, strict=True) if instance is None]
        for instance in filter(None, found):
            [first] = await store.read(r.ExecutionRef(instance.entity_id, instance.execution_id))
            assert isinstance(first, events.WorkflowStarted)
        return missing
    finally:
        await store.close()


async def kill_under_load(url, kill):
    """Call *kill* in the middle of writes; return what was acknowledged until then."""
    store = RedisStore(url, SystemClock(), name="load", lease=1000)
    load = Load(store)
    try:
        async with asyncio.timeout(HANGS):
            writers = [asyncio.create_task(load.write_until_it_fails()) for _ in range(WRITERS)]
            await load.more(300)
            await asyncio.to_thread(kill)  # acknowledgements arrive meanwhile
            await asyncio.gather(*writers)
    finally:
        await store.close()
    return load.acknowledged


@pytest.mark.parametrize(
    ("fsync", "may_lose"), [("always", False), ("everysec", True), ("no", True)], ids=["always", "everysec", "no"]
)
async def test_what_a_killed_server_has_acknowledged_is_there_after_its_restart(fsync, may_lose):
    server = Server(temporary_folder(), "--appendonly", "yes", "--appendfsync", fsync).start()
    try:
        acknowledged = await kill_under_load(server.url, server.kill)
        server.start()
        missing = await lost(server.url, acknowledged)
        print(f"appendfsync {fsync}: {len(missing)} of {len(acknowledged)} lost by a kill")
        assert not missing or may_lose
        assert missing == acknowledged[len(acknowledged) - len(missing) :]  # the last ones, if any
    finally:
        server.kill()


async def test_a_server_whose_memory_is_full_lets_closed_executions_be_purged():
    server = Server(temporary_folder()).start()
    clock = SystemClock()
    try:
        first = RedisStore(server.url, clock, name="first", lease=1000)
        bench = Bench(first, clock, OpensStores())
        ended, _ = await bench.ended(), await bench.create("open")
        server.ask("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(StoreError, match=r"OOM .*; give the server more memory, or purge closed workflows"):
            await bench.create("another")
        for store in (first, RedisStore(server.url, clock, name="second", lease=1000)):
            assert (await store.inspector.get("open")).entity_id == "open"
        assert await store.purge([ended]) == [r.Purged()]
        await first.close()
        await store.close()
    finally:
        server.kill()


async def test_without_a_file_a_restart_loses_everything():
    server = Server(temporary_folder()).start()
    try:
        acknowledged = await kill_under_load(server.url, server.kill)
        server.start()
        assert await lost(server.url, acknowledged) == acknowledged
    finally:
        server.kill()


@pytest.mark.parametrize("wait", [0, 1])
async def test_a_failover_loses_nothing_that_a_replica_has_acknowledged(wait):
    primary = Server(temporary_folder()).start()
    replica = start_replica(temporary_folder(), primary)
    try:
        url = f"{primary.url},127.0.0.1:{replica.port}?wait={wait}"

        acknowledged = await kill_under_load(url, primary.kill)
        replica.ask("REPLICAOF", "NO", "ONE")
        missing = await lost(url.replace("wait=1", "wait=0"), acknowledged)  # the new primary has no replica
        print(f"wait={wait}: {len(missing)} of {len(acknowledged)} lost by a failover")
        assert not missing or wait == 0
    finally:
        primary.kill()
        replica.kill()
