"""Steps, ends and starts: the commits and creations that have functions of their own, because most are such.

A step only extends the log of a running instance and claims what it schedules. An end only closes one. A start is an execution
that is created, claimed by the worker of its client, and committed for the first time at once. If anything about one is unusual,
nothing is changed and `commit` or `create` decides (``step.sql``, ``finish.sql`` and ``start.sql`` of ``functions``).
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from resurgam.core.event import encode_event
from resurgam.core.outcome import Outcome
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.postgres import parts as p
from resurgam.store.rules import COVERED

Step: TypeAlias = tuple[tuple[object, ...], tuple[Sequence[object], ...]]
"""The elements of a step or an end; and execution ids, seqs, types and bodies of its events."""

_STEP: Final = 8
_END: Final = 9
_EVENT: Final = 4
"""How many elements they have."""

_ENDS: Final = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})
_NO_END: Final = {"status": Status.RUNNING, "deactivated": False, "failure": None}


def step_part(part: r.Commit) -> Step | None:
    """Return the part of a step; None if a commit is more than that."""
    outcome, requests = part.outcome, part.outcome.activities
    if part.retries or part.answered or outcome.wake_at is not None or not p.is_plain(outcome):
        return None
    if not (_are_covered(part) if requests else _keeps(part)):
        return None
    covered = p.covered_text((*part.running, *requests))
    queue = requests[0].queue if requests else None
    return _with_events(part, covered, queue)


def end_part(part: r.Commit) -> Step | None:
    """Return the part of an end; None if a commit is more than that."""
    outcome = part.outcome
    if outcome.status not in _ENDS or not part.release or part.running or part.retries or p.answered(part):
        return None
    if outcome.activities or outcome.wake_at is not None or not p.is_plain(replace(outcome, **_NO_END)):
        return None
    return _with_events(part, outcome.status.value, outcome.deactivated, outcome.failure)


def _with_events(part: r.Commit, *elements: object) -> Step:
    log, first = part.outcome.events, part.base_seq + 1
    named = (part.entity_id, part.execution_id, part.epoch, part.base_seq, part.wake)
    columns = (
        [part.execution_id] * len(log),
        [*range(first, first + len(log))],
        [event.type for event in log],
        [encode_event(event).decode() for event in log],
    )
    return (*named, *elements, len(log)), columns


def _keeps(part: r.Commit) -> bool:
    """Whether a commit without activities keeps the lease, and answers none that has a row."""
    return not part.release and (part.covers or not p.answered(part))


def _are_covered(part: r.Commit) -> bool:
    """Whether the lease covers all activities of a commit if it claims them, and they are of one queue."""
    requests = part.outcome.activities
    return (
        part.covers
        and len(requests) <= COVERED - len(part.running)
        and len({request.queue for request in requests}) == 1
        and part.eager.issuperset([request.ref for request in requests])
    )


def step_arguments(steps: list[Step]) -> tuple[Any, ...]:
    """Return the arguments of ``step``: an array for each element, and the events of all steps in turn."""
    return _arrays(steps, _STEP)


def step_alone_arguments(steps: list[Step]) -> tuple[Any, ...]:
    """Return the arguments of ``step_alone``: the elements of one step, without the number of its events; types and bodies."""
    if not steps:
        return (None,) * (_STEP - 1 + 2)
    step, (_, _, types, bodies) = steps[0]
    return (*step[:-1], types, bodies)


def end_arguments(ends: list[Step]) -> tuple[Any, ...]:
    """Return the arguments of ``finish``, in the same way."""
    return _arrays(ends, _END)


def _arrays(steps: list[Step], elements: int) -> tuple[Any, ...]:
    if len(steps) == 1:
        step, log = steps[0]
        return (*([element] for element in step), *log)
    columns = zip(*[step for step, _ in steps], strict=True) if steps else [()] * elements
    logs = zip(*[log for _, log in steps], strict=True) if steps else [()] * _EVENT
    return (*map(list, columns), *(list(chain.from_iterable(one)) for one in logs))


def stepped(part: r.Commit) -> r.Committed:
    """Return the answer to a step that has all that it wanted: the lease covers its activities, and nothing has come."""
    tasks = [
        r.ActivityTask(
            entity_id=part.entity_id, execution_id=part.execution_id, epoch=0, attempt=1, deliveries=0, request=request
        )
        for request in part.outcome.activities
    ]
    return r.Committed(wake=part.wake, tasks=tuple(tasks))


def start_part(part: r.Creation) -> p.Part | None:
    """Return the part of a start; None if a creation is more than that."""
    first, offer = part.first, part.offer
    if first is None or offer is None or part.inbox or part.follows is not None or not _is_first(first):
        return None
    if part.attach:  # a start does not see an execution that begins and ends while it waits for another one
        return None
    if part.started.queue not in offer.queues or r.Instance.of(part.started).status is not Status.RUNNING:
        return None
    outcome = first.outcome
    found = p.birth_part(part.started)
    found.pop("entry")
    found["entries"] = p.log_part((part.started, *outcome.events))
    found["worker"] = offer.worker
    found["keeps"] = bool(outcome.activities) or not first.release
    p.add(
        found,
        wake_at=outcome.wake_at,
        covered=p.covered_text((*first.running, *outcome.activities)),
        activity_queue=outcome.activities[0].queue if outcome.activities else None,
        schemas=None if outcome.signal_schemas is None else p.schemas_text(outcome.signal_schemas),
    )
    if outcome.wake_at is None:
        found.pop("wake_at", None)
    return found


def _is_first(first: r.Commit) -> bool:
    """Whether a commit is a step, or only sleeps, and begins a log."""
    outcome = first.outcome
    plain = not first.retries and not first.answered and p.is_plain(_without_schemas(outcome))
    begins = (first.epoch, first.base_seq, first.wake) == (1, 1, 0)
    return plain and begins and (_are_covered(first) if outcome.activities else not p.answered(first))


def _without_schemas(outcome: Outcome) -> Outcome:
    return outcome if outcome.signal_schemas is None else replace(outcome, signal_schemas=None)


def started(part: r.Creation) -> r.Created:
    """Return the answer to a start."""
    first, instance = part.first, r.Instance.of(part.started)
    assert first is not None
    outcome = first.outcome
    after = replace(
        instance,
        last_seq=1 + len(outcome.events),
        wake_at=outcome.wake_at,
        signal_schemas=instance.signal_schemas if outcome.signal_schemas is None else outcome.signal_schemas,
    )
    return r.Created(
        instance=after,
        claim=r.Claim(instance=instance, epoch=1, wake=0, log=(part.started,)),
        committed=stepped(first),
    )


def lets_go(part: r.Commit, committed: r.Committed) -> bool:
    """Whether the lease has ended with a commit, or no longer needs to be watched: the instance is closed."""
    return part.outcome.status.terminal or (part.release and not committed.tasks)
