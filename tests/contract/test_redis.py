"""The Redis store on one server, under the suite that every store must pass."""

from contextlib import asynccontextmanager

from resurgam.store.redis.store import RedisStore
from resurgam.testing.contract import LEASE, StoreContract
from support.redis import effects_arrived, fresh_url


class TestRedis(StoreContract):
    pause = 0.001
    limit = 20
    partitions = 16

    def url(self):
        return fresh_url()

    @asynccontextmanager
    async def open_store(self, clock):
        store = RedisStore(self.url(), clock, name="contract", lease=LEASE)
        try:
            yield store
        finally:
            await store.close()

    async def effects_arrived(self, store):
        await effects_arrived(store)
