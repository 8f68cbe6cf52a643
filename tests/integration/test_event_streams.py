"""Event streams over stores that several engines have opened by themselves, as in several processes."""

import asyncio
import gc
import random
import socket
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from resurgam import Context, Engine, Registry
from resurgam.store.memory.store import MemoryStore
from resurgam.testing import ManualClock
from resurgam.testing.contract.bench import Bench, OpensStores
from resurgam.web import app
from support import postgres, redis
from support.listening import listening
from support.sse import events_of

registry = Registry()


@registry.activity
async def double(x: int) -> int:
    return 2 * x


@registry.workflow
async def work(ctx: Context, x: int) -> int:
    for _ in range(3):
        x = await ctx.activity(double, x)
    return x


@pytest.fixture(params=["sqlite", "redis", "redis-cluster", "postgres"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    if request.param == "postgres":
        async with postgres.emptied_url() as found:
            yield found
    else:
        make: dict[str, Any] = {"redis": redis.fresh_url, "redis-cluster": redis.fresh_cluster_url}
        yield make.get(request.param, lambda: f"sqlite:///{tmp_path}/events.db")()


async def test_events_of_every_engine_arrive_once_and_in_order_over_any_reconnect(url: str) -> None:
    """Two servers, each with an engine that runs workflows; the client changes between them at drawn points."""
    chance = random.Random(7)
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(Engine(url, registry=registry)) for _ in range(2)]
        servers = [app(engine, keys=False) for engine in engines]
        async with events_of(servers[0]) as client:
            cursor = client.cursor
        handles = [await engines[number % 2].start(work, number, id=f"order-{number}") for number in range(12)]
        seen: defaultdict[str, list[int]] = defaultdict(list)
        ended = 0
        while ended < len(handles):
            async with events_of(chance.choice(servers), last_id=cursor) as client:
                events = await client.has(1)
                received = events[: chance.randint(1, len(events))]
                cursor = client.ids[len(received) - 1]
            for event in received:
                seen[event["entity_id"]].append(event["seq"])
                ended += event["type"] == "workflow_deactivated"
        expected = {handle.entity_id: [event.seq for event in await handle.history()] for handle in handles}
        assert seen == expected
        async with events_of(servers[1], [("after", ""), ("follow", "false"), ("instance", "order-5")]) as client:
            await client.until(lambda: client.ended)
            assert [event["seq"] for event in client.events] == expected["order-5"]


async def test_a_client_that_does_not_read_its_socket_costs_little_and_misses_nothing() -> None:
    """The server holds a bounded part of what it has to send; another client gets everything meanwhile."""
    clock = ManualClock()
    store = MemoryStore(clock)
    b = Bench(store, clock, OpensStores())
    tags = {"note": "x" * 10_000}
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(Engine(store, registry=Registry(), worker=False, clock=clock))
        made = app(engine, keys=False)
        url = await stack.enter_async_context(listening(made))
        slow, quick = await connected(url, 4096), await connected(url, 2**20)
        for _, writer in (slow, quick):
            writer.write(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await asyncio.gather(instances(slow[0], 0), instances(quick[0], 0))
        for number in range(1000):
            await b.create(f"order-{number}", tags=tags)
            assert await instances(quick[0], 1) == [f"order-{number}"]
        assert 0 < held_by_the_server() < 1_000_000
        assert await instances(slow[0], 1000) == [f"order-{number}" for number in range(1000)]
        for _, writer in (slow, quick):
            writer.close()
        async with asyncio.timeout(20):
            while made.state.hub.streams:
                await asyncio.sleep(0)


async def connected(url: str, room: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to a server; *room* is how many bytes this side takes unread, about."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    made.setblocking(False)
    await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", urlsplit(url).port))
    return await asyncio.open_connection(sock=made, limit=2**14)


async def instances(reader: asyncio.StreamReader, count: int) -> list[str]:
    """Return the instances of this many events; with none, read what comes before the first one."""
    found: list[str] = []
    async with asyncio.timeout(20):
        while len(found) < count or (count == 0 and not found):
            line = await reader.readline()
            if line.startswith(b"data: "):
                found.append(msgspec.json.decode(line[6:])["entity_id"])
            elif count == 0 and line.startswith(b"id: "):
                break
    return found


def held_by_the_server() -> int:
    """Return the bytes that wait in the server for clients to read."""
    transports = [one for one in gc.get_objects() if isinstance(one, asyncio.Transport) and not one.is_closing()]
    return sum(one.get_write_buffer_size() for one in transports)
