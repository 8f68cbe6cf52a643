"""Errors as answers: problem details (RFC 9457) with the status, a code for programs and the reason for people."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta
from starlette.responses import Response

from resurgam.core import errors

logger = logging.getLogger("resurgam.web")

MEDIA_TYPE: Final = "application/problem+json"


class ProblemDetails(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of every answer that is not a success. *code* stays the same over versions; *detail* is for people.

    *field* is the part of the request that is refused, as in ``body.args[0]``, ``query.limit`` or ``path.id``.
    """

    status: int
    title: str
    code: Annotated[str, Meta(description="What is wrong, for programs.", examples=["not_found"])]
    detail: Annotated[str, Meta(description="What is wrong, and what to do about it.")]
    type: str = "about:blank"
    field: Annotated[str, Meta(description="The part of the request.", examples=["query.limit"])] = ""


class Problem(Exception):
    """A request that is refused, by the route itself; *field* is the part of the request that is the reason."""

    def __init__(
        self, status: int, code: str, detail: str, headers: dict[str, str] | None = None, *, field: str = ""
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.headers = headers or {}
        self.field = field


_STATUS: Final[dict[type[Exception], tuple[int, str]]] = {
    errors.NotFound: (404, "not_found"),
    errors.AlreadyExists: (409, "already_exists"),
    errors.PayloadTooLarge: (413, "too_large"),
    errors.SerializationError: (400, "bad_value"),
    errors.DefinitionError: (400, "bad_definition"),
    errors.UpdateRejected: (422, "update_rejected"),
    errors.BadCursor: (400, "bad_cursor"),
    errors.ResultTimeout: (409, "no_answer"),
    errors.WrongState: (409, "wrong_state"),
    errors.WriteRejected: (400, "bad_value"),
    errors.CorruptHistory: (500, "corrupt_history"),
    errors.StoreError: (503, "store_unavailable"),
}
"""The status and the code of each error, the most specific class first."""

_ABOUT_VALUES: Final = (errors.SerializationError, errors.DefinitionError, errors.WriteRejected)
"""Errors about what a caller has passed."""

_TITLES: Final = {
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    409: "Conflict",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    422: "Unprocessable Content",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}


def problem_of(error: Exception) -> Problem | None:
    """Return the refusal that an error of the engine means; None for one that no request should cause."""
    if isinstance(error, Problem):
        return error
    for kind, (status, code) in _STATUS.items():
        if isinstance(error, kind):
            return _unavailable(error) if kind is errors.StoreError else Problem(status, code, str(error))
    return None


def _unavailable(error: Exception) -> Problem:
    """Say only that the store fails: some routes need no key, and the error names the address of the store."""
    logger.warning("the store does not answer: %s", error)
    return Problem(503, "store_unavailable", "the store does not answer; the log of the server says why")


@contextmanager
def refused_values(field: str) -> Iterator[None]:
    """Turn an error about a value of the caller into a refusal: only what the caller has passed is looked at inside."""
    try:
        yield
    except errors.ResurgamError as error:
        if not isinstance(error, _ABOUT_VALUES):
            raise  # routes may have their own answer to it
        refusal = problem_of(error)
        assert refusal is not None
        refusal.field = field
        raise refusal from error
    except (TypeError, ValueError) as error:
        raise Problem(400, "bad_value", str(error), field=field) from error


_AT: Final = re.compile(r"at `(?:key in )?\$(.*)`$")
_UNKNOWN: Final = re.compile(r"(?:unknown|required) field `([^`]*)`")


def field_of(part: str, error: msgspec.ValidationError) -> str:
    """Return the field that an error of msgspec is about, below a part of the request."""
    said = str(error)
    below, missing = _AT.search(said), _UNKNOWN.search(said)
    return part + (below[1] if below else "") + (f".{missing[1]}" if missing else "")


def title_of(status: int) -> str:
    """Return the name of a status."""
    return _TITLES.get(status, "Error")


def details_of(problem: Problem) -> ProblemDetails:
    """Return the body that tells of a refusal."""
    return ProblemDetails(
        status=problem.status,
        title=title_of(problem.status),
        code=problem.code,
        detail=problem.detail,
        field=problem.field,
    )


def answer(problem: Problem) -> Response:
    """Return the response that tells of a refusal."""
    content: Any = msgspec.json.encode(details_of(problem))
    return Response(content, problem.status, headers=problem.headers, media_type=MEDIA_TYPE)
