"""Load an HTTP server on this machine from one event loop, with as little work for each request as possible."""

import asyncio
import contextlib
import itertools
import resource
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final, NamedTuple, TypeVar

from resurgam.core.errors import StoreError

P = TypeVar("P", bound=asyncio.Protocol)

HOST: Final = "127.0.0.1"
CONNECTIONS: Final = 64
"""How many requests are in flight."""


class Load(NamedTuple):
    """How many requests were answered per second, and the seconds of each."""

    rate: float
    seconds: list[float]


async def post(port: int, path: str, body: bytes, number: int) -> Load:
    """Send the same request many times, over connections that are kept; each answer must be a 201."""
    head = (
        f"POST {path} HTTP/1.1\r\nhost: {HOST}:{port}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    )
    request = head.encode() + b"\r\n\r\n" + body
    left = iter(range(number))
    callers = [await _connect(port, lambda: _Caller(request, left)) for _ in range(min(CONNECTIONS, number))]
    begin = time.perf_counter()
    for one in callers:
        one.send()
    await asyncio.gather(*[one.done for one in callers])
    rate = number / (time.perf_counter() - begin)
    for one in callers:
        one.close()
    return Load(rate, list(itertools.chain.from_iterable(one.seconds for one in callers)))


@contextlib.asynccontextmanager
async def streams(port: int, path: str, number: int) -> AsyncIterator[list["Stream"]]:
    """Open event streams; yield them once the server has answered all."""
    allow_files(number + 100)
    opened = [await _connect(port, lambda: Stream(port, path)) for _ in range(number)]
    await asyncio.gather(*[one.answered for one in opened])
    try:
        yield opened
    finally:
        for one in opened:
            one.close()


def allow_files(number: int) -> None:
    """Raise the limit of open files of this process, as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < number:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(number, hard), hard))


async def _connect(port: int, make: Callable[[], P]) -> P:
    _, protocol = await asyncio.get_running_loop().create_connection(make, HOST, port)
    return protocol


class _Connection(asyncio.Protocol):
    """A connection whose loss is an error, unless it was closed here."""

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(StoreError(f"the server closed a connection: {error or 'without an error'}"))

    def write(self, data: bytes) -> None:
        """Send bytes."""
        assert self._transport is not None
        self._transport.write(data)

    def close(self) -> None:
        """Close the connection."""
        if not self.done.done():
            self.done.set_result(None)
        assert self._transport is not None
        self._transport.close()


class _Caller(_Connection):
    """Sends the next request as soon as the one before is answered."""

    def __init__(self, request: bytes, left: Iterator[int]) -> None:
        super().__init__()
        self._request = request
        self._left = left
        self._received = b""
        self._begin = 0.0
        self.seconds: list[float] = []

    def send(self) -> None:
        """Send the next request, if there is one."""
        if next(self._left, None) is None:
            self.done.set_result(None)
            return
        self._begin = time.perf_counter()
        self.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if not found or len(body) < _length(head):
            return
        if not head.startswith(b"HTTP/1.1 201"):
            self.done.set_exception(StoreError(f"the server answered {self._received.decode(errors='replace')}"))
            return
        self._received = b""
        self.seconds.append(time.perf_counter() - self._begin)
        self.send()


def _length(head: bytes) -> int:
    return int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])


class Stream(_Connection):
    """An event stream: it counts its events."""

    def __init__(self, port: int, path: str) -> None:
        super().__init__()
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.events = 0
        self._request = f"GET {path} HTTP/1.1\r\nhost: {HOST}:{port}\r\naccept: text/event-stream\r\n\r\n".encode()
        self._wanted = 0
        self._rest = b""
        self._reached: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the stream."""
        super().connection_made(transport)
        self.write(self._request)

    def connection_lost(self, error: Exception | None) -> None:
        """Fail whatever waits for the stream."""
        for waiting in (self.answered, self._reached):
            if waiting is not None and not waiting.done():
                waiting.set_exception(StoreError(f"the server closed a stream: {error or 'without an error'}"))
        self.close()

    def data_received(self, data: bytes) -> None:
        """Count events."""
        if not self.answered.done():
            self.answered.set_result(None)
        received = self._rest + data
        self.events += received.count(b"\ndata: ")
        self._rest = received[-6:]  # shorter than what is counted: nothing is counted twice
        if self._reached is not None and not self._reached.done() and self.events >= self._wanted:
            self._reached.set_result(None)

    def until(self, number: int) -> "asyncio.Future[None]":
        """Return what is done once this many events have come."""
        self._reached = asyncio.get_running_loop().create_future()
        self._wanted = number
        if self.events >= number:
            self._reached.set_result(None)
        return self._reached
