"""The stores that engine tests run on. A new backend is one line in `STORES`."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, Final

from resurgam.store.memory.store import MemoryStore
from resurgam.store.postgres.store import PostgresStore
from resurgam.store.protocol import Store
from resurgam.store.redis.store import RedisStore
from resurgam.store.sqlite.store import SqliteStore
from resurgam.testing import ManualClock
from resurgam.testing.contract import LEASE
from support import postgres, redis
from support.late_effects import LateEffectsStore
from support.redis import Ears, ears_of

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
    """Wait until a store that is reached over a network has no call under way, and has heard all messages of its servers.

    Return whether there was any of this: an answer takes some iterations of the event loop to reach its caller.
    """
    inner = getattr(store, "_store", store)  # a test may put one of its own around a store
    is_busy = _IS_BUSY.get(type(inner))
    if is_busy is None:
        return False
    ears = ears_of(inner) if isinstance(inner, RedisStore) else None
    had = False
    while await _has_calls(partial(is_busy, inner)) | await _hears(ears):
        had = True
    return had


async def _has_calls(is_busy: Callable[[], bool]) -> bool:
    """Wait until no call is under way; return whether there was any."""
    had, quiet = False, 0
    while quiet < _QUIET:
        busy = is_busy()
        had, quiet = had or busy, 0 if busy else quiet + 1
        await asyncio.sleep(_LOOK if busy else 0)
    return had


_IS_BUSY: Final[dict[type, Callable[[Any], bool]]] = {
    RedisStore: redis.is_busy,
    PostgresStore: postgres.is_busy,
}
"""How to learn whether a store that is reached over a network has calls under way."""


async def _hears(ears: Ears | None) -> bool:
    """Wait until all messages are heard; return whether there was any."""
    if ears is None:
        return False
    before = ears.messages
    await ears.heard_all()
    return ears.messages > before


STORES: dict[str, OpenStore] = {
    "memory": open_memory,
    "late": open_late,
    "sqlite": open_sqlite,
    "redis": open_redis,
    "redis-cluster": open_redis_cluster,
    "postgres": open_postgres,
}
