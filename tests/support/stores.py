"""The stores that engine tests run on. A new backend is one line in `STORES`."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from resurgam.store.memory.store import MemoryStore
from resurgam.store.protocol import Store
from resurgam.store.sqlite.store import SqliteStore
from resurgam.testing import ManualClock
from resurgam.testing.contract import LEASE

OpenStore = Callable[[ManualClock], AbstractAsyncContextManager[Store]]


@asynccontextmanager
async def open_memory(clock: ManualClock) -> AsyncIterator[Store]:
    """Open an empty store in memory."""
    yield MemoryStore(clock, lease=LEASE)


@asynccontextmanager
async def open_sqlite(clock: ManualClock) -> AsyncIterator[Store]:
    """Open an empty SQLite store that is not synced to disk."""
    store = SqliteStore(None, clock, name="contract", lease=LEASE, synchronous="OFF")
    try:
        yield store
    finally:
        await store.close()


STORES: dict[str, OpenStore] = {
    "memory": open_memory,
    "sqlite": open_sqlite,
}
