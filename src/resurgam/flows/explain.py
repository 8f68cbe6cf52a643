"""Explain plans and flows: why each step is there or not, what it waits for, and which step provided each attribute.

Everything follows from a plan, or from the state of a flow at a moment; nothing is read or written.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, TypeAlias, TypeVar

import msgspec
from msgspec import Raw

from resurgam.core.entry import NULL, Failure
from resurgam.flows import decide
from resurgam.flows import model as m
from resurgam.flows.errors import ExpressionFailed, LanguageMissing
from resurgam.flows.inputs import Inputs
from resurgam.flows.judge import Judge
from resurgam.flows.planner import Edge, Plan, Reason
from resurgam.flows.requests import item_id
from resurgam.flows.state import FlowState, FlowStatus, StepState, StepStatus, WorkItem, WorkStatus

PLANNED: Final = "planned"
EXCLUDED: Final = "excluded"

T = TypeVar("T")

_NO_EDGE: Final = Edge()
_NO_REASON: Final = Reason()


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a step waits for, *until* a moment at most."""

    text: str
    until: datetime | None = None


class StepExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """One step: *why* it is in the plan or left out, how it got its *status*, and what it waits for."""

    step: str
    name: str = ""
    status: str
    goal: bool = False
    why: tuple[str, ...] = ()
    because: tuple[str, ...] = ()
    waits: tuple[Wait, ...] = ()


class Provision(msgspec.Struct, frozen=True, kw_only=True):
    """A value of an attribute: the step that provided it (None: it was given), and when."""

    value: Raw
    step: str | None
    at: datetime


class AttributeExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """One attribute: its values in the order in which they came, and the steps that provide and take it."""

    attribute: str
    values: tuple[Provision, ...] = ()
    providers: tuple[str, ...] = ()
    consumers: tuple[str, ...] = ()


class PlanExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """A plan: its steps and those left out. *missing* are the attributes that must be given, with who needs them."""

    goals: tuple[str, ...]
    missing: dict[str, tuple[str, ...]]
    steps: tuple[StepExplanation, ...]
    attributes: tuple[AttributeExplanation, ...]


class FlowExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """A flow at a moment. *because* says how it got its status."""

    goals: tuple[str, ...]
    status: str
    because: tuple[str, ...]
    steps: tuple[StepExplanation, ...]
    attributes: tuple[AttributeExplanation, ...]


def explain_plan(plan: Plan) -> PlanExplanation:
    """Explain why each step is in a plan, or why it is left out."""
    planned = [
        StepExplanation(
            step=step_id,
            name=step.name,
            status=PLANNED,
            goal=step_id in plan.goals,
            why=tuple(_inclusion(plan, step_id)),
        )
        for step_id, step in in_order(plan, plan.steps)
    ]
    return PlanExplanation(
        goals=plan.goals,
        missing={name: tuple(_needing(plan, name)) for name in plan.required},
        steps=(*planned, *_excluded(plan)),
        attributes=tuple(
            AttributeExplanation(attribute=name, providers=edge.providers, consumers=edge.consumers)
            for name, edge in plan.attributes.items()
        ),
    )


def explain(state: FlowState, judge: Judge, now: int) -> FlowExplanation:
    """Explain what each step of a flow did or waits for at a moment, and where its attributes came from."""
    plan = state.plan
    view = _View(state, judge, now)
    steps = [
        StepExplanation(
            step=step_id,
            name=plan.steps[step_id].name,
            status=step.status,
            goal=step_id in plan.goals,
            why=tuple(_inclusion(plan, step_id)),
            because=tuple(view.because(step_id)),
            waits=tuple(view.waits(step_id)),
        )
        for step_id, step in in_order(plan, state.steps)
    ]
    return FlowExplanation(
        goals=plan.goals,
        status="paused" if state.paused and state.status is FlowStatus.ACTIVE else state.status,
        because=tuple(_outcome(state)),
        steps=(*steps, *_excluded(plan)),
        attributes=tuple(_attributes(state)),
    )


# Plans.


