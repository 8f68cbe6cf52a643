"""The feed of a memory store: its events in the order of their commits."""

from collections.abc import Callable, Sequence

from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.errors import BadCursor
from resurgam.core.event import encode_event
from resurgam.store import records as r
from resurgam.store.memory.rows import Row
from resurgam.store.memory.table import Table


class MemoryFeed:
    """Read events after a cursor, which is a position in the list of all. *refresh* is called before each verb."""

    def __init__(self, table: Table, refresh: Callable[[], None]) -> None:
        self._table = table
        self._refresh = refresh

    async def now(self) -> str:
        """Return the cursor after everything that `read` returns now."""
        self._refresh()
        return str(self._table.last_position)

    async def read(self, query: r.FeedQuery) -> r.FeedPage:
        """Return events after a cursor."""
        self._refresh()
        cursor, end = _position_of(query.after), self._table.last_position
        if query.until:
            end = min(end, _position_of(query.until))
        found: list[tuple[r.FeedEntry, str]] = []
        for position, execution_id, seq in self._table.logged_after(cursor):
            if position > end:
                break
            if len(found) == query.limit:
                return page_of(found, str(cursor), more=True)
            cursor = position
            entry = self.find(execution_id, seq)
            if entry is not None and query.fits(entry):
                found.append((entry, str(position)))
        return page_of(found, str(max(cursor, end)), more=False)

    def find(self, execution_id: str, seq: int) -> r.FeedEntry | None:
        """Return an event of the feed; None if it was dropped or its execution purged."""
        row = self._table.rows.get(execution_id)
        event = None if row is None else row.entry(seq)
        return None if row is None or event is None else _entry_of(row, event)


def page_of(found: Sequence[tuple[r.FeedEntry, str]], cursor: str, *, more: bool) -> r.FeedPage:
    """Return the page of some events, each with the cursor after it."""
    entries, cursors = tuple(entry for entry, _ in found), tuple(after for _, after in found)
    return r.FeedPage(entries=entries, cursors=cursors, cursor=cursor, more=more)


def _position_of(cursor: str) -> int:
    if not cursor:
        return 0
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 18):
        raise BadCursor(f"cursor must be one that a feed of this store returned, got {cursor!r}")
    return int(cursor)


def _entry_of(row: Row, event: events.Event) -> r.FeedEntry:
    return r.FeedEntry(
        entity_id=row.instance.entity_id,
        execution_id=row.instance.execution_id,
        kind=row.instance.kind,
        seq=event.seq,
        type=str(type(event).__struct_config__.tag),
        body=Raw(encode_event(event)),
    )
