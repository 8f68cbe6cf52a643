"""What the entries of an inbox mean to a flow: answers of activities become events of work items and compensations."""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
from msgspec import Raw

from resurgam.core import event as events
from resurgam.core import flow_event as fe
from resurgam.core.entry import Event
from resurgam.core.errors import NotWanted
from resurgam.core.typename import type_name
from resurgam.flows import model as m
from resurgam.flows.state import LOST, FlowState, WorkItem, WorkStatus, number_of
from resurgam.flows.validate import inner_outputs

_OBJECT: Final = ord("{")
_NOT_WANTED: Final = type_name(NotWanted)


def translated(state: FlowState, event: Event) -> Iterable[Event]:
    """Return what an entry means to a flow. An entry that is not about its work items means itself."""
    number = number_of(event)
    item = state.item_of(number)
    if number is None or item is None:
        return (event,)
    if number in state.compensations:
        return _about_compensation(event, number, item)
    step = state.wiring.steps[item.step].step
    if type(event) is events.ActivityCompleted:
        return (fe.WorkSucceeded(ref=number, step=step.id, outputs=outputs_of(event.result, step)),)
    return _about_item(event, number, item, step)


def _about_item(event: Event, number: int, item: WorkItem, step: m.Step) -> Iterator[Event]:
    match event:
        case events.ActivityFailed(failure=failure) if failure.type == _NOT_WANTED:
            yield fe.WorkCancelled(ref=number, step=step.id)
        case events.ActivityFailed():
            yield fe.WorkFailed(ref=number, step=step.id, failure=event.failure)
        case events.ActivityRetryScheduled(failure=failure) if failure.type == fe.ACKNOWLEDGED:
            yield fe.WorkAcknowledged(ref=number, step=step.id, deadline=event.next_at)
        case events.ActivityRetryScheduled(failure=failure) if failure.type == fe.DEFERRED:
            yield _deferred(event, number, step.id)
        case events.ActivityRetryScheduled():
            yield fe.WorkNotCompleted(ref=number, step=step.id, failure=event.failure)
            retries = item.retry_count + 1
            yield fe.RetryScheduled(item=number, step=step.id, retry_count=retries, next_retry_at=event.next_at)
        case events.ActivityCancelled():
            yield fe.WorkCancelled(ref=number, step=step.id)
        case fe.WorkStarted():
            yield from _about_start(event, item)
        case _:
            yield event


def _about_start(event: fe.WorkStarted, item: WorkItem) -> Iterator[Event]:
    """Yield what a claim means. Its attempt is the number of the delivery, which begins anew with each retry.

    The delivery that was recorded last is that one: the commit that handed the item over has recorded it before. A claim
    of an item whose service has accepted it begins nothing: it finds that the answer has not come in time.
    """
    if item.deadline is not None:
        return
    if item.earlier + event.attempt == item.attempts:
        return
    if item.status is WorkStatus.ACTIVE:
        yield fe.WorkNotCompleted(ref=event.item, step=event.step, failure=LOST)
    yield fe.WorkStarted(item=event.item, step=event.step, attempt=item.attempts + 1)


def _about_compensation(event: Event, number: int, item: WorkItem) -> Iterator[Event]:
    match event:
        case events.ActivityCompleted():
            yield fe.CompSucceeded(ref=number, step=item.step)
        case events.ActivityFailed():
            yield fe.CompFailed(ref=number, step=item.step, failure=event.failure)
        case events.ActivityRetryScheduled(failure=failure) if failure.type == fe.DEFERRED:
            yield _deferred(event, number, item.step)
        case events.ActivityRetryScheduled():
            yield fe.CompRetryScheduled(
                ref=number,
                step=item.step,
                retry_count=item.comp_retry_count + 1,
                next_retry_at=event.next_at,
                failure=event.failure,
            )
        case _:
            yield event


def _deferred(event: events.ActivityRetryScheduled, number: int, step_id: str) -> Event:
    return fe.DispatchDeferred(ref=number, step=step_id, next_at=event.next_at, reason=event.failure.message)


def outputs_of(result: Raw, step: m.Step) -> Raw:
    """Return the outputs in the result of a step: its fields. One without fields is an output named after the step.

    Of a script it is ``result``, if the step has an output of that name inside.
    """
    described = step.python or step.workflow
    has_fields = described is None or described.fields
    if has_fields and memoryview(result)[0] == _OBJECT:
        return result
    name = "result" if step.script is not None and "result" in inner_outputs(step) else step.id
    return Raw(b"{" + msgspec.json.encode(name) + b":" + bytes(result) + b"}")
