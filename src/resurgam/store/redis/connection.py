"""One connection to a server: commands go out, replies come back in the same order.

A reply belongs to the oldest command that has none, whether its caller still waits or not. A cancelled caller therefore
never shifts the replies of others.
"""

import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import hiredis

from resurgam.core.errors import StoreError
from resurgam.store.redis.url import Address, Endpoint, text_of

Reply = Callable[[Any], None]
"""Called with a reply: bytes, int, list, None, a `ReplyError`, or the `ConnectionLost` that came instead."""

Argument = bytes | str | int

_CONNECT: Final = 5.0
"""Seconds until an attempt to connect is given up."""

_BUFFER: Final = 65536
"""Bytes that are received at once."""

_KEEPALIVE: Final = ((socket.SO_KEEPALIVE, 1),)
_NOTHING: Final = object()


class ReplyError(StoreError):
    """The server refused a command. *code* is the first word of its answer, such as MOVED."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = text.split(" ", 1)[0]


class ConnectionLost(StoreError):
    """The connection ended, or could not be made."""


class Connection(asyncio.BufferedProtocol):
    """A connection that is authenticated and speaks RESP3; `connect` makes one."""

    def __init__(self, endpoint: Endpoint, on_push: Callable[[list[Any]], None] | None = None) -> None:
        self.endpoint = endpoint
        self.lost: ConnectionLost | None = None
        """Why the connection ended; None while it stands."""

        self.on_lost: Callable[[], None] | None = None
        self.on_unasked: Reply | None = None
        """Takes a reply that belongs to no command, such as the refusal of a subscription; None: it ends the connection."""

        self._on_push = on_push
        self._reader = hiredis.Reader(notEnoughData=_NOTHING, replyError=ReplyError)
        self._buffer = memoryview(bytearray(_BUFFER))
        self._expected: deque[Reply] = deque()
        self._transport: asyncio.Transport | None = None

    @property
    def missing(self) -> int:
        """The number of replies that have not come yet."""
        return len(self._expected)

    def send(self, commands: bytes, replies: Sequence[Reply]) -> None:
        """Send packed commands, each with the callback for its reply."""
        if self.lost is not None or self._transport is None:
            for reply in replies:
                reply(self.lost)
            return
        self._expected.extend(replies)
        self._transport.write(commands)

    async def ask(self, *command: Argument) -> Any:
        """Send one command and return its reply; raise what comes instead."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.send(hiredis.pack_command(command), [lambda reply: None if future.done() else future.set_result(reply)])  # type: ignore[arg-type]
        answer = await future
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self, reason: str = "it was closed") -> None:
        """End the connection; all commands without a reply get a `ConnectionLost` with the reason."""
        if self._transport is not None:
            self._transport.abort()
        self._end(reason)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast("asyncio.Transport", transport)  # another loop may have a class of its own

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go. Without a buffer the loop would allocate its largest for every reply."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Hand each reply to the command it belongs to."""
        reader, expected = self._reader, self._expected
        try:
            reader.feed(self._buffer, 0, nbytes)  # type: ignore[arg-type]  # it takes any buffer
            while (reply := reader.gets()) is not _NOTHING:
                if type(reply) is hiredis.PushNotification:
                    if self._on_push is not None:
                        self._on_push(reply)
                elif expected:
                    expected.popleft()(reply)
                elif self.on_unasked is not None:
                    self.on_unasked(reply)
                else:
                    self.close(f"an answer came that was not asked for: {reply!r:.100}")
                    return
        except hiredis.ProtocolError as error:
            self.close(f"the answer is not that of a Redis server: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        """Fail all commands that have no reply."""
        self._end(str(error) if error is not None else "the server closed it")

    def _end(self, reason: str) -> None:
        if self.lost is not None:
            return
        self.lost = lost = ConnectionLost(f"connection to {text_of(self.endpoint)} lost: {reason}")
        expected, self._expected = self._expected, deque()
        for reply in expected:
            reply(lost)
        if self.on_lost is not None:
            self.on_lost()


async def connect(
    address: Address,
    endpoint: Endpoint,
    on_push: Callable[[list[Any]], None] | None = None,
    *,
    sentinel: bool = False,
) -> Connection:
    """Connect, authenticate and choose the database; raise `ConnectionLost`, or `StoreError` if the server refuses.

    Sentinels are asked without credentials: those of the URL are for the servers.
    """
    loop = asyncio.get_running_loop()
    connection = Connection(endpoint, on_push)
    try:
        async with asyncio.timeout(_CONNECT):
            host, port = endpoint
            tls = address.tls_context()
            transport, _ = await loop.create_connection(
                lambda: connection, host, port, ssl=tls, server_hostname=host if tls is not None else None
            )
            _keep_alive(transport)
            await _greet(connection, address, sentinel=sentinel)
    except TimeoutError:
        connection.close("no answer")
        doubt = "; does it speak TLS?" if address.tls else ""
        raise ConnectionLost(f"{address}: no answer from {text_of(endpoint)} within {_CONNECT:g} s{doubt}") from None
    except OSError as error:
        connection.close(str(error))
        raise ConnectionLost(f"{address}: cannot connect to {text_of(endpoint)}: {_reason(error)}") from error
    except BaseException:
        connection.close()
        raise
    return connection


async def runs_function(address: Address, endpoint: Endpoint, patience: float) -> bool:
    """Whether a server runs a function or a script just now, as far as it says so on a connection of its own.

    In the first seconds of a function a server answers nothing: it is given a second attempt to say BUSY.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(patience):
            for _ in range(2):
                with contextlib.suppress(StoreError):
                    return await _says_busy(address, endpoint)
    return False


async def _says_busy(address: Address, endpoint: Endpoint) -> bool:
    try:
        connection = await connect(address, endpoint)
        try:
            await connection.ask("PING")
        finally:
            connection.close()
    except ReplyError as error:
        return error.code == "BUSY"
    return False


def pack(*command: Argument) -> bytes:
    """Return a command as it is sent."""
    packed: bytes = hiredis.pack_command(command)  # type: ignore[arg-type]
    return packed


async def _greet(connection: Connection, address: Address, *, sentinel: bool) -> None:
    login: tuple[Argument, ...] = ()
    if address.password is not None and not sentinel:
        login = ("AUTH", address.user or "default", address.password)
    try:
        await connection.ask("HELLO", 3, *login, "SETNAME", "resurgam")
        if address.database and not sentinel:
            await connection.ask("SELECT", address.database)
    except ConnectionLost as error:
        raise ConnectionLost(f"{address}: {error}") from error
    except ReplyError as error:
        if error.code == "BUSY":  # a function runs
            raise
        raise _refusal(address, error) from error


def _refusal(address: Address, error: ReplyError) -> StoreError:
    """Return a one-line error for a login that was refused; it never has the password in it."""
    if error.code == "WRONGPASS":
        return StoreError(f"{address}: the server refuses this user and password; check those in the URL")
    if error.code == "NOAUTH":
        return StoreError(f"{address}: the server wants a password; write redis://user:password@host")
    if error.code in ("NOPROTO", "ERR") and "HELLO" in str(error).upper():
        return StoreError(f"{address}: the server is too old for RESP3; Redis 7.0 or Valkey is needed")
    if "without any password configured" in str(error):
        return StoreError(f"{address}: the server knows no password, but the URL has one")
    return StoreError(f"{address}: the server refuses the connection: {error}")


def _reason(error: OSError) -> str:
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno)  # asyncio adds the address
    return error.strerror or str(error) or type(error).__name__


def _keep_alive(transport: asyncio.Transport) -> None:
    """Have the kernel notice that the other machine is gone."""
    raw = transport.get_extra_info("socket")
    if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for option, value in _KEEPALIVE:
            raw.setsockopt(socket.SOL_SOCKET, option, value)
