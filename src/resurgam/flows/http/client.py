"""Send requests to services: one pool of kept connections, opened only to addresses that were checked."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import lru_cache
from typing import Final
from weakref import WeakValueDictionary

import httpcore2
import httpx2

from resurgam.flows.http.answer import Response
from resurgam.flows.http.call import Outgoing
from resurgam.flows.http.connections import Connections, Resolve
from resurgam.flows.http.outbound import Outbound
from resurgam.flows.http.sending import Unreachable

_EXCERPT: Final = 16_384
"""Bytes that are read of an answer whose body is only shown in an error, or not needed at all."""
_DRAIN: Final = 0.2
"""Seconds for the rest of an answer that is not needed; after them its connection is not used again."""

_BROKEN: Final = (
    *(httpx2.TransportError, httpcore2.NetworkError, httpcore2.TimeoutException, httpcore2.ProtocolError),
    *(httpcore2.ConnectionNotAvailable, OSError),
)
_TIMEOUTS: Final = (TimeoutError, httpx2.TimeoutException, httpcore2.TimeoutException)


_parsed: Final = lru_cache(maxsize=1024)(httpx2.URL)
"""Most steps have one address, which need not be parsed for every call."""


class ServiceClient:
    """Sends requests, as `Sends` says."""

    def __init__(self, outbound: Outbound, *, max_body: int, resolve: Resolve | None = None) -> None:
        self._max_body = max_body
        self._transport = outbound.transport or Connections(outbound, resolve)
        self._connect_timeout = outbound.connect_timeout
        self._free = asyncio.Semaphore(outbound.max_connections)
        self._per_host = outbound.per_host
        self._hosts: WeakValueDictionary[bytes, asyncio.Semaphore] = WeakValueDictionary()

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.aclose()

    async def send(self, outgoing: Outgoing, *, timeout: float, body_wanted: bool = True) -> Response:
        """Send a request and return the answer, within *timeout* seconds after a connection may be used."""
        connect_timeout = min(timeout, self._connect_timeout)
        try:
            request = httpx2.Request(
                outgoing.method,
                _parsed(outgoing.url),
                headers=outgoing.headers,
                content=outgoing.body,
                extensions={"timeout": {"connect": connect_timeout}},
            )
        except (httpx2.InvalidURL, UnicodeError) as error:
            raise ValueError(f"the address is not valid ({error})") from None
        async with self._slot(request.url.netloc):
            try:
                async with asyncio.timeout(timeout):
                    return await self._exchange(request, body_wanted=body_wanted)
            except _TIMEOUTS as error:
                connecting = isinstance(error, httpx2.ConnectTimeout | httpcore2.ConnectTimeout)
                what = (
                    f"no connection within {connect_timeout:g}" if connecting else f"no whole answer within {timeout:g}"
                )
                raise Unreachable(f"{what} s") from None
            except _BROKEN as error:
                raise Unreachable(f"the connection failed ({_text(error)})") from None

    @asynccontextmanager
    async def _slot(self, host: bytes) -> AsyncIterator[None]:
        """Wait until a connection may be used: one slow service must not take all of them."""
        of_host = self._hosts.get(host)
        if of_host is None:
            of_host = self._hosts[host] = asyncio.Semaphore(self._per_host)
        async with of_host, self._free:
            yield

    async def _exchange(self, request: httpx2.Request, *, body_wanted: bool) -> Response:
        response = await self._transport.handle_async_request(request)
        try:
            body, cut = b"", False
            if not response.is_success:
                body, cut = await _read(response, _EXCERPT)
            elif body_wanted:
                body, cut = await _read(response, self._max_body)
            else:
                # The status is the answer; the rest is only read so that the connection can be used again.
                with suppress(*_BROKEN):
                    async with asyncio.timeout(_DRAIN):
                        await _read(response, _EXCERPT)
        finally:
            await response.aclose()
        headers = {name.lower(): value.decode("latin-1") for name, value in response.headers.raw}
        return Response(
            status=response.status_code,
            body=body,
            cut=cut,
            content_type=headers.get(b"content-type", ""),
            content_encoding=headers.get(b"content-encoding", "").strip().lower(),
            retry_after=headers.get(b"retry-after", ""),
            date=headers.get(b"date", ""),
        )


async def _read(response: httpx2.Response, limit: int) -> tuple[bytes, bool]:
    """Return the body as it was sent, not decompressed, and whether it was cut at *limit* bytes."""
    body = bytearray()
    async for chunk in response.stream:  # type: ignore[union-attr]  # the stream of an async transport
        body += chunk
        if len(body) > limit:
            return bytes(body[:limit]), True
    return bytes(body), False


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__
