"""What the work items of a flow ask of the store: activities for steps that are functions, children for the others.

A work item has a place in its flow: its number. Its id is derived from it, so that every attempt has the same.
"""

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, Final

import msgspec
from msgspec import Raw

from resurgam.core import errors, lifecycle
from resurgam.core import event as events
from resurgam.core import flow_event as fe
from resurgam.core.failure import capture
from resurgam.core.identity import entity_of
from resurgam.core.location import Location
from resurgam.core.outcome import ActivityRequest, Memo, Message
from resurgam.core.retry import RetryRule
from resurgam.flows import model as m
from resurgam.flows.state import FlowState, WorkItem
from resurgam.flows.validate import inner_inputs

_ENCODE: Final = msgspec.json.Encoder(order="deterministic").encode


def place_of(number: int) -> Location:
    """Return the place of a work item in its flow."""
    return Location((number,))


def is_activity(state: FlowState, number: int) -> bool:
    """Whether a work item, or a compensation, is an activity: the others are children."""
    item = state.item_of(number)
    assert item is not None
    return state.plan.steps[item.step].type in ("python", "script")


def activity_request(state: FlowState, number: int) -> ActivityRequest:
    """Return the activity of a work item, or of a compensation."""
    item = state.item_of(number)
    assert item is not None
    step = state.plan.steps[item.step]
    inputs = _inputs(state, item)
    arguments = arguments_of(state, number)
    about: dict[str, Any] = {
        "ref": number,
        "queue": state.started.queue,
        "entity_id": entity_of(state.started.run_id, place_of(number)),
    }
    if number in state.compensations:
        return _compensation(step, item, arguments, about)
    about["starts"] = fe.WorkStarted(item=number, step=item.step)
    if step.memoizable:
        about["memo"] = Memo(memo_key(step, inputs), step.memo_ttl)
    if step.script is not None:
        return _script(step, arguments, about)
    assert step.python is not None
    about["queue"] = step.python.queue or about["queue"]
    return ActivityRequest(
        name=step.python.activity,
        input=Raw(_ENCODE(_passed(step.python.parameters, arguments))),
        retry=retry_rule(step.work_config),
        **about,
    )


def arguments_of(state: FlowState, number: int) -> dict[str, Any]:
    """Return the arguments of a work item: its inputs and metadata. A compensation gets what the work item got."""
    item = state.item_of(number)
    assert item is not None
    step = state.plan.steps[item.step]
    return _inputs(state, item) | _metadata(state, step, state.compensations.get(number, number))


def _inputs(state: FlowState, item: WorkItem) -> dict[str, Any]:
    return {**msgspec.json.decode(state.steps[item.step].inputs), **msgspec.json.decode(item.changes)}


def _compensation(step: m.Step, item: WorkItem, arguments: dict[str, Any], about: dict[str, Any]) -> ActivityRequest:
    """Return the activity that undoes a work item. It has a policy, and a count of attempts, of its own."""
    assert step.python is not None
    about["queue"] = step.python.queue or about["queue"]
    passed = [{"input": arguments, "output": msgspec.json.decode(item.outputs)}]
    return ActivityRequest(
        name=step.python.compensate,
        input=Raw(_ENCODE(passed)),
        retry=retry_rule(step.work_config),
        outlives=True,
        **about,
    )


def _script(step: m.Step, arguments: dict[str, Any], about: dict[str, Any]) -> ActivityRequest:
    """Return the activity that evaluates a script. A parameter without a value is null; what fails once fails again."""
    every = dict.fromkeys(inner_inputs(step)) | arguments
    return ActivityRequest(
        name=fe.SCRIPT_ACTIVITY, input=Raw(_ENCODE([step.script, every])), retry=RetryRule(max_attempts=1), **about
    )


def memo_key(step: m.Step, inputs: dict[str, Any]) -> str:
    """Return the key of a memoized result: what the step does, and with which arguments, whatever it is called.

    Metadata does not count.
    """
    does = msgspec.structs.replace(step, id="", name="", labels={}, memo_ttl=0)
    return f"memo:{blake2b(_ENCODE([does, inputs]), digest_size=16).hexdigest()}"


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
        linear=work.backoff_type == "linear",
    )


def notify_parent(state: FlowState, at: int) -> Iterator[Message]:
    """Return the message with the outcome of a flow to the workflow or flow that started it."""
    started, ended = state.started, state.ended
    parent = started.parent
    if parent is None or parent.detached:
        return
    about: dict[str, Any] = {"ref": 0, "at": at, "child": str(parent.location), "by": parent.execution_id}
    answer: events.Event
    match ended:
        case fe.FlowCompleted():
            answer = events.FlowAnswered(**about, result=_told(state, ended))
        case fe.FlowFailed():
            answer = events.FlowAnswered(**about, outcome="failed", failure=ended.failure)
        case lifecycle.WorkflowTerminated():
            error = errors.WorkflowTerminated(started.name, started.entity_id, ended.reason)
            answer = events.FlowAnswered(**about, outcome="failed", failure=capture(error))
        case _:
            answer = events.FlowAnswered(**about, outcome="cancelled")
    yield Message(event=answer, entity_id=parent.entity_id, run_id=parent.run_id, kept=True)


def _told(state: FlowState, ended: fe.FlowCompleted) -> Raw:
    """Return the result that a parent gets: another flow takes its outputs from any attribute, by its first value."""
    if not state.plan.within:
        return ended.result
    first = {name: msgspec.json.decode(values[0].value) for name, values in state.attributes.items()}
    return Raw(_ENCODE(first | msgspec.json.decode(ended.result)))
