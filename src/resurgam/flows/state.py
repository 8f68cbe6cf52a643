"""The state of a flow: a fold over its log.

Folding any prefix of a log gives the state that the flow had at that point, because the live flow is changed by nothing
but `FlowState.apply`. Which event may follow which is in `TRANSITIONS`, one table for flows, steps and work items.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, TypeVar, cast

import msgspec
from msgspec import Raw

from resurgam.core import flow_event as fe
from resurgam.core import lifecycle
from resurgam.core.entry import NULL, Event, Failure
from resurgam.core.errors import CorruptHistory
from resurgam.flows.planner import Plan


class FlowStatus(StrEnum):
    """Whether the outcome of a flow is decided."""

    ACTIVE = "active"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TERMINATED = "terminated"


class StepStatus(StrEnum):
    """How far a step of a flow is."""

    PENDING = "pending"
    ACTIVE = "active"
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"

    @property
    def terminal(self) -> bool:
        """Whether the step is decided."""
        return self not in _OPEN_STEPS


_OPEN_STEPS = frozenset({StepStatus.PENDING, StepStatus.ACTIVE})


class WorkStatus(StrEnum):
    """How far a work item is, or its compensation."""

    PENDING = "pending"
    ACTIVE = "active"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    NOT_COMPLETED = "not_completed"
    CANCELLED = "cancelled"
    COMPENSATING = "compensating"
    COMPENSATED = "compensated"
    COMPENSATION_FAILED = "compensation_failed"


_ANSWERABLE = frozenset({WorkStatus.PENDING, WorkStatus.ACTIVE, WorkStatus.NOT_COMPLETED})

TRANSITIONS: Final[Mapping[type[Event], tuple[frozenset[WorkStatus], WorkStatus]]] = {
    fe.WorkStarted: (_ANSWERABLE, WorkStatus.ACTIVE),
    fe.WorkSucceeded: (_ANSWERABLE, WorkStatus.SUCCEEDED),
    fe.WorkFailed: (_ANSWERABLE, WorkStatus.FAILED),
    fe.WorkNotCompleted: (frozenset({WorkStatus.PENDING, WorkStatus.ACTIVE}), WorkStatus.NOT_COMPLETED),
    fe.RetryScheduled: (frozenset({WorkStatus.NOT_COMPLETED}), WorkStatus.PENDING),
    fe.WorkCancelled: (_ANSWERABLE, WorkStatus.CANCELLED),
    fe.CompStarted: (frozenset({WorkStatus.SUCCEEDED}), WorkStatus.COMPENSATING),
    fe.CompRetryScheduled: (frozenset({WorkStatus.COMPENSATING}), WorkStatus.COMPENSATING),
    fe.CompSucceeded: (frozenset({WorkStatus.COMPENSATING}), WorkStatus.COMPENSATED),
    fe.CompFailed: (frozenset({WorkStatus.COMPENSATING}), WorkStatus.COMPENSATION_FAILED),
}
"""For each event about a work item: in which status it may come, and the one that follows."""

_SETTLED: Final = frozenset(
    {
        *(WorkStatus.SUCCEEDED, WorkStatus.FAILED, WorkStatus.CANCELLED),
        *(WorkStatus.COMPENSATED, WorkStatus.COMPENSATION_FAILED),
    }
)
"""A work item, or a compensation, that reaches one of these brings no more results."""

_STEP_TRANSITIONS: Final[Mapping[type[Event], tuple[frozenset[StepStatus], StepStatus]]] = {
    fe.StepStarted: (frozenset({StepStatus.PENDING}), StepStatus.ACTIVE),
    fe.StepSkipped: (frozenset({StepStatus.PENDING}), StepStatus.SKIPPED),
    fe.StepCompleted: (frozenset({StepStatus.ACTIVE}), StepStatus.COMPLETED),
    fe.StepFailed: (_OPEN_STEPS, StepStatus.FAILED),
}
_FLOW_ENDS: Final[Mapping[type[Event], FlowStatus]] = {
    fe.FlowCompleted: FlowStatus.COMPLETED,
    fe.FlowFailed: FlowStatus.FAILED,
    fe.FlowCancelled: FlowStatus.CANCELLED,
    lifecycle.WorkflowTerminated: FlowStatus.TERMINATED,
}


class FlowInput(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a flow is started with, as the input of its first entry.

    Without a *plan* it has only its *goals*, as in `FlowRequest`: then it is planned when it begins.
    """

    plan: Plan | None = None
    init: dict[str, tuple[Raw, ...]] = {}
    metadata: dict[str, Raw] = {}
    goals: tuple[str, ...] = ()


