"""Copy whole executions out of a Postgres store, adopt them into one, and replace them by an archive.

An adoption is planned by the rules of `adoption` from what is stored, and carried out by a function that first checks whether
the plan still holds: no other writer comes in between.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from resurgam.core import event as events
from resurgam.core.errors import StoreError
from resurgam.core.event import decode_event, encode_event
from resurgam.core.location import Location
from resurgam.core.outcome import Forgotten
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.adoption import AdoptionPlan, plan_adoption
from resurgam.store.encoding import encode
from resurgam.store.postgres.functions import library
from resurgam.store.postgres.pool import Pool
from resurgam.store.postgres.rows import (
    COLUMNS,
    by_ref,
    covered_by,
    decode_log,
    instance_of,
    pending_of,
    promise_of,
    status_of,
)
from resurgam.store.rules import first_run

_TRIES: Final = 20
"""Plans that other writers may thwart before an adoption is given up."""

_OVERTAKING: Final = (events.ChildAnswer, events.PromiseAnswer)


class PostgresTransfer:
    """Copy and adopt whole executions, each part at one moment."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def copies(self, entity_id: str, run_id: str | None = None) -> Sequence[r.Copy]:
        """Return everything that is kept of an entity's executions, oldest first."""
        return [copy for copy, _ in await self._versions(entity_id, run_id)]

    async def _versions(self, entity_id: str, run_id: str | None = None) -> Sequence[tuple[r.Copy, str]]:
        """Return copies, each with the version of what it was made from."""
        rows = await self._pool.select("copies", entity_id, run_id, code=library().code)
        return [(_copy_of(row[:COLUMNS], *row[COLUMNS:-1]), row[-1]) for row in rows]

    async def adopt(self, parts: Sequence[r.Adoption]) -> Sequence[r.Adopted | r.Exists]:
        """Adopt executions from another store."""
        return [await self._adopt(part) for part in parts]

    async def remove(self, parts: Sequence[r.Removal]) -> Sequence[r.Removed | r.Changed]:
        """Delete executions that another store has adopted."""
        return [await self._remove(part) for part in parts]

    async def _remove(self, part: r.Removal) -> r.Removed | r.Changed:
        versions = await self._unchanged(part)
        done = versions is not None and await self._pool.ask("remove", [part.entity_id, versions])
        return r.Removed() if done else r.Changed()

    async def reserve(self, parts: Sequence[r.Reservation]) -> Sequence[r.Reserved | r.Changed]:
        """Append the entries that say that complete executions are being archived."""
        answers = await asyncio.gather(*(self._pool.ask("reserve", _reservation_part(part)) for part in parts))
        return [r.Reserved() if done else r.Changed() for done in answers]

    async def archive(self, parts: Sequence[r.Archival]) -> Sequence[r.Archived | r.Changed]:
        """Delete everything but the rows of executions that an archive holds."""
        return [await self._archive(part) for part in parts]

    async def _archive(self, part: r.Archival) -> r.Archived | r.Changed:
        versions = await self._unchanged(part)
        done = versions is not None and await self._pool.ask("archive", [part.entity_id, versions, part.archive])
        return r.Archived() if done else r.Changed()

    async def _unchanged(self, part: r.Removal | r.Archival) -> list[list[str]] | None:
        """Return the executions of copies, each with its version; None if one of them has changed or is gone."""
        named = {copy.instance.execution_id for copy in part.copies}
        found = [one for one in await self._versions(part.entity_id) if one[0].instance.execution_id in named]
        if tuple(copy for copy, _ in found) != part.copies:
            return None
        return [[copy.instance.execution_id, version] for copy, version in found]

    async def flush(self) -> None:
        """Do nothing: effects are part of the commit."""

    async def scrub(self) -> None:
        """Delete the kept answers of all processes: some come from connections that have been idle for hours."""
        await self._pool.fetch("calls_scrub")

    async def _adopt(self, part: r.Adoption) -> r.Adopted | r.Exists:
        for _ in range(_TRIES):
            here = await self._look(part)
            plan = plan_adoption(part, here.executions.get, here.of_entity, here.holders.get)
            if isinstance(plan, r.Exists):
                return plan
            if await self._pool.ask("adopt", _part_of(part, plan, here)):
                return plan.answer
        raise StoreError(f"entity {part.entity_id!r} was changed by others in each of {_TRIES} attempts to adopt it")

    async def _look(self, part: r.Adoption) -> "_Known":
        ids = [copy.instance.execution_id for copy in part.copies]
        promise_ids = [promise.promise_id for copy in part.copies for promise in copy.promises]
        rows = await self._pool.select("known", part.entity_id, ids, promise_ids)
        found: dict[str, dict[str, r.Instance]] = {"known": {}, "found": {}, "holder": {}}
        for kind, key, _, *instance in rows:
            one = instance_of(instance)
            found[kind][key or one.execution_id] = one
        holders: dict[str, r.Instance | None] = {
            promise_id: found["holder"].get(promise_id) for promise_id in promise_ids
        }
        return _Known(list(found["known"].values()), found["found"], holders)


