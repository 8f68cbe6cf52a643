"""`Execution.advance(inbox, clock) -> Outcome`: the entry point from a history to new events."""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from resurgam.core import event as events
from resurgam.core.errors import ContinueAsNew, HistoryDiverged
from resurgam.core.failure import root_type
from resurgam.core.operation import Operation
from resurgam.core.outcome import Entry, Outcome, Succession
from resurgam.core.state import Status
from resurgam.runtime.definitions.definition import Workflow
from resurgam.runtime.definitions.settings import Settings
from resurgam.runtime.execution.checkpoints import Checkpoints
from resurgam.runtime.execution.completion import Completion
from resurgam.runtime.execution.deadlines import Deadlines
from resurgam.runtime.execution.entry_source import EntrySource
from resurgam.runtime.execution.failure_log import log_failed_run
from resurgam.runtime.execution.inbox import Inbox
from resurgam.runtime.execution.late_results import withdraw
from resurgam.runtime.execution.look_ahead import LookAhead
from resurgam.runtime.execution.parking import park_or_fail
from resurgam.runtime.matching.log import outstanding
from resurgam.runtime.matching.outbox import cancelled_by
from resurgam.runtime.replay.driver import Driver

_FAILED: Final = (events.WorkflowFailed, events.WorkflowRetried)

logger = logging.getLogger("resurgam.runtime")

_SETTINGS = Settings()

TICKS_PER_ADVANCE: Final = 1000
"""Ticks after which an advance ends and is committed: ``while True: await ctx.sleep(0)`` must not hold a worker."""


