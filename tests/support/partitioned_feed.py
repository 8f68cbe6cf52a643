"""A memory store whose feed has two partitions: the order of events of different entities depends on how it is read."""

from collections.abc import Iterator, Sequence
from typing import Final

from resurgam.core.clock import Clock
from resurgam.core.identity import route_of
from resurgam.store import records as r
from resurgam.store.memory.feed import MemoryFeed, page_of
from resurgam.store.memory.store import MemoryStore

PARTITIONS: Final = 2


class PartitionedFeed(MemoryFeed):
    """Read the partitions one after the other, at most half a page of the first."""

    async def now(self) -> str:
        """Return the cursor after everything that `read` returns now."""
        return _cursor_of([int(await super().now())] * PARTITIONS)

    async def read(self, query: r.FeedQuery) -> r.FeedPage:
        """Return events after a cursor."""
        self._refresh()
        positions = positions_of(query.after)
        ends = positions_of(query.until) if query.until else [self._table.last_position] * PARTITIONS
        found: list[tuple[r.FeedEntry, str]] = []
        more = False
        for partition, after in enumerate(positions):
            room = (query.limit + 1) // PARTITIONS if partition == 0 else query.limit - len(found)
            for position, entry in self._entries(query, partition, after, ends[partition]):
                if room == 0:
                    more = True
                    break
                positions[partition] = position
                found.append((entry, _cursor_of(positions)))
                room -= 1
            else:
                positions[partition] = max(after, ends[partition])
        return page_of(found, _cursor_of(positions), more=more)

    def _entries(self, query: r.FeedQuery, partition: int, after: int, end: int) -> Iterator[tuple[int, r.FeedEntry]]:
        for position, execution_id, seq in self._table.logged_after(after):
            entry = self.find(execution_id, seq) if position <= end else None
            if entry is not None and partition_of(entry.entity_id) == partition and query.fits(entry):
                yield position, entry


class PartitionedFeedStore(MemoryStore):
    """The memory store, with a feed of two partitions."""

    def __init__(self, clock: Clock, *, lease: int = 10_000) -> None:
        super().__init__(clock, lease=lease)
        self.feed = PartitionedFeed(self._table, self._refresh)

    async def wait(self, watch: r.Watch, until: int | None = None) -> bool:
        """Return True once the watch is fulfilled, False if the moment *until* comes first."""
        if isinstance(watch, r.FeedGrown):
            watch = r.FeedGrown(after=str(min(positions_of(watch.after))))
        return await super().wait(watch, until)


def partition_of(entity_id: str) -> int:
    """Return the partition of an entity."""
    return int(route_of(entity_id), 16) % PARTITIONS


def positions_of(cursor: str) -> list[int]:
    """Return the position of a cursor in each partition."""
    return [int(position) for position in cursor.split("/")] if cursor else [0] * PARTITIONS


def _cursor_of(positions: Sequence[int]) -> str:
    return "/".join(map(str, positions))
