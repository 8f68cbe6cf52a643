"""Small values by key, in Postgres."""

from resurgam.core.clock import Clock
from resurgam.store.postgres.inspector import moment_of
from resurgam.store.postgres.pool import Pool


class PostgresValues:
    """Get and put values."""

    def __init__(self, pool: Pool, clock: Clock) -> None:
        self._pool = pool
        self._moment = moment_of(clock)

    async def get(self, key: str) -> bytes | None:
        """Return the value of a key; None if there is none, or it has expired."""
        rows = await self._pool.select("value", self._moment(), key)
        return bytes(rows[0][0]) if rows else None

    async def put(self, key: str, value: bytes, *, expires_at: int | None = None) -> None:
        """Store a value, in place of the one that is there."""
        await self._put(key, value, expires_at, replace=True)

    async def put_if_absent(self, key: str, value: bytes, *, expires_at: int | None = None) -> bytes:
        """Store a value, unless there is one already; return the one that is there now."""
        known = await self.get(key)  # most often there is one, and reading it costs no commit
        return known if known is not None else await self._put(key, value, expires_at, replace=False)

    async def delete(self, key: str) -> None:
        """Delete the value of a key."""
        await self._pool.ask("delete_value", key)

    async def _put(self, key: str, value: bytes, expires_at: int | None, *, replace: bool) -> bytes:
        return bytes.fromhex(await self._pool.ask("put_value", [key, value.hex(), expires_at, replace]))
