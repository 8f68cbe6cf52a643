"""What the work items of a flow ask of the store: activities for functions, scripts and services, children for the others.

A work item has a place in its flow: its number. Its id is derived from it, so that every attempt has the same.
"""

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any, Final

import msgspec
from msgspec import Raw

from resurgam.core import errors, lifecycle
from resurgam.core import event as events
from resurgam.core import flow_event as fe
from resurgam.core.failure import capture
from resurgam.core.location import Location
from resurgam.core.outcome import ActivityRequest, Memo, Message
from resurgam.core.retry import RetryRule
from resurgam.flows import model as m
from resurgam.flows.http.message import DEFAULT_DEADLINE, DEFAULT_TIMEOUT, HttpCall
from resurgam.flows.state import FlowState, WorkItem
from resurgam.flows.wiring import StepWiring

_ENCODE: Final = msgspec.json.Encoder(order="deterministic").encode
_fields: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_NO_CHANGES: Final = Raw(b"{}")
_SCRIPT_RETRIES: Final = RetryRule(non_retryable=("ExpressionFailed",))
"""A script that fails once fails again. A worker without its language fails as one without a function does."""

_CALL_RETRIES: Final = RetryRule(max_attempts=None)
"""Of the activity. The attempts of the call are counted by it, because it also waits for answers."""


def place_of(number: int) -> Location:
    """Return the place of a work item in its flow."""
    return Location((number,))


def item_id(state: FlowState, number: int) -> str:
    """Return the id of a work item, the same for every attempt: `entity_of` its place."""
    return f"{state.started.run_id}/{number}"


def is_activity(state: FlowState, number: int) -> bool:
    """Whether a work item, or a compensation, is an activity: the others are children."""
    item = state.item_of(number)
    assert item is not None
    return state.wiring.steps[item.step].is_activity


def is_answered_later(state: FlowState, number: int) -> bool:
    """Whether the answer to a work item comes by the webhook, after its service has accepted it."""
    item = state.items.get(number)
    return item is not None and state.wiring.steps[item.step].step.type == "async"


def activity_request(state: FlowState, number: int) -> ActivityRequest:
    """Return the activity of a work item, or of a compensation."""
    item = state.item_of(number)
    assert item is not None
    wiring = state.wiring.steps[item.step]
    step, python = wiring.step, wiring.step.python
    arguments = arguments_of(state, number)
    entity_id = item_id(state, number)
    if number in state.compensations:
        return _compensation(wiring, state, number, arguments)
    starts = fe.WorkStarted(item=number, step=item.step)
    memo = Memo(memo_key(step, _inputs(state, item)), step.memo_ttl) if step.memoizable else None
    if python is None:
        about: dict[str, Any] = {"ref": number, "entity_id": entity_id, "starts": starts, "memo": memo}
        make = _script if step.http is None else _call
        return make(wiring, state, arguments, **about)
    return ActivityRequest(
        ref=number,
        name=python.activity,
        queue=python.queue or state.started.queue,
        input=Raw(_ENCODE(_passed(python.parameters, arguments))),
        entity_id=entity_id,
        retry=wiring.retry,
        starts=starts,
        memo=memo,
    )


def arguments_of(state: FlowState, number: int) -> dict[str, Raw]:
    """Return the arguments of a work item: its inputs and metadata. A compensation gets what the work item got."""
    item = state.item_of(number)
    assert item is not None
    wiring, arguments = state.wiring.steps[item.step], _inputs(state, item)
    if wiring.metadata:
        arguments |= _metadata(state, wiring, state.compensations.get(number, number))
    return arguments


def _inputs(state: FlowState, item: WorkItem) -> dict[str, Raw]:
    arguments = _fields(state.steps[item.step].inputs)
    if item.changes != _NO_CHANGES:
        arguments |= _fields(item.changes)
    return arguments


def _compensation(wiring: StepWiring, state: FlowState, number: int, arguments: dict[str, Raw]) -> ActivityRequest:
    """Return the activity that undoes a work item. It has a policy, and a count of attempts, of its own."""
    item, python = state.item_of(number), wiring.step.python
    assert item is not None
    if python is None:
        return _compensating_call(wiring, state, number, arguments, item.outputs)
    return ActivityRequest(
        ref=number,
        name=python.compensate,
        queue=python.queue or state.started.queue,
        input=Raw(_ENCODE([{"input": arguments, "output": item.outputs}])),
        entity_id=item_id(state, number),
        retry=wiring.retry,
        outlives=True,
    )


