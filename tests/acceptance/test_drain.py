"""A server under load that is told to stop: what it has accepted is answered, and what it has answered is kept."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import pytest

from resurgam import Engine, Registry
from support.limits import HANGS

SRC = str(Path(__file__).parents[2] / "src")
SHOP = """
import asyncio

from resurgam import Context, activity, workflow

@activity
async def pack(order: str) -> str:
    await asyncio.sleep(0.01)
    return f"parcel of {order}"

@workflow
async def ship(ctx: Context, order: str) -> str:
    return await ctx.activity(pack, order)

@activity
async def snore() -> None:
    await asyncio.sleep(3600)

@workflow
async def sleep(ctx: Context) -> None:
    await ctx.activity(snore)

@workflow
async def wait(ctx: Context) -> None:
    await ctx.listen("go")
"""
PAUSES = (0,) * 16 + (0.2,) * 8
"""Seconds between the requests of clients that keep their connection: some are idle when the server stops."""
NEW, STREAMS = 8, 20
"""Clients that make a connection for each request, and clients that watch events."""

registry = Registry()


@registry.activity
async def pack(order: str) -> str:
    return f"parcel of {order}"


@registry.workflow
async def ship(ctx, order: str) -> str:
    return await ctx.activity(pack, order)


class Cut(Exception):
    """A request that was sent, and got no whole answer."""


class Load:
    """Clients that start workflows until the server refuses connections; *acknowledged* are the ids it has taken."""

    def __init__(self, url: str) -> None:
        self.host, _, port = url.removeprefix("http://").rpartition(":")
        self.port = int(port)
        self.acknowledged: list[str] = []
        self.asked: set[str] = set()
        self._numbers = count()

    async def start_on_one_connection(self, pause: float) -> None:
        with contextlib.suppress(ConnectionRefusedError):
            while True:
                async with self._connected() as (reader, writer):
                    while await self._start(reader, writer):
                        await asyncio.sleep(pause)

    async def start_on_new_connections(self) -> None:
        """Start workflows until connections are refused.

        The kernel resets one that comes just before the server closes its socket: the server has not seen it.
        """
        with contextlib.suppress(ConnectionRefusedError):
            while True:
                async with self._connected() as (reader, writer):
                    try:
                        await self._start(reader, writer)
                    except Cut as cut:
                        if not isinstance(cut.__cause__, ConnectionResetError):
                            raise
                        return

    async def watch(self) -> bytes:
        """Return the end of a stream of events."""
        async with self._connected() as (reader, writer):
            writer.write(b"GET /events HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            return (await reader.read())[-5:]

    async def wait_for_result(self, id: str) -> int:
        """Return the status of a long poll for a workflow that does not end."""
        async with self._connected() as (reader, writer):
            writer.write(f"GET /workflows/{id}/result?timeout=60 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            status, _ = await _answer(reader)
            return status

    async def start(self, body: dict[str, object]) -> tuple[int, bool]:
        async with self._connected() as (reader, writer):
            writer.write(_request(body))
            return await _answer(reader)

    async def _start(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Start a workflow; return whether the connection stays open."""
        order = f"o-{next(self._numbers)}"
        writer.write(_request({"workflow": "ship", "args": [order], "id": order}))
        self.asked.add(order)
        status, stays = await _answer(reader)
        assert status == 201, status
        self.acknowledged.append(order)
        return stays

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        try:
            reader, writer = await asyncio.open_connection(self.host, self.port)
        except ConnectionResetError as error:  # the server closed its socket while the kernel connected
            raise ConnectionRefusedError from error
        try:
            yield reader, writer
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


def _request(body: object) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST /workflows HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
    return head.encode() + b"\r\n\r\n" + content


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bool]:
    """Return the status of an answer, and whether its connection stays open."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:-2])
        await reader.readexactly(int(fields.get("content-length", 0)))
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise Cut from error
    return int(head.split(" ", 2)[1]), fields.get("connection") != "close"


@pytest.fixture
async def server(tmp_path):
    """Run a server; yield its process and its URL."""
    (tmp_path / "shop.py").write_text(SHOP)
    environment = {**os.environ, "PYTHONPATH": SRC, "RESURGAM_STORE": f"sqlite:///{tmp_path}/shop.db"}
    command = [sys.executable, "-m", "resurgam", "serve", "shop.py", "--port", "0", "--json"]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=tmp_path, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        yield process, json.loads(await process.stdout.readline())["url"]
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def test_what_a_server_accepted_under_load_is_answered_and_kept_when_it_stops(server, tmp_path):
    process, url = server
    load = Load(url)
    assert (await load.start({"workflow": "wait", "id": "waiting"}))[0] == 201
    watching = [asyncio.create_task(load.watch()) for _ in range(STREAMS)]
    polling = asyncio.create_task(load.wait_for_result("waiting"))
    clients = [load.start_on_one_connection(pause) for pause in PAUSES]
    clients += [load.start_on_new_connections() for _ in range(NEW)]
    starting = [asyncio.create_task(client) for client in clients]
    await asyncio.sleep(1)
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(HANGS):
        await asyncio.gather(*starting)
        assert set(await asyncio.gather(*watching)) == {b"0\r\n\r\n"}
        assert await polling < 500
        assert (await process.wait(), await process.stderr.read()) == (0, b"")
    assert len(load.acknowledged) > len(clients)
    async with Engine(f"sqlite:///{tmp_path}/shop.db", registry=registry) as engine, asyncio.timeout(HANGS):
        results = await asyncio.gather(*(engine.handle(order).result() for order in load.acknowledged))
        unanswered = load.asked.difference(load.acknowledged)
        assert len(unanswered) <= NEW
        assert not [order for order in unanswered if await engine.store.inspector.get(order) is not None]
    assert results == [f"parcel of {order}" for order in load.acknowledged]


async def test_a_second_signal_does_not_wait_for_running_work(server):
    process, url = server
    load = Load(url)
    assert (await load.start({"workflow": "sleep", "id": "sleeping"}))[0] == 201
    await asyncio.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    await asyncio.sleep(2)
    assert process.returncode is None  # the activity may finish, for ten seconds
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(7):
        assert await process.wait() == 0


NAP = """
import asyncio

from resurgam import Context, activity, workflow

@activity
async def nap() -> str:
    print("napping", flush=True)
    await asyncio.sleep(1.5)
    return "rested"

@workflow
async def rest(ctx: Context) -> str:
    return await ctx.activity(nap)
"""


async def test_a_worker_that_drains_takes_no_notice_of_a_second_sigterm(tmp_path):
    """Service managers send one to a worker, and its parent passes on another."""
    (tmp_path / "shop.py").write_text(NAP)
    url = f"sqlite:///{tmp_path}/shop.db"
    command = [sys.executable, "-m", "resurgam", "worker", "shop.py", "--store", url]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": SRC}, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert (await process.stdout.readline()).startswith(b"serving")
        async with Engine(url, worker=False) as client, asyncio.timeout(HANGS):
            handle = await client.start("rest", id="r-1")
            assert await process.stdout.readline() == b"napping\n"
            process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.3)
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
            assert await handle.result() == "rested"
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
