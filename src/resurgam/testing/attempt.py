"""Run one attempt at an activity in a simulation, and decide whether it is retried."""

import inspect
from typing import Any

from resurgam.core import event as events
from resurgam.core.failure import capture, retry_delay
from resurgam.core.retry import RetryRule
from resurgam.runtime.definitions.definition import Activity
from resurgam.testing.simulated_store import Work


async def run_attempt(activity: Activity[..., Any], mock: object, work: Work, clock: int) -> events.Event:
    """Return the event of an attempt; *mock* is a value, an exception, or a callable, such as the function itself."""
    try:
        result = activity.result.check(await _answer(activity, mock, work), f"result of {work.name!r}")
    except Exception as error:  # noqa: BLE001 -- every exception of the activity is its answer
        return _failed(error, work, work.rule or activity.rule, clock)
    return events.ActivityCompleted(ref=work.ref, at=clock, attempt=work.attempt, result=result)


async def _answer(activity: Activity[..., Any], mock: object, work: Work) -> object:
    if isinstance(mock, BaseException):
        raise mock
    if not callable(mock):
        return mock
    assert activity.signature is not None
    args, kwargs = activity.signature.decode(work.input)
    result = mock(*args, **kwargs)
    return await result if inspect.isawaitable(result) else result


def _failed(error: Exception, work: Work, rule: RetryRule, clock: int) -> events.Event:
    failure = capture(error)
    delay = retry_delay(rule, work.attempt, error, failure, 0.5)
    if delay is None:
        return events.ActivityFailed(ref=work.ref, at=clock, attempt=work.attempt, failure=failure)
    next_at = clock + delay
    return events.ActivityRetryScheduled(ref=work.ref, at=clock, attempt=work.attempt, next_at=next_at, failure=failure)
