"""Deliver a history to the code that wrote it, one entry at a time.

Live execution, replay and rehearsal share this code: every entry that came from outside is delivered to the coroutine
one at a time, in the order of ``seq``, and after each the workflow's loop runs until nothing is ready. Replay merely
finds the commands already recorded. The order of delivery is what makes unchanged code replay exactly, through gather,
races and shared variables; settling a future when its call is made, or delivering two entries before running, would
not.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context as Variables
from typing import Any, Final

from resurgam.core import errors
from resurgam.core import event as events
from resurgam.core.commands import COMMANDS
from resurgam.core.errors import ContinueAsNew, CorruptHistory, Evicted, HistoryDiverged
from resurgam.core.state import ENDS, is_delayed
from resurgam.runtime.context.context import Context
from resurgam.runtime.definitions.definition import Workflow
from resurgam.runtime.definitions.settings import Settings
from resurgam.runtime.matching.divergence import orphaned, raised_at, unfit_arguments
from resurgam.runtime.matching.handlers import Handlers
from resurgam.runtime.matching.mode import LIVE, REPLAYING, Mode
from resurgam.runtime.matching.recorder import Recorder
from resurgam.runtime.replay.delivery import (
    answer_kinds,
    cancel_as_recorded,
    checkpoint,
    child_started,
    is_answer,
    is_still_awaited,
    settle,
    settle_result,
)

_SETTINGS = Settings()


class Driver:
    """Run the coroutine of one workflow on its history, a tick at a time."""

    def __init__(
        self,
        workflow: Workflow[..., Any],
        log: Sequence[events.Event],
        settings: Settings = _SETTINGS,
        mode: Mode = LIVE,
    ) -> None:
        if not log or not isinstance(log[0], events.WorkflowStarted):
            raise CorruptHistory("a history begins with workflow_started; this one does not")
        self.started = log[0]
        self.workflow = workflow
        self.recorder = Recorder(log, workflow=workflow, started=self.started, settings=settings, mode=mode)
        self.handlers = Handlers(self.recorder)
        self.options, self.verdict = self.recorder.options, self.recorder.verdict
        self.undelivered = deque(log)
        # The task that runs the workflow's function, once it has begun.
        self.root: asyncio.Task[Any] | None = None
        self.began_at: int | None = None
        self.cancel_requested = False
        self.closed = False

    @property
    def parks(self) -> bool:
        """Whether a run that diverges waits for code that fits; otherwise it is failed."""
        return not self.options.fails(self.recorder.matching)

    @property
    def orphans_fail(self) -> bool:
        """Whether recorded steps that the code has not reached are a divergence when it ends."""
        return self.options.orphans == "error" and self.recorder.matching != "location"

    @property
    def diverged(self) -> HistoryDiverged | None:
        """The divergence that was found, if one was."""
        return self.verdict.reason if isinstance(self.verdict.reason, HistoryDiverged) else None

    @property
    def is_delayed(self) -> bool:
        """Whether the recorded run is scheduled for later, and neither its code has begun nor its end has come."""
        begun = any(type(entry) is events.WorkflowBegun for entry in self.undelivered)
        return is_delayed(self.started) and not begun and self.recorder.log.state.ended is None

    @property
    def goes_on(self) -> bool:
        """Whether a further entry would reach the code."""
        return self.verdict.reason is None and not self.root_ended

    @property
    def root_ended(self) -> bool:
        """Whether the code has ended, or was cancelled before it had begun."""
        if self.root is None:
            return self.cancel_requested
        return self.root.done() or self.handlers.failure is not None

    def raised(self) -> BaseException | None:
        """Return the exception that ended the code; None if it returned, or has not begun."""
        if self.handlers.failure is not None:
            return self.handlers.failure
        if self.root is None or not self.root.done():
            return None
        return asyncio.CancelledError() if self.root.cancelled() else self.root.exception()

    def replay(self) -> None:
        """Deliver every recorded entry that has not been delivered yet."""
        recorder = self.recorder
        if self.undelivered:
            mode = recorder.mode
            if mode is LIVE and recorder.log.recorded_seq > 1:
                recorder.mode = REPLAYING
            with recorder.loop:
                self._deliver_recorded()
            recorder.mode = mode
        recorder.ended_scopes.check(recorder.verdict)
        if isinstance(self.verdict.reason, ContinueAsNew):
            self._check_goes_on(self.verdict.reason)
        elif self.root_ended and self.verdict.reason is None:
            self._check_exception()
            self.check_orphans()

    def _deliver_recorded(self) -> None:
        """Deliver the recorded entries that have not been delivered yet, as long as the code goes on."""
        undelivered, futures, verdict = self.undelivered, self.recorder.pending.futures, self.verdict
        goes_on = self.goes_on
        while undelivered and goes_on:
            entry = undelivered.popleft()
            if type(entry) is events.ActivityCompleted and entry.ref in futures:
                self.tick_result(entry)
            elif type(entry) in _TICKS:
                self.tick(entry)
            else:
                continue  # half of the entries are commands, which change nothing
            goes_on = verdict.reason is None and not self.root_ended

    def close(self) -> None:
        """Evict the coroutine. Nothing that its clean-up does is recorded; a later replay brings it back."""
        if not self.closed:
            self.closed = True
            if self.verdict.reason is None:
                self.verdict.decide(Evicted("this execution was evicted"))
            self.recorder.close()

    # One tick.

    def tick(self, entry: events.Event) -> None:
        """Deliver one entry to the code, and run it until nothing is ready."""
        kind, recorder = type(entry), self.recorder
        deliver = _DELIVERED.get(kind)
        own = kind in _MAY_BE_OWN and (deliver is None or events.was_never_started(entry))
        if own:
            deliver = _cancel_as_recorded if is_still_awaited(recorder, entry) else None
        if deliver is None:
            return
        if recorder.pending.cancelled and not own:
            recorder.pending.cancelled = ()
        # Not the commands of this tick: forgotten ones would be missing when it is replayed.
        recorder.entry, recorder.now = entry.seq, entry.at
        log, loop = recorder.log, recorder.loop
        is_new = entry.seq > log.recorded_seq
        if is_new:
            log.tick_start = len(log.new)
        loop.open = True
        try:
            deliver(self, entry)
            if self.verdict.reason is None:
                loop.run()
                if recorder.early.overdue:
                    self.deliver_overdue()
        finally:
            loop.open = False
        if is_new and recorder.ended_scopes.returned:
            recorder.ended_scopes.check(recorder.verdict)

    def tick_result(self, entry: events.ActivityCompleted) -> None:
        """Deliver the result of an activity that the code waits for: `tick` for the entry that most are."""
        recorder = self.recorder
        loop, pending = recorder.loop, recorder.pending
        if pending.cancelled:
            pending.cancelled = ()
        recorder.entry, recorder.now = entry.seq, entry.at
        loop.open = True
        try:
            settle_result(recorder, entry, pending.futures.pop(entry.ref))
            if recorder.verdict.reason is None:
                loop.run()
                if recorder.early.overdue:
                    self.deliver_overdue()
        finally:
            loop.open = False

    def deliver_overdue(self) -> None:
        """Deliver the entries whose calls the code has made by now, each followed by a run of the loop."""
        recorder = self.recorder
        while recorder.early.overdue and self.verdict.reason is None:
            entry = recorder.early.next_overdue()
            recorder.now = entry.at
            if type(entry) in _OWN_CANCELLATIONS or events.was_never_started(entry):
                cancel_as_recorded(recorder, entry)
            elif isinstance(entry, events.Answer):
                settle(recorder, entry)
            else:
                self.handlers.begin_early(entry)
            if self.verdict.reason is None:
                recorder.loop.run()

    def begin(self, at: int) -> None:
        """Call the workflow's function with the arguments that the run was started with."""
        self.began_at = at
        args, misfit = decode_arguments(self.workflow, self.started)
        if misfit is not None:
            self.verdict.decide(misfit)
            return
        coroutine = self._call(Context(self.recorder, self.handlers), args)
        self.root = self.recorder.loop.start_task(coroutine, self.recorder.root, "root", Variables())

    async def _call(self, context: Context, args: Sequence[object]) -> Any:
        # A coroutine around the user's: closing it ends it, even if the user's own ignores being closed.
        return await self.workflow(context, *args)

    # How a replay ends.

    def _check_exception(self) -> None:
        """Diverge if an exception ended the code while its history goes on: the code has changed."""
        error = self.raised()
        if error is not None:
            self._check_goes_on(error)

    def _check_goes_on(self, ended: BaseException) -> None:
        """Diverge if the code has ended and its history has not."""
        further = self.recorder.recorded.first_missing() or self._undelivered_entry()
        if further is not None:
            error = HistoryDiverged(
                self.recorder.root.location,
                "the workflow",
                "end",
                code_value=errors.describe(ended),
                history_value=f"{further.type} and what follows it",
                event_seq=further.seq,
                source=raised_at(ended),
            )
            self.verdict.decide(error)

    def check_orphans(self) -> None:
        """Diverge if the code has returned without reaching steps that its workflow requires."""
        root, recorder = self.root, self.recorder
        if root is None or not root.done() or root.cancelled() or root.exception():
            return
        loop = recorder.loop
        if not loop.interrupted and all(task is root for task in loop.tasks):
            self.handlers.check_early()
        if not self.orphans_fail or self.verdict.reason is not None:
            return
        recorded = recorder.recorded
        left = next((left for left in recorded.orphans() if not recorded.is_keyed(left.location)), None)
        if left is not None:
            self.verdict.decide(orphaned(left, recorder.root))

    def _undelivered_entry(self) -> events.Event | None:
        """Return the next recorded entry that should have been delivered before the code's end."""
        for entry in self.undelivered:
            if isinstance(entry, _ENDS):
                return None
            if is_answer(entry) or type(entry) in _DELIVERED_OTHERS:
                return entry
        return None