class Provided(msgspec.Struct, frozen=True, gc=False):
    """A value of an attribute: which step provided it (empty: it was given), and when."""

    value: Raw
    step: str
    at: int


class WorkItem(msgspec.Struct):
    """One work item. *changes* is what differs in its input from that of the step.

    *cause* is the ``seq`` of the entry that its next attempt follows from: the start of its step, a retry, a compensation.
    *attempts* counts those that began, *earlier* those before the last retry.
    """

    step: str
    changes: Raw
    cause: int
    status: WorkStatus = WorkStatus.PENDING
    outputs: Raw = NULL
    failure: Failure | None = None
    attempts: int = 0
    earlier: int = 0
    retry_count: int = 0
    next_retry_at: int | None = None
    compensation: int | None = None
    comp_retry_count: int = 0


class StepState(msgspec.Struct):
    """One step of a flow. Its items below the number *handed* are on their queue or beyond.

    Items are handed over in the order of the input, as many at a time as the step allows: each one that succeeds makes
    room for the next. So *handed* follows from the log.
    """

    status: StepStatus = StepStatus.PENDING
    inputs: Raw = NULL
    items: range = range(0)
    handed: int = 0
    succeeded: int = 0
    outputs: Raw = NULL
    failure: Failure | None = None
    reason: str = ""
    unsatisfied: tuple[str, ...] = ()
    started_at: int | None = None
    ended_at: int | None = None


class FlowState:
    """The state of a flow after the events applied so far."""

    def __init__(self, log: Iterable[Event]) -> None:
        entries = iter(log)
        first = next(entries)
        if not isinstance(first, fe.FlowStarted):
            raise CorruptHistory(f"the first entry of a flow is flow_started, got {first.type}")
        given = msgspec.json.decode(first.input, type=FlowInput)
        self.started = first
        self.plan = given.plan or Plan(goals=given.goals)
        self.planned = given.plan is not None
        self.metadata = given.metadata
        self.status = FlowStatus.ACTIVE
        self.ended: Event | None = None
        """The entry that decided the outcome."""
        self.digest = ""
        """The status that lists show."""
        self.activated = 0
        """The ``seq`` of its activation."""
        self.deactivated = False
        self.cancel_requested = False
        self.paused = False
        self.result: Raw = NULL
        self.failure: Failure | None = None
        self.last_seq, self.last_at = first.seq, first.at
        self.steps = {step_id: StepState() for step_id in self.plan.steps}
        self.items: dict[int, WorkItem] = {}
        self.compensations: dict[int, int] = {}
        """The work item that a compensation belongs to, by the number of the compensation."""
        self.outstanding: dict[int, None] = {}
        """The numbers of what was handed over and may still bring a result, compensations included."""
        self.next_number = 1
        self.attributes: dict[str, list[Provided]] = {
            name: [Provided(value, "", first.at) for value in values] for name, values in given.init.items() if values
        }
        for entry in entries:
            self.apply(entry)

    def apply(self, entry: Event) -> None:
        """Apply one event; every event appended to the log passes through here."""
        if entry.seq != self.last_seq + 1:
            raise CorruptHistory(f"entry {entry.seq} follows entry {self.last_seq}: an entry is missing or duplicated")
        effect = _EFFECTS.get(type(entry))
        if effect is None or self.deactivated:
            raise CorruptHistory(
                f"entry {entry.seq} is {entry.type}, which cannot occur in a flow that is {self.status}"
            )
        effect(self, entry)
        self.last_seq, self.last_at = entry.seq, max(self.last_at, entry.at)

    def accepts(self, event: Event) -> bool:
        """Whether an event about a work item may be recorded: the item has no answer yet."""
        item = self.item_of(number_of(event))
        return item is not None and item.status in TRANSITIONS[type(event)][0]

    def item_of(self, ref: int | None) -> WorkItem | None:
        """Return a work item by its number, or by that of its compensation."""
        return self.items.get(self.compensations.get(ref, ref)) if ref is not None else None

    def items_of(self, step_id: str) -> Sequence[WorkItem]:
        """Return the work items of a step, in the order of its input."""
        return [self.items[number] for number in self.steps[step_id].items]

    def is_wanted(self, number: int) -> bool:
        """Whether the flow still needs what is outstanding: a compensation always, a work item while its step is active."""
        return number in self.compensations or (
            self.status is FlowStatus.ACTIVE and self.steps[self.items[number].step].status is StepStatus.ACTIVE
        )


