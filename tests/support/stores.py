"""The stores that engine tests run on. A new backend is one line in `STORES`."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, cast

from resurgam.store.memory.store import MemoryStore
from resurgam.store.postgres.store import PostgresStore
from resurgam.store.protocol import Store
from resurgam.store.redis.store import RedisStore
from resurgam.store.sqlite.store import SqliteStore
from resurgam.testing import ManualClock
from resurgam.testing.contract import LEASE
from support import postgres, redis
from support.late_effects import LateEffectsStore

_LOOK: Final = 0.0002
"""Seconds between two looks at a store that is reached over a network."""

_QUIET: Final = 10

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


@asynccontextmanager
async def open_redis(clock: ManualClock) -> AsyncIterator[Store]:
    """Open an empty store on a Redis server."""
    async with _opened(RedisStore(redis.fresh_url(), clock, name="contract", lease=LEASE)) as store:
        yield store


@asynccontextmanager
async def open_redis_cluster(clock: ManualClock) -> AsyncIterator[Store]:
    """Open an empty store on a cluster of three Redis servers."""
    async with _opened(RedisStore(redis.fresh_cluster_url(), clock, name="contract", lease=LEASE)) as store:
        yield store


@asynccontextmanager
async def open_postgres(clock: ManualClock) -> AsyncIterator[Store]:
    """Open an empty store on a Postgres server."""
    async with (
        postgres.emptied_url() as url,
        _opened(PostgresStore(url, clock, name="contract", lease=LEASE)) as store,
    ):
        yield store


@asynccontextmanager
async def _opened(store: Store) -> AsyncIterator[Store]:
    try:
        yield store
    finally:
        await store.close()


async def answered(store: Store) -> bool:
    """Wait until a store that is reached over a network has no call under way; return whether it had any.

    An answer takes some iterations of the event loop to reach its caller.
    """
    had, quiet = False, 0
    inner = getattr(store, "_store", store)  # a test may put one of its own around a store
    is_busy = _IS_BUSY.get(type(inner))
    while is_busy is not None and quiet < _QUIET:
        busy = is_busy(cast("Any", inner))
        had, quiet = had or busy, 0 if busy else quiet + 1
        await asyncio.sleep(_LOOK if busy else 0)
    return had


_IS_BUSY: Final[dict[type, Callable[[Any], bool]]] = {
    RedisStore: redis.is_busy,
    PostgresStore: postgres.is_busy,
}
"""How to learn whether a store that is reached over a network has calls under way."""

STORES: dict[str, OpenStore] = {
    "memory": open_memory,
    "late": open_late,
    "sqlite": open_sqlite,
    "redis": open_redis,
    "redis-cluster": open_redis_cluster,
    "postgres": open_postgres,
}