def decode_arguments(
    workflow: Workflow[..., Any], started: events.WorkflowStarted
) -> tuple[Sequence[object], HistoryDiverged | None]:
    """Return the arguments that a run was started with, or the divergence if the code does not accept them.

    That is a change of the code, even if nothing but the arguments is recorded: a deployment with a mistake in it must
    not fail every run that waits in a queue.
    """
    assert workflow.signature is not None
    try:
        args, named = workflow.signature.decode(started.input)
        if named:
            # A step of a flow passes its inputs by name.
            args = workflow.signature.in_order(args, named)
    except (errors.SerializationError, errors.DefinitionError) as error:
        return (), unfit_arguments(workflow, started, error)
    return args, None


# The effect of each kind of entry on the code, beside the answers to its commands.


def _start(driver: Driver, entry: events.Event) -> None:
    if not is_delayed(driver.started):
        driver.begin(entry.at)


def _begin(driver: Driver, entry: events.Event) -> None:
    driver.begin(entry.at)


def _settle(driver: Driver, entry: events.Event) -> None:
    assert isinstance(entry, events.Answer)
    settle(driver.recorder, entry)


def _checkpoint(driver: Driver, entry: events.Event) -> None:
    assert isinstance(entry, events.LoopCheckpointed)
    checkpoint(driver.recorder, entry)


