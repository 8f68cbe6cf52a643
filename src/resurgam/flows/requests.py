"""What the work items of a flow ask of the store: activities for steps that are functions, children for the others.

A work item has a place in its flow: its number. Its id is derived from it, so that every attempt has the same.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import Raw

from resurgam.core import event as events
from resurgam.core import flow_event as fe
from resurgam.core.identity import entity_of
from resurgam.core.location import Location
from resurgam.core.outcome import ActivityRequest, Message
from resurgam.core.retry import RetryRule
from resurgam.flows import model as m
from resurgam.flows.state import FlowState, WorkStatus

_ENCODE: Final = msgspec.json.Encoder(order="deterministic").encode


def place_of(number: int) -> Location:
    """Return the place of a work item in its flow."""
    return Location((number,))


def activity_request(state: FlowState, number: int) -> ActivityRequest:
    """Return the activity of a work item, or of a compensation."""
    item = state.item_of(number)
    assert item is not None
    step = state.plan.steps[item.step]
    assert step.python is not None
    undoes = item.status is WorkStatus.COMPENSATING
    arguments = {**msgspec.json.decode(state.steps[item.step].inputs), **msgspec.json.decode(item.changes)}
    arguments |= _metadata(state, step, number)
    if undoes:
        passed: object = [{"input": arguments, "output": msgspec.json.decode(item.outputs)}]
    else:
        passed = _passed(step.python.parameters, arguments)
    return ActivityRequest(
        ref=number,
        name=step.python.compensate if undoes else step.python.activity,
        queue=step.python.queue or state.started.queue,
        input=Raw(_ENCODE(passed)),
        entity_id=entity_of(state.started.run_id, place_of(number)),
        retry=retry_rule(step.work_config),
    )


def _passed(parameters: tuple[str, ...] | None, arguments: dict[str, Any]) -> object:
    """Return the arguments of a function as its activity takes them: by position, if all of them are there."""
    if parameters is None:
        return [arguments]
    if len(arguments) == len(parameters):
        return [arguments[name] for name in parameters]
    return {"args": [], "kwargs": arguments}


def _metadata(state: FlowState, step: m.Step, number: int) -> dict[str, Any]:
    """Return the metadata that a step asks for: of the flow, or of the call."""
    known: dict[str, Any] = {
        **{key: msgspec.json.decode(value) for key, value in state.metadata.items()},
        "flow_id": state.started.entity_id,
        "step_id": step.id,
        "receipt_token": entity_of(state.started.run_id, place_of(number)),
    }
    wanted = {name: one.meta.key for name, one in step.attributes.items() if isinstance(one, m.Meta)}
    return {name: known[key] for name, key in wanted.items() if key in known}


def retry_rule(work: m.WorkConfig) -> RetryRule | None:
    """Return how a work item is retried; None if the definition of its activity decides."""
    if not (work.max_retries or work.init_backoff or work.max_backoff or work.backoff_type):
        return None
    usual = RetryRule()
    attempts = usual.max_attempts if work.max_retries == 0 else None if work.max_retries < 0 else work.max_retries + 1
    return RetryRule(
        max_attempts=attempts,
        initial_interval=work.init_backoff / 1000 if work.init_backoff else usual.initial_interval,
        max_interval=work.max_backoff / 1000 if work.max_backoff else usual.max_interval,
        backoff=1.0 if work.backoff_type == "fixed" else usual.backoff,
    )


def notify_parent(state: FlowState, ended: events.Event, at: int) -> Iterator[Message]:
    """Return the message with the outcome of a flow to the workflow or flow that started it."""
    parent = state.started.parent
    if parent is None or parent.detached:
        return
    about: dict[str, Any] = {"ref": 0, "at": at, "child": str(parent.location), "by": parent.execution_id}
    answer: events.Event
    match ended:
        case fe.FlowCompleted():
            answer = events.ChildCompleted(**about, result=ended.result)
        case fe.FlowFailed():
            answer = events.ChildFailed(**about, failure=ended.failure)
        case _:
            answer = events.ChildCancelled(**about)
    yield Message(event=answer, entity_id=parent.entity_id, run_id=parent.run_id, kept=True)
