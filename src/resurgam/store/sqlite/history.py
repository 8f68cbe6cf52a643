"""The log of an execution: append entries, forget them, drop what is forgotten, decode rows.

A forgotten entry is kept under a location, stored as its key: bytes that sort as locations do, so that a span of them
is one range of an index.
"""

from collections.abc import Sequence

from resurgam.core import event as events
from resurgam.core.errors import CorruptHistory
from resurgam.core.event import decode_events, encode_event
from resurgam.core.location import Location
from resurgam.core.outcome import Forgotten, Span
from resurgam.store.sqlite.session import Row, Session
from resurgam.store.sqlite.transaction import Transaction


def append(t: Transaction, execution_id: str, entries: Sequence[events.Event]) -> None:
    """Append entries to a log."""
    t.session.append(encode_log(execution_id, entries))
    t.changes.grown.append(execution_id)


def encode_log(execution_id: str, entries: Sequence[events.Event]) -> list[object]:
    """Return the columns of entries, those of each after those of the one before, as `Session.append` takes them."""
    columns: list[object] = []
    for entry in entries:
        columns += (execution_id, entry.seq, encode_event(entry).decode())
    return columns


def forget(session: Session, execution_id: str, entries: Sequence[Forgotten]) -> None:
    """Keep entries of a log under their locations, where replay does not read them."""
    marks = [{"execution_id": execution_id, "seq": entry.seq, "location": entry.location.key()} for entry in entries]
    session.execute_many("forget_event", marks)


def drop(session: Session, execution_id: str, spans: Sequence[Span]) -> None:
    """Delete what is forgotten within spans of locations."""
    ranges = [{"execution_id": execution_id, "start": span.start.key(), "end": span.end.key()} for span in spans]
    session.execute_many("drop_events", ranges)


def forgotten_of(rows: Sequence[Row]) -> tuple[Forgotten, ...]:
    """Return which of the entries in *rows* are forgotten, and under which locations."""
    return tuple(
        Forgotten(row["seq"], Location.from_key(row["forgotten"])) for row in rows if row["forgotten"] is not None
    )


def decode_log(rows: Sequence[Row], execution_id: str) -> Sequence[events.Event]:
    """Return the entries in *rows*; raise `CorruptHistory` at the first that cannot be decoded."""
    found: list[events.Event] = []
    try:
        found.extend(decode_events([row["body"] for row in rows]))
    except ValueError as error:
        seq = rows[len(found)]["seq"]
        message = f"entry {seq} of execution {execution_id} cannot be read: {error}"
        raise CorruptHistory(message, readable=found) from error
    return found
