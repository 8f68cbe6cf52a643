"""Small values by key, in a SQLite file."""

from resurgam.core.clock import Clock
from resurgam.store.sqlite.open_file import OpenFile
from resurgam.store.sqlite.session import Row
from resurgam.store.sqlite.transaction import Transaction, Write


class SqliteValues:
    """Get and put values."""

    def __init__(self, file: OpenFile, write: Write, clock: Clock) -> None:
        self._file = file
        self._write = write
        self._clock = clock

    async def get(self, key: str) -> bytes | None:
        """Return the value of a key; None if there is none, or it has expired."""
        rows = self._file.fetch("value", key=key, now=self._clock.now())
        return _value_of(rows[0]) if rows else None

    async def put(self, key: str, value: bytes, *, expires_at: int | None = None) -> None:
        """Store a value, in place of the one that is there."""
        await self._write(lambda t: put(t, key, value, expires_at))

    async def put_if_absent(self, key: str, value: bytes, *, expires_at: int | None = None) -> bytes:
        """Store a value, unless there is one already; return the one that is there now."""
        known = await self.get(key)  # a read costs no commit
        return known if known is not None else await self._write(lambda t: put_if_absent(t, key, value, expires_at))

    async def delete(self, key: str) -> None:
        """Delete the value of a key."""
        await self._write(lambda t: t.session.execute("delete_value", key=key))


def put(t: Transaction, key: str, value: bytes, expires_at: int | None) -> None:
    """Store a value, and delete those that have expired."""
    t.session.execute("put_value", key=key, value=value, expires_at=expires_at)
    t.session.execute("expire_values", now=t.now)


def put_if_absent(t: Transaction, key: str, value: bytes, expires_at: int | None) -> bytes:
    """Store a value, unless there is one already; return the one that is there now."""
    rows = t.session.fetch("value", key=key, now=t.now)
    if rows:
        return _value_of(rows[0])
    put(t, key, value, expires_at)
    return value


def _value_of(row: Row) -> bytes:
    return bytes(row["value"])
