"""The SQLite store, under the suite that every store must pass."""

from contextlib import asynccontextmanager

from resurgam.store.sqlite.store import SqliteStore
from resurgam.testing.contract import LEASE, StoreContract


class TestSqlite(StoreContract):
    @asynccontextmanager
    async def open_store(self, clock):
        store = SqliteStore(None, clock, name="contract", lease=LEASE, synchronous="OFF")
        try:
            yield store
        finally:
            await store.close()
