"""Log failed runs: one line each, with the traceback, by the worker whose commit recorded the failure."""

import logging
from collections.abc import Iterable

from resurgam.core import event as events
from resurgam.core.clock import iso_time
from resurgam.core.failure import in_user_code, rebuild
from resurgam.core.typename import type_name
from resurgam.runtime.log_limit import TracebackLimit

logger = logging.getLogger("resurgam.workflow")
logger.addFilter(TracebackLimit())


def log_failed_run(started: events.Started, committed: Iterable[events.Event], raised: BaseException | None) -> None:
    """Log the failure among the *committed* entries: an error, or a warning if the run is retried.

    The traceback is that of *raised*, unless another failure was recorded, such as a timeout.
    """
    for entry in committed:
        if not isinstance(entry, events.WorkflowFailed | events.WorkflowRetried):
            continue
        following = f"; next at {iso_time(entry.next_at)}" if isinstance(entry, events.WorkflowRetried) else ""
        known = raised is not None and type_name(type(raised)) == entry.failure.type
        logger.log(
            logging.WARNING if following else logging.ERROR,
            "workflow %r (%s), attempt %d failed%s",
            started.name,
            started.entity_id,
            started.attempt,
            following,
            exc_info=in_user_code(raised) if known and raised is not None else rebuild(entry.failure),
        )
