"""The parts of verbs as plain lists for MessagePack, and answers of functions as records.

The order of the elements is documented in the Lua file of each verb. Events, instances and requests travel as JSON text,
which Redis stores as it is. Bytes travel as text, because the decoder in Redis knows no other form (`library.text_of`).
"""

from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeAlias

import msgspec
from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.event import decode_event, encode_event
from resurgam.core.outcome import ActivityRequest, ChildRequest, Entry, Message, Outcome, Publication, Succession
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.answers import Undecodable, eager_tasks
from resurgam.store.encoding import decode, encode
from resurgam.store.redis.library import text_of
from resurgam.store.rules import COVERED, first_run, kept_answer, settlement
from resurgam.store.templates import Template, with_holes

Part: TypeAlias = list[Any]


class Routes(Protocol):
    """Where things are."""

    def partition_of(self, entity_id: str) -> int:
        """Return the partition of an entity, or of a topic."""
        ...

    def partition_of_route(self, routed_id: str) -> int | None:
        """Return the partition of an id that begins with a route; None if it does not."""
        ...


_FINAL: Final = (events.ActivityCompleted, events.ActivityFailed)
_OVERTAKING: Final = (events.ChildAnswer, events.PromiseAnswer)
_STATUSES: Final = {status.value.encode(): status for status in Status}

_QUIET: Final = 1 << 31
"""Entries that wake nobody are numbered in steps of this."""

_json = msgspec.json.Encoder()
_pack = msgspec.msgpack.Encoder().encode
_requests = msgspec.json.Decoder(ActivityRequest)
_schemas = msgspec.json.Decoder(dict[str, Raw])
_texts = msgspec.msgpack.Decoder(list[str])


# Events.


def entry_part(event: events.Event, body: Template | None = None) -> Part:
    """Return an event for an inbox, or for what is applied at once."""
    if body is None:
        body = _applied(event) if isinstance(event, events.WorkflowTerminated) else encode_event(event).decode()
    overtakes = isinstance(event, _OVERTAKING)
    promise_id = event.promise_id or None if isinstance(event, events.PromiseAnswer) else None
    tree = isinstance(event, events.WorkflowPaused) and event.tree
    return [event.type, body, overtakes, promise_id, tree]


def _applied(event: events.WorkflowTerminated) -> Template:
    return with_holes(event, seq=int, at=int)


CANCELLED: Final = entry_part(
    events.ActivityCancelled(ref=0), with_holes(events.ActivityCancelled(ref=0), at=int, ref=int)
)
"""The answer to an activity that was lost when its workflow was closed already."""


def _optional(event: events.Event | None) -> Part | None:
    return None if event is None else entry_part(event)


def entries_of(stream: Sequence[Any]) -> tuple[Entry, ...]:
    """Return the entries of an inbox as its stream holds them; raise `Undecodable` if one cannot be decoded."""
    entries = []
    for number, fields in stream:
        try:
            entries.append(Entry(_id_of(number), decode_event(fields[3])))
        except ValueError as error:
            raise Undecodable(f"inbox entry {number.decode().removesuffix('-0')}", error) from error
    return tuple(entries)


def _id_of(number: bytes) -> int:
    """Return the id of an entry as one number (``scripts/shared/inbox.lua``)."""
    if number.endswith(b"-0"):
        return int(number[:-2])
    wake, _, quiet = number.partition(b"-")
    return int(wake) + _QUIET * int(quiet)


# Instances.


def birth_part(started: events.Started) -> Part:
    """Return everything that begins an execution."""
    instance = r.Instance.of(started)
    parent = instance.parent
    return [
        *(instance.execution_id, instance.entity_id, started.type, encode_event(started).decode(), encode(instance)),
        *(instance.run_id, instance.attempt, first_run(instance), None if parent is None else parent.key),
        *(instance.kind, instance.name, instance.tree_id, None if parent is None else parent.entity_id, instance.queue),
        *(instance.created_at, tags_part(instance.tags), instance.status.value, instance.wake_at),
    ]


def tags_part(tags: dict[str, str]) -> Raw | None:
    """Return tags as names and values in turn; None if there are none."""
    return text_of(_pack([text for pair in tags.items() for text in pair])) if tags else None


