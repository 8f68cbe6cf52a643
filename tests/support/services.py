"""Services behind HTTP steps, without a network: what is sent to them, and what they answer."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote

import httpx2

from resurgam.engine import Engine
from resurgam.flows import model as m
from resurgam.flows.http.outbound import Outbound
from resurgam.flows.services import PUBLIC_URL
from resurgam.runtime.registry import Registry
from resurgam.store.protocol import Store
from resurgam.testing.clock import ManualClock
from resurgam.testing.environment import Environment
from support.engines import Engines

Handler = Callable[[httpx2.Request], Awaitable[httpx2.Response]]
PUBLIC = "http://server.test"


def answers(*given: int | dict[str, Any] | httpx2.Response) -> Handler:
    """Return a service that answers one after the other, the last one for ever: a status, or the outputs of a success."""
    left = list(given)

    async def handle(_: httpx2.Request) -> httpx2.Response:
        one = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(one, int):
            return httpx2.Response(one)
        return one if isinstance(one, httpx2.Response) else httpx2.Response(200, json=one)

    return handle


class FakeServices:
    """All services of a test, by the path at which each is called. *calls* are the requests, in order."""

    def __init__(self, **handlers: Handler) -> None:
        self.calls: list[httpx2.Request] = []
        self.handlers = handlers

    @property
    def outbound(self) -> Outbound:
        """What leads a worker to these services."""
        return Outbound(transport=httpx2.MockTransport(self._handle))

    async def _handle(self, request: httpx2.Request) -> httpx2.Response:
        await request.aread()
        self.calls.append(request)
        return await self.handlers[request.url.path.strip("/")](request)

    def called(self, name: str) -> list[httpx2.Request]:
        """Return the calls of one service."""
        return [one for one in self.calls if one.url.path == f"/{name}"]


def service(name: str) -> str:
    """Return the address of a service."""
    return f"http://{name}.test/{name}"


def address_in(request: httpx2.Request) -> tuple[str, str, str]:
    """Return the flow, the step and the token of the webhook that came with a call."""
    url = request.headers["Argyll-Webhook-URL"]
    flow_id, step_id, token = map(unquote, url.removeprefix(f"{PUBLIC}/webhook/").split("/"))
    return flow_id, step_id, token


async def answer(engine: Engine, request: httpx2.Request, **outputs: Any) -> bool:
    """Send the answer to a call; return whether it was the first."""
    return await engine.complete_work(*address_in(request), outputs)


@asynccontextmanager
async def serving(
    engines: Engines, services: FakeServices, *steps: m.Step, store: Store | None = None, **options: Any
) -> AsyncIterator[Environment]:
    """Open an engine whose worker calls these services, on a new store or on one that is open already."""
    given: dict[str, Any] = {"outbound": services.outbound, **options}
    clock = given.pop("clock", None) or ManualClock()
    opened = engines.open(Registry(), clock=clock, **given)
    if store is not None:
        opened = engines.serve(store, clock, Registry(), **given)
    async with opened as env:
        await env.engine.store.values.put(PUBLIC_URL, PUBLIC.encode())
        for one in steps:
            await env.engine.register_step(one)
        yield env


async def kinds(env: Environment, flow_id: str = "flow") -> list[str]:
    """Return the types of the entries of a flow that are about its work."""
    log = await env.handle(flow_id).history()
    return [one.type for one in log if one.type.startswith(("work_", "comp_", "retry_", "dispatch_"))]