def _child_started(driver: Driver, entry: events.Event) -> None:
    assert isinstance(entry, events.ChildStarted)
    child_started(driver.recorder, entry)


def _handle_signal(driver: Driver, entry: events.Event) -> None:
    assert isinstance(entry, events.SignalHandled)
    driver.handlers.begin_signal(entry, driver.recorder.mailbox.take_one(entry.signal))


def _handle_update(driver: Driver, entry: events.Event) -> None:
    assert isinstance(entry, events.UpdateAccepted)
    driver.handlers.begin_update(entry)


def _receive(driver: Driver, entry: events.Event) -> None:
    assert isinstance(entry, events.SignalReceived)
    driver.recorder.mailbox.put(entry)


def _cancel(driver: Driver, entry: events.Event) -> None:
    assert isinstance(entry, events.CancelRequested)
    driver.cancel_requested = True
    driver.recorder.timed_out = driver.recorder.timed_out or entry.timeout
    if driver.root is not None:
        driver.root.cancel()


def _cancel_as_recorded(driver: Driver, entry: events.Event) -> None:
    cancel_as_recorded(driver.recorder, entry)


def _terminate(driver: Driver, entry: events.Event) -> None:
    driver.verdict.decide(Evicted("the workflow has been terminated"))


def _ended_before(driver: Driver, entry: events.Event) -> None:
    """Diverge: the recorded workflow ended here, and the code goes on."""
    error = HistoryDiverged(
        driver.recorder.root.location,
        "the workflow",
        "end",
        code_value="goes on",
        history_value=entry.type,
        event_seq=entry.seq,
    )
    driver.verdict.decide(error)


_Deliver = Callable[[Driver, events.Event], None]
_DELIVERED_OTHERS: Final[dict[type[events.Event], _Deliver]] = {
    events.WorkflowStarted: _start,
    events.WorkflowBegun: _begin,
    events.ChildStarted: _child_started,
    events.SignalHandled: _handle_signal,
    events.UpdateAccepted: _handle_update,
    events.LoopCheckpointed: _checkpoint,
    events.SignalReceived: _receive,
    events.CancelRequested: _cancel,
    **dict.fromkeys(ENDS, _ended_before),
    events.WorkflowTerminated: _terminate,
}
_DELIVERED: Final = {**dict.fromkeys(answer_kinds(), _settle), **_DELIVERED_OTHERS}
"""The effect of each kind of entry on the code; a kind that is not here is part of the history and nothing more."""

_ENDS: Final = tuple(ENDS)
_OWN_CANCELLATIONS: Final = frozenset(
    {events.ChildCancelled, *(kind.cancelled for kind in COMMANDS.values() if kind.cancelled is not None)}
)
"""Entries that the code's own cancellations leave, which the code knows already."""
_MAY_BE_OWN: Final = _OWN_CANCELLATIONS.union({events.FlowAnswered})
_TICKS: Final = _OWN_CANCELLATIONS.union(_DELIVERED)
"""Entries that may reach the code."""
