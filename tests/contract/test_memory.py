"""The memory store, under the suite that every store must pass."""

from contextlib import asynccontextmanager

from resurgam.store.memory.store import MemoryStore
from resurgam.testing.contract import LEASE, StoreContract


class TestMemory(StoreContract):
    @asynccontextmanager
    async def open_store(self, clock):
        yield MemoryStore(clock, lease=LEASE)
