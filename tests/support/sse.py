"""A client of server-sent events that calls an ASGI application itself, so that a test decides when it reads."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

import msgspec
from starlette.types import ASGIApp, Message


class SseClient:
    """One request. It takes what the application sends, unless it is `stalled`; *cursor* is the last id that has come."""

    def __init__(self, cursor: str = "") -> None:
        self.cursor = cursor
        self.status = 0
        self.headers: dict[str, str] = {}
        self.events: list[dict[str, Any]] = []
        self.ids: list[str] = []
        self.comments: list[str] = []
        self.ended = False
        self.sent = 0
        self._text = ""
        self._gone, self._reads = asyncio.Event(), asyncio.Event()
        self._news = asyncio.Event()
        self._reads.set()
        self._asked = False

    def stall(self) -> None:
        """Take nothing more."""
        self._reads.clear()

    def resume(self) -> None:
        """Take everything again."""
        self._reads.set()

    def leave(self) -> None:
        """Go away."""
        self._gone.set()

    def ring(self) -> None:
        """Look again at what has come."""
        self._news.set()

    async def has(self, events: int) -> list[dict[str, Any]]:
        """Return the events, once there are this many."""
        await self.until(lambda: len(self.events) >= events)
        return self.events

    async def until(self, holds: Any) -> None:
        """Wait until something holds of what has come."""
        async with asyncio.timeout(20):
            while not holds():
                await self._news.wait()
                self._news.clear()

    async def receive(self) -> Message:
        """Tell the application what the client does."""
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Take a part of the answer."""
        await self._reads.wait()
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.sent += len(message["body"])
            self._text += message["body"].decode()
            self.ended = not message.get("more_body", False)
        self._read()
        self.ring()

    def _read(self) -> None:
        if not self.headers.get("content-type", "").startswith("text/event-stream"):
            return
        *blocks, self._text = self._text.split("\n\n")
        for block in blocks:
            fields = [line.partition(":") for line in block.split("\n")]
            self.comments += [value.strip() for name, _, value in fields if not name and value]
            known = {name: value.strip() for name, _, value in fields}
            self.cursor = known.get("id", self.cursor)
            if "data" in known:
                self.events.append(msgspec.json.decode(known["data"]))
                self.ids.append(self.cursor)

    @property
    def body(self) -> Any:
        """The answer as JSON, if it is no stream."""
        return msgspec.json.decode(self._text)


@asynccontextmanager
async def events_of(
    app: ASGIApp,
    query: Iterable[tuple[str, str]] = (),
    *,
    last_id: str | None = None,
    method: str = "GET",
    key: str | None = None,
) -> AsyncIterator[SseClient]:
    """Open a stream, and leave it at the end; yields once the application has begun to answer."""
    client = SseClient(last_id or "")
    headers = [(b"host", b"localhost")]
    if key is not None:
        headers.append((b"authorization", f"Bearer {key}".encode()))
    if last_id is not None:
        headers.append((b"last-event-id", last_id.encode()))
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": "/events",
        "raw_path": b"/events",
        "root_path": "",
        "query_string": urlencode(list(query)).encode(),
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("localhost", 80),
    }
    asking = asyncio.ensure_future(app(scope, client.receive, client.send))
    asking.add_done_callback(lambda _: client.ring())
    try:
        await client.until(lambda: client.status and (client.cursor or client.sent or asking.done()))
        yield client
    finally:
        client.leave()
        client.resume()
        await asking
