"""Live events of the whole store as server-sent events, whichever engine wrote them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final

import msgspec
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from resurgam.core.errors import BadCursor, StoreError
from resurgam.web.access import Role
from resurgam.web.drain import drain_of
from resurgam.web.hub import STOPPING, Hub, Stream
from resurgam.web.problems import Problem
from resurgam.web.routing import Call, Endpoint
from resurgam.web.window import Batch, Filter, StoredEvent

_PATIENCE: Final = 1.0
"""Seconds that a client has to take the last bytes of a stream that ends."""

_RETRY: Final = b"retry: 1000\n"
"""The milliseconds after which a client reconnects."""

Name = Annotated[str, msgspec.Meta(min_length=1)]


class EventsQuery(msgspec.Struct, frozen=True):
    """Which events: of some instances, of some types, after a cursor; without *follow* the stream ends where they end.

    Without *after* and ``Last-Event-ID`` the stream begins now; with an empty *after*, at the beginning.
    """

    instance: tuple[Name, ...] = ()
    type: tuple[Name, ...] = ()
    after: str | None = None
    follow: bool = True


def hub_of(connection: HTTPConnection) -> Hub:
    """Return the hub of the application that serves a request."""
    found: Hub = connection.app.state.hub
    return found


async def stream_events(call: Call[EventsQuery, None]) -> Response:
    """Open a stream. A browser that reconnects repeats its URL: the header is newer than the cursor in it."""
    if drain_of(call.request).begun:
        # A browser gives up for good on any status but 200. This one makes it come again.
        return Response(_RETRY + _comment(STOPPING), media_type=EventResponse.media_type)
    query = call.query
    after = call.request.headers.get("last-event-id") or query.after
    wanted = Filter(frozenset(query.instance), frozenset(query.type))
    try:
        stream = await hub_of(call.request).open(wanted, after, follow=query.follow)
    except BadCursor as error:
        field = "query.after" if after == query.after else "header.last-event-id"
        raise Problem(400, "bad_cursor", str(error), field=field) from error
    return EventResponse(stream, call.check)


class EventResponse(Response):
    """Sends a stream of events until it ends, or the client goes away.

    Every block has the cursor after it, the first one and those that keep the connection alive too: a client can
    reconnect at any point, also if none of its events has come yet.
    """

    media_type = "text/event-stream"

    def __init__(self, stream: Stream, check: Callable[[], Awaitable[None]]) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._stream = stream
        self._check = check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream; whatever ends it, everything that it holds is freed."""
        sending = asyncio.ensure_future(self._send(send, has_body=scope["method"] != "HEAD"))
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            ends: set[asyncio.Future[Any]] = {sending, gone, self._stream.ended}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not sending.done() and not gone.done():
                await asyncio.wait({sending, gone}, timeout=_PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._stream.close()
            sending.cancel()
            gone.cancel()
            [error, _] = await asyncio.gather(sending, gone, return_exceptions=True)
        if isinstance(error, Exception) and not isinstance(error, OSError):
            raise error  # an OSError tells of a connection that is lost

    async def _send(self, send: Send, *, has_body: bool) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        if has_body:
            await _write(send, _RETRY + _position(self._stream.start))
            reason = await self._send_events(send)
            await _write(send, _comment(reason))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_events(self, send: Send) -> str:
        """Send events as long as there are any; return the reason for the end."""
        try:
            beats = self._stream.beats
            while (batch := await self._stream.next()) is not None:
                if beats != self._stream.beats:
                    beats = self._stream.beats
                    await self._check()
                await _write(send, _encode(batch))
        except Problem as refused:
            return refused.detail
        except StoreError:
            return "the store does not answer; reconnect later"
        return self._stream.ended.result() if self._stream.ended.done() else "these are all events"


async def _write(send: Send, content: bytes) -> None:
    await send({"type": "http.response.body", "body": content, "more_body": True})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _encode(batch: Batch) -> bytes:
    if not batch.items:
        return b":\n" + _position(batch.cursor)
    return b"".join(b"id: %b\ndata: %b\n\n" % (item.cursor.encode(), item.line) for item in batch.items)


def _comment(text: str) -> bytes:
    return b": %b\n\n" % text.encode()


def _position(cursor: str) -> bytes:
    """Return a block that moves the cursor of the client and is no event."""
    return b"id: %b\n\n" % cursor.encode()


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/events",
        handle=stream_events,
        role=Role.READ,
        summary="Follow the events of all instances as they are committed, as server-sent events.",
        description=(
            "Each event is the `data` of a message, whose `id` is the cursor after it. A client that reconnects with "
            "`Last-Event-ID` misses and repeats nothing. Without a cursor the stream begins now, with an empty `after` "
            "at the first event. `instance` and `type` may be repeated; without `follow` the stream ends with the last "
            "event there is. A comment comes every 15 seconds if there are no events."
        ),
        answers={200: StoredEvent},
        query=EventsQuery,
        media_type="text/event-stream",
    ),
)
