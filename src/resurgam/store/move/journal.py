"""What a store remembers of a move from it, so that an interrupted one can be finished, and only one runs at a time."""

import os
import socket
from collections.abc import Awaitable, Callable
from secrets import token_hex
from typing import Final

import msgspec

from resurgam.core.clock import Clock
from resurgam.core.errors import StoreError
from resurgam.store.protocol import Values

_RECORD: Final = "move"
_LOCK: Final = "move-lock"
_IDENTITY: Final = "store-id"

LEASE: Final = 10_000
"""Milliseconds after which another process may take over from one that has not renewed its lock."""

_POLL: Final = 0.5
"""Seconds between two looks at a lock of another process."""

Sleep = Callable[[float], Awaitable[None]]


class Record(msgspec.Struct, frozen=True):
    """A move that has begun. *store* is the identity of the target, *url* is for people."""

    id: str
    store: str
    url: str

    @property
    def mark(self) -> str:
        """The end of the reason of every pause that this move makes."""
        return f"(move {self.id})"


class _Holder(msgspec.Struct, frozen=True):
    host: str
    pid: int
    token: str


async def identity_of(values: Values) -> str:
    """Return the identity of a store; the first caller of all makes it."""
    return (await values.put_if_absent(_IDENTITY, token_hex(8).encode())).decode()


async def begin(source: Values, target: Values, url: str) -> Record:
    """Return the record of the move, an earlier one if that was interrupted; raise `StoreError` if another is not finished."""
    here, there = await identity_of(source), await identity_of(target)
    if here == there:
        raise StoreError("both URLs lead to the same store; name another one to move to")
    back = await _read(target)
    if back is not None and back.store == here:
        raise StoreError("a move in the opposite direction was interrupted; finish it first, with both URLs exchanged")
    fresh = Record(id=token_hex(6), store=there, url=url)
    stored = await source.put_if_absent(_RECORD, msgspec.json.encode(fresh))
    record = msgspec.json.decode(stored, type=Record)
    if record.store != there:
        raise StoreError(f"a move from this store to {record.url} was interrupted; finish that one first")
    return record


async def end(source: Values) -> None:
    """Forget a move that is finished."""
    await source.delete(_RECORD)


async def _read(values: Values) -> Record | None:
    stored = await values.get(_RECORD)
    return None if stored is None else msgspec.json.decode(stored, type=Record)


class Lock:
    """The right to move runs out of a store. It is lost unless it is renewed."""

    def __init__(self, values: Values, clock: Clock) -> None:
        self._values = values
        self._clock = clock
        self._holder = _Holder(socket.gethostname(), os.getpid(), token_hex(8))
        self._renewed_at = 0

    async def take(self, sleep: Sleep) -> None:
        """Wait until no other process has the lock; one that is dead does not count."""
        mine = msgspec.json.encode(self._holder)
        patient_until = self._clock.now() + LEASE + 1000
        while True:
            stored = await self._values.put_if_absent(_LOCK, mine, expires_at=self._clock.now() + LEASE)
            if stored == mine:
                self._renewed_at = self._clock.now()
                return
            other = msgspec.json.decode(stored, type=_Holder)
            if _is_dead(other):
                await self._values.delete(_LOCK)
            elif self._clock.now() >= patient_until:
                raise StoreError(f"process {other.pid} on {other.host} is moving runs out of this store; wait for it")
            else:
                await sleep(_POLL)

    async def renew(self) -> None:
        """Renew the lock from time to time; raise `StoreError` if another process has taken over."""
        now = self._clock.now()
        if now - self._renewed_at < LEASE // 4:
            return
        stored = await self._values.get(_LOCK)
        if stored is not None and msgspec.json.decode(stored, type=_Holder) != self._holder:
            raise StoreError("another process has taken over this move; it finishes it")
        await self._values.put(_LOCK, msgspec.json.encode(self._holder), expires_at=now + LEASE)
        self._renewed_at = now

    async def release(self) -> None:
        """Let others move runs at once."""
        stored = await self._values.get(_LOCK)
        if stored is not None and msgspec.json.decode(stored, type=_Holder) == self._holder:
            await self._values.delete(_LOCK)


def _is_dead(holder: _Holder) -> bool:
    """Whether a process is known to have ended; of those on other hosts nothing is known."""
    if holder.host != socket.gethostname() or holder.pid == os.getpid():
        return False
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
