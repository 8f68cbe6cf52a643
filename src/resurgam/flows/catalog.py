"""The catalog: all registered steps, and which attributes they provide and take. A value; changes give a new one.

What a step is for the planner (its inputs by kind, its outputs) is computed once, when it enters the catalog: planning
then costs what the goals lead to, not the size of the catalog.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from resurgam.core.errors import DefinitionError, NotFound
from resurgam.core.flow_event import HealthStatus
from resurgam.flows import model as m

_NOTHING: Final[frozenset[str]] = frozenset()
_ANY: Final = "any"
"""The type of an attribute in a step that takes or provides values of every type."""


class Profile(msgspec.Struct, frozen=True, gc=False):
    """What the planner must know about a step."""

    step: m.Step
    inputs: tuple[tuple[str, m.RequiredConfig | m.OptionalConfig], ...]
    needed: tuple[str, ...]
    """Attributes without which it cannot start; an input that collects ``none`` is not among them."""
    outputs: frozenset[str]
    refuses: frozenset[str]
    """Attributes that must have no value."""
    gated: bool
    """Whether an input has a match."""


class Health(msgspec.Struct, frozen=True, gc=False):
    """Whether the service of a step can be called, and why not."""

    status: HealthStatus = "unknown"
    error: str = ""


_UNKNOWN: Final = Health()


class Catalog:
    """The registered steps."""

    def __init__(self, steps: Iterable[m.Step] = ()) -> None:
        self._profiles: dict[str, Profile] = {}
        self._providers: dict[str, frozenset[str]] = {}
        self._consumers: dict[str, frozenset[str]] = {}
        self._users: dict[str, frozenset[str]] = {}
        self._health: dict[str, Health] = {}
        for step in steps:
            self._add(step)

    @property
    def steps(self) -> Mapping[str, m.Step]:
        """The steps by id, in the order of the ids."""
        return {step_id: self._profiles[step_id].step for step_id in sorted(self._profiles)}

    def __len__(self) -> int:
        return len(self._profiles)

    def __contains__(self, step_id: object) -> bool:
        return step_id in self._profiles

    def profile(self, step_id: str) -> Profile:
        """Return a step as the planner sees it; raise `NotFound` for an unknown one."""
        try:
            return self._profiles[step_id]
        except KeyError:
            raise NotFound(
                f"there is no step {step_id!r} in the catalog; `resurgam step list` shows those there are"
            ) from None

    def providers(self, attribute: str) -> frozenset[str]:
        """Return the steps that have this attribute as an output."""
        return self._providers.get(attribute, _NOTHING)

    def consumers(self, attribute: str) -> frozenset[str]:
        """Return the steps that have this attribute as an input."""
        return self._consumers.get(attribute, _NOTHING)

    def users(self, attribute: str) -> frozenset[str]:
        """Return the steps that have this attribute, in any role."""
        return self._users.get(attribute, _NOTHING)

    def put(self, step: m.Step) -> "Catalog":
        """Return a catalog that has this step, in place of an earlier one with its id. The step is valid by itself.

        Raise `DefinitionError` if it does not fit the others.
        """
        changed = self._copy()
        if step.id in changed._profiles:
            changed._drop(step.id)
        changed._add(step)
        _check_types(changed, step)
        _check_attribute_cycles(changed, step)
        _check_flow_cycles(changed, step)
        return changed

    def remove(self, step_id: str) -> "Catalog":
        """Return a catalog without this step; those that need it stay. Raise `NotFound` for an unknown one."""
        self.profile(step_id)
        changed = self._copy()
        changed._drop(step_id)
        return changed

    def with_changes(self, changes: Mapping[str, m.Step | None]) -> "Catalog":
        """Return a catalog with recorded changes, which are not checked again: each step by its id, None if removed."""
        changed = self._copy()
        for step_id, step in changes.items():
            if step_id in changed._profiles:
                changed._drop(step_id)
            if step is not None:
                changed._add(step)
        return changed

    def find(self, step_id: str) -> m.Step | None:
        """Return a step; None if it is unknown."""
        profile = self._profiles.get(step_id)
        return None if profile is None else profile.step

    def health(self, step_id: str) -> Health:
        """Return the health of the service of a step; it is unknown until it was looked at."""
        return self._health.get(step_id, _UNKNOWN)

    def with_health(self, changes: Mapping[str, Health]) -> "Catalog":
        """Return a catalog in which services have this health."""
        changed = self._copy()
        changed._health |= changes
        return changed

    def _copy(self) -> "Catalog":
        copy = Catalog()
        copy._health = dict(self._health)
        copy._profiles, copy._providers = dict(self._profiles), dict(self._providers)
        copy._consumers, copy._users = dict(self._consumers), dict(self._users)
        return copy

    def _add(self, step: m.Step) -> None:
        profile = self._profiles[step.id] = profile_of(step)
        for name in profile.outputs:
            self._providers[name] = self.providers(name) | {step.id}
        for name, _ in profile.inputs:
            self._consumers[name] = self.consumers(name) | {step.id}
        for name in step.attributes:
            self._users[name] = self.users(name) | {step.id}

    def _drop(self, step_id: str) -> None:
        profile = self._profiles.pop(step_id)
        self._health.pop(step_id, None)
        for name in profile.outputs:
            self._providers[name] -= {step_id}
        for name, _ in profile.inputs:
            self._consumers[name] -= {step_id}
        for name in profile.step.attributes:
            self._users[name] -= {step_id}


def profile_of(step: m.Step) -> Profile:
    """Return a step as the planner sees it."""
    inputs = tuple(sorted(step.inputs.items()))
    return Profile(
        step=step,
        inputs=inputs,
        needed=tuple(name for name, one in inputs if isinstance(one, m.RequiredConfig) and one.collect != "none"),
        outputs=frozenset(step.outputs),
        refuses=frozenset(name for name, one in inputs if one.collect == "none"),
        gated=any(isinstance(one, m.RequiredConfig) and one.match is not None for _, one in inputs),
    )


def _check_types(catalog: Catalog, step: m.Step) -> None:
    """An attribute has one type in all steps, whatever its role; ``any`` fits every type."""
    declared = {name: one.type for name, one in step.attributes.items() if one.type != _ANY}
    for name, here in sorted(declared.items()):
        for other in sorted(catalog.users(name)):
            there = catalog.profile(other).step.attributes[name].type
            if there not in (here, _ANY):
                raise DefinitionError(
                    f"step {step.id!r}: attribute {name!r} has type {here!r} here and {there!r} in step {other!r}; "
                    "an attribute has one type in all steps"
                )


def _check_attribute_cycles(catalog: Catalog, step: m.Step) -> None:
    """No step may need its own output, directly or by way of others."""
    came_from: dict[str, str] = {}
    pending = [step.id]
    while pending:
        provider = pending.pop()
        for name in catalog.profile(provider).outputs:
            for consumer in sorted(catalog.consumers(name)):
                if consumer == step.id:
                    path = _path(came_from, step.id, provider)
                    raise DefinitionError(f"step {step.id!r} needs its own output: {' -> '.join([*path, step.id])}")
                if consumer not in came_from:
                    came_from[consumer] = provider
                    pending.append(consumer)


def _check_flow_cycles(catalog: Catalog, step: m.Step) -> None:
    """No flow step may have itself as a goal, directly or by way of others; goals may be unknown as yet."""
    came_from: dict[str, str] = {}
    pending = [step.id]
    while pending:
        current = pending.pop()
        flow = catalog.profile(current).step.flow
        for goal in flow.goals if flow is not None else ():
            if goal == step.id:
                path = _path(came_from, step.id, current)
                raise DefinitionError(f"step {step.id!r} is a goal of its own flow: {' -> '.join([*path, step.id])}")
            if goal in catalog and goal not in came_from:
                came_from[goal] = current
                pending.append(goal)


def _path(came_from: dict[str, str], first: str, last: str) -> list[str]:
    path = [last]
    while path[-1] != first:
        path.append(came_from[path[-1]])
    return path[::-1]
