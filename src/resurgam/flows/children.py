"""Steps that are flows or workflows of their own: each of their work items is a child of the flow.

A child flow is planned when its item is handed over, from the steps that the plan of its parent holds, with the values
that the item has. A flow that a workflow has started is planned when it begins, from the catalog.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from resurgam.core import errors
from resurgam.core import event as events
from resurgam.core import flow_event as fe
from resurgam.core.entry import Event, Failure
from resurgam.core.failure import capture
from resurgam.core.lifecycle import WORKFLOW
from resurgam.core.location import Location
from resurgam.core.outcome import ChildRequest, Message
from resurgam.flows import model as m
from resurgam.flows.answers import outputs_of
from resurgam.flows.catalog import Catalog
from resurgam.flows.errors import LanguageMissing
from resurgam.flows.judge import Judge
from resurgam.flows.planner import Plan, check_given, plan
from resurgam.flows.requests import arguments_of, is_activity, item_id, place_of
from resurgam.flows.state import FlowInput, FlowState
from resurgam.flows.wiring import encode_plan
from resurgam.runtime.ids import derived_id
from resurgam.runtime.system import python

_ENCODE: Final = msgspec.json.Encoder(order="deterministic").encode


def plan_from_catalog(state: FlowState, catalog: Catalog, judge: Judge) -> fe.FlowActivated | fe.FlowFailed:
    """Return the entry with the plan of a flow that was started without one, or the one that says why there is none."""
    given = {name: [msgspec.json.decode(one.value) for one in values] for name, values in state.attributes.items()}
    try:
        made = plan(catalog, state.plan.goals, given, "strict", judge.matches)
        check_given(made)
    except LanguageMissing:
        raise  # nothing is wrong with the flow: another worker can plan it
    except errors.ResurgamError as error:
        return fe.FlowFailed(failure=capture(error))
    return fe.FlowActivated(plan=encode_plan(made))


class ChildSteps:
    """The work items of one flow that are children."""

    def __init__(self, state: FlowState, judge: Judge) -> None:
        self._state = state
        self._judge = judge
        self._requests: dict[int, ChildRequest] = {}

    def prepare(self) -> Iterator[fe.WorkFailed]:
        """Make the requests of the children that are handed over; yield the failures of those that cannot be planned."""
        for number in self._state.fresh:
            if number not in self._requests and not is_activity(self._state, number):
                try:
                    self._requests[number] = self._request(number)
                except LanguageMissing:
                    raise  # as above
                except errors.ResurgamError as error:
                    item = self._state.items[number]
                    yield fe.WorkFailed(ref=number, step=item.step, failure=capture(error))

    def take_requests(self) -> Sequence[ChildRequest]:
        """Return the requests for the next commit: of the items that are still outstanding."""
        requests, self._requests = self._requests, {}
        return [request for number, request in requests.items() if number in self._state.outstanding]

    def cancel(self, new: Sequence[Event], at: int) -> Iterator[Message]:
        """Yield the messages that cancel the children of a flow or a step that has ended by *new* entries."""
        state = self._state
        ends = any(isinstance(entry, fe.FlowDigestUpdated) for entry in new)
        failed = {entry.step for entry in new if isinstance(entry, fe.StepFailed)}
        if not ends and not failed:
            return
        reason = f"flow {state.started.entity_id} needs it no longer"
        for number in state.outstanding:
            if number in state.fresh or is_activity(state, number):
                continue
            if ends or state.items[number].step in failed:
                about: dict[str, Any] = {"entity_id": self._entity_id(number), "key": self._key(number)}
                # A paused child could not stop.
                yield Message(event=events.WorkflowResumed(at=at), **about)
                yield Message(event=events.CancelRequested(at=at, reason=reason), **about)

    def _entity_id(self, number: int) -> str:
        return item_id(self._state, number)

    def _key(self, number: int) -> str:
        """Return the key by which messages find a child and no other instance with its id."""
        return f"{self._state.started.run_id}/{place_of(number)}"

    # The request.

    def _request(self, number: int) -> ChildRequest:
        own, at, place = self._state.started, self._state.last_at, place_of(number)
        step = self._state.plan.steps[self._state.items[number].step]
        run_id = derived_id(at, own.execution_id, place, "run")
        about: dict[str, Any] = {
            "seq": 1,
            "at": at,
            "entity_id": self._entity_id(number),
            "execution_id": derived_id(at, own.execution_id, place, "execution"),
            "run_id": run_id,
            "tree_id": own.tree_id,
            "tags": own.tags,
            "parent": events.Parent(
                entity_id=own.entity_id,
                run_id=own.run_id,
                execution_id=own.execution_id,
                location=place,
                key=self._key(number),
                first_run=run_id,
            ),
        }
        started = self._workflow(step, number, about) if step.flow is None else self._flow(step, number, about)
        in_use = errors.AlreadyExists(
            f"{started.kind} id {started.entity_id!r} is in use by an open execution; end that one, and start the flow again"
        )
        return ChildRequest(
            started=started,
            created=events.ChildStarted(ref=number, at=at, execution_id=started.execution_id),
            refused=events.ChildFailed(ref=0, at=at, child=str(place), by=own.execution_id, failure=capture(in_use)),
        )

    def _workflow(self, step: m.Step, number: int, about: dict[str, Any]) -> events.WorkflowStarted:
        """Return the first entry of a workflow; its arguments go by name."""
        assert step.workflow is not None
        passed = {"args": [], "kwargs": arguments_of(self._state, number)}
        return events.WorkflowStarted(
            name=step.workflow.workflow,
            queue=step.workflow.queue or self._state.started.queue,
            input=Raw(_ENCODE(passed if passed["kwargs"] else [])),
            python=python(),
            retry=self._state.wiring.steps[step.id].retry,
            **about,
        )

    def _flow(self, step: m.Step, number: int, about: dict[str, Any]) -> fe.FlowStarted:
        """Return the first entry of a flow, with its plan."""
        arguments = arguments_of(self._state, number)
        made = self._planned(step, arguments)
        given = FlowInput(
            plan=encode_plan(made),
            init={name: (value,) for name, value in sorted(arguments.items())},
            metadata=self._state.metadata
            | {
                "parent_flow_id": Raw(_ENCODE(self._state.started.entity_id)),
                "parent_step_id": Raw(_ENCODE(step.id)),
                "parent_work_item_token": Raw(_ENCODE(self._entity_id(number))),
            },
        )
        return fe.FlowStarted(
            name=fe.flow_name(made.goals), queue=self._state.started.queue, input=Raw(_ENCODE(given)), **about
        )

    def _planned(self, step: m.Step, arguments: Mapping[str, Raw]) -> Plan:
        assert step.flow is not None
        known = self._state.plan
        made = plan(
            Catalog(known.children[step.id]),
            step.flow.goals,
            {name: (msgspec.json.decode(value),) for name, value in arguments.items()},
            "strict",
            self._judge.matches,
            (*known.within, step.id),
        )
        check_given(made)
        return made


# The answers of children.


def about_child(state: FlowState, event: Event) -> Iterator[Event]:
    """Yield what an entry about a child means: that its work item has begun, or has its result."""
    match event:
        case events.ChildStarted() if event.ref in state.items:
            item = state.items[event.ref]
            if not item.attempts:
                yield fe.WorkStarted(item=event.ref, step=item.step, attempt=1)
        case events.ChildAnswer() if event.by == state.started.execution_id:
            number = _number_at(event.child)
            if number in state.items:
                yield _result(state, number, event)
        case _:
            pass


def _number_at(place: str) -> int:
    match Location.parse(place).coordinates:
        case ((number,),):
            return number
        case _:
            return 0


def _result(state: FlowState, number: int, answer: events.ChildAnswer) -> Event:
    step = state.plan.steps[state.items[number].step]
    match answer:
        case events.ChildCompleted(result=result) | events.FlowAnswered(outcome="completed", result=result):
            outputs = outputs_of(result, step)
            if missing := _missing(step, outputs):
                return fe.WorkFailed(ref=number, step=step.id, failure=_is_missing(missing))
            return fe.WorkSucceeded(ref=number, step=step.id, outputs=outputs)
        case events.ChildFailed(failure=failure) | events.FlowAnswered(failure=Failure() as failure):
            return fe.WorkFailed(ref=number, step=step.id, failure=failure)
        case _ if state.is_wanted(number):
            name = step.workflow.workflow if step.workflow is not None else step.id
            kind = fe.FLOW if step.workflow is None else WORKFLOW
            cancelled = errors.ChildWorkflowCancelled(name, item_id(state, number), kind)
            return fe.WorkFailed(ref=number, step=step.id, failure=capture(cancelled))
        case _:
            return fe.WorkCancelled(ref=number, step=step.id)


def _missing(step: m.Step, outputs: Raw) -> Sequence[str]:
    """Return the outputs of a flow step that its child has not provided."""
    if step.flow is None:
        return ()
    found = msgspec.json.decode(outputs)
    return [
        name
        for name, config in sorted(step.outputs.items())
        if (config.mapping is None or config.mapping.script is None) and m.inner_name(name, config) not in found
    ]


def _is_missing(names: Sequence[str]) -> Failure:
    return Failure(
        type="StepFailed",
        message=f"flow output missing: {', '.join(names)}; the child flow has completed without a value for it",
    )
