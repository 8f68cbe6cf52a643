"""Run one attempt at an activity in a simulation, and decide whether it is retried."""

import asyncio
import inspect
from collections.abc import Awaitable
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.codec import MAX_PAYLOAD
from resurgam.core.failure import capture, retry_delay
from resurgam.core.retry import RetryRule
from resurgam.runtime.definitions.definition import Activity
from resurgam.runtime.definitions.info import ActivityInfo, enter_activity
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
