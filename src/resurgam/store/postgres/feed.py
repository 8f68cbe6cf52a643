"""The feed of a Postgres store: its events in the order of the transactions that committed them.

An event is ordered by a key and a position (``functions/shared/log.sql``). The key is the id of its transaction, or a higher
one that the log of its execution has reached before. A reader gets only keys below the oldest transaction that is open:
whatever commits later has a higher one. A cursor is a key and a position.
"""

import re
from typing import Any, Final

from msgspec import Raw

from resurgam.core.errors import BadCursor
from resurgam.store import records as r
from resurgam.store.postgres.inspector import Reads

_WINDOW: Final = 1000
"""Events that one read passes over at most, so that a filter with rare matches stays short."""

_CURSOR: Final = re.compile(r"(\d{1,18})-(\d{1,18})", re.ASCII)


class PostgresFeed:
    """Read events after a cursor."""

    def __init__(self, reads: Reads) -> None:
        self._reads = reads

    async def now(self) -> str:
        """Return the cursor after everything that `read` returns now."""
        [(bound,)] = await self._reads.select("feed_bound")
        return f"{bound}-0"

    async def read(self, query: r.FeedQuery) -> r.FeedPage:
        """Return events after a cursor."""
        after = position_of(query.after)
        window = max(_WINDOW, query.limit)
        arguments = (*after, list(query.types) or None, query.limit, window + 1)
        if query.entity_id is None:
            [row] = await self._reads.select("feed", *arguments)
        else:
            [row] = await self._reads.select("feed_of_entity", *arguments, query.entity_id)
        bound, passed, last_key, last_position, found = row
        last = (last_key, last_position) if passed else (0, 0)
        # One event more than the window was read, to know whether there is more.
        end = (last_key, last_position - 1) if passed > window else max((bound, 0), last)
        if query.until:
            end, last = min(end, position_of(query.until)), min(last, position_of(query.until))
        page = [one for one in found if _place_of(one) <= end]
        if len(page) == query.limit and _place_of(page[-1]) < last:
            end = _place_of(page[-1])
        return r.FeedPage(
            entries=tuple(map(_entry_of, page)),
            cursors=tuple(_cursor_of(_place_of(one)) for one in page),
            cursor=_cursor_of(max(after, end)),
            more=end < last,
        )


def _place_of(row: Any) -> tuple[int, int]:
    return row[0], row[1]


def _cursor_of(place: tuple[int, int]) -> str:
    return "{}-{}".format(*place)


def position_of(cursor: str) -> tuple[int, int]:
    """Return the key and the position that a cursor names."""
    if not cursor:
        return 0, 0
    found = _CURSOR.fullmatch(cursor)
    if found is None:
        raise BadCursor(f"cursor must be one that a feed of this store returned, got {cursor!r}")
    return int(found[1]), int(found[2])


def _entry_of(row: Any) -> r.FeedEntry:
    _, _, entity_id, execution_id, kind, seq, type_, body = row
    return r.FeedEntry(
        entity_id=entity_id, execution_id=execution_id, kind=kind, seq=seq, type=type_, body=Raw(body.encode())
    )
