"""The rows of the table of routes: what is asked, what is answered, who may ask.

The application and the OpenAPI document are both made of these rows, so neither can differ from the other.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from typing import Annotated, Any, Final, Generic, TypeVar, get_args, get_origin
from urllib.parse import quote, unquote, unquote_to_bytes

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

from resurgam.engine import Engine
from resurgam.web.access import Guard, Role
from resurgam.web.problems import Problem, field_of

Q = TypeVar("Q")
B = TypeVar("B")

MAX_BODY: Final = 4 * 1024 * 1024
"""The most bytes of a request's body."""

_HEADERS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class Call(msgspec.Struct, Generic[Q, B]):
    """One request, decoded: *query* and *body* are values of the types that the row names; None without one."""

    engine: Engine
    request: Request
    query: Q
    body: B
    check: Callable[[], Awaitable[None]]
    """Asks the guard again, for an answer that lasts: the key may have been revoked meanwhile."""

    def path(self, name: str) -> str:
        """Return a parameter of the path."""
        return decode_segment(name, self.request.path_params[name])

    def url_of(self, *segments: str) -> str:
        """Return the path of something that this application serves, wherever it is mounted."""
        root: str = self.request.scope.get("root_path", "")
        return "/".join((root and quote(root), *map(_quoted, segments)))


class Reply(msgspec.Struct):
    """The answer to a request: *body* is encoded as JSON, unless it is a whole `Response` already."""

    body: object = None
    status: int = 200
    headers: Mapping[str, str] = {}


Handler = Callable[[Call[Any, Any]], Awaitable[Reply | Response]]


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One row. *answers* are the types of successful answers by status; None: without a body.

    *body* and *query* are msgspec types of what is asked; with *optional* the body may be left out. *refusals* say for
    each status of a refusal when it comes, beside 400, 401, 403 and 500, which every row may have. *example* is one of
    the body, *reply* one of the first answer; *path_examples* are those of parameters of the path. *role* None: anybody
    may ask. *raw*: the handler reads the body itself.
    """

    method: str
    path: str
    handle: Handler
    role: Role | None
    summary: str
    answers: Mapping[int, Any]
    description: str = ""
    body: Any = None
    optional: bool = False
    query: Any = None
    refusals: Mapping[int, str] = {}
    example: Any = None
    reply: Any = None
    path_examples: Mapping[str, str] = {}
    media_type: str = "application/json"
    raw: bool = False


class EncodedRoute(Route):
    """A route that is matched before percent-encoding is undone: a parameter may contain ``%2F``, which is a slash."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match the path of a request as it was sent."""
        found = self.path_regex.match(encoded_path(scope)) if scope["type"] == "http" else None
        if found is None:
            return Match.NONE, {}
        child = {"endpoint": self.endpoint, "path_params": {**scope.get("path_params", {}), **found.groupdict()}}
        return Match.FULL if scope["method"] in (self.methods or ()) else Match.PARTIAL, child


def encoded_path(scope: Scope) -> str:
    """Return the path of a request as it was sent, below the place where the application is mounted."""
    raw: bytes | None = scope.get("raw_path")
    path = quote(scope["path"]) if raw is None else raw.decode("latin-1")
    root: str = scope.get("root_path", "")
    if not root:
        return path
    if path.startswith(f"{root}/"):
        return path[len(root) :]
    ends = (number for number, character in enumerate(path) if character == "/")
    return next((path[end:] for end in ends if end and unquote(path[:end]) == root), path)


def decode_segment(name: str, encoded: str) -> str:
    """Return a parameter of the path as text; refuse one that is no UTF-8, or has the character NUL."""
    try:
        text = unquote_to_bytes(encoded).decode()
    except UnicodeDecodeError:
        raise Problem(400, "bad_path", f"path: {name} must be UTF-8, percent-encoded", field=f"path.{name}") from None
    if "\0" in text:
        raise Problem(400, "bad_path", f"path: {name} must not contain the character NUL", field=f"path.{name}")
    return text


def _quoted(segment: str) -> str:
    """Return a segment of a path, percent-encoded; most have nothing to encode, such as generated ids."""
    return segment if segment.isascii() and segment.isalnum() else quote(segment, safe="")


async def respond(endpoint: Endpoint, engine: Engine, guard: Guard, request: Request) -> Response:
    """Check a request, decode it, let the handler answer it, and encode the answer; a `Problem` is raised."""

    async def check() -> None:
        if endpoint.role is not None:
            await guard.check(request, endpoint.role)

    await check()
    for name, encoded in request.path_params.items():
        decode_segment(name, encoded)
    query = decode_query(endpoint.query, request)
    body = None if endpoint.raw else await read_body(endpoint, request)
    reply = await endpoint.handle(Call(engine, request, query, body, check))
    if isinstance(reply, Response):
        return reply
    content = b"" if reply.body is None else msgspec.json.encode(reply.body)
    media_type = None if reply.body is None else endpoint.media_type
    return Response(content, reply.status, headers={**_HEADERS, **reply.headers}, media_type=media_type)


