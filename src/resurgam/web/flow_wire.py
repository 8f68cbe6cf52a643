"""The values of flows and plans that callers send and get."""

from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Raw, field

from resurgam.client.pending import moment
from resurgam.core.entry import NULL
from resurgam.flows import explain
from resurgam.flows.expressions import Expressions
from resurgam.flows.planner import Edge, Excluded, Plan
from resurgam.flows.requests import item_id
from resurgam.flows.state import FlowState, StepState, StepStatus, WorkStatus
from resurgam.store.records import Instance
from resurgam.web import wire

Goals: TypeAlias = Annotated[
    tuple[wire.Text, ...],
    Meta(
        min_length=1, max_length=1000, description="The ids of the steps whose results are wanted.", examples=[["ship"]]
    ),
]
Init: TypeAlias = Annotated[
    dict[wire.Text, Any], Meta(description="The given attributes, by name.", examples=[{"order_id": "o-1"}])
]


class StartFlow(wire.Request, frozen=True):
    """A flow to start. Steps get *metadata* that they ask for."""

    goals: Goals
    init: Init = field(default_factory=dict)
    id: wire.Id | None = None
    queue: wire.Queue | None = None
    tags: wire.Tags = field(default_factory=dict)
    metadata: Annotated[dict[wire.Text, Any], Meta(description="Values that steps can ask for.")] = field(
        default_factory=dict
    )


class PlanRequest(wire.Request, frozen=True):
    """Goals to plan for. With mode ``strict`` only steps are planned that can run with these values, as in a start."""

    goals: Goals
    init: Init = field(default_factory=dict)
    mode: Literal["preview", "strict"] = "preview"


class ShowFlow(wire.OfRun, frozen=True):
    """How much of a flow is shown."""

    explain: Annotated[bool, Meta(description="Say why each step is there, and what it waits for.")] = False
    items: Annotated[int, Meta(ge=0, le=1000, description="The most work items shown of each step.")] = 100


class FlowPage(wire.Answer, frozen=True):
    """A page of flows, newest first; *cursor* gives the next page, null on the last."""

    flows: tuple[wire.Summary, ...]
    cursor: str | None


class Provided(wire.Answer, frozen=True):
    """A value of an attribute: the step that provided it (null: it was given), and when."""

    value: Any
    step: str | None
    at: datetime


class WorkItem(wire.Answer, frozen=True):
    """One call of a step. *id* is its receipt; *inputs* are what differs from the inputs of the step."""

    number: int
    id: str
    status: WorkStatus
    inputs: Any
    outputs: Any
    error: wire.Error | None
    attempts: int
    retries: int
    next_retry_at: datetime | None


class FlowStep(wire.Answer, frozen=True):
    """One step of a flow. Of its *item_count* work items the first are shown.

    *because* says how it got its status, and *waits* what it waits for, if that was asked for.
    """

    name: str
    status: StepStatus
    goal: bool
    inputs: Any
    outputs: Any
    error: wire.Error | None
    reason: str
    unsatisfied: tuple[str, ...]
    started_at: datetime | None
    ended_at: datetime | None
    item_count: int
    items: tuple[WorkItem, ...]
    because: tuple[str, ...] = ()
    waits: tuple[explain.Wait, ...] = ()


class Flow(wire.Summary, frozen=True):
    """A flow with its steps, and the values of each attribute in the order in which they came."""

    goals: tuple[str, ...]
    result: Any
    error: wire.Error | None
    steps: dict[str, FlowStep]
    attributes: dict[str, tuple[Provided, ...]]
    metadata: dict[str, Any]
    waiting_for: tuple[str, ...]


class PlannedStep(wire.Answer, frozen=True):
    """A step that is in the plan, or was left out, and why."""

    step: str
    name: str
    status: Literal["planned", "excluded"]
    goal: bool
    why: tuple[str, ...]


class Planned(wire.Answer, frozen=True):
    """A plan. *missing* are the attributes that must be given, each with the steps that need it."""

    goals: tuple[str, ...]
    missing: dict[str, tuple[str, ...]]
    steps: tuple[PlannedStep, ...]
    attributes: dict[str, Edge]
    excluded: Excluded


def planned_of(plan: Plan) -> Planned:
    """Return a plan with the reasons for its steps."""
    explained = explain.explain_plan(plan)
    steps = tuple(
        PlannedStep(
            step=one.step,
            name=one.name,
            status="excluded" if one.status == explain.EXCLUDED else "planned",
            goal=one.goal,
            why=one.why,
        )
        for one in explained.steps
    )
    return Planned(
        goals=plan.goals, missing=explained.missing, steps=steps, attributes=plan.attributes, excluded=plan.excluded
    )


def flow_of(instance: Instance, state: FlowState, waiting_for: tuple[str, ...], asked: ShowFlow, now: int) -> Flow:
    """Return a flow as a fold over its log gives it."""
    said = {one.step: one for one in explain.explain(state, Expressions(), now).steps} if asked.explain else {}
    return Flow(
        **wire.summary_fields(instance),
        goals=state.plan.goals,
        result=_value(state.result),
        error=wire.failure_of(state.failure),
        steps={
            step_id: _step(state, step_id, step, said.get(step_id), asked.items)
            for step_id, step in state.steps.items()
        },
        attributes={
            name: tuple(Provided(value=_value(one.value), step=one.step or None, at=moment(one.at)) for one in values)
            for name, values in state.attributes.items()
        },
        metadata={name: _value(value) for name, value in state.metadata.items()},
        waiting_for=waiting_for,
    )


def _step(state: FlowState, step_id: str, step: StepState, said: explain.StepExplanation | None, most: int) -> FlowStep:
    return FlowStep(
        name=state.plan.steps[step_id].name,
        status=step.status,
        goal=step_id in state.plan.goals,
        inputs=_value(step.inputs),
        outputs=_value(step.outputs),
        error=wire.failure_of(step.failure),
        reason=step.reason,
        unsatisfied=step.unsatisfied,
        started_at=_moment(step.started_at),
        ended_at=_moment(step.ended_at),
        item_count=len(step.items),
        items=tuple(_item(state, number) for number in step.items[:most]),
        because=() if said is None else (*said.why, *said.because),
        waits=() if said is None else said.waits,
    )


def _item(state: FlowState, number: int) -> WorkItem:
    item = state.items[number]
    return WorkItem(
        number=number,
        id=item_id(state, number),
        status=item.status,
        inputs=_value(item.changes),
        outputs=_value(item.outputs),
        error=wire.failure_of(item.failure),
        attempts=item.attempts,
        retries=item.retry_count,
        next_retry_at=_moment(item.next_retry_at),
    )


def _value(encoded: Raw) -> Any:
    return None if encoded == NULL else wire.value_of(encoded, "value")


def _moment(at: int | None) -> datetime | None:
    return None if at is None else moment(at)
