"""The stores that engine tests run on. A new backend is one line in `STORES`."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from resurgam.store.memory.store import MemoryStore
from resurgam.store.protocol import Store
from resurgam.store.sqlite.store import SqliteStore
from resurgam.testing import ManualClock
from resurgam.testing.contract import LEASE
from support.late_effects import LateEffectsStore

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


@asynccontextmanager
async def open_late(clock: ManualClock) -> AsyncIterator[Store]:
    """Open an empty store in memory whose effects on other instances arrive after the commit."""
    yield LateEffectsStore(clock, lease=LEASE)


STORES: dict[str, OpenStore] = {
    "memory": open_memory,
    "late": open_late,
    "sqlite": open_sqlite,
}