class Execution:
    """The live coroutine of one workflow execution, and the log that it has reached."""

    def __init__(
        self, workflow: Workflow[..., Any], log: Sequence[events.Event], settings: Settings = _SETTINGS
    ) -> None:
        self.driver = driver = Driver(workflow, log, settings)
        self.started, self.workflow, self.recorder = driver.started, workflow, driver.recorder
        self._pending, self._state = driver.recorder.pending, driver.recorder.log.state
        self._course = driver.recorder.course
        self._inbox = inbox = Inbox(driver, log)
        self._checkpoints = Checkpoints(driver, inbox.received)
        self._deadlines = Deadlines(driver, inbox)
        self._source = EntrySource(driver, inbox, self._checkpoints, self._deadlines)
        self._look_ahead = LookAhead(driver, log)
        self._completion = Completion(driver, inbox, self._checkpoints, log)
        driver.recorder.loop.on_error = self._report
        # Results that the worker brought and that were not delivered yet; no store would bring them again.
        self._left: list[Entry] = []
        self._arrived: Sequence[Entry] = ()

    @property
    def brought(self) -> list[Entry]:
        """Results that the worker had brought when the last advance began: to be delivered again if its commit fails."""
        return [entry for entry in self._arrived if entry.id is None]

    @property
    def root(self) -> "asyncio.Task[Any] | None":
        """The task that runs the workflow's function, once it has begun."""
        return self.driver.root

    @property
    def verdict(self) -> BaseException | None:
        """The reason why the code may not go on, if there is one."""
        return self.driver.verdict.reason

    @property
    def closed(self) -> bool:
        """Whether the coroutine has been evicted."""
        return self.driver.closed

    @property
    def delivered_seq(self) -> int:
        """The ``seq`` of the entry that was delivered last."""
        return self.recorder.entry

    @property
    def last_seq(self) -> int:
        """The ``seq`` of the last entry of the log."""
        return self._state.last_seq

    @property
    def new(self) -> tuple[events.Event, ...]:
        """The entries that were appended since the last advance began."""
        return tuple(self.recorder.log.new)

    @property
    def paused(self) -> bool:
        """Whether the run is paused, so that nothing new is started."""
        return self._inbox.paused

    @paused.setter
    def paused(self, paused: bool) -> None:
        self._inbox.paused = paused
        if paused:
            self._course.leave()

    def is_open(self, ref: int) -> bool:
        """Whether a command still waits for its answer."""
        return ref in self._state.open

    def holds(self, entry: Entry) -> bool:
        """Whether an entry that is not consumed waits for the code, so that it need not be delivered again."""
        return self._inbox.holds(entry)

    def raised(self) -> BaseException | None:
        """Return the exception that ended the code; None if it returned, or has not begun."""
        return self.driver.raised()

    def replay(self) -> None:
        """Deliver every recorded entry that has not been delivered yet."""
        self.driver.replay()

    def close(self) -> None:
        """Evict the coroutine; a later replay brings it back."""
        self.driver.close()

    def log_failure(self) -> None:
        """Log the failure that the last advance recorded; a divergence was logged when it was found."""
        if self.driver.diverged is None:
            log_failed_run(self.started, self.new, self.raised())

    # Operations.

    def take_operations(self) -> list[Operation]:
        """Return the operations to be run now that their commands are committed, in the order they were called."""
        if not self._pending.operations:
            return []
        ready = self._ready_operations()
        self._pending.handed_out.update(operation.ref for operation in ready)
        return ready

    def go_on_with(self, operations: Iterable[int]) -> None:
        """Note that these operations run already."""
        self._pending.handed_out.update(operations)

    def wants_more(self) -> bool:
        """Whether operations are to be run once the last advance is committed, or results are left to deliver."""
        return bool(self._left or (self._pending.operations and self._ready_operations()))

    def _ready_operations(self) -> list[Operation]:
        if self._inbox.paused or self.driver.closed:
            return []
        return self._pending.ready_operations(self._state.open)

    # One advance.

    def advance(self, inbox: Sequence[Entry], clock: int, worker: str = "") -> Outcome:
        """Deliver what is recorded, then *inbox* and what is due by *clock*; return what to commit."""
        driver = self.driver
        if driver.closed:
            raise RuntimeError("this execution was evicted")
        if self._course.plain and _are_results(inbox):
            return self._advance_plainly(inbox, clock, worker)
        base = self._begin(clock)
        # In the order of arrival, which the store determines: clocks of senders may disagree.
        waiting = deque((*self._left, *inbox))
        self._arrived = tuple(waiting)
        driver.replay()
        if self._look_ahead.needed:
            self._look_ahead.catch_up()
        return self._go_on(waiting, clock, worker, base)

    def _advance_plainly(self, inbox: Sequence[Entry], clock: int, worker: str) -> Outcome:
        """Deliver the results of activities to a run on its plain course.

        This is `_go_on` for nearly every advance of nearly every run, and costs a third of it: no part of the run has
        anything to add between two entries or to the outcome (`Course`), so none is asked. Whatever comes up in a tick
        leaves the rest to `_go_on`.
        """
        recorder, course, root = self.recorder, self._course, self.driver.root
        log, loop, outbox, verdict = recorder.log, recorder.loop, recorder.outbox, recorder.verdict
        futures, open_commands = self._pending.futures, self._state.open
        assert root is not None
        base = self._state.last_seq
        if self._completion.history is not None:
            self._completion.begin(set())
        log.begin(clock)
        outbox.empty()
        consumed: list[int] = []
        self._inbox.consumed = consumed
        self._arrived = tuple(inbox)
        ticks = 0
        loop.enter()
        try:
            for entry in inbox:
                result: Any = entry.event
                if result.ref not in futures or result.ref not in open_commands:
                    break
                taken = log.take_result(result)
                if entry.id is not None:
                    consumed.append(entry.id)
                ticks += 1
                self.driver.tick_result(taken)
                if not course.plain or verdict.reason is not None or root.done():
                    break
            else:
                return Outcome(
                    events=tuple(log.new), consumed=tuple(consumed), activities=tuple(outbox.activities.values())
                )
        finally:
            loop.leave()
        recorder.ended_scopes.check(verdict)
        return self._go_on(deque(inbox[ticks:]), clock, worker, base, ticks)

    def _go_on(self, waiting: deque[Entry], clock: int, worker: str, base: int, ticks: int = 0) -> Outcome:
        """Deliver *waiting* and what is due; return the outcome of everything since entry *base*."""
        driver = self.driver
        ticks = self._deliver(waiting, clock, ticks)
        if self._inbox.updates.first_ran_at is None and self.recorder.log.new:
            self._inbox.updates.first_ran_at = self.recorder.log.new[0].at
        self._left = [entry for entry in waiting if entry.id is None]
        ended = driver.root_ended
        if ended and driver.verdict.reason is None:
            driver.check_orphans()
        reason = driver.verdict.reason
        if isinstance(reason, HistoryDiverged):
            return self._diverged(reason, base, worker)
        successor = None
        if ended or isinstance(reason, ContinueAsNew):
            successor = self._completion.end(waiting, reason)
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
            or self._left
            or self._inbox.paused
            or self._inbox.updates.waiting
            or self._look_ahead.needed
            or self._look_ahead.undecided
            or self._checkpoints.made
            or self._deadlines.of_workflow
            or pending.next_deadline()
            or pending.start_deadlines
            or pending.listeners
            or pending.operations
            or pending.races
            or pending.loops
            or pending.cancelled
            or handlers.any
            or handlers.schemas.changed
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
        if self._completion.history is not None:
            self._completion.begin(forgotten)
        if self._checkpoints.made:
            self._checkpoints.begin()
        self.recorder.log.begin(clock)
        self.recorder.outbox.empty()
        self._inbox.consumed = []
        return self._state.last_seq

    def _deliver(self, waiting: deque[Entry], clock: int, ticks: int) -> int:
        """Deliver what is new, an entry at a time; return the number of ticks, beginning at *ticks*."""
        driver, inbox, source = self.driver, self._inbox, self._source
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
        return self.driver.root is not None and self.driver.goes_on and not self._inbox.paused

    # The outcome of an advance.

    def _diverged(self, error: HistoryDiverged, base: int, worker: str) -> Outcome:
        log = self.recorder.log
        if self._look_ahead.undecided:
            self._look_ahead.note_started(log.new[: log.tick_start])
        error.ran = tuple(self._look_ahead.started)
        outcome = park_or_fail(self.driver, error, base, self._left, worker)
        forgotten = self._checkpoints.fields(base + len(outcome.events))
        return msgspec.structs.replace(outcome, consumed=tuple(self._inbox.consumed), **forgotten)

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
            consumed=tuple(self._inbox.consumed),
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
        if self._inbox.updates.waiting and self._takes_updates:
            refusal = self._inbox.updates.deadline()
            deadline = min((moment for moment in (deadline, refusal) if moment is not None), default=None)
        if not self._pending.start_deadlines:
            return deadline
        start_by, _ = self._pending.start_deadlines[0]
        return start_by if deadline is None else min(deadline, start_by)

    def _report(self, context: dict[str, Any]) -> None:
        """Log an error that asyncio found in the code, unless it was logged before the replay."""
        if not self.driver.closed and not self.recorder.mode.replaying:
            logger.warning(
                "workflow %r (%s): %s",
                self.workflow.name,
                self.started.entity_id,
                context.get("message"),
                exc_info=context.get("exception"),
            )


def _are_results(inbox: Sequence[Entry]) -> bool:
    """Whether an inbox holds results of activities and nothing else, and fewer than an advance may deliver."""
    for entry in inbox:
        if type(entry.event) is not events.ActivityCompleted:
            return False
    return 0 < len(inbox) < TICKS_PER_ADVANCE
