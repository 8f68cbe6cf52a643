"""Whether the server works, and what it serves."""

from typing import Any, Final

import msgspec

from resurgam.web.drain import drain_of
from resurgam.web.problems import Problem
from resurgam.web.routing import Call, Endpoint, Reply
from resurgam.web.version import VERSION

_BACKEND: Final = {"type": "resurgam", "state": "leader", "leader_id": "", "leader_address": ""}
_LEADS: Final = {"X-Argyll-Raft-State": "leader"}
"""What clients of Argyll look at before they write: any server of a store takes every request."""


class Health(msgspec.Struct, frozen=True):
    """The health of the server: *status* is ``healthy`` if its store answers.

    *details* has the number of instances by status, and of live event streams of any protocol as ``websocket.clients``.
    """

    service: str
    status: str
    version: str
    details: dict[str, Any]


async def health(call: Call[None, None]) -> Reply:
    """Ask the store for its counts: a store that cannot answer makes the server unhealthy, and so does its end."""
    if drain_of(call.request).begun:
        raise Problem(503, "draining", "the server is about to stop", {"Retry-After": "1"})
    stats = await call.engine.store.inspector.stats()
    details = {
        "instances": stats.instances,
        "websocket": {"clients": call.request.app.state.hub.streams},
        "backend": _BACKEND,
    }
    return Reply(Health("resurgam", "healthy", VERSION, details), headers=_LEADS)


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
