"""Plans: which steps lead from what is given to the goals, and why each of the others is left out.

A plan is a function of sets. The order of goals, of attributes and of steps has no influence: everything is computed as a
least fixed point, and what is written down is sorted.

1. What can be had (`_Reach`): attributes that are given or that a step could provide whose needed inputs can be had.
2. What is demanded (`_Demand`): goals, and providers of the inputs of what is demanded, as far as no given value decides.
3. The plan: the demanded steps, without those that are blocked, and without goals whose outputs are all given.

A flow step is planned when it starts, with the values that it has then, from the steps that its goals lead to as they
are now: the plan of its flow holds a snapshot of them. It is tried when its flow is planned, so that a flow step that
contains itself is found before anything runs. Its inputs are `UNKNOWN` then, which satisfies an input but decides no match.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET

from resurgam.core.errors import DefinitionError
from resurgam.flows import model as m
from resurgam.flows.catalog import Catalog, Profile
from resurgam.flows.errors import ExpressionFailed

Mode: TypeAlias = Literal["strict", "preview"]
Match: TypeAlias = Callable[[m.Expression, object], bool]
"""Whether the match of an input holds for a value."""

UNKNOWN: Final = UNSET
"""A value that will be there, but is not known when the plan is made."""

Given: TypeAlias = Mapping[str, Sequence[object]]
"""The values given for each attribute. An attribute with no value is not given."""


class Gate(Enum):
    """What the matches of a step say before it starts."""

    OPEN = "open"
    CLOSED = "closed"
    UNDECIDED = "undecided"


class Edge(msgspec.Struct, frozen=True):
    """Which steps of a plan provide an attribute, and which take it."""

    providers: tuple[str, ...] = ()
    consumers: tuple[str, ...] = ()


class Excluded(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why steps that were looked at are not in the plan, each with the attributes that are the reason.

    *missing* ones need attributes that cannot be had; the outputs of *satisfied* ones are all given; *blocked* ones start
    only if attributes have no value, and these have one.
    """

    missing: dict[str, tuple[str, ...]] = {}
    satisfied: dict[str, tuple[str, ...]] = {}
    blocked: dict[str, tuple[str, ...]] = {}


class Use(msgspec.Struct, frozen=True, order=True):
    """An attribute that a step provides, and the step that takes it."""

    attribute: str
    consumer: str


