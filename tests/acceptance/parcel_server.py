"""A server with a worker inside, as a process of its own, for flows whose steps are the services of `parcel_service`.

``python parcel_server.py URL`` serves until it is killed, at the port in ``PARCEL_PORT``.
"""

import argparse
import asyncio
import os

import httpx2

from resurgam import Engine, Outbound, Registry
from resurgam.flows.http.connections import Connections
from resurgam.web import app
from resurgam.web.public_url import set_public_url
from resurgam.web.server import HttpServer, bind

registry = Registry()
WORKER = "X-Worker"
"""The header that tells a service which process calls it."""


class _Signed(Connections):
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.headers[WORKER] = str(os.getpid())
        return await super().handle_async_request(request)


def signed_outbound() -> Outbound:
    """Return the rules for calls which name the process that makes them."""
    return Outbound(transport=_Signed(Outbound()))


async def _serve(url: str, lease: float, queue: str, cache: int) -> None:
    port = int(os.environ["PARCEL_PORT"])
    opened = Engine(url, registry=registry, lease=lease, queues=[queue], cache_size=cache, outbound=signed_outbound())
    async with opened as engine:
        http = HttpServer(app(engine, keys=False, argyll=False), bind("127.0.0.1", port))
        await http.start()
        await set_public_url(engine, f"http://127.0.0.1:{port}")
        await engine.run()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--lease", type=float, default=2)
    parser.add_argument("--queue", default="default")
    parser.add_argument("--cache", type=int, default=1000)
    options = parser.parse_args()
    asyncio.run(_serve(options.url, options.lease, options.queue, options.cache))
