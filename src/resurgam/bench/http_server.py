"""The servers that W14 loads, in processes of their own: ``python -m resurgam.bench.http_server api URL | service``."""

import asyncio
import socket
import sys
from typing import Final

from resurgam.bench.programs import registry
from resurgam.engine import Engine
from resurgam.worker.garbage import collect_rarely

EMPTY: Final = "/empty"
"""A route that reads what is sent to it and answers as a start does."""

_ANSWER: Final = b'{"entity_id":"%b","run_id":"%b","execution_id":"%b"}' % ((b"0" * 26,) * 3)


async def serve_api(url: str) -> None:
    """Serve the HTTP API as `resurgam serve` does, and a route that does nothing; print the port."""
    from starlette.requests import Request  # noqa: PLC0415 -- the process of a service has no use for it
    from starlette.responses import Response  # noqa: PLC0415 -- as above
    from starlette.routing import Route  # noqa: PLC0415 -- as above

    from resurgam.web import app  # noqa: PLC0415 -- as above
    from resurgam.web.server import HttpServer, bind  # noqa: PLC0415 -- as above

    async def empty(request: Request) -> Response:
        await request.body()
        return Response(_ANSWER, 201, media_type="application/json")

    async with Engine(url, registry=registry) as engine:
        served = app(engine, keys=False)
        served.router.routes.insert(0, Route(EMPTY, empty, methods=["POST"]))
        [listening] = bind("127.0.0.1", 0)
        await HttpServer(served, [listening]).start()
        collect_rarely()  # as `resurgam serve` does
        _report(listening)
        await asyncio.Event().wait()  # until it is killed


async def serve_steps() -> None:
    """Serve steps that do nothing: the path names the output. Print the port."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    server = await asyncio.get_running_loop().create_server(_Service, sock=listening)
    _report(listening)
    await server.serve_forever()


def _report(listening: socket.socket) -> None:
    sys.stdout.write(f"{listening.getsockname()[1]}\n")
    sys.stdout.flush()


class _Service(asyncio.Protocol):
    """Answers every request at once, and understands no more of HTTP than that takes."""

    def __init__(self) -> None:
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if not found or len(body) < int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]):
            return
        self._received = b""
        answer = b'{"%b":1}' % head.split(b" ", 2)[1].lstrip(b"/")
        about = b"content-type: application/json\r\ncontent-length: %d" % len(answer)
        self._transport.write(b"HTTP/1.1 200 OK\r\n%b\r\n\r\n%b" % (about, answer))


if __name__ == "__main__":
    asyncio.run(serve_api(sys.argv[2]) if sys.argv[1] == "api" else serve_steps())
