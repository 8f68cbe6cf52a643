"""Convert rows to records: instances, what belongs to them, and the entries of their logs."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.errors import CorruptHistory
from resurgam.core.event import decode_events
from resurgam.core.outcome import ActivityRequest
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.encoding import decode

COLUMNS: Final = 22
"""Columns of an instance in the statements that return one."""

_STATUSES: Final = {status.value: status for status in Status}
_NO_TAGS: Final = "{}"

_tags: Final = msgspec.json.Decoder(dict[str, str])
_schemas: Final = msgspec.json.Decoder(dict[str, Raw])
_requests: Final = msgspec.json.Decoder(ActivityRequest)
_covered: Final = msgspec.json.Decoder(list[tuple[int, str, str]])

S = TypeVar("S")
T = TypeVar("T")


def instance_of(row: Iterable[Any], letters: Sequence[str] | None = None) -> r.Instance:
    """Return the instance that ``{instance}`` of `reads.sql` has selected, with the dead letters of its activities."""
    # fmt: off
    (
        execution_id, entity_id, run_id, tree_id, generation, attempt, kind, name, queue, status, created_at, closed_at,
        deactivated, last_seq, wake_at, tags, parked, dead_letter, parent, signal_schemas, failure,
        archived,
    ) = row
    # fmt: on
    return r.Instance(
        entity_id=entity_id,
        execution_id=execution_id,
        run_id=run_id,
        tree_id=tree_id,
        generation=generation,
        attempt=attempt,
        kind=kind,
        name=name,
        queue=queue,
        status=status_of(status),
        created_at=created_at,
        closed_at=closed_at,
        deactivated=deactivated,
        last_seq=last_seq,
        wake_at=wake_at,
        tags={} if tags == _NO_TAGS else _tags.decode(tags),
        parked=parked,
        dead_letter=dead_letter,
        activity_dead_letters=tuple(letters or ()),
        parent=None if parent is None else decode(parent, events.Parent),
        signal_schemas={} if signal_schemas is None else _schemas.decode(signal_schemas),
        failure=failure,
        archived=archived,
    )


def seen(row: Sequence[Any]) -> r.Instance:
    """Return the instance of a row that ends with the dead letters of its activities."""
    return instance_of(row[:COLUMNS], row[COLUMNS])


def status_of(stored: str) -> Status:
    """Return the status with this name; raise `ValueError` for one of a newer version."""
    return _STATUSES.get(stored) or Status(stored)


def decodable(decode: Callable[[S], T], stored: S) -> Iterator[T]:
    """Yield what was stored, unless this version cannot decode it: one that it cannot must not hide the others."""
    with suppress(ValueError):
        yield decode(stored)


def decode_log(rows: Sequence[Sequence[Any]], execution_id: str) -> Sequence[events.Event]:
    """Return the entries of a log, given as ``seq`` and body; raise `CorruptHistory` at the first one that is broken."""
    found: list[events.Event] = []
    try:
        found.extend(decode_events([body for _, body in rows]))
    except ValueError as error:
        seq, _ = rows[len(found)]
        message = f"entry {seq} of execution {execution_id} cannot be read: {error}"
        raise CorruptHistory(message, readable=found) from error
    return found


def promise_of(row: Sequence[Any]) -> r.Promise:
    """Return a promise."""
    promise_id, name, schema, settled = row
    return r.Promise(promise_id=promise_id, name=name, settled=settled, schema=Raw(schema.encode()))


# Activities.


class _Scheduled(msgspec.Struct):
    """The fields of an entry that say when it scheduled an activity."""

    seq: int
    at: int


_scheduled: Final = msgspec.json.Decoder(_Scheduled)


def pending_of(row: Sequence[Any]) -> r.Pending:
    """Return an activity without its lease."""
    _, request, visible_at, attempt, deliveries, dead_letter, details, heartbeat_at, *_ = row
    return r.Pending(
        request=_requests.decode(request),
        visible_at=visible_at,
        attempt=attempt,
        deliveries=deliveries,
        dead_letter=dead_letter,
        details=None if details is None else Raw(details.encode()),
        heartbeat_at=heartbeat_at,
    )


def open_activity_of(row: Sequence[Any]) -> r.OpenActivity:
    """Return an activity with its lease."""
    *_, worker, leased_until = row
    held = leased_until is not None
    fields = msgspec.structs.asdict(pending_of(row))
    return r.OpenActivity(**fields, worker=worker if held else None, leased_until=leased_until)


def requests_in(covered: str | None) -> list[ActivityRequest]:
    """Return the requests of the activities that a lease covers, as far as this version can decode them."""
    found = [] if covered is None else _covered.decode(covered)
    return [request for _, _, text in found for request in decodable(_requests.decode, text)]


def covered_by(covered: str | None, scheduled: Sequence[str] | None) -> list[r.Pending]:
    """Return the activities that a lease covers. *scheduled* are the entries that scheduled them, among others."""
    entries = [entry for body in scheduled or () for entry in decodable(_scheduled.decode, body)]
    moments = {entry.seq: entry.at for entry in entries}
    return [
        r.Pending(request=request, visible_at=moments.get(request.ref, 0), deliveries=1)
        for request in requests_in(covered)
    ]


A = TypeVar("A", bound=r.Pending)


def by_ref(with_row: Iterable[A], covered: Iterable[A]) -> tuple[A, ...]:
    """Return activities in the order of their refs; one that has a row is shown by it."""
    found = {activity.request.ref: activity for activity in (*covered, *with_row)}
    return tuple(found[ref] for ref in sorted(found))
