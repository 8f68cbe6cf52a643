"""Check the filters of `Engine.list` and turn them into a store query."""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Final, Literal, TypedDict, Unpack, get_args

from resurgam.client.access import check_tags, check_text
from resurgam.core.state import Status
from resurgam.store.records import Query

Kind = Literal["workflow", "flow"]
_KINDS: Final = get_args(Kind)


class Filters(TypedDict, total=False):
    """The options of `Engine.list`."""

    status: Status | str | None
    kind: Kind | None
    name: str | None
    tags: Mapping[str, str] | None
    parent: str | None
    failure: str | None
    since: datetime | None
    until: datetime | None
    newest_only: bool
    limit: int
    cursor: str | None


def query_of(**filters: Unpack[Filters]) -> Query:
    """Return the query for these filters; refuse a filter that cannot match anything."""
    status, tags, cursor = filters.get("status"), filters.get("tags"), filters.get("cursor")
    kind = filters.get("kind")
    limit, failure = filters.get("limit", 100), filters.get("failure")
    for what in ("name", "parent", "failure"):
        if (given := filters.get(what)) is not None:
            check_text(given, what)
    if failure is not None and "." in failure:
        short = failure.rpartition(".")[2]
        raise ValueError(f"failure must be the name of a type without its module, got {failure!r}; use {short!r}")
    if not isinstance(limit, int) or limit < 1:
        raise ValueError(f"limit must be a whole number, at least 1, got {limit!r}")
    if status is not None and status not in tuple(Status):
        raise ValueError(f"status must be one of {', '.join(Status)}, got {status!r}")
    if kind is not None and kind not in _KINDS:
        raise ValueError(f"kind must be one of {', '.join(_KINDS)}, got {kind!r}")
    if cursor is not None and not (isinstance(cursor, str) and re.fullmatch(r"[0-9]{15}-.+", cursor)):
        raise ValueError(f"cursor must be the cursor of the page before, got {cursor!r}")
    return Query(
        status=None if status is None else Status(status),
        kind=kind,
        name=filters.get("name"),
        tags={} if tags is None else check_tags(tags),
        parent=filters.get("parent"),
        failure=failure,
        since=_milliseconds("since", filters.get("since")),
        until=_milliseconds("until", filters.get("until")),
        newest_only=bool(filters.get("newest_only")),
        limit=limit,
        cursor=cursor,
    )


def _milliseconds(what: str, moment: datetime | None) -> int | None:
    if moment is None:
        return None
    if not isinstance(moment, datetime):
        raise TypeError(f"{what} must be a datetime with a time zone, got {moment!r}")
    if moment.tzinfo is None:
        raise ValueError(f"{what} must have a time zone, got {moment.isoformat()}; use an aware datetime")
    return round(moment.timestamp() * 1000)
