"""The Postgres store on one server, under the suite that every store must pass."""

from contextlib import asynccontextmanager

from resurgam.store.postgres.store import PostgresStore
from resurgam.testing.contract import LEASE, StoreContract
from support.postgres import fresh_url


class TestPostgres(StoreContract):
    pause = 0.001
    limit = 20

    def url(self):
        return fresh_url()

    @asynccontextmanager
    async def open_store(self, clock):
        store = PostgresStore(self.url(), clock, name="contract", lease=LEASE)
        try:
            yield store
        finally:
            await store.close()
