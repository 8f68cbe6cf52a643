"""Decide what follows from an event: the rules of a flow, without any I/O.

`decide` is given the state of a flow and what has happened. It returns the entries to append, that one first; the state
has moved along. The result depends on nothing else: not on the order of sets, and on time only through *now*.

After each event the flow comes to rest: steps that can no longer start fail or are skipped, the end is decided, steps that
nobody needs are skipped, and those that have their inputs start. A flow ends with the event that decides its last goal, and
then nothing new starts.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Final

import msgspec
from msgspec import Raw

from resurgam.core import flow_event as fe
from resurgam.core import lifecycle
from resurgam.core.entry import NULL, Event, Failure
from resurgam.flows import model as m
from resurgam.flows.errors import ExpressionFailed
from resurgam.flows.inputs import Inputs
from resurgam.flows.judge import NOTHING, Judge
from resurgam.flows.planner import Gate
from resurgam.flows.state import TRANSITIONS, FlowState, FlowStatus, StepStatus, WorkItem, WorkStatus, number_of
from resurgam.flows.validate import inner_inputs

NO_MATCH: Final = "required match did not match"
NOT_NEEDED: Final = "outputs not needed"
PREDICATE_FALSE: Final = "predicate returned false"
HAS_VALUE: Final = "starts only without a value"
UNAVAILABLE: Final = "required input no longer available"

_ENCODE: Final = msgspec.json.Encoder(order="deterministic").encode


def decide(state: FlowState, event: Event | None, judge: Judge, now: int) -> Sequence[Event]:
    """Return the entries that an event leads to, itself included; None: only the time has moved on.

    A second answer of a work item leads to nothing. A late one is recorded and changes no outcome.
    """
    decision = _Decision(state, judge, now)
    if isinstance(event, fe.WorkStarted) and state.status is FlowStatus.ACTIVE:
        decision.begin(event)
    else:
        decision.take(event)
    return decision.entries


def wake_at(state: FlowState, judge: Judge, now: int) -> int | None:
    """Return the next moment at which a deadline decides something."""
    if state.status is not FlowStatus.ACTIVE or state.paused:
        return None
    inputs = Inputs(state, judge)
    pending = (one for one, step in state.steps.items() if step.status is StepStatus.PENDING)
    return min(
        (until for until in (inputs.waits_until(one, now) for one in pending) if until is not None), default=None
    )


class _Decision:
    """One event, and what follows from it."""

    def __init__(self, state: FlowState, judge: Judge, now: int) -> None:
        self.entries: list[Event] = []
        self._state = state
        self._judge = judge
        self._now = now
        self._inputs = Inputs(state, judge)
        self._cause: int | None = None

    def begin(self, event: fe.WorkStarted) -> None:
        """Record that an attempt begins. Nothing follows from it."""
        self._record(event)

    def take(self, event: Event | None) -> None:
        state = self._state
        if state.status is not FlowStatus.ACTIVE and not state.digest:
            self._update_digest()  # the store has ended it
        elif not state.activated:
            self._append(event if isinstance(event, fe.FlowActivated) else fe.FlowActivated())
        if type(event) in TRANSITIONS:
            assert event is not None
            self._take_work(event)
        elif event is not None:
            self._take_request(event)
        self._come_to_rest()

    def _take_work(self, event: Event) -> None:
        """Record what has become of a work item, or of a compensation."""
        if isinstance(event, fe.RetryScheduled) and not self._state.is_wanted(event.item):
            return  # a late attempt is recorded and not made again
        if not self._record(event):
            return
        if isinstance(event, fe.WorkSucceeded):
            self._succeed(event)
        elif isinstance(event, fe.WorkFailed):
            self._fail(event)

    def _take_request(self, event: Event) -> None:
        """Record what a client wants of the flow, or that it cannot be planned."""
        is_active = self._state.status is FlowStatus.ACTIVE
        match event:
            case fe.FlowFailed() if is_active:
                self._end(event)
            case lifecycle.CancelRequested():
                self._record_first(event)
                if is_active:
                    self._end(fe.FlowCancelled())
            case lifecycle.WorkflowPaused() | lifecycle.WorkflowResumed() if is_active:
                self._record_first(event)
            case _:
                pass

    # What an event leads to.

    def _succeed(self, event: fe.WorkSucceeded) -> None:
        step = self._state.steps[event.step]
        if step.status is StepStatus.FAILED:
            self._compensate(event.step)
        elif step.status is StepStatus.ACTIVE and step.succeeded == len(step.items):
            self._complete(event.step, self._state.items_of(event.step))

    def _fail(self, event: fe.WorkFailed) -> None:
        if self._state.steps[event.step].status is StepStatus.ACTIVE:
            self._fail_step(event.step, event.failure)

    def _fail_step(self, step_id: str, failure: Failure) -> None:
        self._append(fe.StepFailed(step=step_id, failure=failure))
        self._compensate(step_id)

    def _complete(self, step_id: str, items: Sequence[WorkItem]) -> None:
        """Set the attributes that a step provides; if that is not possible, the step itself has failed."""
        step = self._state.plan.steps[step_id]
        try:
            outputs = dict(self._outputs(step, items))
        except ExpressionFailed as error:
            self._fail_step(step_id, _failure(error))
            return
        for name, value in outputs.items():
            self._append(fe.AttributeSet(attribute=name, value=Raw(_ENCODE(value)), step=step_id))
        self._append(fe.StepCompleted(step=step_id, outputs=Raw(_ENCODE(outputs))))

    def _outputs(self, step: m.Step, items: Sequence[WorkItem]) -> Iterator[tuple[str, object]]:
        result = _joined(step, items)
        for name, config in sorted(step.outputs.items()):
            mapping = config.mapping or m.Mapping()
            if mapping.script is not None:
                value = self._judge.map_output(mapping.script, result)
            else:
                value = result.get(mapping.name or name, NOTHING)
            if value is not NOTHING:
                yield name, value

    def _compensate(self, step_id: str) -> None:
        """Undo what a failed step has done: its work items that succeeded."""
        if not is_compensable(self._state.plan.steps[step_id]):
            return
        for number in self._state.steps[step_id].items:
            if self._state.items[number].status is WorkStatus.SUCCEEDED:
                self._append(fe.CompStarted(item=number, step=step_id, number=self._state.next_number))

    # Coming to rest.

    def _come_to_rest(self) -> None:
        state = self._state
        while state.status is FlowStatus.ACTIVE and not state.paused:
            if self._settle_pending():
                continue
            if self._decide_end():
                break
            if not self._skip_unused() and not self._start_ready():
                break
        if state.status is not FlowStatus.ACTIVE and not state.deactivated and not state.outstanding:
            self._append(fe.FlowDeactivated())

    def _pending(self) -> Sequence[str]:
        return [
            step_id for step_id in sorted(self._state.steps) if self._state.steps[step_id].status is StepStatus.PENDING
        ]

    def _settle_pending(self) -> bool:
        """Fail or skip steps that can no longer start; return whether there were any."""
        settled = [step_id for step_id in self._pending() if self._settle(step_id)]
        return bool(settled)

    def _settle(self, step_id: str) -> bool:
        try:
            if names := self._inputs.unmatched(step_id):
                self._skip(step_id, NO_MATCH, names)
            elif names := self._inputs.unwanted(step_id):
                self._skip(step_id, HAS_VALUE, names)
            elif self._inputs.gate(step_id) is Gate.OPEN and (names := self._inputs.impossible(step_id)):
                failure = Failure(type="StepFailed", message=f"{UNAVAILABLE}: {', '.join(names)}")
                self._append(fe.StepFailed(step=step_id, failure=failure, unsatisfied=tuple(names)))
            else:
                return False
        except ExpressionFailed as error:
            self._append(fe.StepFailed(step=step_id, failure=_failure(error)))
        return True

    def _skip(self, step_id: str, reason: str, names: Sequence[str] = ()) -> None:
        self._append(fe.StepSkipped(step=step_id, reason=reason, unsatisfied=tuple(names)))

    def _skip_unused(self) -> bool:
        goals = self._state.plan.goals
        unused = [
            step_id
            for step_id in self._pending()
            if step_id not in goals
            and not any(self._inputs.is_needed(step_id, name) for name in self._state.plan.steps[step_id].outputs)
        ]
        for step_id in unused:
            self._skip(step_id, NOT_NEEDED)
        return bool(unused)

    def _start_ready(self) -> bool:
        """Start the steps that have their inputs; return whether there were any, since others may be needed no longer."""
        started = False
        for step_id in self._pending():
            if self._inputs.gate(step_id) is Gate.OPEN:
                self._start(step_id)
                status = self._state.steps[step_id].status
                if status.terminal:
                    return True
                started = started or status is StepStatus.ACTIVE
        return started

    def _start(self, step_id: str) -> None:
        step = self._state.plan.steps[step_id]
        try:
            inputs = self._inputs.collect(step_id, self._now)
            if inputs is None:
                return
            if step.predicate is not None and not self._holds(step, step.predicate, inputs):
                self._skip(step_id, PREDICATE_FALSE)
                return
            changes = _expand(step, inputs)
        except ExpressionFailed as error:
            self._append(fe.StepFailed(step=step_id, failure=_failure(error)))
            return
        first = self._state.next_number
        self._append(fe.StepStarted(step=step_id, inputs=Raw(_ENCODE(inputs)), first=first, items=changes))
        if not changes:
            self._complete(step_id, ())

    def _holds(self, step: m.Step, predicate: m.Expression, inputs: Mapping[str, object]) -> bool:
        return self._judge.holds(predicate, inputs, sorted(inner_inputs(step)))

    def _decide_end(self) -> bool:
        state = self._state
        goals = {goal: state.steps[goal] for goal in state.plan.goals if goal in state.steps}
        failed = sorted(goal for goal, step in goals.items() if step.status is StepStatus.FAILED)
        if failed:
            cause = goals[failed[0]].failure
            message = f"step {failed[0]!r} failed: {cause.message if cause is not None else ''}"
            self._end(fe.FlowFailed(failure=Failure(type="StepFailed", message=message, cause=cause)))
        elif not all(step.status.terminal for step in goals.values()):
            return False
        elif self._all_pruned():
            message = (
                "no goal can be reached: the match of every one has failed, or it starts only without a given value"
            )
            self._end(fe.FlowFailed(failure=Failure(type="StepFailed", message=message)))
        else:
            self._end(fe.FlowCompleted(result=Raw(_ENCODE(self._result()))))
        return True

    def _all_pruned(self) -> bool:
        state = self._state
        pruned = [
            goal in state.plan.excluded.blocked
            or (goal in state.steps and state.steps[goal].reason in (NO_MATCH, HAS_VALUE))
            for goal in state.plan.goals
        ]
        return all(pruned)

    def _result(self) -> Mapping[str, object]:
        """Return the outputs of the goals; those of a goal whose outputs were all given are the given ones."""
        result: dict[str, object] = {}
        for goal in self._state.plan.goals:
            if goal in self._state.steps:
                outputs = self._state.steps[goal].outputs
                result |= msgspec.json.decode(outputs) if outputs != NULL else {}
            for name in self._state.plan.excluded.satisfied.get(goal, ()):
                result[name] = msgspec.json.decode(self._state.attributes[name][0].value)
        return result

    def _end(self, event: fe.FlowCompleted | fe.FlowFailed | fe.FlowCancelled) -> None:
        self._append(event)
        self._update_digest()

    def _update_digest(self) -> None:
        """Write down the outcome for lists, after the entry that decided it."""
        state = self._state
        assert state.ended is not None
        error = state.failure.message if state.failure is not None else ""
        self._append(fe.FlowDigestUpdated(cause=state.ended.seq, status=state.status, error=error))

    # The log.

    def _record(self, event: Event) -> bool:
        """Append an event about a work item, unless the item is answered."""
        if self._state.deactivated or not self._state.accepts(event):
            return False
        item = self._state.item_of(number_of(event))
        assert item is not None
        self._record_first(msgspec.structs.replace(event, cause=item.cause))
        return True

    def _record_first(self, event: Event) -> None:
        """Append what has happened; everything after it was caused by it."""
        if not self._state.deactivated:
            self._write(event)
            self._cause = self._state.last_seq

    def _append(self, event: Event) -> None:
        """Append what follows from the event; what follows from the time alone was caused by the activation."""
        cause = self._cause or self._state.activated or self._state.started.seq
        self._write(event if event.cause is not None else msgspec.structs.replace(event, cause=cause))

    def _write(self, event: Event) -> None:
        state = self._state
        entry = msgspec.structs.replace(event, seq=state.last_seq + 1, at=max(self._now, state.last_at))
        state.apply(entry)
        self.entries.append(entry)


def is_compensable(step: m.Step) -> bool:
    """Whether the work items of a step can be undone."""
    return bool((step.python and step.python.compensate) or (step.http and step.http.compensate))


def iterates(step: m.Step) -> Sequence[str]:
    """Return the inputs over whose elements a step runs, by their names inside it."""
    return sorted(
        (config.mapping.name if config.mapping is not None and config.mapping.name else name)
        for name, config in step.inputs.items()
        if config.for_each
    )


def _expand(step: m.Step, inputs: Mapping[str, object]) -> tuple[Raw, ...]:
    """Return what each work item has in place of the inputs of the step: one for each combination of elements."""
    names = [name for name in iterates(step) if name in inputs]
    lists: list[list[object]] = []
    count = 1
    for name in names:
        value = inputs[name]
        if not isinstance(value, list):
            raise ExpressionFailed(
                f"input {name!r} has for_each, so its value must be a list, got {type(value).__name__}"
            )
        lists.append(value)
        count *= len(value)
    if count > m.MAX_WORK_ITEMS:
        raise ExpressionFailed(
            f"a step has at most {m.MAX_WORK_ITEMS:,} work items, got {count:,}; pass fewer elements"
        )
    return tuple(Raw(_ENCODE(dict(zip(names, elements, strict=True)))) for elements in product(*lists))


def _joined(step: m.Step, items: Sequence[WorkItem]) -> dict[str, object]:
    """Return the result of a step: that of its one item, or with for_each a list for each output, in input order."""
    results = [_fields(item.outputs) for item in items]
    if not iterates(step):
        return results[0]
    names = sorted({name for result in results for name in result} | _result_names(step))
    return {
        name: [
            {**_fields(item.changes), name: result[name]}
            for item, result in zip(items, results, strict=True)
            if name in result
        ]
        for name in names
    }


def _result_names(step: m.Step) -> set[str]:
    return {(one.mapping.name if one.mapping is not None else "") or name for name, one in step.outputs.items()}


def _fields(value: Raw) -> dict[str, object]:
    decoded = msgspec.json.decode(value)
    return decoded if isinstance(decoded, dict) else {}


def _failure(error: ExpressionFailed) -> Failure:
    return Failure(type="ExpressionFailed", message=str(error))
