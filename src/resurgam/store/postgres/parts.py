"""The parts of create, deliver and commit as JSON, and the answers of their functions as records.

The elements of a part are documented in the SQL file of its verb; what most parts do not have is left out. JSON that is stored
travels as text within it.
"""

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.event import decode_event, encode_event
from resurgam.core.outcome import ActivityRequest, ChildRequest, Entry, Message, Outcome, Publication, Succession
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.answers import Undecodable, eager_tasks
from resurgam.store.encoding import encode
from resurgam.store.postgres.rows import instance_of
from resurgam.store.rules import COVERED, first_run, kept_answer, settlement
from resurgam.store.templates import Template, with_holes

Part: TypeAlias = dict[str, Any]

_FINAL: Final = (events.ActivityCompleted, events.ActivityFailed)
_OVERTAKING: Final = (events.ChildAnswer, events.PromiseAnswer)

_json = msgspec.json.Encoder()


# Events.


def entry_part(event: events.Event, body: Template | None = None) -> list[Any]:
    """Return an event for an inbox, or for what is applied at once."""
    if body is None:
        applied = isinstance(event, events.WorkflowTerminated)
        body = with_holes(event, seq=int, at=int) if applied else encode_event(event).decode()
    overtakes = isinstance(event, _OVERTAKING)
    promise_id = event.promise_id or None if isinstance(event, events.PromiseAnswer) else None
    tree = isinstance(event, events.WorkflowPaused) and event.tree
    return [event.type, body, overtakes, promise_id, tree]


CANCELLED: Final = entry_part(
    events.ActivityCancelled(ref=0), with_holes(events.ActivityCancelled(ref=0), at=int, ref=int)
)
"""The answer to an activity that was lost when its workflow was closed already."""


def _optional(event: events.Event | None) -> list[Any] | None:
    return None if event is None else entry_part(event)


def log_part(log: Iterable[events.Event]) -> list[tuple[str, str]]:
    """Return the types and bodies of events."""
    return [(event.type, encode_event(event).decode()) for event in log]


def entries_of(stored: Sequence[tuple[int, str]]) -> tuple[Entry, ...]:
    """Return the entries of an inbox; raise `Undecodable` if one cannot be decoded."""
    entries = []
    for number, body in stored:
        try:
            entries.append(Entry(number, decode_event(body)))
        except ValueError as error:
            raise Undecodable(f"inbox entry {number}", error) from error
    return tuple(entries)


# Executions.


def birth_part(started: events.Started) -> Part:
    """Return everything that begins an execution."""
    instance = r.Instance.of(started)
    part: Part = {
        "execution_id": instance.execution_id,
        "entity_id": instance.entity_id,
        "run_id": instance.run_id,
        "tree_id": instance.tree_id,
        "generation": instance.generation,
        "attempt": instance.attempt,
        "kind": instance.kind,
        "name": instance.name,
        "queue": instance.queue,
        "status": instance.status.value,
        "created_at": instance.created_at,
        "first_run": first_run(instance),
        "entry": (started.type, encode_event(started).decode()),
    }
    if instance.wake_at is not None:
        part["wake_at"] = instance.wake_at
    if instance.tags:
        part["tags"] = encode(instance.tags)
    if instance.parent is not None:
        part["parent"] = encode(instance.parent)
        part["parent_id"] = instance.parent.entity_id
        part["parent_key"] = instance.parent.key
    return part


def schemas_text(schemas: dict[str, Raw]) -> str:
    """Return schemas of signals as text that is equal for equal schemas."""
    return _json.encode(dict(sorted(schemas.items()))).decode()


def create_part(part: r.Creation) -> Part:
    """Return the part of `create`."""
    found: Part = {"birth": birth_part(part.started)}
    if part.attach:
        found["attach"] = True
    if part.replace is not None:
        found["replace"] = entry_part(part.replace)
    if part.inbox:
        found["inbox"] = [entry_part(event) for event in part.inbox]
    if part.follows is not None:
        found["follows"] = part.follows
    if part.offer is not None:
        found["offer"] = _offer(part.offer)
    if part.first is not None:
        found["first"] = commit_part(part.first)
    return found


def deliver_part(part: r.Delivery) -> list[Any]:
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
        None if part.offer is None else _offer(part.offer),
    ]


def _offer(offer: r.EagerOffer) -> list[str]:
    return [offer.worker, *offer.queues]


# Commits.


def request_part(request: ActivityRequest) -> list[Any]:
    """Return what an activity is made of."""
    return [request.ref, request.queue, _json.encode(request).decode()]


def pending_part(pending: r.Pending) -> list[Any]:
    """Return an activity without its lease."""
    details = None if pending.details is None else bytes(pending.details).decode()
    return [
        request_part(pending.request),
        [
            *(pending.visible_at, pending.attempt, pending.deliveries, pending.dead_letter),
            *(details, pending.heartbeat_at),
        ],
    ]


def covered_text(requests: Iterable[ActivityRequest]) -> str | None:
    """Return the activities that a lease covers, as they are stored; None if there are none."""
    covered = [request_part(request) for request in requests]
    return _json.encode(covered).decode() if covered else None


