"""Messages on topics. A cursor is the number of a message among those of all topics (``functions/shared/topics.sql``)."""

from collections.abc import Sequence
from typing import Any, Protocol

from msgspec import Raw

from resurgam.core.errors import StoreError
from resurgam.store import records as r


class Reads(Protocol):
    """Run the statements of `reads.sql`."""

    async def select(self, name: str, *arguments: object) -> Sequence[Any]:
        """Return the rows of a statement."""
        ...


async def messages_on(reads: Reads, topic: str, after: str | None) -> r.Messages:
    """Return the messages on a topic after a cursor; None: only the newest cursor."""
    if not is_text(topic):
        return r.Messages(cursor=after or "0")
    number = 2**62 if after is None else number_of(after)
    [(newest, bodies)] = await reads.select("messages", topic, number)
    cursor = newest if after is None else max(newest, number)
    return r.Messages(cursor=str(cursor), values=tuple(Raw(body.encode()) for body in bodies or ()))


def is_text(text: str) -> bool:
    """Whether Postgres can hold a text: it has no null character, and no half of a pair."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def number_of(cursor: str) -> int:
    """Return the number that a cursor names."""
    if not cursor:
        return 0
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 18):
        raise StoreError(f"cursor must be one that a topic of this store returned, got {cursor!r}")
    return int(cursor)
