"""`Execution.advance(inbox, clock) -> Outcome`: the entry point from a history to new events."""

import asyncio
import logging
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from resurgam.core import event as events
from resurgam.core.operation import Operation
from resurgam.core.outcome import Entry, Outcome
from resurgam.core.state import Status
from resurgam.runtime.definitions.definition import Workflow
from resurgam.runtime.definitions.settings import Settings
from resurgam.runtime.execution.completion import complete_plainly
from resurgam.runtime.execution.failure_log import log_failed_run
from resurgam.runtime.execution.general_course import TICKS_PER_ADVANCE, GeneralCourse
from resurgam.runtime.replay.driver import Driver

logger = logging.getLogger("resurgam.runtime")

_SETTINGS = Settings()


class Execution:
    """The live coroutine of one workflow execution, and the log that it has reached."""

    def __init__(
        self, workflow: Workflow[..., Any], log: Sequence[events.Event], settings: Settings = _SETTINGS
    ) -> None:
        self.driver = driver = Driver(workflow, log, settings)
        self.started, self.workflow, self.recorder = driver.started, workflow, driver.recorder
        self._pending, self._state = driver.recorder.pending, driver.recorder.log.state
        self._course = driver.recorder.course
        driver.recorder.loop.on_error = self._report
        self._arrived: Sequence[Entry] = ()
        # The parts of the general course, once they are needed; they are built from the log as it was loaded.
        self._general: GeneralCourse | None = None
        self._loaded = log
        self._first_ran_at: int | None = None
        # Plain attributes, since a worker reads them at every step: whether the run is paused, so that nothing new is
        # started, and whether operations are to be run once the last advance is committed, or results are left.
        self.paused: bool = False
        self.wants_more: bool = False
        if driver.options.retry.max_attempts != 1:
            self._build_general()  # it keeps the history for the next attempt
        self._course.plain = self._starts_plainly()

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

    def pause(self) -> None:
        """Note that the run is paused."""
        self._build_general().inbox.paused = True
        self._course.leave()
        self._note_left()

    def is_open(self, ref: int) -> bool:
        """Whether a command still waits for its answer."""
        return ref in self._state.open

    def begin(self, refs: Collection[int]) -> Sequence[events.Event]:
        """Return nothing: the log of a workflow does not say when attempts begin."""
        return ()

    def holds(self, entry: Entry) -> bool:
        """Whether an entry that is not consumed waits for the code, so that it need not be delivered again."""
        return self._general is not None and self._general.inbox.holds(entry)

    def raised(self) -> BaseException | None:
        """Return the exception that ended the code; None if it returned, or has not begun."""
        return self.driver.raised()

    def replay(self) -> None:
        """Deliver every recorded entry that has not been delivered yet."""
        self.driver.replay()

    def close(self) -> None:
        """Evict the coroutine; a later replay brings it back."""
        self.driver.close()
        self._note_left()

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
        self._pending.handed_out.update((operation.ref, None) for operation in ready)
        self._note_left()
        return ready

    def go_on_with(self, operations: Iterable[int]) -> None:
        """Note that these operations run already."""
        self._pending.handed_out.update(dict.fromkeys(operations))
        self._note_left()

    def _note_left(self) -> None:
        """Note what is left to do: nothing while the run keeps to the plain course and is not paused."""
        if self._general is not None:
            self.paused = self._general.inbox.paused
            self.wants_more = bool(self._general.left or self._ready_operations())

    def _ready_operations(self) -> list[Operation]:
        if self.paused or self.driver.closed:
            return []
        return self._pending.ready_operations(self._state.open)

    # One advance.

    def advance(self, inbox: Sequence[Entry], clock: int, worker: str = "") -> Outcome:
        """Deliver what is recorded, then *inbox* and what is due by *clock*; return what to commit."""
        driver = self.driver
        if driver.closed:
            raise RuntimeError("this execution was evicted")
        if self._course.plain:
            if driver.root is None and not inbox:
                return self._start_plainly(clock, worker)
            if driver.root is not None and _are_results(inbox):
                return self._advance_plainly(inbox, clock, worker)
        general = self._build_general()
        # In the order of arrival, which the store determines: clocks of senders may disagree.
        waiting = deque((*general.left, *inbox))
        self._arrived = tuple(waiting)
        outcome = general.advance(waiting, clock, worker)
        self._note_left()
        return outcome

    def _build_general(self) -> GeneralCourse:
        """Return the general course, and build its parts when they are first needed."""
        if self._general is None:
            self._general, self._loaded = GeneralCourse(self.driver, self._loaded), ()
            if self.driver.root is not None and not self.driver.undelivered and self._first_ran_at is not None:
                self._general.note_begun(self._first_ran_at)
        return self._general

    # The plain course. This is `GeneralCourse` for nearly every advance of nearly every run, and costs a third of it:
    # no part of the run has anything to add between two entries or to the outcome (`Course`), so none is asked. What
    # comes up in a tick leaves the rest of the advance to the general course. The laws hold the two against each other.

    def _starts_plainly(self) -> bool:
        """Whether the execution is new, and its code begins at once with nothing but its arguments."""
        started = self.started
        return (
            len(self.driver.undelivered) == 1
            and started.attempt == 1
            and not (started.carried or started.children)
            and self._state.begun
            and self.driver.options.timeout is None
        )

    def _start_plainly(self, clock: int, worker: str) -> Outcome:
        driver, log, loop = self.driver, self.recorder.log, self.recorder.loop
        log.begin(clock)
        self._arrived = ()
        loop.enter()
        try:
            driver.tick(driver.undelivered.popleft())
        finally:
            loop.leave()
        outcome = self._plain_outcome((), clock)
        if outcome is None:
            return self._go_on_generally(deque(), clock, worker, self.started.seq)
        self._first_ran_at = log.new[0].at if log.new else None
        if self._general is not None:
            self._general.note_begun(self._first_ran_at)
        return outcome

    def _advance_plainly(self, inbox: Sequence[Entry], clock: int, worker: str) -> Outcome:
        """Deliver the results of activities."""
        driver, recorder, course = self.driver, self.recorder, self._course
        log, loop, futures, open_commands = recorder.log, recorder.loop, self._pending.futures, self._state.open
        base, ticks, deadlines, verdict = self._state.last_seq, 0, self._pending.deadlines, recorder.verdict
        if self._general is not None and self._general.completion.history is not None:
            self._general.completion.begin(set())
        log.begin(clock)
        recorder.outbox.empty()
        self._arrived = tuple(inbox)
        root: Any = driver.root
        consumed: list[int] = []
        loop.enter()
        try:
            for entry in inbox:
                result: Any = entry.event
                # Not the second answer to a command, nor one that the code has not asked for.
                if result.ref not in futures or result.ref not in open_commands:
                    break
                if deadlines and deadlines[0][0] <= clock:
                    break
                ticks += 1
                if entry.id is not None:
                    consumed.append(entry.id)
                driver.tick_result(log.take_result(result))
                if not course.plain or verdict.reason is not None or root.done():
                    break
        finally:
            loop.leave()
        outcome = self._plain_outcome(tuple(consumed), clock) if ticks == len(inbox) else None
        if outcome is not None:
            return outcome
        recorder.ended_scopes.check(verdict)
        self._build_general().inbox.consumed.ids = consumed
        return self._go_on_generally(deque(inbox[ticks:]), clock, worker, base, ticks)

    def _go_on_generally(self, waiting: deque[Entry], clock: int, worker: str, base: int, ticks: int = 0) -> Outcome:
        """Leave the rest of an advance to the general course."""
        outcome = self._build_general().go_on(waiting, clock, worker, base, ticks)
        self._note_left()
        return outcome

    def _plain_outcome(self, consumed: tuple[int, ...], clock: int) -> Outcome | None:
        """Return the outcome of an advance on the plain course; None if that has been left."""
        driver, log, root = self.driver, self.recorder.log, self.driver.root
        if not self._course.plain or driver.verdict.reason is not None or root is None:
            return None
        if root.done():
            if not complete_plainly(driver):
                return None
            return Outcome(events=tuple(log.new), consumed=consumed, status=Status.COMPLETED, deactivated=True)
        wake_at = None
        if self._pending.deadlines:
            found = self._pending.next_deadline()
            wake_at = None if found is None else found[0]
            if wake_at is not None and wake_at <= clock:
                return None
        activities = tuple(self.recorder.outbox.activities.values())
        return Outcome(events=tuple(log.new), consumed=consumed, activities=activities, wake_at=wake_at)

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
