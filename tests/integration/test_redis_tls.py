"""A Redis store over TLS, through a proxy that speaks it in front of a server that does not."""

import asyncio
import contextlib
import ssl
from pathlib import Path

import pytest

import support
from resurgam import Engine, workflow
from resurgam.core.errors import StoreError
from resurgam.runtime.system import SystemClock
from resurgam.store.redis import connection
from resurgam.store.redis.link import Link
from resurgam.store.redis.url import parse
from support.redis import fresh_url, shared_server

FOLDER = Path(support.__file__).parent / "tls"
CERTIFICATE = FOLDER / "certificate.pem"


async def copy(reader, writer):
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()


@contextlib.asynccontextmanager
async def proxy(port):
    """Speak TLS on a port of its own, which is returned, for the server on *port*."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATE, FOLDER / "key.pem")
    copies, writers = set(), []

    async def serve(reader, writer):
        there, back = await asyncio.open_connection("127.0.0.1", port)
        writers.extend((writer, back))
        copies.add(asyncio.create_task(copy(reader, back)))
        copies.add(asyncio.create_task(copy(there, writer)))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await asyncio.gather(*copies)


@workflow
async def greet(ctx, name: str) -> str:
    return f"Hello, {name}!"


def through(port, options):
    """Return the URL of an empty store behind a proxy."""
    prefix = fresh_url().partition("?")[2]
    return f"rediss://127.0.0.1:{port}?{prefix}{options and '&'}{options}"


async def error_of(url):
    link = Link(parse(url), SystemClock(), name="test", lease=1000)
    try:
        with pytest.raises(StoreError) as refused:
            await link.any_primary()
        assert "\n" not in str(refused.value)
        return str(refused.value)
    finally:
        await link.close()


@pytest.mark.parametrize("trust", [f"ca={CERTIFICATE}", "insecure=1"])
async def test_an_engine_runs_over_tls(trust):
    async with proxy(shared_server().port) as port, Engine(through(port, trust)) as engine:
        handle = await engine.start(greet, "Ada", id="one")
        assert await handle.result() == "Hello, Ada!"


async def test_a_certificate_that_is_not_trusted_is_refused():
    async with proxy(shared_server().port) as port:
        assert "certificate verify failed" in await error_of(through(port, ""))


async def test_a_server_without_tls_is_refused(monkeypatch):
    monkeypatch.setattr(connection, "_CONNECT", 0.3)
    assert "does it speak TLS?" in await error_of(fresh_url().replace("redis://", "rediss://"))


async def test_certificates_that_cannot_be_read_are_named():
    assert "the certificates in '/no/such.pem' cannot be read" in await error_of(through(1, "ca=/no/such.pem"))
