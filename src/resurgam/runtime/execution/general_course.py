"""The general course of an advance: whatever a run waits for, and whatever its inbox holds.

Its parts are built when a run comes to need them; most runs keep to the plain course (`execution`).
"""

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from resurgam.core import event as events
from resurgam.core.errors import ContinueAsNew, HistoryDiverged
from resurgam.core.failure import root_type
from resurgam.core.outcome import Entry, Outcome, Succession
from resurgam.core.state import Status
from resurgam.runtime.execution.checkpoints import Checkpoints
from resurgam.runtime.execution.completion import Completion
from resurgam.runtime.execution.deadlines import Deadlines
from resurgam.runtime.execution.entry_source import EntrySource
from resurgam.runtime.execution.inbox import Inbox
from resurgam.runtime.execution.late_results import withdraw
from resurgam.runtime.execution.look_ahead import LookAhead
from resurgam.runtime.execution.parking import park_or_fail
from resurgam.runtime.matching.log import outstanding
from resurgam.runtime.matching.outbox import cancelled_by
from resurgam.runtime.replay.driver import Driver

_FAILED: Final = (events.WorkflowFailed, events.WorkflowRetried)

TICKS_PER_ADVANCE: Final = 1000
"""Ticks after which an advance ends and is committed: ``while True: await ctx.sleep(0)`` must not hold a worker."""


