"""The table of these routes."""

from collections.abc import Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from resurgam.engine import Engine
from resurgam.web.access import Guard, Role, shown_path
from resurgam.web.argyll import flows, socket, steps, webhook
from resurgam.web.argyll.exchange import Handler, refusal, served

_TABLE: Final[Sequence[tuple[str, str, Handler]]] = (
    ("GET", "/engine", steps.overview),
    ("GET", "/engine/", steps.overview),
    ("GET", "/engine/catalog", steps.catalog),
    ("GET", "/engine/catalog/events", steps.catalog_events),
    ("GET", "/engine/cluster", steps.cluster),
    ("GET", "/engine/cluster/events", steps.cluster_events),
    ("GET", "/engine/step", steps.list_all),
    ("POST", "/engine/step", steps.register),
    ("GET", "/engine/step/{id}", steps.show),
    ("PUT", "/engine/step/{id}", steps.update),
    ("DELETE", "/engine/step/{id}", steps.remove),
    ("GET", "/engine/health", steps.health),
    ("GET", "/engine/health/{id}", steps.step_health),
    ("POST", "/engine/plan", flows.plan),
    ("GET", "/engine/flow", flows.list_all),
    ("POST", "/engine/flow", flows.start),
    ("POST", "/engine/flow/query", flows.search),
    # An id may contain slashes: that of a flow that another one has started does.
    ("GET", "/engine/flow/{id:path}/status", flows.status),
    ("GET", "/engine/flow/{id:path}/events", flows.events),
    ("GET", "/engine/flow/{id:path}", flows.show),
)
_WEBHOOK: Final = "/webhook/{flow:path}/{step}/{token}"
_ROLES: Final = {"GET": Role.READ, "POST": Role.OPERATE, "PUT": Role.ADMIN, "DELETE": Role.ADMIN}
_METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE")


def routes(engine: Engine, guard: Guard) -> list[BaseRoute]:
    """Return the routes of the original over an open engine. Its clients send no key, so *guard* must not ask for one."""
    table: list[BaseRoute] = [
        Route(path, served(handler, _ROLES[method], engine, guard), methods=[method])
        for method, path, handler in _TABLE
    ]
    # Services answer by the public address of the server, under any name: the secret in the path is what lets them pass.
    answers = served(webhook.answer_step, None, engine, guard)
    unknown = served(_refuse_unknown, Role.READ, engine, guard)
    return [
        *table,
        Route(_WEBHOOK, answers, methods=["POST"]),
        socket.route(engine, guard),
        Route("/engine/{rest:path}", unknown, methods=list(_METHODS)),
    ]


async def _refuse_unknown(engine: Engine, request: Request) -> Response:
    return refusal(404, f"there is nothing at {request.method} {shown_path(request)}")
