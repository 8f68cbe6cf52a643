"""How these routes read a body and answer: JSON of any content type in, ``{"error", "status"}`` for what is refused."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from resurgam.engine import Engine
from resurgam.web.access import Guard, Role, shown_path
from resurgam.web.drain import given_up
from resurgam.web.problems import Problem, problem_of
from resurgam.web.routing import decode_json, limited_body

T = TypeVar("T")

logger = logging.getLogger("resurgam.web")


class Refused(Exception):
    """A request that is refused by the route itself."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


Handler: TypeAlias = Callable[[Engine, Request], Awaitable[Response]]


def answer(body: object, status: int = 200) -> Response:
    """Return a body as JSON."""
    return Response(msgspec.json.encode(body), status, media_type="application/json")


def refusal(status: int, text: str) -> Response:
    """Return what is answered to a request that is refused."""
    return answer({"error": text, "status": status}, status)


async def read_json(request: Request, kind: type[T], limit: int) -> T:
    """Return the body of a request as a value; its content type does not matter, as it does not to the original."""
    found: T = decode_json(await limited_body(request, limit), kind)
    return found


def served(
    handler: Handler, role: Role | None, engine: Engine, guard: Guard
) -> Callable[[Request], Awaitable[Response]]:
    """Return a handler as Starlette calls it: behind the guard, and with errors in the shape of these routes.

    *role* None: anybody may ask.
    """

    async def serve(request: Request) -> Response:
        try:
            if role is not None:
                await guard.check(request, role)
            return await handler(engine, request)
        except asyncio.CancelledError as error:
            return _refused(given_up(request, error))
        except Refused as error:
            return refusal(error.status, str(error))
        except Exception as error:
            problem = problem_of(error)
            if problem is not None:
                return _refused(problem)
            logger.exception("%s %s failed", request.method, shown_path(request))
            return refusal(500, "the server failed to answer; its log says why")

    return serve


def _refused(problem: Problem) -> Response:
    return refusal(problem.status, problem.detail)


def path_id(request: Request, name: str = "id") -> str:
    """Return an id in the path."""
    found: Any = request.path_params[name]
    return str(found)