def levels_of(plan: Plan) -> Mapping[str, int]:
    """Return the level of each step: one above the highest of those that provide its inputs, from 1 on."""
    levels: dict[str, int] = {}
    needs = {
        step_id: {
            one for name in step.inputs for one in plan.attributes.get(name, _NO_EDGE).providers if one != step_id
        }
        for step_id, step in plan.steps.items()
    }
    waiting = sorted(needs)
    while waiting:
        # The catalog admits no cycles. A plan that has one is drawn all the same: its first step counts as ready.
        ready = [one for one in waiting if needs[one] <= levels.keys()] or waiting[:1]
        levels |= {one: 1 + max((levels[other] for other in needs[one] & levels.keys()), default=0) for one in ready}
        waiting = [one for one in waiting if one not in levels]
    return levels


def in_order(plan: Plan, steps: Mapping[str, T]) -> Sequence[tuple[str, T]]:
    """Return the steps of a plan in an order in which they could run."""
    levels = levels_of(plan)
    return sorted(steps.items(), key=lambda item: (levels[item[0]], item[0]))


def _inclusion(plan: Plan, step_id: str) -> Iterator[str]:
    reason = plan.reasons.get(step_id, _NO_REASON)
    if reason.goal:
        yield "it is a goal"
    consumers: dict[str, list[str]] = {}
    for use in reason.uses:
        consumers.setdefault(use.attribute, []).append(use.consumer)
    for attribute, names in consumers.items():
        yield f"it provides {attribute!r} for {_listed(names)}"


def _excluded(plan: Plan) -> Iterator[StepExplanation]:
    reasons: dict[str, str] = {}
    for step_id, names in plan.excluded.missing.items():
        reasons[step_id] = f"it needs {_listed(names)}, not given, and no step that can run provides {_them(names)}"
    for step_id, names in plan.excluded.satisfied.items():
        reasons[step_id] = f"everything that it provides is given: {_listed(names)}"
    for step_id, names in plan.excluded.blocked.items():
        reasons[step_id] = f"it starts only without a value of {_listed(names, 'or')}, and a value is given"
    for step_id in sorted(reasons):
        yield StepExplanation(step=step_id, status=EXCLUDED, goal=step_id in plan.goals, why=(reasons[step_id],))


def _needing(plan: Plan, attribute: str) -> Sequence[str]:
    """Return the steps of a plan that cannot start without an attribute."""
    return [
        step_id
        for step_id, step in plan.steps.items()
        if isinstance(config := step.inputs.get(attribute), m.RequiredConfig) and config.collect != "none"
    ]


# Flows.


def _outcome(state: FlowState) -> Iterator[str]:
    if not state.planned and state.status is FlowStatus.ACTIVE:
        yield "it has no plan yet: the first worker that serves it makes one"
    if state.failure is not None:
        yield from _links(state.failure)
    if state.status is not FlowStatus.ACTIVE and not state.deactivated:
        yield f"its outcome is decided; {_count(len(state.outstanding), 'work item')} without a result yet"
    if state.paused and state.status is FlowStatus.ACTIVE:
        yield "nothing new starts until it is resumed"


def _attributes(state: FlowState) -> Iterator[AttributeExplanation]:
    for name in sorted(state.attributes.keys() | state.plan.attributes.keys()):
        edge = state.plan.attributes.get(name, _NO_EDGE)
        yield AttributeExplanation(
            attribute=name,
            values=tuple(
                Provision(value=one.value, step=one.step or None, at=_moment(one.at))
                for one in state.attributes.get(name, ())
            ),
            providers=edge.providers,
            consumers=edge.consumers,
        )


