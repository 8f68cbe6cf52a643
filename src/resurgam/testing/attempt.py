"""Run one attempt at an activity in a simulation, and decide whether it is retried."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import Raw, structs

from resurgam.core import event as events
from resurgam.core.codec import MAX_PAYLOAD
from resurgam.core.errors import NotFound
from resurgam.core.failure import capture, retry_delay
from resurgam.core.flow_event import HTTP_ACTIVITY
from resurgam.core.retry import RetryRule
from resurgam.flows.http.message import HttpCall
from resurgam.flows.scripts import SCRIPT
from resurgam.runtime.definitions.definition import Activity, ActivityOptions, AsyncActivity
from resurgam.runtime.definitions.info import ActivityInfo, enter_activity
from resurgam.runtime.registry import Registry
from resurgam.testing.simulated_store import Work


@dataclass(frozen=True, slots=True)
class _SimulatedAttempt:
    """A running attempt as seen by its own code."""

    info: ActivityInfo
    max_payload: int = MAX_PAYLOAD

    def cancelled(self) -> bool:
        """It never is: an attempt of a simulation takes no time."""
        return False

    def beat(self, details: Raw | None) -> None:
        """Nobody listens."""


def activity_of(work: Work, registry: Registry, mocks: Mapping[str, object]) -> tuple[Activity[..., Any], object, Work]:
    """Return the activity of a piece of work, what replaces its function, and the work as that sees it.

    A service is replaced by the mock of its step, which gets the arguments by name; what it returns are its outputs. An
    async one answers at once. Its compensation is ``"step.compensate"``, and does nothing by default.
    """
    name = work.request.name
    if name != HTTP_ACTIVITY:
        activity = SCRIPT if name == SCRIPT.name else registry.activities.find(name)
        return activity, mocks.get(activity.name, activity.function), work
    [call] = msgspec.json.decode(work.request.input, type=tuple[HttpCall])
    undoing = call.mode == "compensate"
    key = f"{call.step_id}.compensate" if undoing else call.step_id
    if key not in mocks and not undoing:
        raise NotFound(f"a simulation calls no services: give the step {call.step_id!r} a mock")
    mock = mocks.get(key, {})
    counted = replace(work, request=structs.replace(work.request, retry=call.retry))
    return _SERVICE, partial(_serve, mock) if callable(mock) else mock, counted


async def _serve(mock: Callable[..., object], call: HttpCall) -> object:
    arguments = {name: msgspec.json.decode(value) for name, value in call.arguments.items()}
    undone = {"input": arguments, "output": msgspec.json.decode(call.outputs)}
    result = mock(undone) if call.mode == "compensate" else mock(**arguments)
    return await result if inspect.isawaitable(result) else result


async def _service(call: HttpCall) -> Any:
    raise NotImplementedError


_SERVICE: Final[Activity[..., Any]] = AsyncActivity(HTTP_ACTIVITY, _service, ActivityOptions())


async def run_attempt(
    activity: Activity[..., Any], mock: object, work: Work, clock: int, workflow_id: str = ""
) -> events.Event:
    """Return the event of an attempt; *mock* is a value, an exception, or a callable, such as the function itself."""
    try:
        result = activity.result.check(await _answer(activity, mock, work, workflow_id), f"result of {activity.name!r}")
    except Exception as error:  # noqa: BLE001 -- every exception of the activity is its answer
        return _failed(error, work, work.request.retry or activity.rule, clock)
    return events.ActivityCompleted(ref=work.ref, at=clock, attempt=work.attempt, result=result)


async def _answer(activity: Activity[..., Any], mock: object, work: Work, workflow_id: str) -> object:
    if isinstance(mock, BaseException):
        raise mock
    if not callable(mock):
        return mock
    assert activity.signature is not None
    args, kwargs = activity.signature.decode(work.request.input)
    # In a context of its own, where `activity.info()` finds the attempt.
    context = copy_context()
    context.run(enter_activity, _SimulatedAttempt(_identity(work, workflow_id)))
    result = context.run(mock, *args, **kwargs)
    return await asyncio.create_task(_awaited(result), context=context) if inspect.isawaitable(result) else result


async def _awaited(result: Awaitable[object]) -> object:
    return await result


def _identity(work: Work, workflow_id: str) -> ActivityInfo:
    request = work.request
    return ActivityInfo(
        name=request.name,
        entity_id=request.entity_id,
        execution_id=f"{request.entity_id}#{work.attempt}",
        workflow_id=workflow_id,
        attempt=work.attempt,
        queue=request.queue,
    )


def _failed(error: Exception, work: Work, rule: RetryRule, clock: int) -> events.Event:
    failure = capture(error)
    delay = retry_delay(rule, work.attempt, error, failure, 0.5)
    if delay is None:
        return events.ActivityFailed(ref=work.ref, at=clock, attempt=work.attempt, failure=failure)
    next_at = clock + delay
    return events.ActivityRetryScheduled(ref=work.ref, at=clock, attempt=work.attempt, next_at=next_at, failure=failure)
