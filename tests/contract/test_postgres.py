"""The Postgres store on one server, under the suite that every store must pass."""

from contextlib import asynccontextmanager

from resurgam.store.postgres.store import PostgresStore
from resurgam.testing.contract import LEASE, StoreContract
from support.postgres import emptied_url


class TestPostgres(StoreContract):
    pause = 0.001
    limit = 20

    @asynccontextmanager
    async def open_store(self, clock):
        async with emptied_url() as url:
            store = PostgresStore(url, clock, name="contract", lease=LEASE)
            try:
                yield store
            finally:
                await store.close()