async def read_body(endpoint: Endpoint, request: Request) -> Any:
    """Return the decoded body of a request; refuse one that is too large, no JSON, or of another shape."""
    if endpoint.body is None:
        return None
    content = await limited_body(request, MAX_BODY)
    if endpoint.optional and not content:
        return endpoint.body()
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise Problem(415, "not_json", f"the body must be application/json, got {media_type or 'no content type'}")
    return decode_json(content, endpoint.body)


def decode_json(content: bytes, kind: Any) -> Any:
    """Return JSON as a value of *kind*; refuse what is no JSON, or of another shape."""
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError as error:
        field = field_of("body", error)
        raise Problem(400, "bad_body", f"body: {error}{_known_fields(kind, str(error))}", field=field) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Problem(400, "bad_json", f"body: {error}", field="body") from None
    except RecursionError:
        raise Problem(400, "bad_json", "body: the JSON is nested too deeply", field="body") from None


def _known_fields(kind: Any, said: str) -> str:
    """Return the fields of a body that has one which is not known."""
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    if not said.startswith("Object contains unknown field") or " - at " in said:
        return ""
    return f"; known are: {', '.join(field.encode_name for field in msgspec.structs.fields(kind))}"


async def limited_body(request: Request, limit: int) -> bytes:
    """Return the body of a request; refuse it as soon as it is longer than *limit*, or says that it will be."""
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limit:
        raise _too_large(request, limit)
    chunks, size = [], 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > limit:
                raise _too_large(request, limit)
            chunks.append(chunk)
    except ClientDisconnect:
        raise Problem(400, "disconnected", "the caller left before its body had arrived", field="body") from None
    return b"".join(chunks)


def _too_large(request: Request, limit: int) -> Problem:
    # A caller that waits to be asked for its body does not send it after a refusal, so the connection cannot go on.
    headers = {"Connection": "close"} if "expect" in request.headers else {}
    return Problem(413, "too_large", f"the body has more than {limit} bytes", headers, field="body")


def decode_query(kind: Any, request: Request) -> Any:
    """Return the query of a request as a value of *kind*; a parameter that it does not have is refused."""
    if kind is None and not request.scope["query_string"]:
        return None
    given: dict[str, Any] = {}
    known = {} if kind is None else {field.encode_name: field for field in msgspec.structs.fields(kind)}
    for name in request.query_params:
        if name not in known:
            expected = ", ".join(known) or "none"
            raise _bad_query(name, f"there is no query parameter {name!r}; known are: {expected}")
        every = request.query_params.getlist(name)
        takes_many = "tuple" in str(known[name].type)
        if len(every) > 1 and not takes_many:
            raise _bad_query(name, f"the query parameter {name!r} is given {len(every)} times")
        if any("\0" in one or "\ufffd" in one for one in every):
            raise _bad_query(name, f"the query parameter {name!r} must be UTF-8 without the character NUL")
        given[name] = every if takes_many else every[0]
    if kind is None:
        return None
    for name in given.keys() & _numbers_of(kind):
        given[name] = _number(name, given[name], known[name].type)
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise Problem(400, "bad_query", f"query: {error}", field=field_of("query", error)) from None


@cache
def _numbers_of(kind: Any) -> frozenset[str]:
    """Return the parameters that are numbers or truth values: of their text only these are made, and nothing else."""
    fields = msgspec.inspect.type_info(kind).fields  # type: ignore[attr-defined]  # it is a struct
    return frozenset(field.encode_name for field in fields if _is_number(field.type))


def _is_number(kind: msgspec.inspect.Type) -> bool:
    if isinstance(kind, msgspec.inspect.Metadata):
        return _is_number(kind.type)
    inner = kind.types if isinstance(kind, msgspec.inspect.UnionType) else (kind,)
    numbers = msgspec.inspect.IntType | msgspec.inspect.FloatType | msgspec.inspect.BoolType
    return any(isinstance(one, numbers) for one in inner)


def _number(name: str, text: str, kind: Any) -> Any:
    try:
        found = msgspec.convert(text, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _bad_query(name, f"query: {error} - at `$.{name}`") from None
    if found is None:
        raise _bad_query(name, f"the query parameter {name!r} must have a value; leave it out instead of null")
    return found


def _bad_query(name: str, detail: str) -> Problem:
    return Problem(400, "bad_query", detail, field=f"query.{name}")