class GeneralCourse:
    """Advance one execution, asking each of its parts for the next entry.

    *log* is what the execution was loaded with.
    """

    def __init__(self, driver: Driver, log: Sequence[events.Event]) -> None:
        self.driver, self.recorder, self.started = driver, driver.recorder, driver.started
        self._course = driver.recorder.course
        self._pending, self._state = driver.recorder.pending, driver.recorder.log.state
        self.inbox = inbox = Inbox(driver, log)
        self._checkpoints = Checkpoints(driver, inbox.received)
        self._deadlines = Deadlines(driver, inbox)
        self._source = EntrySource(driver, inbox, self._checkpoints, self._deadlines)
        self._look_ahead = LookAhead(driver, log)
        self.completion = Completion(driver, inbox, self._checkpoints, log)
        # Results that the worker brought and that were not delivered yet; no store would bring them again.
        self.left: list[Entry] = []

    def note_begun(self, first_ran_at: int | None) -> None:
        """Note that the code has begun on the plain course, and when the first entry was written."""
        self._look_ahead.needed = False
        self.inbox.updates.first_ran_at = first_ran_at

    def advance(self, waiting: deque[Entry], clock: int, worker: str) -> Outcome:
        """Deliver what is recorded, then *waiting* and what is due by *clock*; return what to commit."""
        base = self._begin(clock)
        self.driver.replay()
        return self.go_on(waiting, clock, worker, base)

    def go_on(self, waiting: deque[Entry], clock: int, worker: str, base: int, ticks: int = 0) -> Outcome:
        """Deliver *waiting* and what is due; return the outcome of everything since entry *base*."""
        driver = self.driver
        if self._look_ahead.needed:
            self._look_ahead.catch_up()
        ticks = self._deliver(waiting, clock, ticks)
        if self.inbox.updates.first_ran_at is None and self.recorder.log.new:
            self.inbox.updates.first_ran_at = self.recorder.log.new[0].at
        self.left = [entry for entry in waiting if entry.id is None]
        ended = driver.root_ended
        if ended and driver.verdict.reason is None:
            driver.check_orphans()
        reason = driver.verdict.reason
        if isinstance(reason, HistoryDiverged):
            return self._diverged(reason, base, worker)
        successor = None
        if ended or isinstance(reason, ContinueAsNew):
            successor = self.completion.end(waiting, reason)
        outcome = self._outcome(successor, clock if ticks == TICKS_PER_ADVANCE else None)
        self._course.plain = self._is_plain()
        return outcome

    def _is_plain(self) -> bool:
        """Whether nothing is left of what `Course.leave` is called for, nor of the history and the inbox."""
        driver, recorder, pending = self.driver, self.recorder, self._pending
        carryover, handlers = recorder.carryover, driver.handlers
        return not (
            driver.closed
            or driver.root is None
            or driver.undelivered
            or self.left
            or self.inbox.paused
            or self.inbox.updates.waiting
            or self._look_ahead.needed
            or self._look_ahead.undecided
            or self._checkpoints.made
            or self._deadlines.of_workflow
            or pending.start_deadlines
            or pending.listeners
            or pending.operations
            or pending.races
            or pending.loops
            or pending.cancelled
            or handlers.any
            or handlers.schemas.changed
            or handlers.awaited
            or recorder.early.anything
            or recorder.ended_scopes.returned
            or carryover.anything
            or carryover.due
            or recorder.log.footprint.watches
        )

    def _begin(self, clock: int) -> int:
        """Start an advance: what the last one appended is committed. Return the ``seq`` that it starts from."""
        forgotten = self._checkpoints.forgotten() if self._checkpoints.made else set()
        if self._look_ahead.needed:
            self._look_ahead.begin(forgotten)
        if self.completion.history is not None:
            self.completion.begin(forgotten)
        if self._checkpoints.made:
            self._checkpoints.begin()
        self.recorder.log.begin(clock)
        self.recorder.outbox.empty()
        self.inbox.consumed.ids = []
        return self._state.last_seq

    def _deliver(self, waiting: deque[Entry], clock: int, ticks: int) -> int:
        """Deliver what is new, an entry at a time; return the number of ticks, beginning at *ticks*."""
        driver, inbox, source = self.driver, self.inbox, self._source
        if waiting:
            inbox.note_pauses(waiting)
        with self.recorder.loop:
            while ticks < TICKS_PER_ADVANCE and driver.goes_on:
                entry = source.next(waiting, clock)
                if entry is None:
                    break
                driver.tick(entry)
                ticks += 1
                if self._look_ahead.needed:
                    self._look_ahead.after_tick(self._checkpoints.forgotten())
        if inbox.updates.waiting and ticks < TICKS_PER_ADVANCE and self._takes_updates:
            inbox.updates.refuse(clock)
        return ticks

    @property
    def _takes_updates(self) -> bool:
        """Whether the code has begun, goes on and may register handlers."""
        return self.driver.root is not None and self.driver.goes_on and not self.inbox.paused

    # The outcome of an advance.

    def _diverged(self, error: HistoryDiverged, base: int, worker: str) -> Outcome:
        log = self.recorder.log
        if self._look_ahead.undecided:
            self._look_ahead.note_started(log.new[: log.tick_start])
        error.ran = tuple(self._look_ahead.started)
        outcome = park_or_fail(self.driver, error, base, self.left, worker)
        forgotten = self._checkpoints.fields(base + len(outcome.events))
        return msgspec.structs.replace(outcome, consumed=tuple(self.inbox.consumed.ids), **forgotten)

    def _outcome(self, successor: Succession | None, wake_at: int | None) -> Outcome:
        log, state, outbox = self.recorder.log, self._state, self.recorder.outbox
        if self._look_ahead.undecided:
            self._look_ahead.note_started(log.new)
        ended = state.ended is not None
        cancelled = cancelled_by(log.new)
        if not ended and self._pending.start_deadlines:
            self._deadlines.withdraw_unstarted(log.clock)
        requests = outbox.fields(state.last_seq)
        schemas = self.driver.handlers.schemas
        if schemas.changed and not ended:
            requests["signal_schemas"] = schemas.take_changes()
        withdrawn = withdraw((command.seq for command in outstanding(state)), log.stamp()) if ended else ()
        strict = bool(requests) and self._must_know_all(requests)
        if isinstance(state.ended, _FAILED):
            requests["failure"] = root_type(state.ended.failure)
        return Outcome(
            events=tuple(log.new),
            consumed=tuple(self.inbox.consumed.ids),
            activities=tuple(r for r in outbox.activities.values() if r.ref not in cancelled),
            withdrawals=(*outbox.withdrawals(cancelled), *withdrawn, *requests.pop("withdrawals", ())),
            status=state.status if ended and state.status else self._open_status(),
            deactivated=state.deactivated,
            wake_at=None if ended else wake_at or self._wakes_at(),
            successor=successor,
            strict=strict,
            **requests,
            **(self._checkpoints.fields(state.last_seq) if self._checkpoints.made else {}),
        )

    def _open_status(self) -> Status:
        """Return the status of an execution that has not ended.

        A parked run that this code fits is running again, even if there is nothing to record yet; and so is a retry
        that waits for its moment.
        """
        return Status.SCHEDULED if self.driver.root is None and self.started.attempt == 1 else Status.RUNNING

    def _must_know_all(self, requests: dict[str, Any]) -> bool:
        """Whether this commit would be wrong if an entry has arrived that it has not seen.

        A promise that is given up may just have been settled; a child that an earlier attempt started may just have
        ended.
        """
        return "closed" in requests or ("children" in requests and self.started.attempt > 1)

    def _wakes_at(self) -> int | None:
        """Return the next moment at which there is something to be done."""
        any_deadline = self._pending.deadlines or self._deadlines.of_workflow
        deadline = self._deadlines.next() if any_deadline else None
        if self.inbox.updates.waiting and self._takes_updates:
            refusal = self.inbox.updates.deadline()
            deadline = min((moment for moment in (deadline, refusal) if moment is not None), default=None)
        if not self._pending.start_deadlines:
            return deadline
        start_by, _ = self._pending.start_deadlines[0]
        return start_by if deadline is None else min(deadline, start_by)
