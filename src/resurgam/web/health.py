"""Whether the server works, and what it serves."""

from typing import Any

import msgspec

from resurgam.web.drain import drain_of
from resurgam.web.problems import Problem
from resurgam.web.routing import Call, Endpoint, Reply
from resurgam.web.version import VERSION


class Health(msgspec.Struct, frozen=True):
    """The health of the server: *status* is ``healthy`` if its store answers."""

    service: str
    status: str
    version: str
    details: dict[str, Any]


async def health(call: Call[None, None]) -> Reply:
    """Ask the store for its counts: a store that cannot answer makes the server unhealthy, and so does its end."""
    if drain_of(call.request).begun:
        raise Problem(503, "draining", "the server is about to stop", {"Retry-After": "1"})
    stats = await call.engine.store.inspector.stats()
    details = {"instances": stats.instances}
    return Reply(Health("resurgam", "healthy", VERSION, details))


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/health",
        handle=health,
        role=None,
        summary="Tell whether the server and its store work.",
        answers={200: Health},
        reply={"service": "resurgam", "status": "healthy", "version": VERSION, "details": {}},
    ),
)
