"""Copy whole executions out of a Redis store, and adopt them into one.

An adoption is planned by the rules of `adoption` from what is stored, and carried out by a function which first checks that
the plan still holds: no other writer comes in between.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from resurgam.core.errors import StoreError
from resurgam.core.event import decode_event, encode_event
from resurgam.core.location import Location
from resurgam.core.outcome import Forgotten
from resurgam.store import records as r
from resurgam.store.adoption import AdoptionPlan, plan_adoption
from resurgam.store.encoding import encode
from resurgam.store.redis.contents import decode_log, pending_of, promise_of
from resurgam.store.redis.library import text_of
from resurgam.store.redis.link import Link
from resurgam.store.redis.outbox import OutboxDriver
from resurgam.store.redis.parts import entry_part, instance_of, pending_part, schemas_text, tags_part
from resurgam.store.rules import first_run

_TRIES: Final = 20
"""Plans that other writers may thwart before an adoption is given up."""

_pack: Final = msgspec.msgpack.Encoder().encode


class RedisTransfer:
    """Copy and adopt whole executions, each part at one moment."""

    def __init__(self, link: Link, outbox: OutboxDriver) -> None:
        self._link = link
        self._outbox = outbox

    async def copies(self, entity_id: str, run_id: str | None = None) -> Sequence[r.Copy]:
        """Return everything that is kept of an entity's executions, oldest first."""
        return [copy for copy, _ in await self._versions(entity_id, run_id)]

    async def _versions(self, entity_id: str, run_id: str | None = None) -> Sequence[tuple[r.Copy, str]]:
        """Return copies, each with the version of what it was made from."""
        found = await self._read(entity_id, run_id, None)
        while rest := [execution_id for execution_id, row in found.items() if row is None]:
            # They are complete, so that they do not change any more, but may be purged.
            more = await self._read(entity_id, run_id, rest)
            found = {one: row or more.get(one) for one, row in found.items() if row is not None or one in more}
        return [
            (_copy_of(execution_id, row[:-1]), row[-1].decode())
            for execution_id, row in found.items()
            if row is not None
        ]

    async def _read(self, entity_id: str, run_id: str | None, ids: Sequence[str] | None) -> dict[str, Any]:
        """Return executions by their ids; None for one that did not fit into the answer."""
        found = await self._link.ask(self._link.partition_of(entity_id), "copies", [entity_id, run_id, ids])
        return {execution_id.decode(): row for execution_id, row in found}

    async def adopt(self, parts: Sequence[r.Adoption]) -> Sequence[r.Adopted | r.Exists]:
        """Adopt executions from another store."""
        return [await self._adopt(part) for part in parts]

    async def remove(self, parts: Sequence[r.Removal]) -> Sequence[r.Removed | r.Changed]:
        """Delete executions that another store has adopted."""
        return [await self._remove(part) for part in parts]

    async def _remove(self, part: r.Removal) -> r.Removed | r.Changed:
        versions = await self._unchanged(part)
        if versions is None:
            return r.Changed()
        partition = self._link.partition_of(part.entity_id)
        return r.Removed() if await self._link.ask(partition, "remove", [part.entity_id, *versions]) else r.Changed()

    async def reserve(self, parts: Sequence[r.Reservation]) -> Sequence[r.Reserved | r.Changed]:
        """Append the entries that say that complete executions are being archived."""
        return await asyncio.gather(*map(self._reserve, parts))

    async def _reserve(self, part: r.Reservation) -> r.Reserved | r.Changed:
        event = part.event
        entry = [part.entity_id, part.execution_id, event.seq, event.type, encode_event(event).decode()]
        reserved = await self._link.ask(self._link.partition_of(part.entity_id), "reserve", entry)
        return r.Reserved() if reserved else r.Changed()

    async def archive(self, parts: Sequence[r.Archival]) -> Sequence[r.Archived | r.Changed]:
        """Delete everything but the rows of executions that an archive holds."""
        return [await self._archive(part) for part in parts]

    async def _archive(self, part: r.Archival) -> r.Archived | r.Changed:
        versions = await self._unchanged(part)
        if versions is None:
            return r.Changed()
        partition = self._link.partition_of(part.entity_id)
        done = await self._link.ask(partition, "archive", [part.entity_id, part.archive, *versions])
        return r.Archived() if done else r.Changed()

    async def _unchanged(self, part: r.Removal | r.Archival) -> Sequence[str] | None:
        """Return the ids and versions of executions in turn; None if one differs from its copy, or is gone."""
        named = {copy.instance.execution_id for copy in part.copies}
        found = [one for one in await self._versions(part.entity_id) if one[0].instance.execution_id in named]
        if tuple(copy for copy, _ in found) != part.copies:
            return None
        return [text for copy, version in found for text in (copy.instance.execution_id, version)]

    async def flush(self) -> None:
        """Carry the effects of all commits so far, whoever made them."""
        await self._outbox.flush()

    async def scrub(self) -> None:
        """Do nothing: no answers are kept."""

    async def _adopt(self, part: r.Adoption) -> r.Adopted | r.Exists:
        partition = self._link.partition_of(part.entity_id)
        for _ in range(_TRIES):
            here = await self._look(partition, part)
            plan = plan_adoption(part, here.executions.get, here.of_entity, here.holders.get)
            if isinstance(plan, r.Exists):
                return plan
            if await self._link.ask(partition, "adopt", _part_of(part, plan, here)):
                return plan.answer
        raise StoreError(f"entity {part.entity_id!r} was changed by others in each of {_TRIES} attempts to adopt it")

    async def _look(self, partition: int, part: r.Adoption) -> "_Known":
        ids = [copy.instance.execution_id for copy in part.copies]
        promise_ids = [promise.promise_id for copy in part.copies for promise in copy.promises]
        known, found, holders = await self._link.ask(partition, "find_executions", [part.entity_id, ids, promise_ids])
        return _Known(
            [_shown(view) for view in known],
            dict(zip(ids, map(_shown, found), strict=True)),
            dict(zip(promise_ids, map(_shown, holders), strict=True)),
        )