class Reason(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a step is in the plan: it is a goal, or others use what it provides, or both."""

    goal: bool = False
    uses: tuple[Use, ...] = ()


class Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a flow will run. It holds the steps as they were when the flow was planned.

    *required* are the attributes that must be given and are not. *children* are, for each flow step, the steps that its
    goals can lead to; *within* are the flow steps that this plan is inside of.
    """

    goals: tuple[str, ...]
    steps: dict[str, m.Step] = {}
    attributes: dict[str, Edge] = {}
    required: tuple[str, ...] = ()
    excluded: Excluded = Excluded()
    reasons: dict[str, Reason] = {}
    children: dict[str, tuple[m.Step, ...]] = {}
    within: tuple[str, ...] = ()


def plan(
    catalog: Catalog, goals: Sequence[str], given: Given, mode: Mode, match: Match, within: tuple[str, ...] = ()
) -> Plan:
    """Return the plan that leads to the goals.

    Missing inputs are no error here: they are listed. With *preview* a step that cannot be had is planned all the same, so
    that its own missing inputs are listed. *within* are the flow steps around a plan. Raise `NotFound` for an unknown goal,
    `DefinitionError` for none, or for a flow step that contains itself.
    """
    made = _plan(catalog, goals, given, mode, match, within)
    _check_children(catalog, made, mode, match)
    return made


def check_given(plan: Plan) -> None:
    """Raise `DefinitionError` if attributes must be given for a plan and are not."""
    if plan.required:
        raise DefinitionError(
            f"required inputs not provided: {', '.join(plan.required)}; give them in init, or register steps that provide "
            "them"
        )


def _plan(
    catalog: Catalog, goals: Sequence[str], given: Given, mode: Mode, match: Match, within: tuple[str, ...]
) -> Plan:
    if not goals:
        raise DefinitionError("a flow needs a goal: name the steps whose results are wanted")
    wanted = tuple(sorted(set(goals)))
    for goal in wanted:
        catalog.profile(goal)
    known = {name: values for name, values in given.items() if values}
    demand = _Demand(catalog, wanted, known, mode, match)
    included = [catalog.profile(step_id) for step_id in demand.included]
    steps = {profile.step.id: profile.step for profile in included}
    return Plan(
        goals=wanted,
        steps=steps,
        attributes=_edges(included, known),
        required=tuple(sorted(demand.required)),
        excluded=demand.excluded(),
        reasons={step_id: demand.reason(step_id) for step_id in demand.included},
        children={step_id: steps_toward(catalog, step.flow.goals) for step_id, step in steps.items() if step.flow},
        within=within,
    )


def steps_toward(catalog: Catalog, goals: Sequence[str]) -> tuple[m.Step, ...]:
    """Return all steps that goals can lead to, whatever is given, those of flow steps among them included."""
    found: set[str] = set()
    pending = list(goals)
    while pending := [goal for goal in pending if goal in catalog and goal not in found]:
        new = _ancestors(catalog, pending) - found
        found |= new
        flows = (catalog.profile(step_id).step.flow for step_id in new)
        pending = [goal for flow in flows if flow is not None for goal in flow.goals]
    return tuple(catalog.profile(step_id).step for step_id in sorted(found))


def _check_children(catalog: Catalog, plan: Plan, mode: Mode, match: Match) -> None:
    """Try to plan the flow steps of a plan, and theirs: raise `DefinitionError` if one contains itself."""
    for step_id in plan.children:
        if step_id in plan.within:
            path = " -> ".join([*plan.within, step_id])
            raise DefinitionError(f"flow step {step_id!r} contains itself: {path}; take it out of its own goals")
        _check_children(catalog, plan_child(catalog, plan, step_id, mode, match), mode, match)


def plan_child(catalog: Catalog, plan: Plan, step_id: str, mode: Mode, match: Match) -> Plan:
    """Return the plan of a flow step as far as it can be told before it starts: its values are unknown."""
    step = plan.steps[step_id]
    assert step.flow is not None
    return _plan(catalog, step.flow.goals, _given_to_child(step), mode, match, (*plan.within, step_id))


def _given_to_child(step: m.Step) -> Given:
    """Return the names under which a flow step passes values that are sure to be there."""
    sure: dict[str, Sequence[object]] = {}
    for name, attribute in step.attributes.items():
        match attribute:
            case m.Required(required=config):
                sure[m.inner_name(name, config)] = (UNKNOWN,)
            case m.Optional(optional=config) if config.default:
                sure[m.inner_name(name, config)] = (UNKNOWN,)
            case m.Const() | m.Meta():
                sure[name] = (UNKNOWN,)
            case _:
                pass
    return sure


def _edges(included: Sequence[Profile], given: Given) -> dict[str, Edge]:
    providers: dict[str, list[str]] = {}
    consumers: dict[str, list[str]] = {}
    for profile in included:
        for name in profile.outputs:
            providers.setdefault(name, []).append(profile.step.id)
    for profile in included:
        for name, _ in profile.inputs:
            if name in given or name in providers:
                consumers.setdefault(name, []).append(profile.step.id)
    return {
        name: Edge(tuple(providers.get(name, ())), tuple(consumers.get(name, ())))
        for name in sorted(providers.keys() | consumers.keys())
    }


class _Reach:
    """Which attributes can be had, looked at only as far back as the goals lead."""

    def __init__(self, catalog: Catalog, goals: Sequence[str], given: Given) -> None:
        self.attributes = set(given)
        self.steps: set[str] = set()
        lacks: dict[str, int] = {}
        waiting: dict[str, list[str]] = {}
        reachable: list[str] = []
        for step_id in _ancestors(catalog, goals):
            profile = catalog.profile(step_id)
            if not profile.refuses.isdisjoint(given):
                continue
            absent = [name for name in profile.needed if name not in given]
            lacks[step_id] = len(absent)
            for name in absent:
                waiting.setdefault(name, []).append(step_id)
            if not absent:
                reachable.append(step_id)
        while reachable:
            step_id = reachable.pop()
            self.steps.add(step_id)
            for name in catalog.profile(step_id).outputs - self.attributes:
                self.attributes.add(name)
                for other in waiting.get(name, ()):
                    lacks[other] -= 1
                    if not lacks[other]:
                        reachable.append(other)


def _ancestors(catalog: Catalog, goals: Sequence[str]) -> set[str]:
    """Return the goals and everything that could provide something for them."""
    found = set(goals)
    pending = list(goals)
    while pending:
        for name, _ in catalog.profile(pending.pop()).inputs:
            new = catalog.providers(name) - found
            found |= new
            pending += new
    return found


class _Demand:
    """Which steps are demanded, what must be given, and what was looked at and left out."""

    def __init__(self, catalog: Catalog, goals: Sequence[str], given: Given, mode: Mode, match: Match) -> None:
        self._catalog = catalog
        self._goals = frozenset(goals)
        self._given = given
        self._preview = mode == "preview"
        self._match = match
        self._reach = _Reach(catalog, goals, given)
        self._uses: dict[str, set[Use]] = {}
        self._seen: set[str] = set(goals)
        self._expanded: set[str] = set()
        self._blocked: set[str] = set()
        self.required: set[str] = set()
        pending = [goal for goal in goals if not self._is_satisfied(catalog.profile(goal))]
        while pending:
            step_id = pending.pop()
            if step_id not in self._expanded:
                self._expanded.add(step_id)
                pending += self._expand(catalog.profile(step_id))
        self.included: Sequence[str] = sorted(self._expanded - self._blocked)

    def reason(self, step_id: str) -> Reason:
        """Return why a step is in the plan."""
        return Reason(step_id in self._goals, tuple(sorted(self._uses.get(step_id, ()))))

    def excluded(self) -> Excluded:
        """Return why steps that were looked at are not in the plan."""
        missing: dict[str, tuple[str, ...]] = {}
        satisfied: dict[str, tuple[str, ...]] = {}
        blocked: dict[str, tuple[str, ...]] = {}
        for step_id in sorted(self._seen.difference(self.included)):
            profile = self._catalog.profile(step_id)
            if refused := self._blocked_by(profile):
                blocked[step_id] = tuple(sorted(refused))
            elif self._is_satisfied(profile):
                satisfied[step_id] = tuple(sorted(profile.outputs))
            elif absent := set(profile.needed) - self._reach.attributes:
                missing[step_id] = tuple(sorted(absent))
        return Excluded(missing, satisfied, blocked)

    def _is_satisfied(self, profile: Profile) -> bool:
        """Whether everything that a step could provide is given."""
        return bool(profile.outputs) and profile.outputs <= self._given.keys()

    def _blocked_by(self, profile: Profile) -> frozenset[str]:
        return profile.refuses & self._given.keys()

    def _expand(self, profile: Profile) -> Sequence[str]:
        """Return the steps that a demanded step demands in turn, and note what must be given for it."""
        if profile.refuses and self._blocked_by(profile):
            self._blocked.add(profile.step.id)
            return ()
        gate = self._gate(profile) if profile.gated else Gate.OPEN
        demanded: list[str] = []
        for name, config in profile.inputs:
            gated = isinstance(config, m.RequiredConfig) and config.match is not None
            if gate is Gate.CLOSED and not gated:
                continue
            providers = self._providers(name, config)
            for provider in providers:
                self._uses.setdefault(provider, set()).add(Use(name, profile.step.id))
            demanded += providers
            told = gate is Gate.OPEN or (gate is Gate.UNDECIDED and gated)
            if told and not providers and name in profile.needed and name not in self._given:
                self.required.add(name)
        return demanded

    def _providers(self, name: str, config: m.RequiredConfig | m.OptionalConfig) -> Sequence[str]:
        """Return the steps that are to provide an input: none if a given value decides it."""
        candidates = self._catalog.providers(name)
        if config.collect == "first" and name in self._given and self._given_matches(name, config):
            self._seen.update(one for one in candidates if self._is_satisfied(self._catalog.profile(one)))
            return ()
        self._seen |= candidates
        selected = candidates & self._reach.steps or (candidates if self._preview else frozenset())
        if config.collect == "all" and selected != candidates:
            return ()
        return sorted(selected)

    def _given_matches(self, name: str, config: m.RequiredConfig | m.OptionalConfig) -> bool:
        """Whether a given value is sure to count for an input."""
        if not isinstance(config, m.RequiredConfig) or config.match is None:
            return True
        return any(value is not UNKNOWN and self._holds(config.match, value) for value in self._given[name])

    def _holds(self, match: m.Expression, value: object) -> bool | None:
        """Whether a match holds for a given value; None if it cannot be evaluated, which fails the step when it runs."""
        try:
            return self._match(match, value)
        except ExpressionFailed:
            return None

    def _gate(self, profile: Profile) -> Gate:
        """Return what the matches say, as far as the given values decide them: closed if one can no longer hold."""
        return combined(
            [
                self._gate_of(name, config.collect, config.match)
                for name, config in profile.inputs
                if isinstance(config, m.RequiredConfig) and config.match is not None
            ]
        )

    def _gate_of(self, name: str, collect: m.Collect, match: m.Expression) -> Gate:
        values = self._given.get(name, ())
        if any(value is UNKNOWN for value in values):
            return Gate.UNDECIDED
        matches = [self._holds(match, value) for value in values]
        if None in matches:
            return Gate.UNDECIDED
        return gate_of(
            collect,
            [bool(holds) for holds in matches],
            final=bool(values) and not self._catalog.providers(name),
            complete=True,
        )


def combined(gates: Collection[Gate]) -> Gate:
    """Return what the matches of a step say together: closed if one is."""
    if Gate.CLOSED in gates:
        return Gate.CLOSED
    return Gate.UNDECIDED if Gate.UNDECIDED in gates else Gate.OPEN


def gate_of(collect: m.Collect, matches: Sequence[bool], *, final: bool, complete: bool) -> Gate:
    """Return what the match of one input says.

    *matches* says for each value whether it holds; *final*: no further values can come; *complete*: every provider has
    provided one.
    """
    if collect == "none":
        decided, holds = final or any(matches), not any(matches)
    elif collect == "all":
        decided, holds = final or not all(matches), bool(matches) and all(matches) and complete
    else:
        decided, holds = final or (any(matches) and collect != "last"), any(matches)
    if not decided:
        return Gate.UNDECIDED
    return Gate.OPEN if holds else Gate.CLOSED
