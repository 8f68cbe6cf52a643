"""Lists of flows: those without a parent, filtered, sorted and paged as the original does it.

The original sorts by the moment at which the status changed, which no store has an index for. So the rows of all flows
are read, a page at a time, and only what a list shows is kept of each.
"""

import asyncio
import base64
import binascii
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from resurgam.core.flow_event import FLOW
from resurgam.core.state import Status
from resurgam.engine import Engine
from resurgam.store.records import Instance, Query
from resurgam.web.argyll.exchange import Refused
from resurgam.web.argyll.shapes import moment

MAX_LIMIT: Final = 1000
"""The most flows of a page; without a limit a page has all."""

_PAGE: Final = 500
_STATUSES: Final = ("active", "completed", "failed")
_SORTS: Final = ("recent_asc", "recent_desc")


class QueryBody(msgspec.Struct):
    """Which flows are wanted."""

    statuses: list[str] | None = None
    id_prefix: str | None = None
    labels: dict[str, str] | None = None
    sort: str | None = None
    limit: int | None = None
    cursor: str | None = None


class Row(msgspec.Struct, frozen=True):
    """One flow of a list. *recent* is when its status has changed, in milliseconds."""

    id: str
    status: str
    recent: int
    labels: dict[str, str]

    def shape(self, *, labels: bool = True) -> dict[str, Any]:
        """Return it as it is shown."""
        found: dict[str, Any] = {"id": self.id, "status": self.status, "timestamp": moment(self.recent)}
        return found | {"labels": self.labels} if labels and self.labels else found


class Cursor(msgspec.Struct, frozen=True):
    """The last flow of a page: its place in the order."""

    id: str
    group: int
    recent: int


async def query(engine: Engine, body: QueryBody) -> dict[str, Any]:
    """Return a page of flows."""
    sort, limit = body.sort or _SORTS[0], body.limit or 0
    if sort not in _SORTS:
        raise Refused(400, f"sort must be one of {', '.join(_SORTS)}, got {sort!r}")
    if not 0 <= limit <= MAX_LIMIT:
        raise Refused(400, f"limit must be 0 (all) to {MAX_LIMIT}, got {limit}")
    for status in body.statuses or ():
        if status not in _STATUSES:
            raise Refused(400, f"statuses must be among {', '.join(_STATUSES)}, got {status!r}")
    after = _decoded(body.cursor) if body.cursor else None
    rows = [
        row
        for row in await roots(engine, body.labels or {})
        if row.id.startswith(body.id_prefix or "") and (not body.statuses or row.status in body.statuses)
    ]
    descending = sort == "recent_desc"
    rows.sort(key=lambda row: _order(_place(row), descending=descending))
    left = rows if after is None else [row for row in rows if _is_after(row, after, descending=descending)]
    shown = left[:limit] if limit else left
    has_more = len(shown) < len(left)
    return {
        "flows": [row.shape() for row in shown],
        "count": len(shown),
        "total": len(rows),
        "has_more": has_more,
        "next_cursor": _encoded(_place(shown[-1])) if has_more else "",
    }


async def roots(engine: Engine, labels: dict[str, str]) -> Sequence[Row]:
    """Return all flows with these labels that no other instance has started, newest first."""
    rows: list[Row] = []
    wanted = Query(kind=FLOW, tags=labels, newest_only=True, limit=_PAGE)
    while True:
        page = await engine.inspector.list(wanted)
        rows += [_row(one) for one in page.instances if one.parent is None]
        if page.cursor is None:
            return rows
        wanted = msgspec.structs.replace(wanted, cursor=page.cursor)
        await asyncio.sleep(0)  # a store may answer without a pause, and others wait


def index_status(instance: Instance) -> str:
    """Return the status that lists show: a flow is active until the last of its work has ended."""
    if not instance.deactivated:
        return "active"
    return "completed" if instance.status is Status.COMPLETED else "failed"


def _row(instance: Instance) -> Row:
    status = index_status(instance)
    recent = instance.created_at if status == "active" or instance.closed_at is None else instance.closed_at
    return Row(instance.entity_id, status, recent, instance.tags)


def _place(row: Row) -> Cursor:
    return Cursor(row.id, 0 if row.status == "active" else 1, row.recent)


def _order(place: Cursor, *, descending: bool) -> tuple[int, int, str]:
    return (place.group, -place.recent if descending else place.recent, place.id)


def _is_after(row: Row, cursor: Cursor, *, descending: bool) -> bool:
    return _order(_place(row), descending=descending) > _order(cursor, descending=descending)


def _encoded(cursor: Cursor) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(cursor)).rstrip(b"=").decode()


def _decoded(text: str) -> Cursor:
    try:
        content = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        return msgspec.json.decode(content, type=Cursor)
    except (binascii.Error, ValueError):
        raise Refused(400, f"cursor must be the next_cursor of the page before, got {text!r}") from None
