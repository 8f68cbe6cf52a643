"""Inboxes: events that wait to be delivered to their instance."""

from collections.abc import Sequence

from resurgam.core import event as events
from resurgam.core.event import decode_event, encode_event
from resurgam.core.outcome import Entry
from resurgam.store.encoding import encode
from resurgam.store.sqlite.dead_letters import mark_instance_dead, undecodable
from resurgam.store.sqlite.session import Row, Session
from resurgam.store.sqlite.transaction import Transaction


class Undecodable(ValueError):
    """An entry of an inbox that this version cannot decode, such as one that a newer version wrote."""

    def __init__(self, what: str, error: ValueError) -> None:
        super().__init__(str(error))
        self.what = what


def put(t: Transaction, execution_id: str, event: events.Event) -> None:
    """Put an event into an inbox and raise the wake counter; an instance without a lease becomes ready."""
    [raised] = t.session.fetch("raise_wake", execution_id=execution_id, ready_at=t.ready_at())
    body = encode_event(event).decode()
    t.session.execute("put_into_inbox", execution_id=execution_id, wake=raised["wake"], body=body)
    t.changes.touched.add(execution_id)
    t.changes.work = True


def entries_since(t: Transaction, execution_id: str, wake: int) -> tuple[Entry, ...] | None:
    """Return what came into an inbox after the counter was *wake*; None if the instance is a dead letter now."""
    rows = t.session.fetch("inbox_since", execution_id=execution_id, wake=wake)
    try:
        return tuple([entry_of(row) for row in rows])
    except Undecodable as error:
        mark_instance_dead(t, execution_id, undecodable(error.what, error))
        return None


def rows_of_inboxes(session: Session, execution_ids: Sequence[str]) -> dict[str, list[Row]]:
    """Return the rows of several inboxes by execution."""
    found: dict[str, list[Row]] = {}
    for row in session.fetch("inboxes", execution_ids=encode(execution_ids)) if execution_ids else ():
        found.setdefault(row["execution_id"], []).append(row)
    return found


def entry_of(row: Row) -> Entry:
    """Return the inbox entry that a row holds."""
    try:
        return Entry(row["id"], decode_event(row["body"]))
    except ValueError as error:
        raise Undecodable(f"inbox entry {row['id']}", error) from error
