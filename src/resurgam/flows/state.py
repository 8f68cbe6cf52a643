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
from resurgam.core.state import FLOW_ENDS
from resurgam.flows.planner import Plan
from resurgam.flows.wiring import Wiring, stored, wire


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
        return self is not StepStatus.PENDING and self is not StepStatus.ACTIVE


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


# Tuples and not sets: the hash of a member of an enum costs more than a look at three of them.
_ANSWERABLE = (WorkStatus.PENDING, WorkStatus.ACTIVE, WorkStatus.NOT_COMPLETED)

TRANSITIONS: Final[Mapping[type[Event], tuple[tuple[WorkStatus, ...], WorkStatus | None]]] = {
    fe.WorkStarted: (_ANSWERABLE, WorkStatus.ACTIVE),
    fe.WorkSucceeded: (_ANSWERABLE, WorkStatus.SUCCEEDED),
    fe.WorkFailed: (_ANSWERABLE, WorkStatus.FAILED),
    fe.WorkNotCompleted: ((WorkStatus.PENDING, WorkStatus.ACTIVE), WorkStatus.NOT_COMPLETED),
    fe.RetryScheduled: ((WorkStatus.NOT_COMPLETED,), WorkStatus.PENDING),
    fe.WorkCancelled: (_ANSWERABLE, WorkStatus.CANCELLED),
    fe.WorkAcknowledged: ((WorkStatus.PENDING, WorkStatus.ACTIVE), WorkStatus.ACTIVE),
    fe.DispatchDeferred: ((WorkStatus.PENDING, WorkStatus.ACTIVE, WorkStatus.COMPENSATING), None),
    fe.CompStarted: ((WorkStatus.SUCCEEDED,), WorkStatus.COMPENSATING),
    fe.CompRetryScheduled: ((WorkStatus.COMPENSATING,), WorkStatus.COMPENSATING),
    fe.CompSucceeded: ((WorkStatus.COMPENSATING,), WorkStatus.COMPENSATED),
    fe.CompFailed: ((WorkStatus.COMPENSATING,), WorkStatus.COMPENSATION_FAILED),
}
"""For each event about a work item: in which status it may come, and the one that follows; None if that depends."""

_SETTLED: Final = (
    *(WorkStatus.SUCCEEDED, WorkStatus.FAILED, WorkStatus.CANCELLED),
    *(WorkStatus.COMPENSATED, WorkStatus.COMPENSATION_FAILED),
)
"""A work item, or a compensation, that reaches one of these brings no more results."""

STEP_TRANSITIONS: Final[Mapping[type[Event], tuple[tuple[StepStatus, ...], StepStatus]]] = {
    fe.StepStarted: ((StepStatus.PENDING,), StepStatus.ACTIVE),
    fe.StepSkipped: ((StepStatus.PENDING,), StepStatus.SKIPPED),
    fe.StepCompleted: ((StepStatus.ACTIVE,), StepStatus.COMPLETED),
    fe.StepFailed: ((StepStatus.PENDING, StepStatus.ACTIVE), StepStatus.FAILED),
}


LOST: Final = Failure(
    type="resurgam.worker.attempts.LeaseLost",
    message="the worker that ran this attempt stopped, died or lost its lease",
)
"""Recorded for an attempt that a later one shows to be lost."""


_ARCHIVAL: Final = (fe.FlowArchiving, fe.FlowArchived)
"""What may follow in a log that is complete, and nothing else."""


