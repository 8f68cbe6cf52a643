"""The feed of a Redis store: in each partition a stream of references to events, in the order of their commits.

A partition runs one function at a time and numbers its references without a way back, so nothing ever appears behind a
position that was read. A cursor holds a position in every partition, and the partition that the next page begins with: a
page takes from the partitions in turn, so that a busy one does not hold up the others.

A server that has lost its last writes gives out their positions again. A cursor that is ahead of it moves back to its
newest event, so that a reader misses only what was committed before it looked.
"""

import asyncio
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from msgspec import Raw

from resurgam.core.errors import BadCursor
from resurgam.store import records as r
from resurgam.store.redis.link import Link

_WINDOW: Final = 1000
"""References that one call passes over at most, so that a filter with rare matches does not hold up the server."""

_SHARE: Final = 32
"""Events that a page asks of each partition at least."""


class Cursor(NamedTuple):
    """A position in every partition, and the partition whose turn it is."""

    turn: int
    positions: tuple[int, ...]

    @classmethod
    def parse(cls, text: str, partitions: int) -> "Cursor":
        """Return what a cursor names; the empty one is before everything."""
        if not text:
            return cls(0, (0,) * partitions)
        if re.fullmatch(r"\d{1,4}(\.[0-9a-f]{1,13})+", text, re.ASCII):
            turn, *positions = text.split(".")
            if len(positions) == partitions and int(turn) < partitions:
                return cls(int(turn), tuple(int(position, 16) for position in positions))
        raise BadCursor(f"cursor must be one that a feed of this store returned, got {text!r}")

    def __str__(self) -> str:
        """Return the cursor as text."""
        return f"{self.turn}.{'.'.join(f'{position:x}' for position in self.positions)}"


class RedisFeed:
    """Read events after a cursor."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def now(self) -> str:
        """Return the cursor after everything that `read` returns now."""
        return str(Cursor(0, tuple(await newest_positions(self._link))))

    async def read(self, query: r.FeedQuery) -> r.FeedPage:
        """Return events after a cursor."""
        cursor = Cursor.parse(query.after, self._link.partitions)
        until = Cursor.parse(query.until, self._link.partitions) if query.until else None
        if query.entity_id is not None:
            return await self._read_entity(query, cursor, until)
        partitions = self._link.partitions
        share = min(query.limit, max(_SHARE, 2 * query.limit // partitions))
        order = [(cursor.turn + number) % partitions for number in range(partitions)]
        found = await asyncio.gather(*(self._ask(query, cursor, until, partition, share) for partition in order))
        reader = _Reader(cursor._replace(turn=(cursor.turn + 1) % partitions), until)
        for partition, page in zip(order, found, strict=True):
            reader.take(partition, page, query.limit)
        return reader.page()

    async def _read_entity(self, query: r.FeedQuery, cursor: Cursor, until: Cursor | None) -> r.FeedPage:
        """Return events of one entity, which are all in one partition; the cursor passes over the others."""
        assert query.entity_id is not None
        partition = self._link.partition_of(query.entity_id)
        page, newest = await asyncio.gather(
            self._ask(query, cursor, until, partition, query.limit), newest_positions(self._link)
        )
        ends = [_end(cursor, until, number, position) for number, position in enumerate(newest)]
        ends[partition] = cursor.positions[partition]
        reader = _Reader(Cursor(cursor.turn, tuple(ends)), until)
        reader.take(partition, page, query.limit)
        return reader.page()

    async def _ask(
        self, query: r.FeedQuery, cursor: Cursor, until: Cursor | None, partition: int, limit: int
    ) -> "_Page":
        part = [cursor.positions[partition], limit, max(_WINDOW, limit), query.entity_id, query.types]
        position, newest, *rows = await self._link.ask(partition, "read_feed", part)
        end = _end(cursor, until, partition, newest)
        return _Page([(row[0], _entry_of(*row)) for row in rows if row[0] <= end], min(position, end), end)


class _Page(NamedTuple):
    """Events of a partition with their positions, the position after them, and the last one that may be read."""

    entries: list[tuple[int, r.FeedEntry]]
    position: int
    end: int


class _Reader:
    """Makes one page of the events of the partitions, in turn."""

    def __init__(self, cursor: Cursor, until: Cursor | None) -> None:
        self._turn, self._until = cursor.turn, until
        self._positions = list(cursor.positions)
        self._entries: list[r.FeedEntry] = []
        self._cursors: list[str] = []
        self._more = False

    def take(self, partition: int, page: _Page, limit: int) -> None:
        """Take as many events of a partition as there is room for."""
        kept = page.entries[: limit - len(self._entries)]
        for position, entry in kept:
            self._positions[partition] = position
            self._entries.append(entry)
            self._cursors.append(self._cursor())
        if len(kept) == len(page.entries):
            self._positions[partition] = page.position
        self._more = self._more or self._positions[partition] < page.end

    def page(self) -> r.FeedPage:
        """Return the page."""
        return r.FeedPage(
            entries=tuple(self._entries), cursors=tuple(self._cursors), cursor=self._cursor(), more=self._more
        )

    def _cursor(self) -> str:
        positions = tuple(self._positions)
        if self._until is not None and positions == self._until.positions:
            return str(self._until)
        return str(Cursor(self._turn, positions))


def _end(cursor: Cursor, until: Cursor | None, partition: int, newest: int) -> int:
    """Return the last position of a partition that may be read; a cursor that is ahead of *until* stays where it is."""
    return newest if until is None else min(newest, max(until.positions[partition], cursor.positions[partition]))


async def newest_positions(link: Link) -> Sequence[int]:
    """Return the position of the newest event of each partition, even if it was deleted."""
    found: Sequence[int] = await link.ask_all("feed_position", [])
    return found


async def has_grown(link: Link, watch: r.FeedGrown) -> bool:
    """Whether there are events after a cursor, or it is ahead and must move back."""
    return tuple(await newest_positions(link)) != Cursor.parse(watch.after, link.partitions).positions


def _entry_of(
    _: int, entity_id: bytes, execution_id: bytes, kind: bytes, seq: int, type_: bytes, body: Any
) -> r.FeedEntry:
    return r.FeedEntry(
        entity_id=entity_id.decode(),
        execution_id=execution_id.decode(),
        kind=kind.decode(),
        seq=seq,
        type=type_.decode(),
        body=Raw(body),
    )
