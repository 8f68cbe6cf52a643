"""Run one attempt at an activity in a simulation, and decide whether it is retried."""

import inspect
from typing import Any

from resurgam.core import event as events
from resurgam.core.failure import capture, retry_delay
from resurgam.core.retry import RetryRule
from resurgam.runtime.definitions.definition import Activity


async def run_attempt(
    activity: Activity[..., Any],
    mock: object,
    command: events.ActivityScheduled,
    rule: RetryRule,
    number: int,
    clock: int,
) -> events.Event:
    """Return the event of an attempt; *mock* is a value, an exception, or a callable, such as the function itself."""
    try:
        result = activity.result.check(await _answer(activity, mock, command), f"result of {command.name!r}")
    except Exception as error:  # noqa: BLE001 -- every exception of the activity is its answer
        return _failed(error, command, rule, number, clock)
    return events.ActivityCompleted(ref=command.seq, at=clock, attempt=number, result=result)


async def _answer(activity: Activity[..., Any], mock: object, command: events.ActivityScheduled) -> object:
    if isinstance(mock, BaseException):
        raise mock
    if not callable(mock):
        return mock
    assert activity.signature is not None
    args, kwargs = activity.signature.decode(command.input)
    result = mock(*args, **kwargs)
    return await result if inspect.isawaitable(result) else result


def _failed(
    error: Exception, command: events.ActivityScheduled, rule: RetryRule, number: int, clock: int
) -> events.Event:
    failure = capture(error)
    delay = retry_delay(rule, number, error, failure, 0.5)
    if delay is None:
        return events.ActivityFailed(ref=command.seq, at=clock, attempt=number, failure=failure)
    next_at = clock + delay
    return events.ActivityRetryScheduled(ref=command.seq, at=clock, attempt=number, next_at=next_at, failure=failure)