class _Known(msgspec.Struct, frozen=True):
    """What a plan is made from: the executions of the entity, those with the ids of the copies, holders of promises."""

    known: Sequence[r.Instance]
    executions: dict[str, r.Instance | None]
    holders: dict[str, r.Instance | None]

    def of_entity(self, _: str) -> Sequence[r.Instance]:
        """Return the executions of the entity, oldest first."""
        return self.known


# Out of a store.


def _copy_of(execution_id: str, row: Sequence[Any]) -> r.Copy:
    view, paused, log, inbox, activities, promises, answer = row
    entries = sorted(zip(log[::3], log[1::3], log[2::3], strict=True))
    marks = [(seq, location) for seq, _, location in entries if location is not None]
    return r.Copy(
        instance=instance_of(view, beneath=True),
        log=tuple(decode_log([(seq, body) for seq, body, _ in entries], execution_id)),
        forgotten=tuple(Forgotten(seq, Location.from_key(location)) for seq, location in marks),
        inbox=tuple(map(decode_event, inbox)),
        activities=tuple(map(pending_of, activities)),
        promises=tuple(map(promise_of, promises)),
        answer=None if answer is None else decode_event(answer),
        paused=None if paused is None else r.Pause(paused.decode()),
    )


# Into another.


def _shown(view: Sequence[Any] | None) -> Any:
    return None if view is None else instance_of(view)


def _part_of(part: r.Adoption, plan: AdoptionPlan, here: _Known) -> list[Any]:
    """Return the part of `adopt`: what must still be so, and what to write."""
    holders = ((promise_id, "" if one is None else one.execution_id) for promise_id, one in here.holders.items())
    return [
        part.entity_id,
        [item for one in here.known for item in (one.execution_id, one.status.terminal)],
        [item for pair in holders for item in pair],
        plan.order,
        plan.restored,
        [_copy_part(copy) for copy in plan.copies],
    ]


def _copy_part(copy: r.Copy) -> list[Any]:
    instance = copy.instance
    return [
        instance.execution_id,
        encode(instance),
        [item for field in _state_of(copy).items() if field[1] is not None for item in field],
        schemas_text(instance.signal_schemas) if instance.signal_schemas else None,
        None if copy.answer is None else text_of(_pack(entry_part(copy.answer))),
        [item for event in copy.log for item in (event.seq, event.type, encode_event(event).decode())],
        [item for mark in copy.forgotten for item in (mark.seq, text_of(mark.location.key()))],
        [entry_part(event) for event in copy.inbox],
        [pending_part(pending) for pending in copy.activities],
        [[one.promise_id, one.name, bytes(one.schema).decode(), one.settled] for one in copy.promises],
        copy.ready,
    ]


def _state_of(copy: r.Copy) -> dict[str, Any]:
    """Return the fields of the state of an execution; those that are None are absent."""
    instance = copy.instance
    names = ("entity_id", "run_id", "attempt", "kind", "name", "tree_id", "queue", "created_at", "last_seq")
    optional = ("wake_at", "closed_at", "parked", "dead_letter", "failure", "archived")
    return {
        **{name: getattr(instance, name) for name in (*names, *optional)},
        "status": instance.status.value,
        "deactivated": 1 if instance.deactivated else None,
        "first_run": first_run(instance),
        "parent_key": None if instance.parent is None else instance.parent.key,
        "parent": None if instance.parent is None else instance.parent.entity_id,
        "tags": tags_part(instance.tags),
        "paused": None if copy.paused is None else copy.paused.value,
    }