class _View:
    """The steps of one flow, as they are at a moment."""

    def __init__(self, state: FlowState, judge: Judge, now: int) -> None:
        self._state = state
        self._inputs = Inputs(state, judge)
        self._now = now

    def because(self, step_id: str) -> Iterator[str]:
        """Yield how a step got its status."""
        step = self._state.steps[step_id]
        match step.status:
            case StepStatus.PENDING if self._state.status is not FlowStatus.ACTIVE:
                yield "the flow ended before it started"
            case StepStatus.ACTIVE if self._state.status is not FlowStatus.ACTIVE:
                yield "the flow ended before it was done"
            case StepStatus.COMPLETED:
                yield from self._completion(step_id, step)
            case StepStatus.SKIPPED:
                yield from self._skip(step_id, step)
            case StepStatus.FAILED:
                yield from self._failure(step_id, step)
            case _:
                pass

    def waits(self, step_id: str) -> Iterator[Wait]:
        """Yield what a step waits for."""
        state, step = self._state, self._state.steps[step_id]
        if step.status is StepStatus.PENDING and state.status is FlowStatus.ACTIVE:
            if state.paused:
                yield Wait(text="the flow to be resumed")
            try:
                yield from self._inputs_awaited(step_id)
            except (ExpressionFailed, LanguageMissing) as error:
                yield Wait(text=f"its failure: {error}")
        else:
            yield from self._work_awaited(step_id, step)

    # Steps that have not started.

    def _inputs_awaited(self, step_id: str) -> Iterator[Wait]:
        configs = self._state.plan.steps[step_id].inputs
        for name, until in self._inputs.awaited(step_id, self._now):
            config = configs[name]
            text = f"{_wanted(name, config)}{self._sources(name)}"
            if isinstance(config, m.OptionalConfig) and until is None:
                text += f", for {config.deadline / 1000:g} s once its required inputs are there"
            yield Wait(text=text, until=None if until is None else _moment(until))

    def _sources(self, name: str) -> str:
        """Return the steps that may still provide a value, as part of a sentence."""
        states = {one: self._state.steps[one].status for one in self._edge(name).providers}
        undecided = [f"{one!r} ({status})" for one, status in states.items() if not status.terminal]
        return f" from {_joined(undecided, 'or')}" if undecided else ""

    def _edge(self, name: str) -> Edge:
        return self._state.plan.attributes.get(name, _NO_EDGE)

    # Steps that have.

    def _work_awaited(self, step_id: str, step: StepState) -> Iterator[Wait]:
        definition = self._state.plan.steps[step_id]
        for position, number in enumerate(step.items, start=1):
            item = self._state.items[number]
            label = "its work" if len(step.items) == 1 else f"work item {position} of {len(step.items)}"
            if item.status is WorkStatus.COMPENSATING:
                again = item.next_retry_at if item.comp_retry_count or item.deferred else None
                text = f"the compensation of {label}{_deferral(item)}"
                yield Wait(text=text, until=None if again is None else _moment(again))
            elif number in self._state.outstanding:
                yield _awaited(label, item) or Wait(text=f"{label}{self._place(definition, item, number)}")
        later = sum(self._state.items[one].status is WorkStatus.PENDING for one in range(step.handed, step.items.stop))
        if later and step.status is StepStatus.ACTIVE:
            limit = max(definition.work_config.parallelism, 1)
            yield Wait(text=f"{_count(later, 'more work item')}, at most {limit} at the same time")

    def _place(self, definition: m.Step, item: WorkItem, number: int) -> str:
        started = self._state.started
        child = item_id(self._state, number)
        if definition.flow is not None:
            return f", the flow {child!r}"
        if definition.workflow is not None:
            return f", the workflow {child!r}"
        if item.status is WorkStatus.ACTIVE:
            return f", running, attempt {item.attempts}"
        queue = (definition.python.queue if definition.python is not None else "") or started.queue
        return f", on queue {queue!r}"

    # Steps that are decided.

    def _completion(self, step_id: str, step: StepState) -> Iterator[str]:
        declared = self._state.plan.steps[step_id].outputs
        provided = msgspec.json.decode(step.outputs) if step.outputs != NULL else {}
        if provided:
            yield f"it provided {_listed(sorted(provided))}"
        if absent := sorted(declared.keys() - provided.keys()):
            yield f"its result has no {_listed(absent, 'or')}"

    def _skip(self, step_id: str, step: StepState) -> Iterator[str]:
        definition = self._state.plan.steps[step_id]
        match step.reason:
            case decide.NOT_NEEDED:
                yield "no step needs its outputs any more"
            case decide.PREDICATE_FALSE if definition.predicate is not None:
                yield f"its predicate is false: {definition.predicate.script}"
            case decide.NO_MATCH:
                for name in step.unsatisfied:
                    config = definition.inputs[name]
                    assert isinstance(config, m.RequiredConfig)
                    yield f"the match of {name!r} does not hold: {_script(config)}"
            case decide.HAS_VALUE:
                for name in step.unsatisfied:
                    yield f"it starts only without a value of {name!r}, {self._provenance(name)}"
            case _:
                yield step.reason

    def _failure(self, step_id: str, step: StepState) -> Iterator[str]:
        if step.unsatisfied:
            for name in step.unsatisfied:
                yield f"no value of {name!r} can come any more: {self._absence(name)}"
        elif step.failure is not None:
            yield from _links(step.failure)
        items = self._state.items_of(step_id)
        attempts = max((item.attempts for item in items if item.status is WorkStatus.FAILED), default=0)
        if attempts > 1:
            yield f"that was attempt {attempts}"
        undone = sum(item.status is WorkStatus.COMPENSATED for item in items)
        if undone:
            yield f"{_count(undone, 'work item')} compensated"
        for item in items:
            if item.status is WorkStatus.COMPENSATION_FAILED and item.failure is not None:
                yield f"a compensation failed: {_described(item.failure)}"

    def _provenance(self, name: str) -> str:
        provided = self._state.attributes.get(name, ())
        steps = sorted({one.step for one in provided if one.step})
        return f"which {_listed(steps)} provided"

    def _absence(self, name: str) -> str:
        """Say of every provider why it has provided nothing."""
        provided = {one.step for one in self._state.attributes.get(name, ())}
        texts = [self._fate(one, name) for one in self._edge(name).providers if one not in provided]
        return ", ".join(texts) or "no step provides it"

    def _fate(self, step_id: str, name: str) -> str:
        step = self._state.steps[step_id]
        if step.status is StepStatus.FAILED and step.failure is not None:
            return f"{step_id!r} failed ({_described(step.failure)})"
        if step.status is StepStatus.SKIPPED:
            return f"{step_id!r} was skipped ({step.reason})"
        return f"{step_id!r} completed without it"


