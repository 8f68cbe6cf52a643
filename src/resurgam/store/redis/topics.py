"""Messages on topics. A topic is in the partition of its own name; commits publish by the outbox of theirs.

A cursor is the number of a message among those of all topics of the partition.
"""

from typing import Any, Final

from msgspec import Raw

from resurgam.core.errors import StoreError
from resurgam.store import records as r
from resurgam.store.redis.link import Link

_AT_ONCE: Final = 1000
"""Messages that one call returns at most, so that it does not hold up the server."""


async def messages_on(link: Link, topic: str, after: str | None) -> r.Messages:
    """Return the messages on a topic after a cursor; None: only the newest cursor."""
    if after is None:
        [newest] = await _read(link, topic, None, 1)
        return r.Messages(cursor=str(newest))
    cursor, values = _number_of(after), []
    while True:
        newest, *found = await _read(link, topic, cursor, _AT_ONCE)
        values += [Raw(body) for body in found]
        cursor = max(cursor, newest)
        if len(found) < _AT_ONCE:
            return r.Messages(cursor=str(cursor), values=tuple(values))


async def has_grown(link: Link, watch: r.Published) -> bool:
    """Whether there is a message on a topic after a cursor."""
    _, *found = await _read(link, watch.topic, _number_of(watch.after), 1)
    return bool(found)


async def _read(link: Link, topic: str, after: int | None, limit: int) -> list[Any]:
    found: list[Any] = await link.ask(link.partition_of(topic), "read_topic", [topic, after, limit])
    return found


def _number_of(cursor: str) -> int:
    if not cursor:
        return 0
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 15):
        raise StoreError(f"cursor must be one that a topic of this store returned, got {cursor!r}")
    return int(cursor)
