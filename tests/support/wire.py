"""A proxy between a Postgres store and its server: it counts round trips, and cuts connections where it hurts.

It can also be a pooler in transaction mode, as far as a client can tell: nothing of a session outlives a transaction.
"""

import asyncio
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

_SSL_REQUEST = 80877103
_ENDS = (b"Q", b"S", b"H")
"""The messages after which a client waits: a simple query, the end of an extended one, and the wish for what is there."""

_DISCARD = b"DISCARD ALL\0"
_RESET = b"Q" + (4 + len(_DISCARD)).to_bytes(4, "big") + _DISCARD


class Wire:
    """What passes between the clients of a proxy and the server."""

    def __init__(self, host, port):
        self.round_trips = 0
        """Requests that clients have sent since the proxy was started."""

        self.requests = None
        """A list to which requests are added, each with all its messages; None: they are not kept."""

        self.lose_requests = 0
        """How many of the next requests do not reach the server: their connection is cut instead."""

        self.lose_replies = 0
        """How many of the next replies do not reach the client: their connection is cut instead, after the commit."""

        self.when = None
        """Whether a request or its reply may be lost, by the bytes of the request; None: each may."""

        self.refuses = False
        """Whether new connections are refused."""

        self.resets = False
        """Whether a session loses its settings, statements, locks and channels at the end of each transaction."""

        self.held = None
        """An event that replies wait for; None: they do not wait."""

        self.waits = asyncio.Event()
        """Set when a reply waits."""

        self.connections = {}
        self._server = (host, port)

    async def accept(self, reader, writer):
        if self.refuses:
            writer.transport.abort()
            return
        try:
            upstream = await asyncio.open_connection(*self._server)
        except OSError:
            writer.transport.abort()
            return
        connection = _Connection(self, (reader, writer), upstream)
        self.connections[connection] = asyncio.current_task()
        try:
            await connection.carry()
        finally:
            del self.connections[connection]

    def cut_all(self):
        """Cut all connections."""
        for connection in list(self.connections):
            connection.cut()


class _Connection:
    def __init__(self, wire, client, server):
        self._wire = wire
        self._client_reader, self._client_writer = client
        self._server_reader, self._server_writer = server
        self._request = b""
        self._loses = False
        self._begun = False

    async def carry(self):
        tasks = [asyncio.ensure_future(self._carry_requests()), asyncio.ensure_future(self._carry_replies())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.cut()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def cut(self):
        for writer in (self._client_writer, self._server_writer):
            writer.transport.abort()

    async def _carry_requests(self):
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                kind, message = await self._read_request()
                self._request += message
                if kind in _ENDS:
                    self._wire.round_trips += 1
                    if self._wire.requests is not None:
                        self._wire.requests.append(self._request)
                    may = self._wire.when is None or self._wire.when(self._request)
                    if self._wire.lose_requests and may:
                        self._wire.lose_requests -= 1
                        return
                    if self._wire.lose_replies and may:
                        self._wire.lose_replies -= 1
                        self._loses = True
                    self._server_writer.write(self._request)
                    self._request = b""
                elif not self._begun or kind in (b"p", b"X"):
                    self._server_writer.write(self._request)
                    self._request = b""

    async def _read_request(self):
        if not self._begun:
            size = await self._client_reader.readexactly(4)
            body = await self._client_reader.readexactly(int.from_bytes(size, "big") - 4)
            if int.from_bytes(body[:4], "big") != _SSL_REQUEST:
                self._begun = True
                self._server_writer.write(size + body)
                return await self._read_request()
            return b"", size + body
        kind = await self._client_reader.readexactly(1)
        size = await self._client_reader.readexactly(4)
        return kind, kind + size + await self._client_reader.readexactly(int.from_bytes(size, "big") - 4)

    async def _carry_replies(self):
        with suppress(OSError, asyncio.IncompleteReadError):
            while not self._begun:  # the answer to a wish for TLS has no length
                data = await self._server_reader.read(1)
                if not data:
                    return
                self._client_writer.write(data)
                if data != b"N":
                    rest = await self._server_reader.readexactly(4)
                    self._client_writer.write(rest)
                    self._client_writer.write(await self._server_reader.readexactly(int.from_bytes(rest, "big") - 4))
            while True:
                head = await self._server_reader.readexactly(5)
                message = head + await self._server_reader.readexactly(int.from_bytes(head[1:], "big") - 4)
                if head[:1] == b"Z":
                    if self._wire.resets and message[5:] == b"I":
                        await self._reset()
                    if self._loses:
                        return
                    if self._wire.held is not None:
                        self._wire.waits.set()
                        await self._wire.held.wait()
                self._client_writer.write(message)

    async def _reset(self):
        self._server_writer.write(_RESET)
        kind = b""
        while kind != b"Z":
            head = await self._server_reader.readexactly(5)
            kind = head[:1]
            assert kind != b"E"
            await self._server_reader.readexactly(int.from_bytes(head[1:], "big") - 4)


@asynccontextmanager
async def proxied(url):
    """Start a proxy to the server of a URL; yield what passes it, and the URL by which it is reached."""
    parts = urlsplit(url)
    wire = Wire(parts.hostname, parts.port)
    server = await asyncio.start_server(wire.accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield wire, url.replace(f"@{parts.hostname}:{parts.port}", f"@127.0.0.1:{port}", 1)
    finally:
        server.close()
        tasks = list(wire.connections.values())
        wire.cut_all()
        await server.wait_closed()
        await asyncio.gather(*tasks, return_exceptions=True)
