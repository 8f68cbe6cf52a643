"""The rows of the table of routes: what is asked, what is answered, who may ask.

The application and the OpenAPI document are both made of these rows, so neither can differ from the other.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from resurgam.engine import Engine
from resurgam.web.access import Guard, Role
from resurgam.web.problems import Problem

Q = TypeVar("Q")
B = TypeVar("B")

MAX_BODY = 4 * 1024 * 1024
"""The most bytes of a request's body, unless its row says otherwise."""


class Call(msgspec.Struct, Generic[Q, B]):
    """One request, decoded: *query* and *body* are values of the types that the row names; None without one."""

    engine: Engine
    request: Request
    query: Q
    body: B

    def path(self, name: str) -> str:
        """Return a parameter of the path."""
        found: str = self.request.path_params[name]
        return found


class Reply(msgspec.Struct):
    """The answer to a request: *body* is encoded as JSON, unless it is a whole `Response` already."""

    body: object = None
    status: int = 200
    headers: Mapping[str, str] = {}


Handler = Callable[[Call[Any, Any]], Awaitable[Reply | Response]]


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One row. *answers* are the types of successful answers by status; None: without a body.

    *body* and *query* are msgspec types of what is asked. *refusals* are the statuses of refusals beside 400, 401, 403
    and 500, which every row may have. *role* None: anybody may ask. *raw*: the handler reads the body itself.
    """

    method: str
    path: str
    handle: Handler
    role: Role | None
    summary: str
    answers: Mapping[int, Any]
    body: Any = None
    query: Any = None
    refusals: tuple[int, ...] = ()
    media_type: str = "application/json"
    max_body: int = MAX_BODY
    raw: bool = False


async def respond(endpoint: Endpoint, engine: Engine, guard: Guard, request: Request) -> Response:
    """Check a request, decode it, let the handler answer it, and encode the answer; a `Problem` is raised."""
    if endpoint.role is not None:
        await guard.check(request, endpoint.role)
    body = None if endpoint.raw else await read_body(endpoint, request)
    reply = await endpoint.handle(Call(engine, request, decode_query(endpoint.query, request), body))
    if isinstance(reply, Response):
        return reply
    content = b"" if reply.body is None else msgspec.json.encode(reply.body)
    media_type = None if reply.body is None else endpoint.media_type
    return Response(content, reply.status, headers=dict(reply.headers), media_type=media_type)


async def read_body(endpoint: Endpoint, request: Request) -> Any:
    """Return the decoded body of a request; refuse one that is too large, no JSON, or of another shape."""
    if endpoint.body is None:
        return None
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise Problem(415, "not_json", f"the body must be application/json, got {media_type or 'no content type'}")
    try:
        return msgspec.json.decode(await limited_body(request, endpoint.max_body), type=endpoint.body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Problem(400, "bad_body", f"body: {error}") from None


async def limited_body(request: Request, limit: int) -> bytes:
    """Return the body of a request; refuse it as soon as it is longer than *limit*."""
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise Problem(413, "too_large", f"the body has more than {limit} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


def decode_query(kind: Any, request: Request) -> Any:
    """Return the query of a request as a value of *kind*; a parameter that it does not have is refused."""
    given: dict[str, Any] = {}
    known = {} if kind is None else {field.encode_name: field for field in msgspec.structs.fields(kind)}
    for name in request.query_params:
        if name not in known:
            expected = ", ".join(known) or "none"
            raise Problem(400, "bad_query", f"there is no query parameter {name!r}; known are: {expected}")
        every = request.query_params.getlist(name)
        takes_many = "tuple" in str(known[name].type)
        if len(every) > 1 and not takes_many:
            raise Problem(400, "bad_query", f"the query parameter {name!r} is given {len(every)} times")
        given[name] = every if takes_many else every[0]
    if kind is None:
        return None
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Problem(400, "bad_query", f"query: {error}") from None
