"""The feed of events."""

from msgspec import Raw

from resurgam.store.records.instance import Record


class FeedQuery(Record, frozen=True):
    """Which events of the feed to read: at most *limit* after the cursor *after*, or from the beginning.

    *entity_id*: only those of one entity. *types*: only those of these types, as they are stored. *until*: only those
    that are not after this cursor. Once there is no more of them, the cursor of the page is *until*, unless *after* is
    ahead of it.
    """

    after: str = ""
    entity_id: str | None = None
    types: tuple[str, ...] = ()
    until: str = ""
    limit: int = 100

    def __post_init__(self) -> None:
        """Refuse a page without room, from which a reader could not go on."""
        if self.limit < 1:
            raise ValueError(f"limit must be at least 1, got {self.limit}")

    def fits(self, entry: "FeedEntry") -> bool:
        """Whether an event is one of those asked for."""
        return self.entity_id in (None, entry.entity_id) and (not self.types or entry.type in self.types)


class FeedEntry(Record, frozen=True):
    """An event of an execution. *body* is the event as JSON, also one that this version cannot decode."""

    entity_id: str
    execution_id: str
    kind: str
    seq: int
    type: str
    body: Raw


class FeedPage(Record, frozen=True):
    """Some events of the feed. The next page begins after *cursor*, which moves on though no event fits the query.

    *cursors*: for each event, the cursor of a reader that has come to it and goes on with the next one of this page.
    *more*: there are events after the cursor by now, which may fit or not.
    """

    entries: tuple[FeedEntry, ...]
    cursors: tuple[str, ...]
    cursor: str
    more: bool
