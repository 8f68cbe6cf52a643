"""The outcome of an advance that diverged: park the run until code fits it, or fail it if its workflow says so.

The entries that were delivered are kept. The commands of the tick that diverged are dropped, so that nothing of it has
been started.
"""

import logging
from collections.abc import Callable, Iterable, Sequence

import msgspec

from resurgam.core import event as events
from resurgam.core.commands import COMMANDS
from resurgam.core.errors import HistoryDiverged
from resurgam.core.failure import root_type
from resurgam.core.outcome import Entry, Outcome
from resurgam.core.state import Status
from resurgam.runtime.execution.late_results import withdraw
from resurgam.runtime.execution.parent_close import notify_children, notify_parent
from resurgam.runtime.matching.divergence import violation
from resurgam.runtime.matching.log import outstanding
from resurgam.runtime.matching.outbox import cancelled_by
from resurgam.runtime.replay.driver import Driver

logger = logging.getLogger("resurgam.runtime")

_ACTIVITY_ANSWERS = COMMANDS[events.ActivityScheduled].answers


def park_or_fail(driver: Driver, error: HistoryDiverged, base: int, left: Iterable[Entry], worker: str) -> Outcome:
    """Return the outcome of an advance that diverged after entry *base*; close the execution.

    *left* are results that a worker brought and that were not delivered: they are in memory only, so they are recorded.
    """
    log, started = driver.recorder.log, driver.started
    kept, lost = log.new[: log.tick_start], log.new[log.tick_start :]
    last_kept = base + len(kept)
    diagnosis = f"{type(error).__name__}: {error}"
    logger.error("workflow %r (%s) diverged: %s", started.name, started.entity_id, diagnosis)

    def keep(entry: events.Event) -> None:
        kept.append(msgspec.structs.replace(entry, seq=base + len(kept) + 1, at=log.stamp()))

    for one in left:
        if one.event.ref in log.state.open and (one.event.ref or 0) <= base + len(kept):
            keep(one.event)
    driver.close()
    if driver.parks:
        before = log.state.diverged
        if before is None or before.diagnosis != diagnosis or kept:
            keep(events.WorkflowDiverged(diagnosis=diagnosis, worker=worker))
        outcome = Outcome(status=Status.DIVERGED, diagnosis=diagnosis)
    else:
        failure = violation(error)
        keep(events.WorkflowFailed(failure=failure))
        answered = {entry.ref for entry in kept if isinstance(entry, _ACTIVITY_ANSWERS)}
        at_work = [ref for ref in _at_work(driver, lost) if ref not in answered]
        outcome = _fail(driver, at_work, failure, keep)
    return _with_requests(driver, outcome, tuple(kept), last_kept)


def _at_work(driver: Driver, lost: Sequence[events.Event]) -> list[int]:
    """Return the activities that are open once the entries of the tick that diverged are dropped."""
    dropped = {entry.seq for entry in lost}
    at_work = {command.seq for command in outstanding(driver.recorder.log.state)}
    return sorted((at_work | cancelled_by(lost)) - dropped)


def _fail(driver: Driver, at_work: list[int], failure: events.Failure, keep: Callable[[events.Event], None]) -> Outcome:
    """Close a run that fails because it diverged, as far as no activity is outstanding."""
    log, outbox = driver.recorder.log, driver.recorder.outbox
    begun = [ref for ref in at_work if ref not in outbox.activities]
    for ref in at_work:
        # Requested in this very commit, so no worker can have started it.
        if ref not in begun:
            keep(events.ActivityCancelled(ref=ref))
    if not begun:
        keep(events.WorkflowDeactivated())
    at = log.stamp()
    failed = events.WorkflowFailed(failure=failure)
    messages = (*notify_children(driver.started, log.state, at), *notify_parent(driver.started, failed, at))
    return Outcome(
        status=Status.FAILED,
        deactivated=not begun,
        withdrawals=withdraw(begun, at),
        messages=messages,
        failure=root_type(failure),
    )


def _with_requests(driver: Driver, outcome: Outcome, written: tuple[events.Event, ...], last_kept: int) -> Outcome:
    """Complete the outcome by the entries that are kept, and the requests that belong to them."""
    outbox = driver.recorder.outbox
    requests = outbox.fields(last_kept)
    requests["withdrawals"] = (*outbox.withdrawals(cancelled_by(written)), *outcome.withdrawals)
    requests["messages"] = (*requests.get("messages", ()), *outcome.messages)
    activities = outbox.activities_of(written) if outcome.status is Status.DIVERGED else ()
    return msgspec.structs.replace(outcome, events=written, activities=activities, **requests)
