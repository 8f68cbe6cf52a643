"""One connection to a service, as the HTTP library reads and writes it."""

import asyncio
import select
import ssl
from typing import Any, Final, cast

import httpcore2

_MOST: Final = 262_144
"""Bytes that are received ahead of the reader."""


class Wire(asyncio.Protocol, httpcore2.AsyncNetworkStream):
    """A connection. What is written is sent when an answer is awaited: head and body of a request in one packet.

    It keeps no time of its own: whoever calls has a timeout for the whole exchange.
    """

    def __init__(self) -> None:
        self._received = bytearray()
        self._written: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._changed: asyncio.Future[None] | None = None
        self._over = False
        self._error: BaseException | None = None
        self._reading = True
        self._may_write = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Keep what was received, and stop receiving if the reader is too slow."""
        self._received += data
        if len(self._received) > _MOST and self._reading and self._transport is not None:
            self._reading = False
            self._transport.pause_reading()
        self._notify()

    def eof_received(self) -> None:
        """Note that nothing more comes."""
        self._over = True
        self._notify()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the connection has ended, and how."""
        self._over, self._error = True, exc
        self._notify()

    def pause_writing(self) -> None:
        """Note that the service does not receive."""
        self._may_write = False

    def resume_writing(self) -> None:
        """Note that the service receives again."""
        self._may_write = True
        self._notify()

    def _notify(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    async def _change(self) -> None:
        self._changed = asyncio.get_running_loop().create_future()
        await self._changed

    @property
    def is_quiet(self) -> bool:
        """Whether the connection is open, and nothing has come that no request asked for; the end has not either."""
        return not (self._over or self._received or self._has_more())

    def _has_more(self) -> bool:
        """Whether the socket holds something that the loop has not looked at yet."""
        if self._transport is None or not hasattr(select, "poll"):
            return False
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(poll.poll(0))

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Keep what is to be sent until an answer is awaited."""
        self._written.append(buffer)

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Send what was written, and return what is received; empty at the end."""
        if self._written:
            await self._send()
        while not self._received and not self._over:
            await self._change()
        if not self._received and self._error is not None:
            raise httpcore2.ReadError(str(self._error) or type(self._error).__name__)
        data = bytes(self._received[:max_bytes])
        del self._received[:max_bytes]
        if not self._reading and len(self._received) <= _MOST and self._transport is not None and not self._over:
            self._reading = True
            self._transport.resume_reading()
        return data

    async def _send(self) -> None:
        if self._transport is not None and not self._over:
            self._transport.write(b"".join(self._written))
        self._written.clear()
        # An answer may come before everything is sent: a refusal of a large body, for instance.
        while not (self._may_write or self._over or self._received):
            await self._change()

    async def aclose(self) -> None:
        """Close the connection, without waiting for the service."""
        self._over = True
        if self._transport is not None:
            self._transport.abort()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> "Wire":
        """Refuse: a connection is opened with TLS, or never has it."""
        raise NotImplementedError

    def get_extra_info(self, info: str) -> Any:
        """Return whether the connection must not be used again, the only thing that is asked for."""
        return not self.is_quiet if info == "is_readable" else None
