"""Keep connections to services, opened only to addresses that were checked."""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from ipaddress import ip_address
from typing import Final, TypeAlias

import httpcore2
import httpx2

from resurgam.flows.http.addresses import AllowList
from resurgam.flows.http.outbound import Outbound
from resurgam.flows.http.wire import Wire

Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""Return the addresses of a host."""

_KEPT: Final = 2.0
"""Seconds that an idle connection is kept: less than services keep theirs, so that none is closed while it is used."""

Origin: TypeAlias = tuple[bytes, bytes, int]
Idle: TypeAlias = deque[tuple[float, httpcore2.AsyncHTTP11Connection]]


class Connections(httpx2.AsyncBaseTransport):
    """Sends requests over connections of its own. How many are open at a time is for the caller to bound.

    The library's own pool looks at every idle connection for every request; this one at the one that it takes.
    """

    def __init__(self, outbound: Outbound, resolve: Resolve | None = None) -> None:
        self._allowed = AllowList(outbound.allow)
        self._most = outbound.max_connections
        self._resolve = resolve or _resolve
        self._resolving: dict[tuple[str, int], asyncio.Future[Sequence[str]]] = {}
        self._idle: dict[Origin, Idle] = {}
        self._kept = 0
        self._ssl: ssl.SSLContext | None = None
        self._sweep_at = 0.0
        self._closed = False

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request; the connection is kept once its answer was read."""
        url = httpcore2.URL(
            scheme=request.url.raw_scheme,
            host=request.url.raw_host,
            port=request.url.port,
            target=request.url.raw_path,
        )
        origin = (url.origin.scheme, url.origin.host, url.origin.port)
        connection = await self._take(origin)
        if connection is None:
            wire = await self._open(*origin, timeout=request.extensions["timeout"]["connect"])
            connection = httpcore2.AsyncHTTP11Connection(url.origin, wire)
        answer = await connection.handle_async_request(
            httpcore2.Request(request.method, url, headers=request.headers.raw, content=request.stream)
        )

        async def release() -> None:
            await self._keep(origin, connection)

        return httpx2.Response(answer.status, headers=answer.headers, stream=_Body(answer, release))

    async def aclose(self) -> None:
        """Close all connections that are not in use, and keep no more."""
        self._closed = True
        for looking in self._resolving.values():
            looking.cancel()
        for idle in self._idle.values():
            for _, connection in idle:
                await connection.aclose()
        self._idle.clear()

    async def _take(self, origin: Origin) -> httpcore2.AsyncHTTP11Connection | None:
        """Return an idle connection, the one that was used last; None if there is none."""
        idle = self._idle.get(origin)
        now = asyncio.get_running_loop().time()
        while idle:
            until, connection = idle.pop()
            self._kept -= 1
            if now < until and not connection.has_expired():
                return connection
            await connection.aclose()
        return None

    async def _keep(self, origin: Origin, connection: httpcore2.AsyncHTTP11Connection) -> None:
        if not connection.is_idle():
            return  # it was closed, because its answer was not read to the end
        now = asyncio.get_running_loop().time()
        if now >= self._sweep_at:
            await self._sweep(now)
        # What a service sends beyond its answer would be taken for the answer to the next request.
        surplus, _ = connection._h11_state.trailing_data
        if surplus or self._closed or self._kept >= self._most:
            await connection.aclose()
            return
        self._idle.setdefault(origin, deque()).append((now + _KEPT, connection))
        self._kept += 1

    async def _sweep(self, now: float) -> None:
        """Close connections that were not used for long, of hosts that are not called any more too."""
        self._sweep_at = now + _KEPT
        for origin, idle in list(self._idle.items()):
            while idle and idle[0][0] <= now:
                self._kept -= 1
                await idle.popleft()[1].aclose()
            if not idle:
                del self._idle[origin]

    async def _open(self, scheme: bytes, host: bytes, port: int, *, timeout: float) -> Wire:
        """Connect to an address that was checked, never to a name that may resolve otherwise a moment later."""
        name = host.decode("ascii")
        try:
            async with asyncio.timeout(timeout):
                addresses = await self._addresses(name, port)
                self._allowed.check(name, addresses)
                return await self._connect(addresses, port, name if scheme == b"https" else None)
        except TimeoutError:
            raise httpcore2.ConnectTimeout from None

    async def _addresses(self, name: str, port: int) -> Sequence[str]:
        """Return the addresses of a host. Calls at the same time share one look, even if the first of them is given up.

        A process can make few looks at a time: those for a host whose names do not resolve must not take all of them.
        """
        place = name, port
        looking = self._resolving.get(place)
        if looking is None:
            looking = self._resolving[place] = asyncio.ensure_future(self._resolve(name, port))
            looking.add_done_callback(lambda _: self._resolving.pop(place, None))
        return await asyncio.shield(looking)

    async def _connect(self, addresses: Sequence[str], port: int, tls_name: str | None) -> Wire:
        """Connect to the first address that answers; with TLS if a name is given, which its certificate must have."""
        loop = asyncio.get_running_loop()
        failed = OSError("the host has no address")
        if tls_name is not None and self._ssl is None:
            self._ssl = httpx2.create_ssl_context()
        for address in addresses:
            try:
                _, wire = await loop.create_connection(
                    Wire, address, port, ssl=None if tls_name is None else self._ssl, server_hostname=tls_name
                )
            except OSError as error:
                failed = error
            else:
                return wire
        raise failed


class _Body(httpx2.AsyncByteStream):
    def __init__(self, answer: httpcore2.Response, release: Callable[[], Awaitable[None]]) -> None:
        self._answer = answer
        self._release = release

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._answer.aiter_stream()

    async def aclose(self) -> None:
        await self._answer.aclose()
        await self._release()


async def _resolve(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a host, in the order in which they are to be tried."""
    with suppress(ValueError):
        return [str(ip_address(host))]
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))
