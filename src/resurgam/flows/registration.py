"""Changes of the catalog: what a request means for the steps that are there, and what the log tells of them.

The client asks before it sends a request, so that errors are raised there; the brain of the catalog asks again, because
another client may have been faster.
"""

from collections.abc import Iterable

import msgspec

from resurgam.core import flow_event as fe
from resurgam.core.entry import Event
from resurgam.core.errors import AlreadyExists, DefinitionError, NotFound
from resurgam.flows import model as m
from resurgam.flows.catalog import Catalog, Health


def decide(catalog: Catalog, request: Event) -> Catalog | None:
    """Return the catalog that a request leads to; None if it changes nothing.

    Raise `AlreadyExists`, `NotFound` or `DefinitionError` if it is refused.
    """
    match request:
        case fe.StepRegistered():
            return register(catalog, step_in(request))
        case fe.StepUpdated():
            return update(catalog, step_in(request))
        case fe.StepUnregistered():
            return catalog.remove(request.step_id)
        case fe.StepHealthChanged():
            return change_health(catalog, request.step_id, health_in(request))
        case fe.EntityDeletionRequested() | fe.EntityDeleted():
            return catalog  # recorded for people; no step changes
        case _:
            return None


def register(catalog: Catalog, step: m.Step) -> Catalog | None:
    """Return the catalog with a new step; None if an equal one is there."""
    known = catalog.find(step.id)
    if known is None:
        return catalog.put(step)
    if known != step:
        raise AlreadyExists(
            f"step {step.id!r} is registered with another definition; use update_step to replace it, or another id"
        )
    return None


def update(catalog: Catalog, step: m.Step) -> Catalog | None:
    """Return the catalog with another definition of a step; None if it is the same."""
    known = catalog.find(step.id)
    if known is None:
        raise NotFound(f"there is no step {step.id!r} in the catalog to update; use register_step to add it")
    return None if known == step else catalog.put(step)


def change_health(catalog: Catalog, step_id: str, health: Health) -> Catalog | None:
    """Return the catalog with the health of the service of a step; None if it is the same."""
    known = catalog.profile(step_id).step
    if known.http is None:
        raise DefinitionError(f"step {step_id!r} is no service, so that it has no health")
    return None if catalog.health(step_id) == health else catalog.with_health({step_id: health})


def health_in(entry: fe.StepHealthChanged) -> Health:
    """Return the health in a request, or in an entry of the log."""
    return Health(status=entry.status, error=entry.error)


def step_in(entry: fe.StepRegistered | fe.StepUpdated) -> m.Step:
    """Return the definition in a request, or in an entry of the log."""
    return msgspec.json.decode(entry.step, type=m.Step)


def fold(catalog: Catalog, entries: Iterable[Event]) -> Catalog:
    """Return the catalog after entries of its log; other entries than those about steps change nothing."""
    changes: dict[str, m.Step | None] = {}
    health: dict[str, Health] = {}
    for entry in entries:
        match entry:
            case fe.StepRegistered() | fe.StepUpdated():
                step = step_in(entry)
                changes[step.id] = step
                health.pop(step.id, None)
            case fe.StepUnregistered():
                changes[entry.step_id] = None
                health.pop(entry.step_id, None)
            case fe.StepHealthChanged():
                health[entry.step_id] = health_in(entry)
            case _:
                pass
    changed = catalog.with_changes(changes) if changes else catalog
    return changed.with_health(health) if health else changed
