"""Log failed runs: one line for each, with its traceback, by the worker whose commit has recorded it."""

import logging
from collections.abc import Iterable
from datetime import UTC, datetime

from resurgam.core import event as events
from resurgam.core.errors import HistoryDiverged
from resurgam.core.failure import in_user_code, rebuild
from resurgam.core.typename import type_name
from resurgam.runtime.execution.execution import Execution

logger = logging.getLogger("resurgam.workflow")


def log_failed_run(execution: Execution, committed: Iterable[events.Event]) -> None:
    """Log the failure among the entries that were *committed*, if there is one: an error, or a warning if it is retried.

    A run that fails because its code diverged is logged where that is found.
    """
    if isinstance(execution.verdict, HistoryDiverged):
        return
    started = execution.started
    for entry in committed:
        if not isinstance(entry, events.WorkflowFailed | events.WorkflowRetried):
            continue
        following = f"; next at {moment(entry.next_at)}" if isinstance(entry, events.WorkflowRetried) else ""
        logger.log(
            logging.WARNING if following else logging.ERROR,
            "workflow %r (%s), attempt %d failed%s",
            started.name,
            started.entity_id,
            started.attempt,
            following,
            exc_info=_error(execution, entry.failure),
        )


def _error(execution: Execution, failure: events.Failure) -> BaseException:
    """Return the exception that left the code, or what was recorded in its place, such as a timeout."""
    raised = execution.raised()
    if raised is not None and type_name(type(raised)) == failure.type:
        return in_user_code(raised)
    return rebuild(failure)


def moment(at: int) -> str:
    """Return a moment as it stands in log lines."""
    return datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds")
