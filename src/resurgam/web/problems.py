"""Errors as answers: problem details (RFC 9457) with the status, a code for programs and the reason for people."""

from typing import Any

import msgspec
from starlette.responses import Response

from resurgam.core import errors

MEDIA_TYPE = "application/problem+json"


class ProblemDetails(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of every answer that is not a success. *code* stays the same over versions; *detail* is for people."""

    status: int
    title: str
    code: str
    detail: str
    type: str = "about:blank"


class Problem(Exception):
    """A request that is refused, by the route itself."""

    def __init__(self, status: int, code: str, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.headers = headers or {}


_STATUS: dict[type[Exception], tuple[int, str]] = {
    errors.NotFound: (404, "not_found"),
    errors.AlreadyExists: (409, "already_exists"),
    errors.PayloadTooLarge: (413, "too_large"),
    errors.SerializationError: (400, "bad_value"),
    errors.DefinitionError: (400, "bad_definition"),
    errors.UpdateRejected: (422, "update_rejected"),
    errors.BadCursor: (400, "bad_cursor"),
    errors.StoreError: (503, "store_unavailable"),
    TypeError: (400, "bad_request"),
    ValueError: (400, "bad_request"),
}
"""The status and the code of each error, the most specific class first."""

_TITLES = {
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
            return Problem(status, code, str(error))
    return None


def details_of(problem: Problem) -> ProblemDetails:
    """Return the body that tells of a refusal."""
    title = _TITLES.get(problem.status, "Error")
    return ProblemDetails(status=problem.status, title=title, code=problem.code, detail=problem.detail)


def answer(problem: Problem) -> Response:
    """Return the response that tells of a refusal."""
    content: Any = msgspec.json.encode(details_of(problem))
    return Response(content, problem.status, headers=problem.headers, media_type=MEDIA_TYPE)
