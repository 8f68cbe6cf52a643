"""The whole state of a flow, as the original shows it: a fold over its log, with the times of its work items."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from resurgam.core import flow_event as fe
from resurgam.core import lifecycle
from resurgam.core.entry import NULL, Event
from resurgam.flows.planner import Edge
from resurgam.flows.requests import item_id
from resurgam.flows.state import FlowState, FlowStatus, StepState, StepStatus, WorkItem, WorkStatus, number_of
from resurgam.web.argyll.shapes import moment, plan_shape

CANCELLED: Final = "cancelled: it was not begun, and no longer needed"
"""The error of a work item that was cancelled: the original has no such status, so it is shown as failed."""

_WAITING: Final = (WorkStatus.PENDING, WorkStatus.NOT_COMPLETED, WorkStatus.COMPENSATING)
"""A work item that may be tried again."""

_EMPTY: Final = Raw(b"{}")
_NO_EDGE: Final = Edge()


class Times(msgspec.Struct):
    """When the last attempt of a work item began, and when it ended."""

    started_at: int | None = None
    completed_at: int | None = None


def flow_shape(log: Sequence[Event]) -> dict[str, Any]:
    """Return the state of a flow after the entries of its log."""
    state, times = FlowState(log), times_of(log)
    shape: dict[str, Any] = {
        "id": state.started.entity_id,
        "status": shown_status(state.status),
        "created_at": moment(state.started.at),
        "completed_at": moment(None if state.ended is None else state.ended.at),
        "deactivated_at": moment(next((entry.at for entry in log if isinstance(entry, fe.FlowDeactivated)), None)),
        "last_updated": moment(state.last_at),
        "plan": plan_shape(state.plan, "strict"),
        "attributes": {
            name: [_value(one.value, one.step, one.at) for one in values] for name, values in state.attributes.items()
        },
        "executions": {step_id: _execution(state, step_id, times) for step_id in state.steps},
    }
    if state.metadata:
        shape["metadata"] = state.metadata
    if state.started.tags:
        shape["labels"] = state.started.tags
    if error := error_of(state):
        shape["error"] = error
    return shape


def shown_status(status: FlowStatus) -> str:
    """Return a status that the original knows: a flow that was cancelled or terminated has failed."""
    known = (FlowStatus.ACTIVE, FlowStatus.COMPLETED)
    return str(status if status in known else FlowStatus.FAILED)


def error_of(state: FlowState) -> str:
    """Return why a flow has failed: the step that failed by itself, not one that only missed its output."""
    match state.ended:
        case fe.FlowCancelled():
            return "flow was cancelled"
        case lifecycle.WorkflowTerminated():
            return f"flow was terminated: {state.ended.reason}" if state.ended.reason else "flow was terminated"
        case fe.FlowFailed():
            failed = [goal for goal in state.wiring.goals if state.steps[goal].status is StepStatus.FAILED]
            if not failed:
                return state.ended.failure.message
            origin = _origin(state, failed[0])
            return f"step {origin} failed: {_message(state.steps[origin])}"
        case _:
            return ""


def _origin(state: FlowState, step_id: str) -> str:
    """Return the failed step because of which this one has failed; itself, if no provider of its inputs has."""
    for name in state.steps[step_id].unsatisfied:
        for provider in state.plan.attributes.get(name, _NO_EDGE).providers:
            if state.steps[provider].status is StepStatus.FAILED:
                return _origin(state, provider)
    return step_id


def times_of(log: Iterable[Event]) -> dict[int, Times]:
    """Return when the work items of a flow ran, by number."""
    times: dict[int, Times] = {}
    for entry in log:
        number = number_of(entry)
        if number is None:
            continue
        match entry:
            case fe.WorkStarted():
                times[number] = Times(entry.at)
            case fe.DispatchDeferred():
                times[number] = Times()  # it has not begun after all
            case fe.WorkSucceeded() | fe.WorkFailed() | fe.WorkNotCompleted() | fe.WorkCancelled():
                times.setdefault(number, Times()).completed_at = entry.at
            case _:
                pass
    return times


def _value(value: Raw, step: str, at: int) -> dict[str, Any]:
    shape: dict[str, Any] = {"value": value, "set_at": moment(at)}
    return shape | {"step": step} if step else shape


def _execution(state: FlowState, step_id: str, times: dict[int, Times]) -> dict[str, Any]:
    step = state.steps[step_id]
    shape: dict[str, Any] = {
        "status": str(step.status),
        "started_at": moment(step.started_at),
        "completed_at": moment(step.ended_at),
        "inputs": _EMPTY if step.inputs == NULL and step.status.terminal else step.inputs,
    }
    if step.outputs != NULL:
        shape["outputs"] = step.outputs
    if text := _message(step):
        shape["error"] = text
    if step.unsatisfied:
        shape["unsatisfied"] = step.unsatisfied
    if step.status is StepStatus.COMPLETED and step.started_at is not None and step.ended_at is not None:
        shape["duration"] = step.ended_at - step.started_at
    if step.items:
        shape["work_items"] = {
            item_id(state, number): _item(state.items[number], times.get(number, Times())) for number in step.items
        }
    return shape


def _message(step: StepState) -> str:
    """Return why a step has failed or was skipped."""
    return step.failure.message if step.failure is not None else step.reason


def _item(item: WorkItem, times: Times) -> dict[str, Any]:
    cancelled = item.status is WorkStatus.CANCELLED
    shape: dict[str, Any] = {
        "status": str(WorkStatus.FAILED if cancelled else item.status),
        "started_at": moment(times.started_at),
        "completed_at": moment(times.completed_at),
        "next_retry_at": moment(item.next_retry_at if item.status in _WAITING else None),
        "inputs": item.changes,
    }
    if item.outputs != NULL:
        shape["outputs"] = item.outputs
    if cancelled or item.failure is not None:
        shape["error"] = CANCELLED if item.failure is None else item.failure.message
    if item.retry_count:
        shape["retry_count"] = item.retry_count
    return shape