def instance_of(view: Sequence[Any], *, beneath: bool = False) -> r.Instance:
    """Return the instance of a view: the JSON, and what overlays it. With *beneath* its status is that below a pause."""
    stored, status, paused, closed_at, deactivated, last_seq, *rest = view
    wake_at, parked, dead_letter, failure, tags, archived, schemas = rest
    return msgspec.structs.replace(
        decode(stored, r.Instance),
        status=Status.PAUSED if paused is not None and not beneath else status_of(status),
        closed_at=_int(closed_at),
        deactivated=deactivated is not None,
        last_seq=int(last_seq),
        wake_at=_int(wake_at),
        parked=_text(parked),
        dead_letter=_text(dead_letter),
        failure=_text(failure),
        tags={} if tags is None else _tags_of(tags),
        signal_schemas={} if schemas is None else _schemas.decode(schemas),
        archived=_text(archived),
    )


def status_of(stored: bytes) -> Status:
    """Return the status with this name; raise `ValueError` for one of a newer version."""
    return _STATUSES.get(stored) or Status(stored.decode())


def schemas_text(schemas: dict[str, Raw]) -> str:
    """Return schemas of signals as text that is equal for equal schemas."""
    return _json.encode(dict(sorted(schemas.items()))).decode()


def _tags_of(stored: bytes) -> dict[str, str]:
    flat = _texts.decode(stored)
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _text(stored: bytes | None) -> str | None:
    return None if stored is None else stored.decode()


def _int(stored: bytes | int | None) -> int | None:
    return None if stored is None else int(stored)


def _raw_text(value: Raw | None) -> str | None:
    return None if value is None else bytes(value).decode()


# Create and deliver.


def create_part(part: r.Creation, routes: Routes) -> Part:
    """Return the part of `create`."""
    return [
        birth_part(part.started),
        part.attach,
        _optional(part.replace),
        [entry_part(event) for event in part.inbox],
        part.follows,
        _offer(part.offer),
        None if part.first is None else commit_part(part.first, routes, r.Instance.of(part.started)),
    ]


def deliver_part(part: r.Delivery) -> Part:
    """Return the part of `deliver`."""
    event, body = part.event, None
    if part.promise_id is not None:
        event = settlement(event, part.promise_id)
    elif part.promise is not None and isinstance(event, events.PromiseAnswer):
        body = with_holes(event, promise_id=str)
    return [
        entry_part(event, body),
        part.entity_id,
        part.execution_id,
        part.promise_id,
        part.promise,
        None if part.schemas is None else schemas_text(part.schemas),
        _offer(part.offer),
    ]


def _offer(offer: r.EagerOffer | None) -> Part | None:
    return None if offer is None else [offer.worker, *offer.queues]


# Commits.


def commit_part(part: r.Commit, routes: Routes, instance: r.Instance | None) -> Part:
    """Return the part of `commit`. *instance* is the one that was claimed, as it was then, if it is known."""
    outcome, eager = part.outcome, part.eager
    return [
        *(part.entity_id, part.execution_id, part.epoch, part.base_seq, part.wake, part.worker, part.release),
        _log(outcome.events),
        [item for request in part.running for item in (request.ref, _packed(request))] if part.running else [],
        [[request.ref, request.queue, request.ref in eager, _packed(request)] for request in outcome.activities],
        COVERED - len(part.running) if part.covers else 0,
        outcome.wake_at,
        _answered(part),
        _rest(part, routes, instance),
    ]


def step_part(part: r.Commit) -> Part | None:
    """Return the part of a step; None if a commit is more than that (``scripts/step.lua``)."""
    outcome, requests = part.outcome, part.outcome.activities
    fits = _are_covered(part) if requests else _keeps_lease(part)
    if not fits or part.retries or part.answered or outcome != Outcome(events=outcome.events, activities=requests):
        return None
    all_covered = (*part.running, *requests) if part.running else requests
    covered = [request_part(request) for request in all_covered]
    return [
        *(part.entity_id, part.execution_id, str(part.epoch), str(part.wake), part.base_seq, part.worker, part.release),
        text_of(_pack(covered)) if covered else "",
        len(part.running),
        requests[0].queue if requests else "",
        *_log(outcome.events),
    ]


def _log(log: Sequence[events.Event]) -> list[str]:
    """Return the types and bodies of events in turn."""
    flat: list[str] = []
    for event in log:
        flat += (event.type, encode_event(event).decode())
    return flat


def _keeps_lease(part: r.Commit) -> bool:
    """Whether a commit without activities keeps the lease, and what it answers has no key."""
    return not part.release and (part.covers or not _answered(part))


