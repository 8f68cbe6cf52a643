"""Decode what functions return of the inside of an execution: its log, its activities, its promises."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.errors import CorruptHistory
from resurgam.core.event import decode_events
from resurgam.core.outcome import ActivityRequest
from resurgam.store import records as r

_requests: Final = msgspec.json.Decoder(ActivityRequest)

S = TypeVar("S")
T = TypeVar("T")


def decodable(decode: Callable[[S], T], stored: S) -> Iterator[T]:
    """Yield what was stored, unless this version cannot decode it: one that it cannot must not hide the others."""
    with suppress(ValueError):
        yield decode(stored)


def decode_log(rows: Sequence[tuple[int, bytes]], execution_id: str) -> Sequence[events.Event]:
    """Return the entries of a log, given as ``seq`` and body; raise `CorruptHistory` at the first one that is broken."""
    found: list[events.Event] = []
    try:
        found.extend(decode_events([body.decode() for _, body in rows]))
    except ValueError as error:
        seq, _ = rows[len(found)]
        message = f"entry {seq} of execution {execution_id} cannot be read: {error}"
        raise CorruptHistory(message, readable=found) from error
    return found


def open_activity_of(row: Sequence[Any]) -> r.OpenActivity:
    """Return an activity with its lease."""
    *_, worker, leased_until = row
    held = leased_until is not None
    return r.OpenActivity(
        **msgspec.structs.asdict(pending_of(row)),
        worker=worker.decode() if held else None,
        leased_until=leased_until,
    )


def pending_of(row: Sequence[Any]) -> r.Pending:
    """Return an activity without its lease."""
    _, request, visible_at, attempt, deliveries, dead_letter, details, heartbeat_at, *_ = row
    return r.Pending(
        request=_requests.decode(request),
        visible_at=visible_at,
        attempt=attempt,
        deliveries=deliveries,
        dead_letter=None if dead_letter is None else dead_letter.decode(),
        details=None if details is None else Raw(details),
        heartbeat_at=heartbeat_at,
    )


def promise_of(row: Sequence[Any]) -> r.Promise:
    """Return a promise."""
    promise_id, name, schema, settled = row
    return r.Promise(promise_id=promise_id.decode(), name=name.decode(), settled=bool(settled), schema=Raw(schema))
