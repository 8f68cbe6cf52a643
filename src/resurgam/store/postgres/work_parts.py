"""The parts of the verbs about leases and activities, and the answers of their functions as records.

The elements of a part are documented in the SQL file of its verb.
"""

from collections.abc import Sequence
from secrets import token_hex
from typing import Any, Final

import msgspec
from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.outcome import ActivityRequest
from resurgam.store import records as r
from resurgam.store.answers import Undecodable
from resurgam.store.postgres.parts import CANCELLED, entries_of, entry_part
from resurgam.store.postgres.pool import as_json

REPEATABLE: Final = ("extend", "grown", "look", "progress")
"""Verbs that may be called again if their answer is lost: they read, or do the same again."""

PURGED: Final = 50_000
"""The most events that one call of `purge` deletes: it takes a moment, not the time after which a statement is given up."""

_requests: Final = msgspec.json.Decoder(ActivityRequest)


def read_arguments(parts: list[Any]) -> tuple[Any, ...]:
    """Return the parts of `read`, each an entity id, an execution id and a ``seq``, as three arrays."""
    entities, executions, after = map(list, zip(*parts, strict=True)) if parts else ([], [], [])
    return entities, executions, after


def purge_arguments(parts: list[Any]) -> tuple[Any, ...]:
    """Return the arguments of `purge`."""
    return (*as_json(parts), PURGED)


def claim_part(worker: str, queues: Sequence[str], limit: int) -> list[Any]:
    """Return the part of `claim`, with a token of its own."""
    return [worker, list(queues), limit, token_hex(8)]


def claim_activities_part(worker: str, queues: Sequence[str], limit: int) -> list[Any]:
    """Return the part of `claim_activities`, with a token of its own."""
    return [worker, list(queues), limit, token_hex(8), CANCELLED]


def extend_part(lease: r.Lease) -> list[Any]:
    """Return the part of `extend`."""
    return [
        *(lease.entity_id, lease.execution_id, lease.epoch, lease.ref, lease.wake),
        *(_text(lease.details), lease.heartbeat_at),
    ]


def release_part(part: r.Release) -> list[Any]:
    """Return the part of `release`. The server stores no NUL."""
    lease, failed = part.lease, part.failed
    reason = None if failed is None else failed.replace("\0", "\N{REPLACEMENT CHARACTER}")
    return [lease.entity_id, lease.execution_id, lease.epoch, lease.ref, reason, part.final]


def result_part(part: r.ActivityResult) -> list[Any]:
    """Return the part of `complete_activities`."""
    event = part.event
    return [
        *(part.entity_id, part.execution_id, part.epoch, event.ref, event.attempt, entry_part(event)),
        event.next_at if isinstance(event, events.ActivityRetryScheduled) else None,
        *(_text(part.details), part.heartbeat_at),
    ]


def task_of(answer: Sequence[Any]) -> r.ActivityTask:
    """Return a leased activity; raise `Undecodable` if its request cannot be decoded."""
    entity_id, execution_id, epoch, ref, attempt, deliveries, request, details = answer
    try:
        decoded = _requests.decode(request)
    except ValueError as error:
        raise Undecodable(f"activity (entry {ref})", error) from error
    return r.ActivityTask(
        entity_id=entity_id,
        execution_id=execution_id,
        epoch=epoch,
        attempt=attempt,
        deliveries=deliveries,
        request=decoded,
        details=None if details is None else Raw(details.encode()),
    )


def extended_of(answer: Any) -> r.Extended | r.Refused:
    """Return the answer to a renewal; raise `Undecodable` if its inbox cannot be decoded."""
    if isinstance(answer, str):
        return r.Refused(reason=answer)
    wake, entries = answer
    return r.Extended(wake=wake, inbox=entries_of(entries))


def released_of(answer: Any) -> r.Released | r.Refused:
    """Return the answer to a release."""
    return r.Refused(reason=answer) if isinstance(answer, str) else r.Released()


def accepted_of(answer: Any) -> r.Accepted | r.Refused:
    """Return the answer to a result."""
    return r.Refused(reason=answer) if isinstance(answer, str) else r.Accepted()


def revived_of(answer: int) -> r.Revived | r.Missing:
    """Return the answer to a revival."""
    return r.Missing() if answer < 0 else r.Revived(count=answer)


def _text(value: Raw | None) -> str | None:
    return None if value is None else bytes(value).decode()