def _are_covered(part: r.Commit) -> bool:
    """Whether the lease covers all activities of a commit if it claims them, and they are of one queue."""
    requests = part.outcome.activities
    if len(requests) == 1:  # the fast path of a chain
        return part.covers and len(part.running) < COVERED and requests[0].ref in part.eager
    return (
        part.covers
        and len(requests) <= COVERED - len(part.running)
        and len({request.queue for request in requests}) == 1
        and part.eager.issuperset([request.ref for request in requests])
    )


def request_part(request: ActivityRequest) -> Part:
    """Return what an activity is made of."""
    return [request.ref, request.queue, _json.encode(request).decode()]


def pending_part(pending: r.Pending) -> Part:
    """Return an activity without its lease."""
    return [
        request_part(pending.request),
        [
            *(pending.visible_at, pending.attempt, pending.deliveries, pending.dead_letter),
            *(_raw_text(pending.details), pending.heartbeat_at),
        ],
    ]


def _packed(request: ActivityRequest) -> Raw:
    return text_of(_pack(request_part(request)))


def _answered(part: r.Commit) -> Sequence[int]:
    """Return the refs of answered activities that may have a key: of those that the lease covers, only the named ones."""
    if part.covers:
        return part.answered
    return [*(event.ref for event in part.outcome.events if isinstance(event, _FINAL)), *part.answered]


def _rest(part: r.Commit, routes: Routes, instance: r.Instance | None) -> Part | None:
    """Return everything that a commit has beyond its events and activities; None if it has nothing else."""
    outcome = part.outcome
    if not part.retries and outcome == Outcome(
        events=outcome.events, activities=outcome.activities, wake_at=outcome.wake_at
    ):
        return None
    answer = kept_answer(outcome)
    return [
        outcome.consumed,
        [item for mark in outcome.forgotten for item in (mark.seq, text_of(mark.location.key()))],
        [text_of(location.key()) for span in outcome.dropped for location in (span.start, span.end)],
        [pending_part(pending) for pending in part.retries],
        [[one.ref, one.answered, one.never_started, _optional(one.entry)] for one in outcome.withdrawals],
        [[one.promise_id, one.name, bytes(one.schema).decode()] for one in outcome.promises],
        outcome.closed,
        _effects(part.entity_id, outcome, routes),
        None if outcome.successor is None else _successor_part(outcome.successor),
        outcome.strict,
        outcome.status.value,
        outcome.diagnosis,
        outcome.deactivated,
        None if outcome.signal_schemas is None else schemas_text(outcome.signal_schemas),
        outcome.failure,
        None if answer is None else text_of(_pack(entry_part(answer))),
        None if instance is None else _instance_after(instance, part),
        None if outcome.tags is None else tags_part(outcome.tags) or "",
    ]


def _instance_after(instance: r.Instance, part: r.Commit) -> Template | None:
    """Return the JSON of an instance for people who look at it, if a commit changes more than its log and its moment."""
    after = instance_after(instance, part)
    if after == msgspec.structs.replace(instance, last_seq=after.last_seq, wake_at=after.wake_at):
        return None
    return with_holes(after, closed_at=int) if part.outcome.status.terminal else encode(after)


def instance_after(instance: r.Instance, part: r.Commit) -> r.Instance:
    """Return an instance as a commit leaves it, but for the moment of its end."""
    outcome = part.outcome
    return msgspec.structs.replace(
        instance,
        status=outcome.status,
        deactivated=outcome.deactivated,
        last_seq=part.base_seq + len(outcome.events),
        wake_at=outcome.wake_at,
        parked=outcome.diagnosis,
        signal_schemas=instance.signal_schemas if outcome.signal_schemas is None else outcome.signal_schemas,
        tags=instance.tags if outcome.tags is None else outcome.tags,
        failure=outcome.failure or instance.failure,
    )


def _successor_part(successor: Succession) -> Part:
    return [birth_part(successor.started), [entry_part(event) for event in successor.inbox], successor.moves]


def _effects(sender: str, outcome: Outcome, routes: Routes) -> Part:
    """Return the effects of a commit, each behind the partition that it goes to."""
    parts: Part = []
    for child in outcome.children:
        parts += (routes.partition_of(child.started.entity_id), _child_part(child))
    for message in outcome.messages:
        parts += (_target(sender, message, routes), _message_part(message))
    for publication in outcome.publications:
        parts += (routes.partition_of(publication.topic), _publication_part(publication))
    return parts


