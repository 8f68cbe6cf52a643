"""How an execution ends: what is recorded of it, and which execution follows, if one does."""

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Final

from resurgam.core import event as events
from resurgam.core.codec import check_size
from resurgam.core.errors import ContinueAsNew, NonRetryable, RetryAfter, SerializationError, WorkflowTimeout
from resurgam.core.failure import capture, in_user_code
from resurgam.core.outcome import Succession
from resurgam.core.succession import next_attempt, next_generation, requeue
from resurgam.runtime.context.continuation import Continuation
from resurgam.runtime.ids import derived_id
from resurgam.runtime.matching.dedup import ReceivedIds
from resurgam.runtime.replay.driver import Driver
from resurgam.runtime.system import python

_NEVER: Final = frozenset({f"{NonRetryable.__module__}.{NonRetryable.__qualname__}"})
_CARRIED_ON: Final = ("update_accepted", "cancel_requested", "workflow_paused", "workflow_resumed")
_OF_THE_RUN: Final = (
    *("child_completed", "child_failed", "child_cancelled", "promise_resolved", "promise_rejected"),
    "signal_received",
)


def terminal_event(
    driver: Driver,
    verdict: BaseException | None,
    log: Sequence[events.Event] | None,
    signal_ids: ReceivedIds,
    at: int,
) -> tuple[events.Event, Succession | None]:
    """Return the entry that ends an execution at this moment, and what follows it.

    *log* is its whole history, where a retry may need it; *signal_ids* are of those that it has had.
    """
    if isinstance(verdict, ContinueAsNew):
        return _continued(driver, verdict, signal_ids, at)
    error = driver.raised()
    if driver.root is None:
        error = asyncio.CancelledError()  # before it had begun
    elif error is None:
        workflow, limit = driver.workflow, driver.recorder.settings.max_payload
        what = f"result of workflow {workflow.name!r}"
        try:
            return events.WorkflowCompleted(
                result=check_size(limit, workflow.result.check(driver.root.result(), what), what)
            ), None
        except SerializationError as unwritable:
            error = unwritable
    if isinstance(error, asyncio.CancelledError):
        if driver.timed_out is not None:
            started = driver.started
            error = WorkflowTimeout(started.name, started.entity_id, driver.timed_out / 1000)
        elif driver.cancel_requested and (driver.root is None or driver.root.cancelled()):
            return events.WorkflowCancelled(), None
        else:
            error = asyncio.CancelledError("cancelled, though nobody asked for it")
    return _failed(driver, error, log, at)


def _failed(
    driver: Driver, error: BaseException, log: Sequence[events.Event] | None, at: int
) -> tuple[events.Event, Succession | None]:
    failure = capture(in_user_code(error), limit=driver.recorder.settings.max_payload)
    started = driver.started
    pause = None if driver.cancel_requested or log is None else _pause(driver, error, failure)
    if pause is None or log is None:
        return events.WorkflowFailed(failure=failure), None
    execution_id = derived_id(at, started.execution_id, "retry")
    begins_at = at + pause if pause else None
    following, inbox = next_attempt(log, execution_id=execution_id, at=at, python=python(), begins_at=begins_at)
    ended = events.WorkflowRetried(failure=failure, execution_id=execution_id, next_at=at + pause)
    return ended, Succession(started=following, inbox=inbox, moves=(*_CARRIED_ON, *_OF_THE_RUN))


def _pause(driver: Driver, error: BaseException, failure: events.Failure) -> int | None:
    """Return the milliseconds until the next attempt, or None if there is to be none."""
    names = (failure.type, *failure.bases)
    rule = driver.options.retry.rule()
    if rule.excludes(names) or not _NEVER.isdisjoint(names):
        return None
    chance = Random(driver.started.execution_id).random()
    usual = rule.delay_after(driver.started.attempt, chance)
    return error.pause_ms if usual is not None and isinstance(error, RetryAfter) else usual


def _continued(
    driver: Driver, verdict: ContinueAsNew, signal_ids: ReceivedIds, at: int
) -> tuple[events.Event, Succession | None]:
    assert isinstance(verdict, Continuation)
    started = driver.started
    run_id = derived_id(at, started.execution_id, "run")
    execution_id = derived_id(at, started.execution_id, "next")
    carries = verdict.signals == "carry"
    inbox = tuple(driver.recorder.log.state.mailbox.values()) if carries else ()
    following = next_generation(
        started,
        run_id=run_id,
        execution_id=execution_id,
        at=at,
        python=python(),
        input=verdict.written,
        signals=signal_ids.heard(inbox),
    )
    moves = (*_CARRIED_ON, "signal_received") if carries else _CARRIED_ON
    ended = events.WorkflowContinued(run_id=run_id, execution_id=execution_id)
    return ended, Succession(started=following, inbox=requeue(inbox), moves=moves)