def _script(wiring: StepWiring, state: FlowState, arguments: dict[str, Raw], **about: Any) -> ActivityRequest:
    """Return the activity that evaluates a script. A parameter without a value is null."""
    every = dict.fromkeys(wiring.parameters) | arguments
    return ActivityRequest(
        name=fe.SCRIPT_ACTIVITY,
        queue=state.started.queue,
        input=Raw(_ENCODE([wiring.step.script, every])),
        retry=_SCRIPT_RETRIES,
        **about,
    )


def _call(wiring: StepWiring, state: FlowState, arguments: dict[str, Raw], **about: Any) -> ActivityRequest:
    """Return the activity that calls the service of a step. What an async one has accepted is waited for to the end."""
    step, http = wiring.step, wiring.step.http
    assert http is not None
    is_async = step.type == "async"
    call = HttpCall(
        flow_id=state.started.entity_id,
        step_id=step.id,
        receipt=about["entity_id"],
        url=http.endpoint,
        method=http.method,
        mode="async" if is_async else "sync",
        arguments=arguments,
        timeout_ms=http.timeout or DEFAULT_TIMEOUT,
        deadline_ms=http.deadline or DEFAULT_DEADLINE,
        webhook_arguments=tuple(name for name, key in wiring.metadata.items() if key == "webhook_url" and is_async),
        retry=wiring.retry or RetryRule(),
    )
    return _http(state, call, outlives=is_async, **about)


def _compensating_call(
    wiring: StepWiring, state: FlowState, number: int, arguments: dict[str, Raw], outputs: Raw
) -> ActivityRequest:
    """Return the activity that tells the service of a step to undo a work item, whose receipt it gets."""
    http = wiring.step.http
    assert http is not None
    call = HttpCall(
        flow_id=state.started.entity_id,
        step_id=wiring.step.id,
        receipt=item_id(state, state.compensations[number]),
        url=http.compensate,
        mode="compensate",
        arguments=arguments,
        outputs=outputs,
        timeout_ms=http.timeout or DEFAULT_TIMEOUT,
        retry=wiring.retry or RetryRule(),
    )
    return _http(state, call, ref=number, entity_id=item_id(state, number), outlives=True)


def _http(state: FlowState, call: HttpCall, **about: Any) -> ActivityRequest:
    """Return the activity of a call, which counts its attempts itself."""
    return ActivityRequest(
        name=fe.HTTP_ACTIVITY,
        queue=state.started.queue,
        input=Raw(_ENCODE([call])),
        retry=_CALL_RETRIES,
        **about,
    )


def memo_key(step: m.Step, inputs: Mapping[str, object]) -> str:
    """Return the key of a memoized result: what the step does, and with which arguments, whatever it is called.

    Metadata does not count.
    """
    does = msgspec.structs.replace(step, id="", name="", labels={}, memo_ttl=0)
    # Decoded, so that the order of fields deep within a value makes no difference.
    canonical = _ENCODE([does, msgspec.json.decode(_ENCODE(inputs))])
    return f"memo:{blake2b(canonical, digest_size=16).hexdigest()}"


def _passed(parameters: tuple[str, ...] | None, arguments: dict[str, Raw]) -> object:
    """Return the arguments of a function as its activity takes them: by position, if all of them are there."""
    if parameters is None:
        return [arguments]
    if len(arguments) == len(parameters):
        return [arguments[name] for name in parameters]
    return {"args": [], "kwargs": arguments}


def _metadata(state: FlowState, wiring: StepWiring, number: int) -> dict[str, Raw]:
    """Return the metadata that a step asks for: of the flow, or of the call."""
    own = {
        "flow_id": state.started.entity_id,
        "step_id": wiring.step.id,
        "receipt_token": item_id(state, number),
    }
    known = state.metadata | {key: Raw(_ENCODE(value)) for key, value in own.items()}
    return {name: known[key] for name, key in wiring.metadata.items() if key in known}


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
            error = errors.WorkflowTerminated(started.name, started.entity_id, ended.reason, fe.FLOW)
            answer = events.FlowAnswered(**about, outcome="failed", failure=capture(error))
        case _:
            answer = events.FlowAnswered(**about, outcome="cancelled")
    yield Message(event=answer, entity_id=parent.entity_id, run_id=parent.run_id, kept=True)


def _told(state: FlowState, ended: fe.FlowCompleted) -> Raw:
    """Return the result that a parent gets: another flow takes its outputs from any attribute, by its first value."""
    if not state.plan.within:
        return ended.result
    first = {name: values[0].value for name, values in state.attributes.items()}
    return Raw(_ENCODE(first | _fields(ended.result)))