def _target(sender: str, message: Message, routes: Routes) -> int:
    if message.promise_id is None:
        return routes.partition_of(message.entity_id)
    target = routes.partition_of_route(message.promise_id)
    return routes.partition_of(sender) if target is None else target  # there is no such promise, there either


def _child_part(child: ChildRequest) -> Part:
    created = child.created
    body = with_holes(created, execution_id=str) if isinstance(created, events.ChildStarted) else None
    return ["child", birth_part(child.started), entry_part(created, body), entry_part(child.refused)]


def _message_part(message: Message) -> Part:
    event = message.event if message.promise_id is None else settlement(message.event, message.promise_id)
    return [
        *("message", message.entity_id, message.run_id, message.key, message.promise_id, entry_part(event)),
        *(_optional(message.delivered), _optional(message.missing), _optional(message.ended)),
    ]


def _publication_part(publication: Publication) -> Part:
    return ["publish", publication.topic, bytes(publication.value).decode()]


# Leases and activities.


def extend_part(lease: r.Lease) -> Part:
    """Return the part of `extend`."""
    return [
        *(lease.entity_id, lease.execution_id, lease.epoch, lease.ref, lease.wake),
        *(_raw_text(lease.details), lease.heartbeat_at),
    ]


def release_part(part: r.Release) -> Part:
    """Return the part of `release`."""
    lease = part.lease
    return [lease.entity_id, lease.execution_id, lease.epoch, lease.ref, part.failed, part.final]


def result_part(part: r.ActivityResult) -> Part:
    """Return the part of `complete_activities`."""
    event = part.event
    return [
        *(part.entity_id, part.execution_id, part.epoch, event.ref, event.attempt, entry_part(event)),
        event.next_at if isinstance(event, events.ActivityRetryScheduled) else None,
        *(_raw_text(part.details), part.heartbeat_at),
    ]


def task_of(answer: Sequence[Any]) -> r.ActivityTask:
    """Return a leased activity; raise `Undecodable` if its request cannot be decoded."""
    entity_id, execution_id, epoch, ref, attempt, deliveries, request, details = answer
    try:
        decoded = _requests.decode(request)
    except ValueError as error:
        raise Undecodable(f"activity (entry {ref})", error) from error
    return r.ActivityTask(
        entity_id=entity_id.decode(),
        execution_id=execution_id.decode(),
        epoch=epoch,
        attempt=attempt,
        deliveries=deliveries,
        request=decoded,
        details=None if details is None else Raw(details),
    )


# Answers.


def claim_of(answer: Sequence[Any], log: tuple[events.Event, ...] = ()) -> r.Claim:
    """Return a leased instance; raise `Undecodable` if it, or its inbox, cannot be decoded."""
    _, _, epoch, view, wake, stream = answer
    try:
        instance = instance_of(view, beneath=True)
    except ValueError as error:
        raise Undecodable("its state", error) from error
    return r.Claim(instance=instance, epoch=epoch, wake=wake, inbox=entries_of(stream), log=log)


def stepped(part: r.Commit) -> r.Committed:
    """Return the answer to a step that has all that it wanted: the lease covers its activities, and nothing has come."""
    tasks = [
        r.ActivityTask(
            entity_id=part.entity_id, execution_id=part.execution_id, epoch=0, attempt=1, deliveries=0, request=request
        )
        for request in part.outcome.activities
    ]
    return r.Committed(wake=part.wake, tasks=tuple(tasks))


def committed_of(part: r.Commit, answer: Any) -> r.Committed | r.Refused:
    """Return the answer to a commit; raise `Undecodable` if its inbox cannot be decoded."""
    if isinstance(answer, bytes):
        return r.Refused(reason=answer.decode())
    wake, stream, refs = answer
    return r.Committed(wake=wake, inbox=entries_of(stream) if stream else (), tasks=eager_tasks(part, refs))


def lease_of(answer: Sequence[Any], ref: int | None = None) -> r.Lease:
    """Return the lease of a claim, or of an activity, even if the rest of it cannot be decoded."""
    entity_id, execution_id, epoch, *_ = answer
    return r.Lease(entity_id=entity_id.decode(), execution_id=execution_id.decode(), epoch=epoch, ref=ref)


def extended_of(answer: Any) -> r.Extended | r.Refused:
    """Return the answer to a renewal; raise `Undecodable` if its inbox cannot be decoded."""
    if isinstance(answer, bytes):
        return r.Refused(reason=answer.decode())
    wake, stream = answer
    return r.Extended(wake=wake, inbox=entries_of(stream))