class FlowInput(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a flow is started with, as the input of its first entry.

    The *plan* is JSON (`wiring.encode_plan`): it is decoded once for all flows that follow it. Without one a flow has only
    its *goals*, as in `FlowRequest`: then it is planned when it begins.
    """

    plan: Raw = NULL
    init: dict[str, tuple[Raw, ...]] = {}
    metadata: dict[str, Raw] = {}
    goals: tuple[str, ...] = ()


_decode_input: Final = msgspec.json.Decoder(FlowInput).decode


class Provided(msgspec.Struct, frozen=True, gc=False):
    """A value of an attribute: which step provided it (empty: it was given), and when."""

    value: Raw
    step: str
    at: int


class WorkItem(msgspec.Struct):
    """One work item. *changes* is what differs in its input from that of the step.

    *cause* is the ``seq`` of the entry that its next attempt follows from: the start of its step, a retry, a compensation.
    *attempts* counts those that began, *earlier* those up to the last that failed. *deadline* is the moment until which
    the answer of an async item is waited for, once its service has accepted it. *deferred* says why it was not sent yet.
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
    deadline: int | None = None
    deferred: str = ""
    compensation: int | None = None
    comp_retry_count: int = 0


class StepState(msgspec.Struct):
    """One step of a flow. Its items below the number *handed* are on their queue or beyond.

    Items are handed over in the order of the input, as many at a time as the step allows: each one that succeeds makes
    room for the next, unless the flow is paused. So *handed* follows from the log.
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
        self._begin(next(entries))
        for entry in entries:
            self.apply(entry)

    def _begin(self, first: Event) -> None:
        if not isinstance(first, fe.FlowStarted):
            raise CorruptHistory(f"the first entry of a flow is flow_started, got {first.type}")
        given = _decode_input(first.input)
        self.started = first
        self.planned = given.plan != NULL
        self._follow(stored(bytes(given.plan)) if self.planned else wire(Plan(goals=given.goals)))
        self.metadata = given.metadata
        self.status = FlowStatus.ACTIVE
        self.ended: Event | None = None  # the entry that decided the outcome
        self.digest = ""  # the status that lists show
        self.activated = 0  # the ``seq`` of its activation
        self.deactivated = False
        self.cancel_requested = False
        self.paused = False
        self.result: Raw = NULL
        self.failure: Failure | None = None
        self.last_seq, self.last_at = first.seq, first.at
        self.items: dict[int, WorkItem] = {}
        self.compensations: dict[int, int] = {}  # the work item of a compensation, by the number of that
        self.outstanding: dict[int, None] = {}
        """The numbers of what was handed over and may still bring a result, compensations included."""
        self.fresh: dict[int, None] = {}
        """Those of them that the flow has not put on a queue yet."""
        self.has_failures = False
        """Whether a step has failed, so that results of it may come that nobody waits for."""
        self.next_number = 1
        self.attributes: dict[str, list[Provided]] = {
            name: [Provided(value, "", first.at) for value in values] for name, values in given.init.items() if values
        }

    def _follow(self, wiring: Wiring) -> None:
        """Take the steps of a plan, none of which has started."""
        self.wiring = wiring
        self.steps = {step_id: StepState() for step_id in wiring.steps}
        self.touched = set(wiring.steps)
        """The steps about which something may have to be decided, because a neighbour has started or ended."""
        self.is_regular = wiring.is_regular
        """Whether every step will run: as the plan says, and as no step was skipped or has failed."""

    def take_plan(self, plan: Raw) -> None:
        """Follow a plan that was made when the flow began."""
        self.planned = True
        self._follow(stored(bytes(plan)))

    @property
    def plan(self) -> Plan:
        """What the flow follows."""
        return self.wiring.plan

    def apply(self, entry: Event) -> None:
        """Apply one event; every event appended to the log passes through here."""
        if entry.seq != self.last_seq + 1:
            raise CorruptHistory(f"entry {entry.seq} follows entry {self.last_seq}: an entry is missing or duplicated")
        effect = _EFFECTS.get(type(entry))
        if effect is None or (self.deactivated and not isinstance(entry, _ARCHIVAL)):
            raise CorruptHistory(
                f"entry {entry.seq} is {entry.type}, which cannot occur in a flow that is {self.status}"
            )
        effect(self, entry)
        self.last_seq, self.last_at = entry.seq, max(self.last_at, entry.at)

    def item_of(self, ref: int | None) -> WorkItem | None:
        """Return a work item by its number, or by that of its compensation."""
        if ref is None:
            return None
        item = self.items.get(ref)
        return item if item is not None or ref not in self.compensations else self.items[self.compensations[ref]]

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
        state.take_plan(entry.plan)


@_effect(lifecycle.CancelRequested)
def _request_cancel(state: FlowState, entry: lifecycle.CancelRequested) -> None:
    state.cancel_requested = True


@_effect(lifecycle.WorkflowPaused)
def _pause(state: FlowState, entry: lifecycle.WorkflowPaused) -> None:
    state.paused = True


@_effect(lifecycle.WorkflowResumed)
def _resume(state: FlowState, entry: lifecycle.WorkflowResumed) -> None:
    state.paused = False
    for step_id, step in state.steps.items():
        _hand_over(state, step_id, step)


@_effect(*FLOW_ENDS)
def _end(state: FlowState, entry: Event) -> None:
    if state.status is not FlowStatus.ACTIVE:
        raise CorruptHistory(f"entry {entry.seq} is {entry.type}, but the flow is {state.status}")
    state.status, state.ended = FlowStatus(FLOW_ENDS[type(entry)]), entry
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


@_effect(*_ARCHIVAL)
def _archive(state: FlowState, entry: Event) -> None:
    if not state.deactivated:
        raise CorruptHistory(f"entry {entry.seq} is {entry.type}, but the log before it is not complete")


def _move(state: FlowState, entry: Event, step_id: str) -> StepState:
    step = state.steps.get(step_id)
    before, after = STEP_TRANSITIONS[type(entry)]
    if step is None or step.status not in before:
        found = "not in the plan" if step is None else step.status
        raise CorruptHistory(f"entry {entry.seq} is {entry.type} of step {step_id!r}, which is {found}")
    step.status = after
    if after is not StepStatus.ACTIVE:
        step.ended_at = entry.at
    state.touched |= state.wiring.steps[step_id].neighbours
    return step


@_effect(fe.StepStarted)
def _start(state: FlowState, entry: fe.StepStarted) -> None:
    step = _move(state, entry, entry.step)
    step.inputs, step.started_at = entry.inputs, entry.at
    step.items = range(entry.first, entry.first + len(entry.items))
    step.handed = min(step.items.start + state.wiring.steps[entry.step].parallelism, step.items.stop)
    for number, changes in zip(step.items, entry.items, strict=True):
        state.items[number] = WorkItem(entry.step, changes, entry.seq)
    handed = dict.fromkeys(range(step.items.start, step.handed))
    state.outstanding.update(handed)
    state.fresh.update(handed)
    state.next_number = max(state.next_number, step.items.stop)


@_effect(fe.StepCompleted)
def _complete(state: FlowState, entry: fe.StepCompleted) -> None:
    _move(state, entry, entry.step).outputs = entry.outputs
    for name, _ in state.wiring.steps[entry.step].outputs:
        if name not in state.attributes:
            state.is_regular = False


@_effect(fe.StepFailed)
def _fail(state: FlowState, entry: fe.StepFailed) -> None:
    step = _move(state, entry, entry.step)
    step.failure, step.unsatisfied = entry.failure, entry.unsatisfied
    state.has_failures, state.is_regular = True, False
    _abandon(state, step)


@_effect(fe.StepSkipped)
def _skip(state: FlowState, entry: fe.StepSkipped) -> None:
    step = _move(state, entry, entry.step)
    step.reason, step.unsatisfied = entry.reason, entry.unsatisfied
    state.is_regular = False


def _abandon(state: FlowState, step: StepState) -> None:
    """Cancel the items that were not handed over: they never will be."""
    for number in range(step.handed, step.items.stop):
        state.items[number].status = WorkStatus.CANCELLED


@_effect(fe.AttributeSet)
def _set(state: FlowState, entry: fe.AttributeSet) -> None:
    state.attributes.setdefault(entry.attribute, []).append(Provided(entry.value, entry.step, entry.at))


def _work(state: FlowState, entry: Event, number: int) -> WorkItem:
    """Move a work item on, or its compensation; return it."""
    item = state.item_of(number)
    before, after = TRANSITIONS[type(entry)]
    if item is None or item.status not in before:
        found = "unknown" if item is None else item.status
        raise CorruptHistory(f"entry {entry.seq} is {entry.type} of work item {number}, which is {found}")
    if after is not None:
        item.status = after
    if after in _SETTLED:
        state.outstanding.pop(number, None)
        state.fresh.pop(number, None)
    return item


@_effect(fe.WorkStarted)
def _start_work(state: FlowState, entry: fe.WorkStarted) -> None:
    item = _work(state, entry, entry.item)
    item.attempts, item.next_retry_at, item.deferred = entry.attempt, None, ""


@_effect(fe.WorkSucceeded)
def _succeed(state: FlowState, entry: fe.WorkSucceeded) -> None:
    item = _work(state, entry, entry.ref)
    item.outputs = entry.outputs
    step = state.steps[item.step]
    step.succeeded += 1
    _hand_over(state, item.step, step)


@_effect(fe.WorkFailed, fe.CompFailed)
def _fail_work(state: FlowState, entry: fe.WorkFailed | fe.CompFailed) -> None:
    _work(state, entry, entry.ref).failure = entry.failure


@_effect(fe.WorkNotCompleted)
def _miss(state: FlowState, entry: fe.WorkNotCompleted) -> None:
    item = _work(state, entry, entry.ref)
    item.failure, item.cause, item.deadline = entry.failure, entry.seq, None
    if entry.failure != LOST:
        item.earlier = (
            item.attempts
        )  # also if no retry is recorded, because nobody waits for it: it may begin all the same


@_effect(fe.WorkAcknowledged)
def _acknowledge(state: FlowState, entry: fe.WorkAcknowledged) -> None:
    item = _work(state, entry, entry.ref)
    item.deadline, item.cause = entry.deadline, entry.seq
    item.earlier = item.attempts  # the deliveries begin anew


@_effect(fe.DispatchDeferred)
def _defer(state: FlowState, entry: fe.DispatchDeferred) -> None:
    """A work item that began only to find that it is too early has not begun."""
    item = _work(state, entry, entry.ref)
    item.next_retry_at, item.deferred, item.cause = entry.next_at, entry.reason, entry.seq
    if item.status is WorkStatus.ACTIVE:
        item.status, item.attempts = WorkStatus.PENDING, item.attempts - 1
    item.earlier = item.attempts


@_effect(fe.RetryScheduled)
def _retry(state: FlowState, entry: fe.RetryScheduled) -> None:
    item = _work(state, entry, entry.item)
    item.retry_count, item.next_retry_at, item.cause = entry.retry_count, entry.next_retry_at, entry.seq


@_effect(fe.CompStarted)
def _compensate(state: FlowState, entry: fe.CompStarted) -> None:
    item = _work(state, entry, entry.item)
    item.compensation, item.cause, item.next_retry_at, item.deferred = entry.number, entry.seq, None, ""
    state.compensations[entry.number] = entry.item
    state.outstanding[entry.number] = state.fresh[entry.number] = None
    state.next_number = max(state.next_number, entry.number + 1)


@_effect(fe.CompRetryScheduled)
def _retry_compensation(state: FlowState, entry: fe.CompRetryScheduled) -> None:
    item = _work(state, entry, entry.ref)
    item.comp_retry_count, item.next_retry_at, item.cause = entry.retry_count, entry.next_retry_at, entry.seq
    item.deferred = ""


@_effect(fe.WorkCancelled, fe.CompSucceeded)
def _end_work(state: FlowState, entry: fe.WorkCancelled | fe.CompSucceeded) -> None:
    _work(state, entry, entry.ref)


def _hand_over(state: FlowState, step_id: str, step: StepState) -> None:
    """Hand over an item in place of each one that has succeeded; in a paused flow they wait until it is resumed."""
    if step.handed == step.items.stop or step.status is not StepStatus.ACTIVE:
        return
    if state.status is not FlowStatus.ACTIVE or state.paused:
        return
    room = step.items.start + state.wiring.steps[step_id].parallelism + step.succeeded
    for number in range(step.handed, min(room, step.items.stop)):
        state.outstanding[number] = state.fresh[number] = None
        step.handed = number + 1
