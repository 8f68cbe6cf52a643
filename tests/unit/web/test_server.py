"""The server's connections: limits of a request's head, and what becomes of requests when it stops."""

import asyncio
import contextlib
import socket

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from resurgam import Engine, Registry
from resurgam.web import app
from resurgam.web.connections import MAX_HEAD, REQUEST_SECONDS
from resurgam.web.drain import Drain, drain_of
from resurgam.web.problems import Problem, answer
from resurgam.web.routing import limited_body
from resurgam.web.server import CannotServe, HttpServer, bind
from support.limits import HANGS


class Served:
    """A server with a route that waits for the test, one that answers at once, and one that never ends by itself."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.answer = asyncio.Event()
        self.hurry = asyncio.Event()
        self.clients: list[Client] = []
        self.app = Starlette(
            routes=[
                Route("/slow", self._slow, methods=["POST"]),
                Route("/fast", self._fast),
                Route("/large", self._large),
                Route("/limited", self._limited, methods=["POST"]),
                Route("/stream", self._stream),
            ]
        )
        self.app.state.drain = Drain()
        self.sockets = bind("127.0.0.1", 0)
        self.port = self.sockets[0].getsockname()[1]
        self.http = HttpServer(self.app, self.sockets)

    async def _slow(self, request: Request) -> Response:
        body = await request.body()
        self.asked.set()
        await self.answer.wait()
        return PlainTextResponse(body)

    async def _fast(self, request: Request) -> Response:
        return PlainTextResponse("fast")

    async def _large(self, request: Request) -> Response:
        return PlainTextResponse(b"x" * 20_000_000)

    async def _limited(self, request: Request) -> Response:
        try:
            return PlainTextResponse(await limited_body(request, 10))
        except Problem as problem:
            return answer(problem)

    async def _stream(self, request: Request) -> Response:
        async def parts():
            yield b"begun"
            await drain_of(request).wait()
            yield b"ended"

        return StreamingResponse(parts())

    async def connect(self) -> "Client":
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port))
        self.clients.append(client)
        return client

    async def close(self) -> None:
        if not self.app.state.drain.begun:
            self.hurry.set()
            await self.http.drain(self.hurry)
        for client in self.clients:
            client.writer.close()
            with contextlib.suppress(ConnectionError):
                await client.writer.wait_closed()


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, line: str, body: bytes = b"") -> None:
        self.writer.write(f"{line} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)

    async def head(self) -> str:
        return (await self.reader.readuntil(b"\r\n\r\n")).decode()

    async def rest(self) -> bytes:
        """Return everything until the server closes the connection."""
        return await asyncio.wait_for(self.reader.read(), HANGS)


@pytest.fixture
async def served():
    found = Served()
    await found.http.start()
    yield found
    await found.close()


async def test_a_request_in_flight_is_answered_while_new_connections_are_refused(served):
    client = await served.connect()
    client.send("POST /slow", b"order")
    await served.asked.wait()
    draining = asyncio.create_task(served.http.drain(served.hurry))
    while not served.app.state.drain.begun:
        await asyncio.sleep(0)
    with pytest.raises(ConnectionRefusedError):
        await served.connect()
    served.answer.set()
    answer = await client.rest()
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"connection: close" in answer
    assert answer.endswith(b"order")
    await draining


async def test_a_request_on_a_kept_connection_is_answered_though_the_server_has_begun_to_stop(served):
    client = await served.connect()
    client.send("GET /fast")
    assert "connection: close" not in await client.head()
    assert await client.reader.readexactly(4) == b"fast"
    draining = asyncio.create_task(served.http.drain(served.hurry))
    while not served.app.state.drain.begun:
        await asyncio.sleep(0)
    client.send("GET /fast")
    answer = await client.rest()
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"connection: close" in answer
    await draining


async def test_a_connection_that_waits_to_be_accepted_is_answered(served):
    with contextlib.closing(socket.create_connection(("127.0.0.1", served.port))) as waiting:
        waiting.sendall(b"GET /fast HTTP/1.1\r\nHost: localhost\r\n\r\n")
        draining = asyncio.create_task(served.http.drain(served.hurry))
        answer = await asyncio.to_thread(waiting.makefile("rb").read)
    assert answer.startswith(b"HTTP/1.1 200")
    await draining


async def test_a_stream_ends_whole_when_the_server_stops(served):
    client = await served.connect()
    client.send("GET /stream")
    await client.reader.readuntil(b"begun\r\n")
    draining = asyncio.create_task(served.http.drain(served.hurry))
    assert await client.rest() == b"5\r\nended\r\n0\r\n\r\n"
    await draining


async def test_a_second_signal_does_not_wait_for_requests(served):
    client = await served.connect()
    client.send("POST /slow", b"order")
    await served.asked.wait()
    draining = asyncio.create_task(served.http.drain(served.hurry))
    served.hurry.set()
    await asyncio.wait_for(draining, HANGS)
    assert not served.answer.is_set()


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"x" * MAX_HEAD + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /fast HTTP/1.1\r\nHost: localhost\r\n" + b"a: b\r\n" * MAX_HEAD + b"\r\n",
        b"GET /fast HTTP/1.1\r\nHost: localhost\r\nx: " + b"x" * 2 * MAX_HEAD,
        b"POST /slow HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nx: " + b"x" * 2 * MAX_HEAD,
    ],
    ids=["url", "many", "endless", "behind"],
)
async def test_a_head_that_is_too_long_is_refused(served, head):
    client = await served.connect()
    client.writer.write(head)
    assert (await client.rest()).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /slow HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /slow HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /slow HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"CONNECT somewhere:1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
    ids=["tls", "path", "length", "both", "chunk", "proxy"],
)
async def test_what_is_no_http_is_refused_as_a_problem(served, sent):
    client = await served.connect()
    client.writer.write(sent)
    answer = await client.rest()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b'"code":"bad_http"' in answer


_WHOLE = b"POST /slow HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\norder"


@pytest.mark.parametrize(
    "behind",
    [
        b"more than was announced\r\n\r\n",
        b"GET /engine/ws HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    ],
    ids=["no-http", "socket"],
)
async def test_a_whole_request_is_answered_whatever_comes_behind_it(served, behind):
    client = await served.connect()
    client.writer.write(_WHOLE + behind)
    await served.asked.wait()
    served.answer.set()
    answer = await client.rest()
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"order")


async def test_a_request_with_another_behind_it_learns_that_its_caller_has_left(served):
    client = await served.connect()
    client.send("GET /stream")
    client.send("GET /fast")
    await client.head()
    client.writer.close()
    while served.http.connections.tasks:
        await asyncio.sleep(0)


async def test_a_request_that_does_not_arrive_is_given_up(served):
    silent, partial, waiting = [await served.connect() for _ in range(3)]
    partial.writer.write(b"POST /slow HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nor")
    waiting.send("POST /slow", b"order")
    await served.asked.wait()
    now = asyncio.get_running_loop().time()
    served.http.connections.close_slow(now + 1)
    served.http.connections.close_slow(now + REQUEST_SECONDS + 1)
    assert await silent.rest() == await partial.rest() == b""
    served.answer.set()
    assert (await waiting.head()).startswith("HTTP/1.1 200")


async def test_a_client_that_takes_nothing_of_its_answer_is_given_up(served):
    dead, live = [await served.connect() for _ in range(2)]
    for client in (dead, live):
        client.send("GET /large")
        assert (await client.head()).startswith("HTTP/1.1 200")
    now = asyncio.get_running_loop().time()
    served.http.connections.close_slow(now)
    assert len(await live.reader.readexactly(20_000_000)) == 20_000_000
    served.http.connections.close_slow(now + REQUEST_SECONDS + 1)
    with contextlib.suppress(ConnectionError):  # a reset, if the kernel still has some of the answer
        assert len(await dead.rest()) < 20_000_000
    live.send("GET /fast")
    assert (await live.head()).startswith("HTTP/1.1 200")


def test_every_address_of_a_host_has_the_same_port():
    with contextlib.ExitStack() as opened:
        names = [opened.enter_context(one).getsockname() for one in bind("localhost", 0)]
        assert len({name[1] for name in names}) == 1
        assert {name[0] for name in names} <= {"127.0.0.1", "::1"}


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_a_host_that_is_not_this_machine_is_refused_with_its_name(host):
    with pytest.raises(CannotServe, match=f"cannot listen on {host}"):
        bind(host, 0)


async def test_a_body_that_says_it_is_too_long_is_refused_before_it_is_sent(served):
    """A caller that asks before it sends is told at once, and must not go on with the connection."""
    client = await served.connect()
    head = "POST /limited HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
    client.writer.write(f"{head}\r\n".encode())
    answer = await client.head()
    assert answer.startswith("HTTP/1.1 413")
    assert "connection: close" not in answer
    asking = await served.connect()
    asking.writer.write(f"{head}Expect: 100-continue\r\n\r\n".encode())
    answer = (await asking.rest()).decode()
    assert answer.startswith("HTTP/1.1 413")
    assert "connection: close" in answer


async def test_a_request_by_the_protocol_of_argyll_is_told_too_that_the_server_stops(monkeypatch):
    async with Engine("memory://", registry=Registry(), worker=False) as engine:
        monkeypatch.setattr(engine, "steps", asyncio.Event().wait)
        sockets, hurry = bind("127.0.0.1", 0), asyncio.Event()
        http = HttpServer(app(engine, keys=False), sockets)
        await http.start()
        host, port = sockets[0].getsockname()
        async with httpx2.AsyncClient(base_url=f"http://{host}:{port}") as client:
            asking = asyncio.create_task(client.get("/engine/step"))
            while not http.connections.tasks:
                await asyncio.sleep(0)
            hurry.set()
            await http.drain(hurry)
            answer = await asking
    assert (answer.status_code, answer.json()["status"]) == (503, 503)


async def test_a_request_that_cannot_be_waited_for_is_told_that_the_server_stops():
    """An update that waits for a worker, which does not come."""
    async with Engine("memory://", registry=Registry(), worker=False) as engine:
        await engine.start("order", id="o-1")
        sockets, hurry = bind("127.0.0.1", 0), asyncio.Event()
        http = HttpServer(app(engine, keys=False), sockets)
        await http.start()
        host, port = sockets[0].getsockname()
        async with httpx2.AsyncClient(base_url=f"http://{host}:{port}") as client:
            sending = asyncio.create_task(client.post("/workflows/o-1/updates/add", json={"timeout": 60}))
            while not http.connections.tasks:
                await asyncio.sleep(0)
            hurry.set()
            await http.drain(hurry)
            answer = await sending
    assert (answer.status_code, answer.json()["code"]) == (503, "stopping")
    assert answer.headers["connection"] == "close"
