"""Activities that the lease on their instance covers: kept in the row of the instance, with no row of their own.

Such an activity is claimed by the commit that schedules it, and most are answered by the next commit of the same worker.
It gets a row when it must be told from its instance: when the lease ends without it, or a verb names it.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Raw

from resurgam.core.outcome import ActivityRequest
from resurgam.store import records as r
from resurgam.store.sqlite.session import Row, Session
from resurgam.store.sqlite.transaction import Transaction

_encoder = msgspec.json.Encoder()
_many = msgspec.json.Decoder(list[Raw])
_request = msgspec.json.Decoder(ActivityRequest)


class _Named(msgspec.Struct):
    """The field of a request by which it is found, whatever version wrote the others."""

    ref: int


_named = msgspec.json.Decoder(_Named)


def encode_requests(requests: Sequence[ActivityRequest]) -> str | None:
    """Return requests in the form of their column."""
    return _encoder.encode(requests).decode() if requests else None


def put_back(t: Transaction, execution_id: str, *, deliveries: int) -> None:
    """Put what a lease has covered back on its queues."""
    if t.session.execute("free_covered", execution_id=execution_id, now=t.now, deliveries=deliveries):
        t.changes.work = True
        t.busy_queues.clear()
    t.session.execute("clear_covered", execution_id=execution_id)


def lease_alone(t: Transaction, execution_id: str) -> None:
    """Give what a lease has covered leases of its own, for the same time; the lease itself is about to end."""
    t.session.execute("lease_covered", execution_id=execution_id, ref=None)


def lease_requests(t: Transaction, execution_id: str, requests: Sequence[ActivityRequest]) -> None:
    """Give activities that a commit leaves running leases of their own."""
    rows = [
        (execution_id, one.ref, one.queue, _encoder.encode(one).decode(), execution_id, one.ref, t.lease_until, t.owner)
        for one in requests
    ]
    t.session.put_off("lease_request", rows)
    t.changes.due(t.lease_until)


def lease_named(t: Transaction, execution_id: str, ref: int | None) -> None:
    """Give an activity a row, with a lease of its own, if it has none because the lease on its instance covers it."""
    for row in t.session.fetch("covered", execution_id=execution_id):
        requests = _many.decode(row["covered"])
        left = [request for request in requests if _named.decode(request).ref != ref]
        if len(left) < len(requests):
            t.session.execute("lease_covered", execution_id=execution_id, ref=ref)
            t.session.execute(
                "set_covered", execution_id=execution_id, covered=_encoder.encode(left).decode() if left else None
            )


class Covered(NamedTuple):
    """An activity that the lease on its instance covers, and the moment at which it was scheduled."""

    request: ActivityRequest
    visible_at: int

    def fields(self) -> dict[str, Any]:
        """Return what there is to know of it."""
        return {"request": self.request, "visible_at": self.visible_at, "deliveries": 1}


def covered_in(session: Session, row: Row) -> list[Covered]:
    """Return the activities that the lease on the instance in *row* covers and that this version can decode."""
    if row["covered"] is None:
        return []
    found = []
    for one in session.fetch("shown_covered", execution_id=row["execution_id"]):
        try:
            found.append(Covered(_request.decode(one["request"]), one["visible_at"]))
        except ValueError:
            continue  # one that cannot be decoded must not hide the others
    return found


def pending_ones(session: Session, row: Row) -> list[r.Pending]:
    """Return them without their lease."""
    return [r.Pending(**covered.fields()) for covered in covered_in(session, row)]


def open_ones(session: Session, row: Row) -> list[r.OpenActivity]:
    """Return them with the lease that covers them."""
    lease = {"worker": row["lease_owner"], "leased_until": row["leased_until"]}
    return [r.OpenActivity(**covered.fields(), **lease) for covered in covered_in(session, row)]


A = TypeVar("A", bound=r.Pending)


def by_ref(with_row: Sequence[A], covered: Sequence[A]) -> tuple[A, ...]:
    """Return activities with and without a row in the order of their refs; one that has a row is shown by it."""
    found = {activity.request.ref: activity for activity in (*covered, *with_row)}
    return tuple(found[ref] for ref in sorted(found))
