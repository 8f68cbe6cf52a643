"""What the answer of a service means. Pure: the moment is an argument."""

import re
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, Final, TypeAlias

import msgspec

from resurgam.flows.http.message import Mode

PROBLEM: Final = "application/problem+json"
"""The content type of the reason why a step has failed for good."""

LONGEST_PAUSE: Final = 3_600_000
"""Milliseconds. A service that asks for a longer pause is called again after this one."""

_TEMPORARY: Final = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}
"""Refusals that say themselves that a later call may succeed."""

_TEXT: Final = 500
"""Characters of an answer that are shown in an error."""


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """An answer as it was received. *body* is cut at a limit; *cut* says so. Header values are empty if absent."""

    status: int
    body: bytes = b""
    cut: bool = False
    content_type: str = ""
    content_encoding: str = ""
    retry_after: str = ""
    date: str = ""


class Outputs(msgspec.Struct, frozen=True):
    """The step has succeeded, with these outputs."""

    values: dict[str, Any]


class Accepted(msgspec.Struct, frozen=True):
    """The step has accepted the call, and answers later."""


class Incomplete(msgspec.Struct, frozen=True):
    """The call was not completed and may be repeated, after *pause* milliseconds at the earliest."""

    reason: str
    pause: int = 0


class Rejection(msgspec.Struct, frozen=True):
    """The step has failed for good."""

    reason: str


Answer: TypeAlias = Outputs | Accepted | Incomplete | Rejection


def read_answer(mode: Mode, response: Response, now: int) -> Answer:
    """Return what an answer means for a work item; *now* is the moment at which it came."""
    if not 200 <= response.status < 300:
        return _refusal(response, now)
    if mode == "async":
        return Accepted()
    return Outputs({}) if mode == "compensate" else _outputs(response)


def _refusal(response: Response, now: int) -> Incomplete | Rejection:
    status, reason = response.status, summary(response)
    pause = retry_after(response, now)
    if status >= 500:
        return Incomplete(reason, pause or 0)
    if 300 <= status < 400:
        return Rejection(f"{reason}; redirects are not followed: register the address to which it redirects")
    if (pause is not None and status >= 400) or (status in _TEMPORARY and not _is_problem(response)):
        return Incomplete(reason, pause or 0)
    return Rejection(reason)


def _outputs(response: Response) -> Outputs | Rejection:
    if _is_problem(response):
        return Rejection(summary(response))
    if response.content_encoding not in {"", "identity"}:
        return Rejection(f"answered with a body in encoding {response.content_encoding!r}, which was not asked for")
    if response.cut:
        return Rejection(f"answered with more than {len(response.body)} bytes; return less, or raise max_payload")
    try:
        value = msgspec.json.decode(response.body) if response.body.strip() else {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Rejection(
            f"answered {response.status} with a body that is not JSON ({error}); return an object of outputs"
        )
    if isinstance(value, dict):
        return Outputs(value)
    kind = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}.get(type(value), "a number")
    return Rejection(f"answered {response.status} with {kind}; return a JSON object of outputs, or no body")


def retry_after(response: Response, now: int) -> int | None:
    """Return the pause that a service asks for, in milliseconds and within reason; None if it asks for none.

    A date counts from the date of the answer: the clock of the service may be wrong, but then it is so twice.
    """
    text = response.retry_after.strip()
    if re.fullmatch(r"\d{1,12}", text, re.ASCII):
        return min(int(text) * 1000, LONGEST_PAUSE)
    until = _moment(text)
    if until is None:
        return None
    since = _moment(response.date)
    return min(max(0, until - (now if since is None else since)), LONGEST_PAUSE)


def _moment(text: str) -> int | None:
    try:
        return round(parsedate_to_datetime(text).timestamp() * 1000)
    except (TypeError, ValueError, OverflowError, OSError):
        return None


def _is_problem(response: Response) -> bool:
    return _media_type(response) == PROBLEM


def _media_type(response: Response) -> str:
    return response.content_type.partition(";")[0].strip().lower()


def summary(response: Response) -> str:
    """Return what a service answered, in the middle of a sentence."""
    status = response.status
    phrase = f" {HTTPStatus(status).phrase}" if status in HTTPStatus._value2member_map_ else ""
    return f"answered {status}{phrase}{_said(response)}"


def _said(response: Response) -> str:
    """Return what the service says about its refusal: the detail or title of a problem, or the beginning of a text."""
    kind = _media_type(response)
    text = ""
    if kind == PROBLEM:
        text = problem_text(response.body)
    elif kind in {"text/plain", "application/json"} and not response.content_encoding:
        text = response.body.decode("utf-8", "replace")
    text = " ".join(text.split())
    return f": {text[:_TEXT]}{'…' if len(text) > _TEXT else ''}" if text else ""


def problem_text(body: bytes) -> str:
    """Return the detail or the title of problem details; empty if the body has neither."""
    try:
        problem = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    if not isinstance(problem, dict):
        return ""
    said = (problem.get(field) for field in ("detail", "title"))
    return next((text for text in said if isinstance(text, str) and text.strip()), "")