def commit_part(part: r.Commit) -> Part:
    """Return the part of `commit`."""
    outcome, eager = part.outcome, part.eager
    found: Part = {
        "entity_id": part.entity_id,
        "execution_id": part.execution_id,
        "epoch": part.epoch,
        "base_seq": part.base_seq,
        "wake": part.wake,
        "worker": part.worker,
        "release": part.release,
        "room": COVERED - len(part.running) if part.covers else 0,
    }
    add(
        found,
        events=log_part(outcome.events),
        running=covered_text(part.running),
        activities=[[*request_part(request), request.ref in eager] for request in outcome.activities],
        answered=answered(part),
        retries=[pending_part(pending) for pending in part.retries],
        wake_at=outcome.wake_at,
    )
    if not is_plain(outcome):
        _add_rest(found, outcome)
    return found


def _add_rest(found: Part, outcome: Outcome) -> None:
    """Add what most commits do not have."""
    answer = kept_answer(outcome)
    add(
        found,
        consumed=outcome.consumed,
        forgotten=[(mark.seq, mark.location.key().hex()) for mark in outcome.forgotten],
        dropped=[(span.start.key().hex(), span.end.key().hex()) for span in outcome.dropped],
        withdrawals=[(one.ref, one.answered, one.never_started, _optional(one.entry)) for one in outcome.withdrawals],
        promises=[(one.promise_id, one.name, bytes(one.schema).decode()) for one in outcome.promises],
        closed=outcome.closed,
        effects=_effects(outcome),
        successor=None if outcome.successor is None else _successor_part(outcome.successor),
        strict=outcome.strict,
        parked=outcome.diagnosis,
        deactivated=outcome.deactivated,
        failure=outcome.failure,
        answer=None if answer is None else (answer.type, encode_event(answer).decode()),
        entities=[
            *(child.started.entity_id for child in outcome.children),
            *(message.entity_id for message in outcome.messages if message.promise_id is None),
        ],
        settles=[message.promise_id for message in outcome.messages if message.promise_id is not None],
    )
    if outcome.status is not Status.RUNNING:
        found["status"] = outcome.status.value
    if outcome.signal_schemas is not None:
        found["schemas"] = schemas_text(outcome.signal_schemas)
    if outcome.tags is not None:
        found["tags"] = encode(outcome.tags)


def add(found: Part, **values: Any) -> None:
    """Add the values that are there. A number may be 0."""
    found.update({name: value for name, value in values.items() if value or type(value) is int})


def answered(part: r.Commit) -> Sequence[int]:
    """Return the refs of answered activities that may have a row: of those that the lease covers, only the named ones."""
    if part.covers:
        return part.answered
    return [*(event.ref for event in part.outcome.events if isinstance(event, _FINAL)), *part.answered]


def _successor_part(successor: Succession) -> list[Any]:
    return [birth_part(successor.started), [entry_part(event) for event in successor.inbox], successor.moves]


def _effects(outcome: Outcome) -> list[Any]:
    return [
        *map(_child_part, outcome.children),
        *map(_message_part, outcome.messages),
        *map(_publication_part, outcome.publications),
    ]


def _child_part(child: ChildRequest) -> list[Any]:
    created = child.created
    body = with_holes(created, execution_id=str) if isinstance(created, events.ChildStarted) else None
    return ["child", birth_part(child.started), entry_part(created, body), entry_part(child.refused)]


def _message_part(message: Message) -> list[Any]:
    event = message.event if message.promise_id is None else settlement(message.event, message.promise_id)
    return [
        *("message", message.entity_id, message.run_id, message.key, message.promise_id, entry_part(event)),
        *(_optional(message.delivered), _optional(message.missing), _optional(message.ended)),
    ]


def _publication_part(publication: Publication) -> list[Any]:
    return ["publish", publication.topic, bytes(publication.value).decode()]


# Not a comparison of whole outcomes: that would make another one for each commit.
_others: Final[Callable[[Outcome], Any]] = attrgetter(
    *(set(Outcome.__struct_fields__) - {"events", "activities", "wake_at"})
)
_PLAIN: Final = _others(Outcome())


def is_plain(outcome: Outcome) -> bool:
    """Whether an outcome has nothing but events, activities and a deadline."""
    return bool(_others(outcome) == _PLAIN)


# Answers.


def claim_of(answer: Sequence[Any], log: tuple[events.Event, ...] = ()) -> r.Claim:
    """Return a leased instance; raise `Undecodable` if it, or its inbox, cannot be decoded."""
    _, _, epoch, view, wake, inbox = answer
    try:
        instance = instance_of(view)
    except ValueError as error:
        raise Undecodable("its row", error) from error
    return r.Claim(instance=instance, epoch=epoch, wake=wake, inbox=entries_of(inbox), log=log)


def lease_of(answer: Sequence[Any], ref: int | None = None) -> r.Lease:
    """Return the lease of a claim, or of an activity, even if the rest of it cannot be decoded."""
    entity_id, execution_id, epoch, *_ = answer
    return r.Lease(entity_id=entity_id, execution_id=execution_id, epoch=epoch, ref=ref)


def committed_of(part: r.Commit, answer: Any) -> r.Committed | r.Refused:
    """Return the answer to a commit; raise `Undecodable` if its inbox cannot be decoded."""
    if isinstance(answer, str):
        return r.Refused(reason=answer)
    wake, inbox, refs = answer
    return r.Committed(wake=wake, inbox=entries_of(inbox), tasks=eager_tasks(part, refs))
