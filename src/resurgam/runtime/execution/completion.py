"""End an execution: record how, notify its children and its parent, and prepare the execution that follows."""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from random import Random
from typing import Final

from resurgam.core import event as events
from resurgam.core.codec import check_size
from resurgam.core.errors import ContinueAsNew, Evicted, NonRetryable, RetryAfter, SerializationError, WorkflowTimeout
from resurgam.core.failure import capture, in_user_code
from resurgam.core.outcome import Entry, Succession
from resurgam.core.succession import next_attempt, next_generation, requeue
from resurgam.runtime.context.children import record_never_started
from resurgam.runtime.context.continuation import Continuation
from resurgam.runtime.execution.checkpoints import Checkpoints
from resurgam.runtime.execution.inbox import Inbox
from resurgam.runtime.execution.late_results import IGNORED
from resurgam.runtime.execution.parent_close import notify_children, notify_parent
from resurgam.runtime.ids import derived_id
from resurgam.runtime.matching.dedup import ReceivedIds
from resurgam.runtime.matching.log import outstanding
from resurgam.runtime.replay.driver import Driver
from resurgam.runtime.system import python

logger = logging.getLogger("resurgam.runtime")

_NEVER: Final = frozenset({f"{NonRetryable.__module__}.{NonRetryable.__qualname__}"})
_MOVED: Final = ("update_accepted", "cancel_requested", "workflow_paused", "workflow_resumed")
_MOVED_ON_RETRY: Final = (
    *("child_completed", "child_failed", "child_cancelled", "flow_answered", "promise_resolved", "promise_rejected"),
    "signal_received",
)


class Completion:
    """End one execution."""

    def __init__(self, driver: Driver, inbox: Inbox, checkpoints: Checkpoints, log: Sequence[events.Event]) -> None:
        self._driver = driver
        self._recorder = driver.recorder
        self._inbox = inbox
        self._checkpoints = checkpoints
        # Kept only where another attempt may need it, which begins with what this one has got.
        self.history = list(log) if driver.options.retry.max_attempts != 1 else None

    def begin(self, forgotten: set[int]) -> None:
        """Start an advance: what the last one appended is committed."""
        assert self.history is not None
        self.history += self._recorder.log.new
        if forgotten:
            self.history = [entry for entry in self.history if entry.seq not in forgotten]

    def end(self, waiting: Iterable[Entry], reason: BaseException | None) -> Succession | None:
        """Record the end of the code and the rest of the inbox; return the execution that follows, if one does."""
        log, inbox = self._recorder.log, self._inbox
        successor = self._decide(reason, waiting) if log.state.ended is None else None
        moves = () if successor is None else successor.moves
        for entry in waiting:
            # The store moves the unread inbox of a run that goes on to the execution that follows.
            if entry.id is None or entry.event.type not in moves:
                self._record_late(entry)
        if successor is None:
            inbox.consumed.ids += (entry.id for entry in inbox.held if entry.id is not None)
        log.close()
        self._driver.close()
        return successor

    def _decide(self, reason: BaseException | None, waiting: Iterable[Entry]) -> Succession | None:
        """Record how this execution ends, and put the notifications into the outbox."""
        driver, log, outbox = self._driver, self._recorder.log, self._recorder.outbox
        if reason is None:
            driver.verdict.decide(Evicted("the workflow has ended"))
        self._report_orphans()
        self._cancel_unstarted_children()
        while self._inbox.updates.finished_entry() is not None:
            pass  # the workflow may have waited for the very handlers that have finished
        if driver.handlers.any and (busy := len(driver.handlers.at_work())):
            self._recorder.warn(f"{busy} handlers were at work when it ended, and are abandoned")
        end, successor = terminal_event(driver, reason, self._whole_log(waiting), self._inbox.received, log.stamp())
        ended = log.add_copy(end)
        # The next attempt adopts the children that this one has started.
        retried = isinstance(ended, events.WorkflowRetried)
        children = () if retried else notify_children(driver.started, log.state, ended.at)
        for message in (*children, *notify_parent(driver.started, ended, ended.at)):
            outbox.add(ended.seq, "messages", message)
        for command in outstanding(log.state):
            # Requested in this very commit, so no worker can have started it.
            if command.seq in outbox.activities:
                log.add(events.ActivityCancelled, ref=command.seq)
        return successor

    def _whole_log(self, waiting: Iterable[Entry]) -> list[events.Event] | None:
        """Return everything that this run has got, delivered or not, if another attempt may need it."""
        if self.history is None:
            return None
        log, gone = self._recorder.log, self._checkpoints.forgotten()
        known = (entry for entry in (*self.history, *log.new) if entry.seq not in gone)
        undelivered = (entry.event for entry in waiting if entry.event.ref and entry.event.ref in log.state.open)
        return [*known, *undelivered]

    def _record_late(self, entry: Entry) -> None:
        """Record an entry that came too late to be delivered, unless it would only have started something."""
        if not isinstance(entry.event, IGNORED):
            self._inbox.take(entry)
        else:
            self._inbox.consumed.add(entry)

    def _cancel_unstarted_children(self) -> None:
        """Cancel the children that this very commit would start, and that must end with their parent."""
        log = self._recorder.log
        for command in list(log.state.open.values()):
            if not isinstance(command, events.ChildCommand) or command.on_parent_close == "abandon":
                continue
            if self._recorder.outbox.take_back(command.seq, "children"):
                record_never_started(log, command)

    def _report_orphans(self) -> None:
        """Log recorded steps that the code has not reached, and cancel them if the workflow says so."""
        rule, recorder, started = self._driver.options.orphans, self._recorder, self._driver.started
        if rule == "allow":
            return
        for command in recorder.recorded.orphans():
            logger.warning(
                "workflow %r (%s): %s %r at %s is recorded, but the code does not request it",
                *(started.name, started.entity_id, command.command, command.name, command.location),
            )
            if rule == "cancel" and command in outstanding(recorder.log.state):
                recorder.log.add(events.ActivityCancelled, ref=command.seq)


