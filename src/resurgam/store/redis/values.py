"""Small values by key, in Redis: each in the partition of its key."""

from typing import cast

from resurgam.store.redis.library import text_of
from resurgam.store.redis.link import Link


class RedisValues:
    """Get and put values."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def get(self, key: str) -> bytes | None:
        """Return the value of a key; None if there is none, or it has expired."""
        return cast("bytes | None", await self._link.ask(self._link.partition_of(key), "get_value", [key]))

    async def put(self, key: str, value: bytes, *, expires_at: int | None = None) -> None:
        """Store a value, in place of the one that is there."""
        await self._put(key, value, expires_at, replace=True)

    async def put_if_absent(self, key: str, value: bytes, *, expires_at: int | None = None) -> bytes:
        """Store a value, unless there is one already; return the one that is there now."""
        return await self._put(key, value, expires_at, replace=False)

    async def delete(self, key: str) -> None:
        """Delete the value of a key."""
        await self._link.ask(self._link.partition_of(key), "delete_value", [key])

    async def _put(self, key: str, value: bytes, expires_at: int | None, *, replace: bool) -> bytes:
        part = [key, text_of(value), expires_at, replace]
        return cast("bytes", await self._link.ask(self._link.partition_of(key), "put_value", part))
