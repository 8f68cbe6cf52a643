"""The Postgres store on one server, under the suite that every store must pass."""

from contextlib import asynccontextmanager

import pytest

from resurgam.store.postgres.store import PostgresStore
from resurgam.testing.contract import LEASE, StoreContract
from support.postgres import emptied_url
from support.wire import proxied


@asynccontextmanager
async def opened(url, clock):
    store = PostgresStore(url, clock, name="contract", lease=LEASE)
    try:
        yield store
    finally:
        await store.close()


class TestPostgres(StoreContract):
    pause = 0.001
    limit = 20

    @asynccontextmanager
    async def open_store(self, clock):
        async with emptied_url() as url, opened(url, clock) as store:
            yield store


@pytest.mark.long
class TestPostgresBehindAPooler(StoreContract):
    """In transaction mode: no statement, setting, lock or channel outlives its transaction."""

    pause = 0.001
    limit = 20

    @asynccontextmanager
    async def open_store(self, clock):
        async with emptied_url() as given, proxied(given) as (wire, url):
            wire.resets = True
            async with opened(f"{url}&pooler=transaction", clock) as store:
                yield store