Config: TypeAlias = m.RequiredConfig | m.OptionalConfig


def _wanted(name: str, config: Config) -> str:
    """Return what an input waits for."""
    matching = f" that matches {_script(config)}" if _script(config) else ""
    match config.collect:
        case "first":
            return f"a value of {name!r}{matching}"
        case "last":
            return f"the last value of {name!r}{matching}"
        case "some":
            return f"every value of {name!r}{matching}"
        case "all":
            return f"a value of {name!r}{matching} of every provider"
        case "none":
            return f"the certainty that no value of {name!r}{matching} comes"


def _script(config: Config) -> str:
    return config.match.script if isinstance(config, m.RequiredConfig) and config.match is not None else ""


def _awaited(label: str, item: WorkItem) -> Wait | None:
    """Return the moment that a work item waits for: that of its answer, or of its next attempt."""
    if item.deadline is not None:
        text = f"the answer to {label}, which its service has accepted, attempt {item.attempts}"
        return Wait(text=text, until=_moment(item.deadline))
    if item.next_retry_at is None:
        return None
    if item.deferred:
        return Wait(text=f"{label}{_deferral(item)}", until=_moment(item.next_retry_at))
    after = f", after {_described(item.failure)}" if item.failure is not None else ""
    return Wait(text=f"the next attempt of {label}{after}", until=_moment(item.next_retry_at))


def _deferral(item: WorkItem) -> str:
    return f", not sent yet: {item.deferred}" if item.deferred else ""


def _links(failure: Failure) -> Iterator[str]:
    """Yield a failure and its causes, each unless the one before has said it."""
    said = ""
    link: Failure | None = failure
    while link is not None:
        if not said.endswith(link.message) or not link.message:
            said = _described(link)
            yield said
        link = link.cause


def _described(failure: Failure) -> str:
    return f"{failure.type.removeprefix('builtins.')}: {failure.message}"


def _listed(names: Sequence[str], word: str = "and") -> str:
    return _joined([repr(name) for name in names], word)


def _joined(parts: Sequence[str], word: str) -> str:
    return f" {word} ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


def _them(names: Mapping[str, object] | Sequence[str]) -> str:
    return "it" if len(names) == 1 else "them"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number:,} {noun}s"


def _moment(at: int) -> datetime:
    return datetime.fromtimestamp(at / 1000, UTC)
