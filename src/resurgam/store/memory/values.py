"""Small values by key, in the memory store."""

from collections.abc import Callable

from resurgam.core.clock import Clock


class MemoryValues:
    """Get and put values. *refresh* is called at the beginning of each verb."""

    def __init__(self, clock: Clock, refresh: Callable[[], None]) -> None:
        self._clock = clock
        self._refresh = refresh
        self._values: dict[str, tuple[bytes, int | None]] = {}

    async def get(self, key: str) -> bytes | None:
        """Return the value of a key; None if there is none, or it has expired."""
        self.expire()
        found = self._values.get(key)
        return None if found is None else found[0]

    async def put(self, key: str, value: bytes, *, expires_at: int | None = None) -> None:
        """Store a value, in place of the one that is there."""
        self._values[key] = value, expires_at
        self.expire()

    async def put_if_absent(self, key: str, value: bytes, *, expires_at: int | None = None) -> bytes:
        """Store a value, unless there is one already; return the one that is there now."""
        self.expire()
        if key in self._values:
            return self._values[key][0]
        await self.put(key, value, expires_at=expires_at)
        return value

    async def delete(self, key: str) -> None:
        """Delete the value of a key."""
        self.expire()
        self._values.pop(key, None)

    def expire(self) -> None:
        """Delete expired values."""
        self._refresh()
        now = self._clock.now()
        self._values = {key: (value, at) for key, (value, at) in self._values.items() if at is None or at > now}
