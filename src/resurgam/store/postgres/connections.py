"""The connections for calls: as many as the URL says, made when they are needed, and made again when they are lost."""

import asyncio
from collections import deque
from typing import Final

from resurgam.core.errors import StoreError
from resurgam.store.postgres.connection import Connection, connect
from resurgam.store.postgres.errors import Unreachable
from resurgam.store.postgres.url import Address

PATIENCE: Final = 10.0
"""Seconds for which calls wait for a server that cannot be used just now."""

_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.5
"""Seconds between two attempts to connect; each in vain doubles the pause."""

_FULL: Final = 1.0
"""Seconds for which no further connection is tried if the server has none left."""


class Connections:
    """Hand out connections, in the order in which they are asked for."""

    def __init__(self, address: Address, owner: str) -> None:
        self.address = address
        self.patient = False
        """Whether to wait for a server that cannot be reached: once the store was open."""

        self._owner = owner
        self._idle: list[Connection] = []
        self._used: set[Connection] = set()
        self._places = address.pool
        """Connections that may still be made."""

        self._waiting: deque[asyncio.Future[Connection | None]] = deque()
        self._made = 0
        self._closed = False

    async def take(self) -> Connection:
        """Return a connection that no other caller has; raise `StoreError` if none can be made."""
        while (connection := await self._next()) is None:
            try:
                connection = await self._connect_patiently()
            except Unreachable as error:
                if not (error.full and (self._idle or self._used)):
                    self._free_place()
                    raise
                asyncio.get_running_loop().call_later(_FULL, self._free_place)  # the others do it all meanwhile
            except BaseException:
                self._free_place()
                raise
            else:
                break
        self._used.add(connection)
        return connection

    def give_back(self, connection: Connection) -> None:
        """Let others use a connection again; one that is lost is replaced."""
        self._used.discard(connection)
        if self._closed or connection.lost:
            self.drop(connection)
            return
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return
        self._idle.append(connection)

    def drop(self, connection: Connection) -> None:
        """End a connection; another may be made in its place."""
        self._used.discard(connection)
        connection.terminate()
        self._free_place()

    def drop_idle(self) -> None:
        """End the connections that are not in use: they lead to a server that takes no writes."""
        idle, self._idle = self._idle, []
        for connection in idle:
            self.drop(connection)

    async def connect(self) -> Connection:
        """Make a connection that does not belong to the pool."""
        self._made += 1
        number = self._made
        raw = await connect(self.address, name=f"{self._owner}/{number}")
        if self._closed:
            raw.terminate()
            raise StoreError("the store was closed while this waited")
        return Connection(raw, self.address, number)

    def close(self) -> None:
        """End all connections."""
        self._closed = True
        for connection in (*self._idle, *self._used):
            connection.terminate()
        self._idle.clear()

    async def _next(self) -> Connection | None:
        """Return a free connection; None: make one."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.lost:
                return connection
            self._places += 1
        if self._places > 0:
            self._places -= 1
            return None
        waiter: asyncio.Future[Connection | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._pass_on(waiter.result())
            raise

    def _pass_on(self, connection: Connection | None) -> None:
        if connection is None:
            self._free_place()
        else:
            self.give_back(connection)

    def _free_place(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._places += 1

    async def _connect_patiently(self) -> Connection:
        loop = asyncio.get_running_loop()
        pause, patient_until = _FIRST_PAUSE, loop.time() + PATIENCE
        while True:
            try:
                return await self.connect()
            except Unreachable as error:
                impatient = not (self.patient or error.starting)
                if not error.passing or impatient or error.full or loop.time() >= patient_until:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
