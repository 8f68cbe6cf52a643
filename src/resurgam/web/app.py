"""The ASGI application: the table of routes over one engine."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final
from urllib.parse import quote

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from resurgam.engine import Engine
from resurgam.web import events, flows, health, openapi, problems, promises, steps, webhook, workers, workflows
from resurgam.web.access import Guard, KeyGuard, NoKeys, NoOtherSites, shown_path
from resurgam.web.argyll.routes import routes as argyll_routes
from resurgam.web.drain import Drain, given_up
from resurgam.web.hub import Hub
from resurgam.web.keys import KeysOf
from resurgam.web.routing import EncodedRoute, Endpoint, respond

logger = logging.getLogger("resurgam.web")

ENDPOINTS: Final[Sequence[Endpoint]] = (
    *workflows.ENDPOINTS,
    *flows.ENDPOINTS,
    *steps.ENDPOINTS,
    *promises.ENDPOINTS,
    *workers.ENDPOINTS,
    *webhook.ENDPOINTS,
    *events.ENDPOINTS,
    *health.ENDPOINTS,
)
"""Every route, in the order of the document."""


def app(engine: Engine, *, keys: bool = True, hosts: Sequence[str] = (), argyll: bool | None = None) -> Starlette:
    """Return an ASGI application that serves an engine; mount it in another program, or serve it by itself.

    The engine must be open when the first request comes; it may be opened after this call, in a lifespan.
    Callers need an API key unless *keys* is False. Then only requests to localhost and to *hosts* are answered, and
    none of pages of other sites: use it on loopback, or behind access control of your own.

    With *argyll* the app also serves the protocol of Argyll, whose clients send no key; by default only if no key is
    needed anyway.
    """
    guard: Guard = KeyGuard(KeysOf(engine)) if keys else NoKeys(hosts)
    other: list[BaseRoute] = []
    if argyll or (argyll is None and not keys):
        other = argyll_routes(engine, NoOtherSites() if keys else guard)
    # The webhook of Argyll has the path of ours, and its own answers. Routes are tried one after another.
    ours = [row for row in ENDPOINTS if not other or row not in webhook.ENDPOINTS]
    made = Starlette(
        routes=[*_routes(ours, engine, guard), EncodedRoute("/openapi.json", _describe(keys=keys)), *other],
        exception_handlers={HTTPException: _refuse_http, Exception: _refuse_unexpected},
    )
    made.router.redirect_slashes = False
    made.state.drain = drain = Drain()
    made.state.hub = Hub(lambda: engine.store, drain)
    return made


def _routes(endpoints: Sequence[Endpoint], engine: Engine, guard: Guard) -> list[BaseRoute]:
    """Return one route for each path, with all its methods."""
    by_path: dict[str, dict[str, Endpoint]] = {}
    for endpoint in endpoints:
        by_path.setdefault(endpoint.path, {})[endpoint.method] = endpoint
    return [EncodedRoute(path, _serve(rows, engine, guard), methods=[*rows]) for path, rows in by_path.items()]


def _serve(rows: Mapping[str, Endpoint], engine: Engine, guard: Guard) -> Callable[[Request], Awaitable[Response]]:
    async def serve(request: Request) -> Response:
        endpoint = rows["GET" if request.method == "HEAD" else request.method]
        try:
            return await respond(endpoint, engine, guard, request)
        except asyncio.CancelledError as error:
            return problems.answer(given_up(request, error))
        except Exception as error:
            refusal = problems.problem_of(error)
            if refusal is None:
                raise
            return problems.answer(refusal)

    return serve


def _describe(*, keys: bool) -> Callable[[Request], Awaitable[Response]]:
    document = openapi.document(ENDPOINTS, keys=keys)

    async def describe(request: Request) -> Response:
        """Return the document, whose paths are below the place where the application is mounted."""
        root = quote(request.scope.get("root_path", ""))
        content = msgspec.json.encode({**document, "servers": [{"url": root or "/"}]})
        return Response(content, media_type="application/json")

    return describe


async def _refuse_http(request: Request, error: Exception) -> Response:
    """Answer what Starlette itself refuses: a path or a method that does not exist."""
    assert isinstance(error, HTTPException)
    path = shown_path(request)  # a service may log what it is told about its mistake
    detail = {
        404: f"there is nothing at {path}; /openapi.json lists every route",
        405: f"{request.method} is not possible at {path}",
    }.get(error.status_code, error.detail)
    code = {404: "no_route", 405: "no_method"}.get(error.status_code, "refused")
    return problems.answer(problems.Problem(error.status_code, code, detail, dict(error.headers or {})))


async def _refuse_unexpected(request: Request, error: Exception) -> Response:
    logger.error("%s %s failed", request.method, shown_path(request), exc_info=error)
    detail = "the server failed to answer; its log says why"
    return problems.answer(problems.Problem(500, "internal", detail))
