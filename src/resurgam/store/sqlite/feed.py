"""The feed of a SQLite file: its events in the order of their commits.

Writers take turns, so the position of an event is its place in the order of commits, and no event ever appears behind
one that was read. A cursor is a position.
"""

import re
from typing import Final

from msgspec import Raw

from resurgam.core.errors import BadCursor
from resurgam.store import records as r
from resurgam.store.encoding import encode
from resurgam.store.sqlite.session import Row, Session, Snapshots

_WINDOW: Final = 1000
"""Positions that one read passes over at most, so that a filter with rare matches does not hold up the loop."""


class SqliteFeed:
    """Read events after a cursor."""

    def __init__(self, file: Snapshots) -> None:
        self._file = file

    async def now(self) -> str:
        """Return the cursor after everything that `read` returns now."""
        return str(self._file.read(last_position))

    async def read(self, query: r.FeedQuery) -> r.FeedPage:
        """Return events after a cursor."""
        return self._file.read(lambda session: _page(session, query))


def last_position(session: Session) -> int:
    """Return the position of the newest event, even if it was deleted."""
    [row] = session.fetch("last_position")
    position: int = row["position"]
    return position


def position_of(cursor: str) -> int:
    """Return the position that a cursor names."""
    if not cursor:
        return 0
    if not re.fullmatch(r"\d{1,18}", cursor, re.ASCII):
        raise BadCursor(f"cursor must be one that a feed of this store returned, got {cursor!r}")
    return int(cursor)


def _page(session: Session, query: r.FeedQuery) -> r.FeedPage:
    after, last = position_of(query.after), last_position(session)
    if query.until:
        last = min(last, position_of(query.until))
    end = last if query.entity_id is not None else min(last, after + max(_WINDOW, query.limit))
    rows = session.fetch(
        "feed" if query.entity_id is None else "feed_of_entity",
        after=after,
        end=end,
        entity_id=query.entity_id,
        types=encode(query.types) if query.types else None,
        limit=query.limit,
    )
    if len(rows) == query.limit:
        end = rows[-1]["position"]
    return r.FeedPage(
        entries=tuple(_entry_of(row) for row in rows),
        cursors=tuple(str(row["position"]) for row in rows),
        cursor=str(max(after, end)),
        more=end < last,
    )


def _entry_of(row: Row) -> r.FeedEntry:
    return r.FeedEntry(
        entity_id=row["entity_id"],
        execution_id=row["execution_id"],
        kind=row["kind"],
        seq=row["seq"],
        type=row["type"],
        body=Raw(row["body"].encode()),
    )