def number_of(event: Event) -> int | None:
    """Return the number of the work item, or of the compensation, that an event is about."""
    return event.ref if event.ref is not None else getattr(event, "item", None)


E_ = TypeVar("E_", bound=Event)
_Effect = Callable[[FlowState, Event], None]
_EFFECTS: Final[dict[type[Event], _Effect]] = {}


def _effect(*kinds: type[E_]) -> Callable[[Callable[[FlowState, Any], None]], Callable[[FlowState, Any], None]]:
    def register(function: Callable[[FlowState, Any], None]) -> Callable[[FlowState, Any], None]:
        _EFFECTS.update(dict.fromkeys(kinds, cast("_Effect", function)))
        return function

    return register


@_effect(fe.FlowActivated)
def _activate(state: FlowState, entry: fe.FlowActivated) -> None:
    state.activated = entry.seq
    if entry.plan != NULL:
        state.plan, state.planned = msgspec.json.decode(entry.plan, type=Plan), True
        state.steps = {step_id: StepState() for step_id in state.plan.steps}


@_effect(lifecycle.CancelRequested)
def _request_cancel(state: FlowState, entry: lifecycle.CancelRequested) -> None:
    state.cancel_requested = True


@_effect(lifecycle.WorkflowPaused)
def _pause(state: FlowState, entry: lifecycle.WorkflowPaused) -> None:
    state.paused = True


@_effect(lifecycle.WorkflowResumed)
def _resume(state: FlowState, entry: lifecycle.WorkflowResumed) -> None:
    state.paused = False


@_effect(*_FLOW_ENDS)
def _end(state: FlowState, entry: Event) -> None:
    if state.status is not FlowStatus.ACTIVE:
        raise CorruptHistory(f"entry {entry.seq} is {entry.type}, but the flow is {state.status}")
    state.status, state.ended = _FLOW_ENDS[type(entry)], entry
    if isinstance(entry, fe.FlowCompleted):
        state.result = entry.result
    elif isinstance(entry, fe.FlowFailed):
        state.failure = entry.failure
    for step in state.steps.values():
        _abandon(state, step)


@_effect(fe.FlowDigestUpdated)
def _update_digest(state: FlowState, entry: fe.FlowDigestUpdated) -> None:
    state.digest = entry.status


@_effect(fe.FlowDeactivated)
def _deactivate(state: FlowState, entry: fe.FlowDeactivated) -> None:
    state.deactivated = True


