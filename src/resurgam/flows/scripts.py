"""The activity of the engine that evaluates scripts, in a thread of the worker and within the limits of the sandbox."""

from typing import Any, Final

from resurgam.core.flow_event import SCRIPT_ACTIVITY
from resurgam.core.retry import RetryPolicy
from resurgam.flows.expressions import compiled
from resurgam.flows.judge import NOTHING
from resurgam.flows.model import Expression
from resurgam.runtime.definitions.definition import Activity, ActivityOptions, SyncActivity


def _evaluate(script: Expression, arguments: dict[str, Any]) -> Any:
    result = compiled(script, tuple(sorted(arguments))).evaluate(arguments)
    return None if result is NOTHING else result


SCRIPT: Final[Activity[..., Any]] = SyncActivity(
    SCRIPT_ACTIVITY, _evaluate, ActivityOptions(retry=RetryPolicy(max_attempts=1))
)
"""Each request for it says itself how it is retried."""