def complete_plainly(driver: Driver) -> bool:
    """Record that the code of a run on its plain course has returned: `Completion.end` for the end of most runs.

    False, and nothing is changed, if it has failed, leaves a call open or has a parent: the general course ends it.
    """
    root, recorder, parent = driver.root, driver.recorder, driver.started.parent
    log, workflow = recorder.log, driver.workflow
    assert root is not None
    if log.state.open or root.cancelled() or root.exception() or not (parent is None or parent.detached):
        return False
    what = f"result of workflow {workflow.name!r}"
    try:
        result = check_size(recorder.settings.max_payload, workflow.result.check(root.result(), what), what)
    except SerializationError:
        return False
    driver.verdict.decide(Evicted("the workflow has ended"))
    log.add(events.WorkflowCompleted, result=result)
    log.add(events.WorkflowDeactivated)  # at once, since no call is open
    driver.close()
    return True


def terminal_event(
    driver: Driver,
    reason: BaseException | None,
    log: Sequence[events.Event] | None,
    received: ReceivedIds,
    at: int,
) -> tuple[events.Event, Succession | None]:
    """Return the entry that ends an execution, and the execution that follows, if one does.

    *reason* is that of its verdict, *log* the whole history, where a retry may need it.
    """
    if isinstance(reason, ContinueAsNew):
        return _continued(driver, reason, received, at)
    error = driver.raised()
    if driver.root is None:
        error = asyncio.CancelledError()  # cancelled before it had begun
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
        if driver.recorder.timed_out is not None:
            started = driver.started
            error = WorkflowTimeout(started.name, started.entity_id, driver.recorder.timed_out / 1000)
        elif driver.cancel_requested and (driver.root is None or driver.root.cancelled()):
            return events.WorkflowCancelled(), None
        else:
            error = asyncio.CancelledError("cancelled without a request to cancel the workflow")
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
    return ended, Succession(started=following, inbox=inbox, moves=(*_MOVED, *_MOVED_ON_RETRY))


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
    driver: Driver, reason: ContinueAsNew, received: ReceivedIds, at: int
) -> tuple[events.Event, Succession | None]:
    assert isinstance(reason, Continuation)
    started = driver.started
    run_id = derived_id(at, started.execution_id, "run")
    execution_id = derived_id(at, started.execution_id, "next")
    carries = reason.signals == "carry"
    inbox = tuple(driver.recorder.log.state.mailbox.values()) if carries else ()
    following = next_generation(
        started,
        run_id=run_id,
        execution_id=execution_id,
        at=at,
        python=python(),
        input=reason.written,
        tags=driver.recorder.log.state.tags,
        signals=received.to_remember(inbox),
    )
    moves = (*_MOVED, "signal_received") if carries else _MOVED
    ended = events.WorkflowContinued(run_id=run_id, execution_id=execution_id)
    return ended, Succession(started=following, inbox=requeue(inbox), moves=moves)
