"""Messages on topics. A cursor is the number of a message among those of all topics."""

from collections.abc import Sequence

from msgspec import Raw

from resurgam.core.outcome import Publication
from resurgam.store import records as r
from resurgam.store.rules import MESSAGES_KEPT
from resurgam.store.sqlite.activities import text_of
from resurgam.store.sqlite.session import Session
from resurgam.store.sqlite.transaction import Transaction
from resurgam.store.watches import topic_key


def publish(t: Transaction, publications: Sequence[Publication]) -> None:
    """Keep messages, and delete those that are too old."""
    t.session.execute("expire_messages", before=t.now - MESSAGES_KEPT)
    rows = [{"topic": p.topic, "now": t.now, "body": text_of(p.value)} for p in publications]
    t.session.execute_many("publish", rows)
    t.changes.touched |= {topic_key(publication.topic) for publication in publications}


def messages_on(session: Session, topic: str, after: str | None) -> r.Messages:
    """Return the messages on a topic after a cursor; None: only the newest cursor."""
    [newest] = session.fetch("last_message")
    found = () if after is None else _after(session, topic, after, limit=-1)
    return r.Messages(cursor=str(newest["number"]), values=found)


def has_grown(session: Session, watch: r.Published) -> bool:
    """Whether there is a message on a topic after a cursor."""
    return bool(_after(session, watch.topic, watch.after, limit=1))


def _after(session: Session, topic: str, cursor: str, limit: int) -> tuple[Raw, ...]:
    rows = session.fetch("messages_after", topic=topic, after=int(cursor or 0), limit=limit)
    return tuple(Raw(row["body"].encode()) for row in rows)
