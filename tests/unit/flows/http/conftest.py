"""A server that answers as a test says, byte by byte."""

import asyncio
import ssl
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

import support

TLS = Path(support.__file__).parent / "tls"


class Service:
    """*answer* gets the request (its head and its body) and the writer; the connection is kept unless it closes it."""

    def __init__(self):
        self.requests = []
        self.connections = 0
        self.closed = asyncio.Event()
        self.answer = lambda head, body: b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
        self.port = 0
        self._writers = set()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader, writer):
        self.connections += 1
        self._writers.add(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                length = next(
                    (int(line[15:]) for line in head.lower().splitlines() if line.startswith("content-length:")), 0
                )
                body = await reader.readexactly(length)
                self.requests.append((head, body))
                answer = self.answer(head, body)
                for part in [answer] if isinstance(answer, bytes) else answer:
                    if isinstance(part, bytes):
                        writer.write(part)
                        await writer.drain()
                    else:
                        await part
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
            self.closed.set()

    def close(self):
        for writer in self._writers:
            writer.transport.abort()


@asynccontextmanager
async def serving(made, **options):
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0, **options)
    made.port = server.sockets[0].getsockname()[1]
    yield made
    server.close()
    made.close()
    await asyncio.sleep(0)


@pytest.fixture
async def service():
    async with serving(Service()) as made:
        yield made


@pytest.fixture
async def tls_service():
    """One whose certificate, for localhost, is signed by nobody."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(TLS / "certificate.pem", TLS / "key.pem")
    async with serving(Service(), ssl=context) as made:
        yield made
