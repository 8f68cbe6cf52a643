"""Decide what follows from an event: the rules of a flow, without any I/O.

`decide` is given the state of a flow and what has happened. It returns the entries to append, that one first; the state
has moved along. The result depends on nothing else: not on the order of sets, and on time only through *now*.

After each event the flow comes to rest: steps that can no longer start fail or are skipped, the end is decided, steps that
nobody needs are skipped, and those that have their inputs start. A flow ends with the event that decides its last goal, and
then nothing new starts.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Final

import msgspec
from msgspec import Raw

from resurgam.core import flow_event as fe
from resurgam.core import lifecycle
from resurgam.core.entry import NULL, Event, Failure
from resurgam.flows import model as m
from resurgam.flows.errors import ExpressionFailed, located
from resurgam.flows.inputs import Inputs
from resurgam.flows.judge import NOTHING, Judge
from resurgam.flows.planner import Edge, Gate
from resurgam.flows.state import TRANSITIONS, FlowState, FlowStatus, StepStatus, WorkItem, WorkStatus, number_of
from resurgam.flows.wiring import StepWiring

NO_MATCH: Final = "required match did not match"
NOT_NEEDED: Final = "outputs not needed"
PREDICATE_FALSE: Final = "predicate returned false"
HAS_VALUE: Final = "starts only without a value"
UNAVAILABLE: Final = "required input no longer available"

_ENCODE: Final = msgspec.json.Encoder(order="deterministic").encode
_fields: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_ONE_ITEM: Final = (Raw(b"{}"),)


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


def begin_work(state: FlowState, number: int, item: WorkItem) -> fe.WorkStarted:
    """Return the entry for the first attempt of a work item that is handed over and begins at once."""
    seq, at = state.last_seq + 1, state.last_at
    entry = fe.WorkStarted(seq=seq, at=at, cause=item.cause, item=number, step=item.step)
    state.apply(entry)
    return entry


def wake_at(state: FlowState, judge: Judge, now: int) -> int | None:
    """Return the next moment at which a deadline decides something."""
    if state.status is not FlowStatus.ACTIVE or state.paused:
        return None
    pending = [one for one in state.wiring.timed if state.steps[one].status is StepStatus.PENDING]
    if not pending:
        return None
    inputs = Inputs(state, judge)
    return min((until for one in pending if (until := inputs.waits_until(one, now)) is not None), default=None)


def is_at_rest(state: FlowState, judge: Judge, now: int) -> bool:
    """Whether nothing more follows by now, whichever step is looked at, and for whatever reason.

    `decide` looks only at steps that were touched, and in a regular flow only for those that can start.
    """
    state.touched |= state.steps.keys()
    regular, state.is_regular = state.is_regular, False
    follows = decide(state, None, judge, now)
    state.is_regular = regular
    return not follows


class _Decision:
    """One event, and what follows from it."""

    def __init__(self, state: FlowState, judge: Judge, now: int) -> None:
        self.entries: list[Event] = []
        self._state = state
        self._judge = judge
        self._now = max(now, state.last_at)
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
        wiring = self._state.wiring.steps[step_id]
        try:
            outputs = dict(self._outputs(wiring, items))
        except ExpressionFailed as error:
            self._fail_step(step_id, _failure(error))
            return
        for name, value in outputs.items():
            self._append(fe.AttributeSet(attribute=name, value=value, step=step_id))
        self._append(fe.StepCompleted(step=step_id, outputs=Raw(_ENCODE(outputs))))

    def _outputs(self, wiring: StepWiring, items: Sequence[WorkItem]) -> Iterator[tuple[str, Raw]]:
        result = _joined(wiring, items)
        for name, config in wiring.outputs:
            mapping = config.mapping
            if mapping is not None and mapping.script is not None:
                with located(f"mapping of {name!r}"):
                    value = self._judge.map_output(mapping.script, msgspec.json.decode(_ENCODE(result)))
                if value is not NOTHING:
                    yield name, Raw(_ENCODE(value))
            else:
                found = result.get(m.inner_name(name, config))
                if found is not None:
                    yield name, found

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
            pending = self._pending()
            if not state.is_regular and self._settle_all(pending):
                continue
            if self._decide_end():
                break
            if not state.is_regular and self._skip_unused(pending):
                continue
            if not self._start_ready(pending):
                state.touched.clear()
                break
        if state.status is not FlowStatus.ACTIVE and not state.deactivated and not state.outstanding:
            self._append(fe.FlowDeactivated())

    def _pending(self) -> Sequence[str]:
        """Return the steps about which something may be decided now: that were touched, or wait for a deadline."""
        state = self._state
        looked_at = state.touched | state.wiring.timed if state.wiring.timed else state.touched
        return [one for one in sorted(looked_at) if state.steps[one].status is StepStatus.PENDING]

    def _settle_all(self, pending: Sequence[str]) -> bool:
        """Fail or skip steps that can no longer start; return whether there were any."""
        settled = [step_id for step_id in pending if self._settle(step_id)]
        return bool(settled)

    def _settle(self, step_id: str) -> bool:
        if self._state.wiring.steps[step_id].needed is not None and not self._inputs.impossible(step_id):
            return False
        try:
            if names := self._inputs.unmatched(step_id):
                self._skip(step_id, NO_MATCH, names)
            elif names := self._inputs.unwanted(step_id):
                self._skip(step_id, HAS_VALUE, names)
            elif self._inputs.gate(step_id) is Gate.OPEN and (names := self._inputs.impossible(step_id)):
                self._append(fe.StepFailed(step=step_id, failure=self._unavailable(names), unsatisfied=tuple(names)))
            else:
                return False
        except ExpressionFailed as error:
            self._append(fe.StepFailed(step=step_id, failure=_failure(error)))
        return True

    def _unavailable(self, names: Sequence[str]) -> Failure:
        """Return the failure of a step that cannot get inputs, with that of the step because of which it cannot.

        That one failed by itself. Those between only missed their inputs too: with the failure of each in that of the
        next, the log of a long plan would be full of them.
        """
        steps, text = self._state.steps, f"{UNAVAILABLE}: {', '.join(names)}"
        origin, before = None, self._failed_provider(names)
        while before is not None:
            origin, before = before, self._failed_provider(steps[before].unsatisfied)
        cause = None if origin is None else steps[origin].failure
        if cause is None:
            return Failure(type="StepFailed", message=text)
        return Failure(type="StepFailed", message=f"{text} (step {origin!r} failed: {cause.message})", cause=cause)

    def _failed_provider(self, names: Sequence[str]) -> str | None:
        """Return a failed step that should have provided one of these attributes.

        Only once all that could are decided: which one fails first depends on time, and the outcome must not.
        """
        state = self._state
        for name in names:
            providers = state.plan.attributes.get(name, Edge()).providers if self._inputs.is_final(name) else ()
            for provider in providers:
                if state.steps[provider].failure is not None:
                    return provider
        return None

    def _skip(self, step_id: str, reason: str, names: Sequence[str] = ()) -> None:
        self._append(fe.StepSkipped(step=step_id, reason=reason, unsatisfied=tuple(names)))

    def _skip_unused(self, pending: Sequence[str]) -> bool:
        unused = [step_id for step_id in pending if not self._is_used(self._state.wiring.steps[step_id])]
        for step_id in unused:
            self._skip(step_id, NOT_NEEDED)
        return bool(unused)

    def _is_used(self, wiring: StepWiring) -> bool:
        return wiring.is_goal or any(self._inputs.is_needed(name) for name, _ in wiring.outputs)

    def _start_ready(self, pending: Sequence[str]) -> bool:
        """Start the steps that have their inputs; return whether more is to be decided.

        That is so if one is decided already, or if it leaves steps behind that would have provided what it takes.
        """
        steps, leaves_behind = self._state.steps, False
        for step_id in pending:
            wiring = self._state.wiring.steps[step_id]
            if wiring.gated and self._inputs.gate(step_id) is not Gate.OPEN:
                continue
            self._start(step_id, wiring)
            status = steps[step_id].status
            if status is StepStatus.ACTIVE:
                if not self._state.is_regular:
                    leaves_behind |= any(steps[one].status is StepStatus.PENDING for one in wiring.providers)
            elif status is not StepStatus.PENDING:
                return True
        return leaves_behind

    def _start(self, step_id: str, wiring: StepWiring) -> None:
        try:
            collected = self._inputs.collect(step_id, self._now)
            if collected is None:
                return
            inputs = Raw(_ENCODE(collected))
            if wiring.step.predicate is not None and not self._holds(wiring, wiring.step.predicate, inputs):
                self._skip(step_id, PREDICATE_FALSE)
                return
            changes = _expand(wiring, inputs)
        except ExpressionFailed as error:
            self._append(fe.StepFailed(step=step_id, failure=_failure(error)))
            return
        first = self._state.next_number
        self._append(fe.StepStarted(step=step_id, inputs=inputs, first=first, items=changes))
        if not changes:
            self._complete(step_id, ())

    def _holds(self, wiring: StepWiring, predicate: m.Expression, inputs: Raw) -> bool:
        with located("predicate"):
            return self._judge.holds(predicate, msgspec.json.decode(inputs), wiring.parameters)

    def _decide_end(self) -> bool:
        state = self._state
        goals = state.wiring.goals
        if state.is_regular and any(state.steps[goal].status is not StepStatus.COMPLETED for goal in goals):
            return False
        decided = [goal for goal in goals if state.steps[goal].status.terminal]
        failed = [goal for goal in decided if state.steps[goal].status is StepStatus.FAILED]
        if failed:
            cause = state.steps[failed[0]].failure
            message = f"step {failed[0]!r} failed: {cause.message if cause is not None else ''}"
            self._end(fe.FlowFailed(failure=Failure(type="StepFailed", message=message, cause=cause)))
        elif len(decided) < len(goals):
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

    def _result(self) -> Mapping[str, Raw]:
        """Return the outputs of the goals; those of a goal whose outputs were all given are the given ones."""
        state, result = self._state, dict[str, Raw]()
        for goal in state.plan.goals:
            if goal in state.steps and state.steps[goal].outputs != NULL:
                result |= _fields(state.steps[goal].outputs)
            for name in state.plan.excluded.satisfied.get(goal, ()):
                result[name] = state.attributes[name][0].value
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
        item = self._state.item_of(number_of(event))
        if self._state.deactivated or item is None or item.status not in TRANSITIONS[type(event)][0]:
            return False
        self._write(event, item.cause)
        self._cause = self._state.last_seq
        return True

    def _record_first(self, event: Event) -> None:
        """Append what has happened; everything after it was caused by it."""
        if not self._state.deactivated:
            self._write(event, event.cause)
            self._cause = self._state.last_seq

    def _append(self, event: Event) -> None:
        """Append what follows from the event; what follows from the time alone was caused by the activation."""
        cause = event.cause if event.cause is not None else self._cause or self._state.activated
        self._write(event, cause or 1)

    def _write(self, event: Event, cause: int | None) -> None:
        state = self._state
        entry = msgspec.structs.replace(event, seq=state.last_seq + 1, at=self._now, cause=cause)
        state.apply(entry)
        self.entries.append(entry)


def is_compensable(step: m.Step) -> bool:
    """Whether the work items of a step can be undone."""
    return bool((step.python and step.python.compensate) or (step.http and step.http.compensate))


def _expand(wiring: StepWiring, inputs: Raw) -> tuple[Raw, ...]:
    """Return what each work item has in place of the inputs of the step: one for each combination of elements."""
    if not wiring.iterated:
        return _ONE_ITEM
    values = msgspec.json.decode(inputs)
    names = [name for name in wiring.iterated if name in values]
    for name in names:
        if not isinstance(values[name], list):
            raise ExpressionFailed(
                f"input {name!r} has for_each, so its value must be a list, got {type(values[name]).__name__}"
            )
    lists = [values[name] for name in names]
    count = prod(map(len, lists))
    if count > m.MAX_WORK_ITEMS:
        raise ExpressionFailed(
            f"a step has at most {m.MAX_WORK_ITEMS:,} work items, got {count:,}; pass fewer elements"
        )
    return tuple(Raw(_ENCODE(dict(zip(names, elements, strict=True)))) for elements in product(*lists))


def _joined(wiring: StepWiring, items: Sequence[WorkItem]) -> dict[str, Raw]:
    """Return the result of a step: that of its one item, or with for_each a list for each output, in input order."""
    if not wiring.iterated:
        return _fields(items[0].outputs)
    results = [(_fields(item.changes), _fields(item.outputs)) for item in items]
    declared = {m.inner_name(name, one) for name, one in wiring.outputs}
    return {
        name: Raw(_ENCODE([{**changes, name: result[name]} for changes, result in results if name in result]))
        for name in declared.union(*(result for _, result in results))
    }


def _failure(error: ExpressionFailed) -> Failure:
    return Failure(type="ExpressionFailed", message=str(error))
