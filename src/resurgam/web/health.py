"""Whether the server works, and what it serves."""

from typing import Final

from resurgam.store.protocol import Store
from resurgam.web import wire
from resurgam.web.drain import drain_of
from resurgam.web.problems import Problem
from resurgam.web.routing import Call, Endpoint, Reply
from resurgam.web.version import VERSION

_STATE: Final = "leader"
"""What clients of Argyll read of its consensus: each of our servers takes every request."""


class Sockets(wire.Answer, frozen=True):
    """The live event streams of this server, of any protocol."""

    clients: int = 0


class Backend(wire.Answer, frozen=True):
    """The store: its *type*. The rest is there for clients of Argyll."""

    type: str
    state: str = _STATE
    leader_id: str = ""
    leader_address: str = ""


class Details(wire.Answer, frozen=True):
    """What a server says of its parts."""

    websocket: Sockets
    backend: Backend


class Health(wire.Answer, frozen=True):
    """The health of the server: *status* is ``healthy`` if its store answers."""

    service: str
    status: str
    version: str
    details: Details


async def health(call: Call[None, None]) -> Reply:
    """Read from the store: one that cannot answer makes the server unhealthy, and so does the end of the server."""
    if drain_of(call.request).begun:
        raise Problem(503, "draining", "the server is about to stop", {"Retry-After": "1"})
    store = call.engine.store
    await store.values.get("health")
    sockets = Sockets(clients=call.request.app.state.hub.streams)
    details = Details(websocket=sockets, backend=Backend(type=_type_of(store)))
    found = Health(service="resurgam", status="healthy", version=VERSION, details=details)
    return Reply(found, headers={"X-Argyll-Raft-State": _STATE})


def _type_of(store: Store) -> str:
    return type(store).__name__.removesuffix("Store").lower()


ENDPOINTS: Final = (
    Endpoint(
        method="GET",
        path="/health",
        handle=health,
        role=None,
        summary="Tell whether the server and its store work.",
        answers={200: Health},
    ),
)