class _Known(msgspec.Struct, frozen=True):
    """What a plan is made from: the executions of the entity, those with the ids of the copies, holders of promises."""

    known: Sequence[r.Instance]
    executions: dict[str, r.Instance]
    holders: dict[str, r.Instance | None]

    def of_entity(self, _: str) -> Sequence[r.Instance]:
        """Return the executions of the entity, oldest first."""
        return self.known


# Out of a store.


def _copy_of(  # noqa: PLR0913, PLR0917 -- the columns of a copy
    instance: Sequence[Any],
    status: str,
    paused: str | None,
    log: Sequence[Any] | None,
    inbox: Sequence[str] | None,
    activities: Sequence[Any] | None,
    covered: str | None,
    scheduled: Sequence[str] | None,
    promises: Sequence[Any] | None,
    answer: str | None,
) -> r.Copy:
    shown = instance_of(instance)
    entries = log or ()
    marks = [(seq, location) for seq, _, location in entries if location is not None]
    return r.Copy(
        instance=msgspec.structs.replace(shown, status=status_of(status)),
        log=tuple(decode_log([(seq, body) for seq, body, _ in entries], shown.execution_id)),
        forgotten=tuple(Forgotten(seq, Location.from_key(location)) for seq, location in marks),
        inbox=tuple(map(decode_event, inbox or ())),
        activities=by_ref(map(pending_of, activities or ()), covered_by(covered, scheduled)),
        promises=tuple(map(promise_of, promises or ())),
        answer=None if answer is None else decode_event(answer),
        paused=None if paused is None else r.Pause(paused),
    )


# Within it.


def _reservation_part(part: r.Reservation) -> list[Any]:
    event = part.event
    return [part.entity_id, part.execution_id, event.seq, event.type, encode_event(event).decode()]


# Into another.


def _part_of(part: r.Adoption, plan: AdoptionPlan, here: _Known) -> list[Any]:
    """Return the part of `adopt`: what must still be so, and what to write."""
    return [
        part.entity_id,
        [[one.execution_id, one.status.terminal] for one in here.known],
        [[promise_id, None if one is None else one.execution_id] for promise_id, one in here.holders.items()],
        plan.order,
        [_copy_part(copy) for copy in plan.copies],
        plan.restored,
    ]


def _copy_part(copy: r.Copy) -> dict[str, Any]:
    instance, parent = copy.instance, copy.instance.parent
    same = (
        *("execution_id", "entity_id", "run_id", "tree_id", "generation", "attempt", "kind", "name", "queue"),
        *("created_at", "closed_at", "deactivated", "last_seq", "wake_at", "parked", "dead_letter", "failure"),
        "archived",
    )
    ready = copy.ready or instance.status is Status.DIVERGED
    return {
        **{name: getattr(instance, name) for name in same},
        "status": instance.status.value,
        "paused": None if copy.paused is None else copy.paused.value,
        "tags": encode(instance.tags),
        "tag_rows": instance.tags,
        "parent": None if parent is None else encode(parent),
        "parent_id": None if parent is None else parent.entity_id,
        "parent_key": None if parent is None else parent.key,
        "first_run": first_run(instance),
        "signal_schemas": _schemas_text(instance) if instance.signal_schemas else None,
        "ready": ready and instance.status is not Status.SCHEDULED,
        "log": [[event.seq, event.type, encode_event(event).decode()] for event in copy.log],
        "forgotten": [[mark.seq, mark.location.key().hex()] for mark in copy.forgotten],
        "inbox": [_entry_part(event) for event in copy.inbox],
        "activities": [_pending_part(pending) for pending in copy.activities],
        "promises": [[one.promise_id, one.name, bytes(one.schema).decode(), one.settled] for one in copy.promises],
        "answer": None if copy.answer is None else _entry_part(copy.answer)[:2],
    }


def _schemas_text(instance: r.Instance) -> str:
    """Return schemas of signals as text that is equal for equal schemas."""
    return encode(dict(sorted(instance.signal_schemas.items())))


def _entry_part(event: events.Event) -> list[Any]:
    promise_id = event.promise_id or None if isinstance(event, events.PromiseAnswer) else None
    return [event.type, encode_event(event).decode(), isinstance(event, _OVERTAKING), promise_id]


def _pending_part(pending: r.Pending) -> list[Any]:
    request = pending.request
    return [
        *(request.ref, request.queue, encode(request), pending.visible_at, pending.attempt, pending.deliveries),
        *(pending.dead_letter, None if pending.details is None else bytes(pending.details).decode()),
        pending.heartbeat_at,
    ]