def _move(state: FlowState, entry: Event, step_id: str) -> StepState:
    step = state.steps.get(step_id)
    before, after = _STEP_TRANSITIONS[type(entry)]
    if step is None or step.status not in before:
        found = "not in the plan" if step is None else step.status
        raise CorruptHistory(f"entry {entry.seq} is {entry.type} of step {step_id!r}, which is {found}")
    step.status = after
    if after.terminal:
        step.ended_at = entry.at
    return step


@_effect(fe.StepStarted)
def _start(state: FlowState, entry: fe.StepStarted) -> None:
    step = _move(state, entry, entry.step)
    step.inputs, step.started_at = entry.inputs, entry.at
    step.items = range(entry.first, entry.first + len(entry.items))
    parallelism = max(state.plan.steps[entry.step].work_config.parallelism, 1)
    step.handed = min(step.items.start + parallelism, step.items.stop)
    for number, changes in zip(step.items, entry.items, strict=True):
        state.items[number] = WorkItem(entry.step, changes, entry.seq)
    state.outstanding.update(dict.fromkeys(range(step.items.start, step.handed)))
    state.next_number = max(state.next_number, step.items.stop)


@_effect(fe.StepCompleted)
def _complete(state: FlowState, entry: fe.StepCompleted) -> None:
    _move(state, entry, entry.step).outputs = entry.outputs


@_effect(fe.StepFailed)
def _fail(state: FlowState, entry: fe.StepFailed) -> None:
    step = _move(state, entry, entry.step)
    step.failure, step.unsatisfied = entry.failure, entry.unsatisfied
    _abandon(state, step)


@_effect(fe.StepSkipped)
def _skip(state: FlowState, entry: fe.StepSkipped) -> None:
    step = _move(state, entry, entry.step)
    step.reason, step.unsatisfied = entry.reason, entry.unsatisfied


def _abandon(state: FlowState, step: StepState) -> None:
    """Cancel the items that were not handed over: they never will be."""
    for number in range(step.handed, step.items.stop):
        state.items[number].status = WorkStatus.CANCELLED


@_effect(fe.AttributeSet)
def _set(state: FlowState, entry: fe.AttributeSet) -> None:
    state.attributes.setdefault(entry.attribute, []).append(Provided(entry.value, entry.step, entry.at))


@_effect(*TRANSITIONS)
def _work(state: FlowState, entry: Event) -> None:
    number = number_of(entry)
    item = state.item_of(number)
    before, after = TRANSITIONS[type(entry)]
    if item is None or item.status not in before:
        found = "unknown" if item is None else item.status
        raise CorruptHistory(f"entry {entry.seq} is {entry.type} of work item {number}, which is {found}")
    item.status = after
    if after in _SETTLED:
        state.outstanding.pop(number or 0, None)
    match entry:
        case fe.WorkStarted():
            item.attempts, item.next_retry_at = entry.attempt, None
        case fe.WorkSucceeded():
            item.outputs = entry.outputs
            _make_room(state, state.steps[item.step])
        case fe.WorkFailed() | fe.CompFailed():
            item.failure = entry.failure
        case fe.WorkNotCompleted():
            item.failure, item.cause = entry.failure, entry.seq
        case fe.RetryScheduled():
            item.retry_count, item.next_retry_at, item.cause = entry.retry_count, entry.next_retry_at, entry.seq
            item.earlier = item.attempts
        case fe.CompStarted():
            item.compensation, item.cause = entry.number, entry.seq
            state.compensations[entry.number] = entry.item
            state.outstanding[entry.number] = None
            state.next_number = max(state.next_number, entry.number + 1)
        case fe.CompRetryScheduled():
            item.comp_retry_count, item.next_retry_at, item.cause = entry.retry_count, entry.next_retry_at, entry.seq
        case _:
            pass


def _make_room(state: FlowState, step: StepState) -> None:
    """Hand over the next item in place of one that has succeeded."""
    step.succeeded += 1
    if step.status is StepStatus.ACTIVE and state.status is FlowStatus.ACTIVE and step.handed < step.items.stop:
        state.outstanding[step.handed] = None
        step.handed += 1
