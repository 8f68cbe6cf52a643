"""A lock that all processes on a store share, for one kind of work. It is lost unless it is renewed."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Final

import msgspec

from resurgam.core.clock import Clock
from resurgam.core.errors import StoreError
from resurgam.store.protocol import Values

LEASE: Final = 10_000
"""Milliseconds after which another process may take over from one that has not renewed its lock."""

_BEATS: Final = 4
"""Renewals in a lease, beside a block that takes long."""

_POLL: Final = 0.5
"""Seconds between two looks at a lock of another process."""

Sleep = Callable[[float], Awaitable[None]]


class LockLost(StoreError):
    """The lock has expired, or another process has taken it."""


class _Holder(msgspec.Struct, frozen=True):
    host: str
    pid: int
    token: str
    namespace: str = ""
    """In which *pid* counts: containers with the same host name may have a process of the same number."""


class Lock:
    """A lease-based lock that all processes on a store share. *key* is where its holder is kept; *work* describes it in errors.

    With *strict* a lock that has expired is lost, though no other process has it now: one may have had it meanwhile.
    """

    def __init__(self, values: Values, clock: Clock, *, key: str, work: str, strict: bool = False) -> None:
        self._values = values
        self._clock = clock
        self._key = key
        self._work = work
        self._strict = strict
        self._holder = _Holder(socket.gethostname(), os.getpid(), token_hex(8), _namespace())
        self._renewed_at = 0
        self._lost = False

    async def take(self, sleep: Sleep) -> None:
        """Wait until no other process has the lock; one that is dead does not count."""
        patient_until = self._clock.now() + LEASE + 1000
        while (other := await self._try()) is not None:
            if self._clock.now() >= patient_until:
                raise StoreError(f"process {other.pid} on {other.host} is {self._work}; wait for it")
            await sleep(_POLL)

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        """Take the lock, and have it for the whole block."""
        await self.take(asyncio.sleep)
        async with self.renewed():
            yield

    async def try_take(self) -> bool:
        """Take the lock if no living process has it; return whether it was taken."""
        return await self._try() is None

    async def _try(self) -> _Holder | None:
        """Take the lock, or return the process that has it."""
        mine = msgspec.json.encode(self._holder)
        while True:
            stored = await self._values.put_if_absent(self._key, mine, expires_at=self._clock.now() + LEASE)
            if stored == mine:
                self._renewed_at, self._lost = self._clock.now(), False
                return None
            other = msgspec.json.decode(stored, type=_Holder)
            if not _is_dead(other):
                return other
            await self._values.delete(self._key)

    @asynccontextmanager
    async def renewed(self) -> AsyncIterator[None]:
        """Renew the lock beside the block, which may take longer than a lease, and release it afterwards."""
        renewing = asyncio.get_running_loop().create_task(self._renew(), name=f"lock {self._key}")
        try:
            yield
        finally:
            renewing.cancel()
            await asyncio.wait({renewing})
            await self.release()

    async def _renew(self) -> None:
        """Renew the lock until cancelled, or until it is lost: the next `confirm` says so."""
        # Real time, not the engine's clock: the block does real work.
        while not self._lost:
            await asyncio.sleep(LEASE / 1000 / _BEATS)
            with suppress(StoreError):  # a store that fails now may answer before the lease is over
                await self.confirm()

    async def renew(self) -> None:
        """Renew the lock if a quarter of its lease has passed; raise `LockLost` if another process has taken over."""
        if self._clock.now() - self._renewed_at >= LEASE // 4:
            await self.confirm()

    async def confirm(self) -> None:
        """Renew the lock now; raise `LockLost` if another process has, or may have, taken over.

        A process that is suspended between the read and the renewal may already have lost it: what is done under the
        lock must be right if it is done twice.
        """
        stored = await self._values.get(self._key)
        now = self._clock.now()
        taken = stored is not None and msgspec.json.decode(stored, type=_Holder) != self._holder
        if self._lost or taken or (self._strict and stored is None):
            self._lost = True
            if taken:
                raise LockLost(f"another process has taken over: it is {self._work}, and finishes it")
            raise LockLost(f"this process stood still for more than {LEASE // 1000} s while it was {self._work}")
        await self._values.put(self._key, msgspec.json.encode(self._holder), expires_at=now + LEASE)
        self._renewed_at = now

    async def release(self) -> None:
        """Let others take it at once."""
        stored = await self._values.get(self._key)
        if stored is not None and msgspec.json.decode(stored, type=_Holder) == self._holder:
            await self._values.delete(self._key)


def _is_dead(holder: _Holder) -> bool:
    """Whether a process is known to have ended; of those on other hosts nothing is known."""
    if holder.host != socket.gethostname() or holder.namespace != _namespace() or holder.pid == os.getpid():
        return False
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _namespace() -> str:
    """Return what is the same for all processes that see this one under its number, and for no others."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:  # not Linux: without containers
        return ""


def archive_lock(values: Values, clock: Clock) -> Lock:
    """Return the right to archive executions of a store, and to change its archive."""
    return Lock(values, clock, key="archive-lock", work="archiving runs of this store", strict=True)
