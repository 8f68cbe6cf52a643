"""Summarize the work that a worker holds: counts, and the oldest items."""

from collections.abc import Collection, Iterable
from typing import Final, TypeVar

from resurgam.store.records import HeldAttempt, HeldRun, HeldWork
from resurgam.worker.heartbeat import RunningAttempt
from resurgam.worker.held import HeldInstance

_MOST: Final = 20
"""How many instances, and how many activities, are listed: each worker reads the announcements of all others."""

_LONGEST: Final = 2000
"""How many characters the ids and names of a list may have in all."""

T = TypeVar("T", HeldRun, HeldAttempt)


def held_work(instances: Collection[HeldInstance], attempts: Collection[RunningAttempt]) -> HeldWork:
    """Return what is held. Both are given in the order in which they were claimed."""
    return HeldWork(
        instances=len(instances),
        activities=len(attempts),
        oldest_instances=_bounded(map(_run, instances)),
        oldest_activities=_bounded(map(_attempt, attempts)),
    )


def _bounded(held: Iterable[T]) -> tuple[T, ...]:
    """Return the first, as many as an announcement may list."""
    listed: list[T] = []
    length = 0
    for one in held:
        length += len(one.entity_id) + len(one.name) + (len(one.workflow_id) if isinstance(one, HeldAttempt) else 0)
        if len(listed) == _MOST or length > _LONGEST:
            break
        listed.append(one)
    return tuple(listed)


def _run(held: HeldInstance) -> HeldRun:
    return HeldRun(entity_id=held.entity_id, name=held.claim.instance.name, since=held.since)


def _attempt(attempt: RunningAttempt) -> HeldAttempt:
    task = attempt.task
    return HeldAttempt(
        entity_id=task.request.entity_id,
        workflow_id=task.entity_id,
        name=task.request.name,
        attempt=task.attempt,
        since=attempt.since,
    )
