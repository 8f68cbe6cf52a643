"""Inboxes: events that wait to be delivered to their instance."""

from collections.abc import Sequence
from typing import TypeAlias

from resurgam.core import event as events
from resurgam.core.event import decode_event, encode_event
from resurgam.core.outcome import Entry
from resurgam.store.encoding import encode
from resurgam.store.sqlite.dead_letters import mark_instance_dead, undecodable
from resurgam.store.sqlite.session import Session
from resurgam.store.sqlite.transaction import Transaction

StoredEntry: TypeAlias = tuple[int, str]
"""The number of an inbox entry, and its JSON."""


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


def put_quietly(t: Transaction, execution_id: str, event: events.Event) -> None:
    """Put an event into an inbox that comes with the next one that raises the wake counter."""
    body = encode_event(event).decode()
    t.session.execute("put_quietly_into_inbox", execution_id=execution_id, body=body)


def entries_since(t: Transaction, execution_id: str, wake: int) -> tuple[Entry, ...] | None:
    """Return what came into an inbox after the counter was *wake*; None if the instance is a dead letter now."""
    rows = t.session.fetch("inbox_since", execution_id=execution_id, wake=wake)
    try:
        return tuple([entry_of(number, body) for number, body in rows])
    except Undecodable as error:
        mark_instance_dead(t, execution_id, undecodable(error.what, error))
        return None


def stored_inboxes(session: Session, execution_ids: Sequence[str]) -> dict[str, list[StoredEntry]]:
    """Return the entries of several inboxes by execution, each with its number."""
    found: dict[str, list[StoredEntry]] = {}
    for number, execution_id, body in (
        session.fetch("inboxes", execution_ids=encode(execution_ids)) if execution_ids else ()
    ):
        found.setdefault(execution_id, []).append((number, body))
    return found


def entry_of(number: int, body: str) -> Entry:
    """Return a stored entry of an inbox."""
    try:
        return Entry(number, decode_event(body))
    except ValueError as error:
        raise Undecodable(f"inbox entry {number}", error) from error
