"""The newest events of the feed, in a window of bounded size that any number of streams go through."""

from functools import cached_property
from typing import Final, NamedTuple

import msgspec

from resurgam.store import records as r

_EVENTS: Final = 1024
"""Events in the window."""

_BYTES: Final = 8 * 1024 * 1024
"""Bytes of the events in the window; the newest page may be larger."""

CHUNK: Final = 64 * 1024
"""Bytes that a stream takes at once, and holds while its client is slow; one event may be larger."""


class StoredEvent(msgspec.Struct, frozen=True):
    """An event of an execution: entry *seq* of its log, as it is stored. *kind* is ``workflow``, ``flow`` or ``catalog``."""

    entity_id: str
    execution_id: str
    kind: str
    seq: int
    type: str
    event: msgspec.Raw


class Filter(msgspec.Struct, frozen=True):
    """Which events a stream has: those of some instances and of some types; empty means all."""

    instances: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()

    def fits(self, entry: r.FeedEntry) -> bool:
        """Whether the stream has an event."""
        return (not self.instances or entry.entity_id in self.instances) and (
            not self.types or entry.type in self.types
        )

    def query(self, after: str, until: str, limit: int) -> r.FeedQuery:
        """Return the query for events of the stream; the store cannot tell those of several instances apart."""
        entity_id = next(iter(self.instances)) if len(self.instances) == 1 else None
        return r.FeedQuery(after=after, until=until, entity_id=entity_id, types=tuple(sorted(self.types)), limit=limit)


class Item:
    """An event and the cursor after it."""

    def __init__(self, entry: r.FeedEntry, cursor: str) -> None:
        self.entry = entry
        self.cursor = cursor

    @property
    def size(self) -> int:
        """How many bytes the event has, about."""
        return len(memoryview(self.entry.body))

    @cached_property
    def line(self) -> bytes:
        """The event as one line of JSON, made once for all streams."""
        e = self.entry
        made = msgspec.json.encode(StoredEvent(e.entity_id, e.execution_id, e.kind, e.seq, e.type, e.body))
        # A value that a client has sent stands in the event as it was written. Inside of strings JSON has no line breaks.
        return made.replace(b"\n", b" ").replace(b"\r", b" ")


class Batch(NamedTuple):
    """Events for a stream, and the cursor of a stream that has them; without events only the cursor has moved."""

    items: list[Item]
    cursor: str


class Window:
    """The newest events that were read, by number, and the cursor after them."""

    def __init__(self, cursor: str) -> None:
        self.cursor = cursor
        self.begin = self.end = 0
        self._items: dict[int, Item] = {}
        self._bytes = 0

    def add(self, page: r.FeedPage) -> None:
        """Add a page, and drop the oldest events that there is no room for."""
        for entry, cursor in zip(page.entries, page.cursors, strict=True):
            self._items[self.end] = item = Item(entry, cursor)
            self.end += 1
            self._bytes += item.size
        while self.end - self.begin > max(_EVENTS, len(page.entries)) or (
            self._bytes > _BYTES and self.end - self.begin > len(page.entries)
        ):
            self._bytes -= self._items.pop(self.begin).size
            self.begin += 1
        self.cursor = page.cursor

    def take(self, number: int, wanted: Filter) -> tuple[int, Batch]:
        """Return events from a number on, as many as fit into a chunk, and the number after them."""
        items: list[Item] = []
        size, cursor = 0, self.cursor
        while number < self.end and size < CHUNK:
            item = self._items[number]
            number, cursor = number + 1, item.cursor
            if wanted.fits(item.entry):
                items.append(item)
                size += item.size
        return number, Batch(items, self.cursor if number == self.end else cursor)
