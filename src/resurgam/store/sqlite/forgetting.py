"""Entries that replay needs no longer, told in the named statements of `queries.sql`.

A place is kept as its key: bytes that sort as places do, so that a span of them is one range of an index.
"""

from collections.abc import Sequence

from resurgam.core.location import Location
from resurgam.core.outcome import Forgotten, Span
from resurgam.store.sqlite.session import Row, Session


def forget(session: Session, execution_id: str, entries: Sequence[Forgotten]) -> None:
    """Keep entries of a log under their places."""
    marks = [{"execution_id": execution_id, "seq": entry.seq, "place": entry.place.key()} for entry in entries]
    session.many("forget_event", marks)


def drop(session: Session, execution_id: str, spans: Sequence[Span]) -> None:
    """Give up what is forgotten under the places of spans."""
    ranges = [{"execution_id": execution_id, "start": span.start.key(), "end": span.end.key()} for span in spans]
    session.many("drop_events", ranges)


def forgotten_of(rows: Sequence[Row]) -> tuple[Forgotten, ...]:
    """Return which of the entries that rows hold are forgotten, and under which places."""
    return tuple(
        Forgotten(row["seq"], Location.from_key(row["forgotten"])) for row in rows if row["forgotten"] is not None
    )
