"""Brings a history to the code that wrote it, one recorded entry at a time.

Live execution, replay and rehearsal are the same code: every entry that came from outside is delivered to the coroutine
one at a time, in the order of ``seq``, and after each the workflow's loop runs until nothing is ready. Replay merely
finds the commands already recorded. The order of delivery is what makes unchanged code replay exactly, through gather,
races and shared variables; handing results over when a call is made, or delivering two entries before running, would
not.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context as Variables
from heapq import heappop
from typing import Any, ClassVar, Final

from resurgam.core import errors
from resurgam.core import event as events
from resurgam.core.commands import COMMANDS
from resurgam.core.errors import ContinueAsNew, CorruptHistory, Evicted, HistoryDiverged
from resurgam.core.state import ENDS, is_delayed
from resurgam.runtime.context.context import Context
from resurgam.runtime.definitions.definition import Workflow, WorkflowOptions
from resurgam.runtime.definitions.settings import Settings
from resurgam.runtime.matching.divergence import raised_at, unfit_arguments
from resurgam.runtime.matching.recorder import Recorder
from resurgam.runtime.replay.delivery import (
    answer_kinds,
    begun,
    call_off,
    checkpoint,
    handled,
    is_answer,
    is_still_awaited,
    never_started,
    settle,
)

_SETTINGS = Settings()


class Driver:
    """The coroutine of one workflow execution, and the log it stands on."""

    def __init__(
        self, workflow: Workflow[..., Any], log: Sequence[events.Event], settings: Settings = _SETTINGS
    ) -> None:
        if not log or not isinstance(log[0], events.WorkflowStarted):
            raise CorruptHistory("a history begins with workflow_started; this one does not")
        self.started = log[0]
        self._workflow = workflow
        self._recorder = Recorder(log, workflow=workflow, started=self.started, settings=settings)
        self._options, self._matching = self._recorder.options, self._recorder.matching
        self._undelivered = deque(log)
        self._root: asyncio.Task[Any] | None = None
        self._cancel_requested = False
        # The timeout of the workflow itself, if it was that which asked it to stop.
        self._timed_out: int | None = None
        self._began_at: int | None = None
        self._entry = 0
        self._mark = 0
        self._closed = False

    @property
    def entry(self) -> int:
        """The ``seq`` of the entry that was delivered last."""
        return self._entry

    @property
    def workflow(self) -> Workflow[..., Any]:
        """The code."""
        return self._workflow

    @property
    def parks(self) -> bool:
        """Whether a run that diverges waits for code that fits; otherwise it is failed."""
        return not self._options.fails(self._matching)

    @property
    def orphans_fail(self) -> bool:
        """Whether recorded steps that the code does not ask for are a divergence when it ends."""
        return self._options.orphans == "error" and self._matching != "location"

    @property
    def recorder(self) -> Recorder:
        """What the code has asked for, held against its history."""
        return self._recorder

    @property
    def verdict(self) -> BaseException | None:
        """The divergence that was found, if one was."""
        return self._recorder.verdict

    @property
    def closed(self) -> bool:
        """Whether the coroutine has been put away."""
        return self._closed

    @property
    def root(self) -> "asyncio.Task[Any] | None":
        """The task that runs the workflow's function, once it has begun."""
        return self._root

    @property
    def options(self) -> WorkflowOptions:
        """How the workflow wants to be run."""
        return self._options

    @property
    def cancel_requested(self) -> bool:
        """Whether the code was asked to stop."""
        return self._cancel_requested

    @property
    def timed_out(self) -> int | None:
        """The workflow's own timeout in milliseconds, if it was that which asked the code to stop."""
        return self._timed_out

    @property
    def is_put_off(self) -> bool:
        """Whether the recorded run is scheduled for later, and neither its code has begun nor its end has come."""
        recorded = self._recorder.log.state
        begun = any(type(entry) is events.WorkflowBegun for entry in self._undelivered)
        return is_delayed(self.started) and not begun and recorded.ended is None

    def replay(self) -> None:
        """Deliver every recorded entry that has not been delivered yet."""
        if self._undelivered:
            self._recorder.replaying = self._recorder.log.recorded_seq > 1
            with self._recorder.loop:
                while self._undelivered and self.goes_on:
                    self._tick(self._undelivered.popleft())
            self._recorder.replaying = False
        self._recorder.check_ended()
        if isinstance(self._recorder.verdict, ContinueAsNew):
            self._check_goes_on(self._recorder.verdict)
        elif self._root_ended() and self._recorder.verdict is None:
            self._check_exception()
            self._check_orphans()

    def close(self) -> None:
        """Put the coroutine away. Nothing that its clean-up does is recorded; a later replay brings it back."""
        if not self._closed:
            self._closed = True
            if self._recorder.verdict is None:
                self._recorder.verdict = Evicted("this execution has been put away")
            self._recorder.loop.unwind()

    @property
    def goes_on(self) -> bool:
        """Whether the code would hear of a further entry."""
        return self._recorder.verdict is None and not self._root_ended()

    def _root_ended(self) -> bool:
        """Whether nothing more is to come of the code; it may have been called off before it had begun."""
        if self._root is None:
            return self._cancel_requested
        return self._root.done() or self._recorder.handlers.failure is not None

    # One tick.

    def _tick(self, entry: events.Event) -> None:
        """Tell the code one entry and let it run until nothing is ready."""
        kind = type(entry)
        deliver = _TOLD.get(kind)
        own = kind in _OWN_CANCELLATIONS and (deliver is None or never_started(entry))
        if own:
            deliver = Driver._call_off if is_still_awaited(self._recorder, entry) else None
        if deliver is None:
            return
        if self._recorder.called_off and not own:
            self._recorder.called_off.clear()
        # Not the commands of this tick: those that are forgotten would be missing when it is replayed.
        self._recorder.position = entry.seq
        self._recorder.now = entry.at
        self._entry = entry.seq
        if entry.seq > self._recorder.log.recorded_seq:
            self._mark = len(self._recorder.log.new)
        self._recorder.loop.open = True
        try:
            deliver(self, entry)
            if self._recorder.verdict is None:
                self._run()
        finally:
            self._recorder.loop.open = False
        if entry.seq > self._recorder.log.recorded_seq:
            self._recorder.check_ended()

    def _run(self) -> None:
        """Run until nothing is ready, and nothing is left to be told that came before the code had asked for it."""
        recorder = self._recorder
        recorder.loop.run()
        while recorder.early.overdue and recorder.verdict is None:
            _, entry = heappop(recorder.early.overdue)
            recorder.now = entry.at
            if type(entry) in _OWN_CANCELLATIONS or never_started(entry):
                call_off(recorder, entry)
            elif isinstance(entry, events.Answer):
                settle(recorder, entry)
            else:
                recorder.handlers.begin_early(entry)
            if recorder.verdict is None:
                recorder.loop.run()

    def _start(self, entry: events.Event) -> None:
        if not is_delayed(self.started):
            self._begin(entry)

    def _begin(self, entry: events.Event) -> None:
        self._began_at = entry.at
        args, self._recorder.verdict = decode_arguments(self._workflow, self.started)
        if self._recorder.verdict is None:
            coroutine = self._call(Context(self._recorder), args)
            self._root = self._recorder.loop.start_task(coroutine, self._recorder.root, "root", Variables())

    async def _call(self, context: Context, args: Sequence[object]) -> Any:
        # A coroutine around the user's: closing it ends it, even if the user's own ignores being closed.
        return await self._workflow(context, *args)

    def _settle(self, entry: events.Event) -> None:
        assert isinstance(entry, events.Answer)
        settle(self._recorder, entry)

    def _checkpoint(self, entry: events.Event) -> None:
        assert isinstance(entry, events.LoopCheckpointed)
        checkpoint(self._recorder, entry)

    def _child_begun(self, entry: events.Event) -> None:
        assert isinstance(entry, events.ChildStarted)
        begun(self._recorder, entry)

    def _handle_signal(self, entry: events.Event) -> None:
        assert isinstance(entry, events.SignalHandled)
        handled(self._recorder, entry)

    def _handle_update(self, entry: events.Event) -> None:
        assert isinstance(entry, events.UpdateAccepted)
        self._recorder.handlers.begin_update(entry)

    def _receive(self, entry: events.Event) -> None:
        assert isinstance(entry, events.SignalReceived)
        self._recorder.mailbox.put(entry)

    def _cancel(self, entry: events.Event) -> None:
        assert isinstance(entry, events.CancelRequested)
        self._cancel_requested = True
        self._timed_out = self._timed_out or entry.timeout
        self._recorder.is_late = self._timed_out is not None
        if self._root is not None:
            self._root.cancel()

    def _call_off(self, entry: events.Event) -> None:
        call_off(self._recorder, entry)

    def _terminate(self, entry: events.Event) -> None:
        """Wherever the code stands, it is over."""
        self._recorder.verdict = Evicted("the workflow has been terminated")

    def _ended_before(self, entry: events.Event) -> None:
        """The history says that the workflow ended here; the code goes on."""
        self._recorder.verdict = HistoryDiverged(
            self._recorder.root.location,
            "the workflow",
            "end",
            code_value="goes on",
            history_value=entry.type,
            event_seq=entry.seq,
        )

    _DELIVERED: ClassVar[dict[type[events.Event], Callable[["Driver", events.Event], None]]] = {
        events.WorkflowStarted: _start,
        events.WorkflowBegun: _begin,
        events.ChildStarted: _child_begun,
        events.SignalHandled: _handle_signal,
        events.UpdateAccepted: _handle_update,
        events.LoopCheckpointed: _checkpoint,
        events.SignalReceived: _receive,
        events.CancelRequested: _cancel,
        **dict.fromkeys(ENDS, _ended_before),
        events.WorkflowTerminated: _terminate,
    }
    """What is told to the code beside the answers to its commands."""

    # How a replay ends.

    def _check_exception(self) -> None:
        """An exception that leaves the root while the history goes on is a change of the code, not a failure."""
        error = self.raised()
        if error is not None:
            self._check_goes_on(error)

    def raised(self) -> BaseException | None:
        """Return what left the code; nothing if it returned, or has not begun."""
        if self._recorder.handlers.failure is not None:
            return self._recorder.handlers.failure
        if self._root is None or not self._root.done():
            return None
        return asyncio.CancelledError() if self._root.cancelled() else self._root.exception()

    def _check_goes_on(self, ended: BaseException) -> None:
        """Find that the code has come to its end, and its history has not."""
        further = self._recorder.unasked() or self._undelivered_entry()
        if further is not None:
            self._recorder.verdict = HistoryDiverged(
                self._recorder.root.location,
                "the workflow",
                "end",
                code_value=errors.describe(ended),
                history_value=f"{further.type} and what follows it",
                event_seq=further.seq,
                source=raised_at(ended),
            )

    def _check_orphans(self) -> None:
        """Code that has returned has asked for all that it ever will."""
        if self._root is not None and self._root.done() and not self._root.cancelled() and not self._root.exception():
            loop = self._recorder.loop
            if not loop.interrupted and all(task is self._root for task in loop.tasks):
                self._recorder.handlers.check_early()
            self._recorder.check_orphans()

    def _undelivered_entry(self) -> events.Event | None:
        """Return the next recorded entry that the code should have heard of before its end."""
        for entry in self._undelivered:
            if isinstance(entry, _ENDS):
                return None
            if is_answer(entry) or type(entry) in self._DELIVERED:
                return entry
        return None


def decode_arguments(
    workflow: Workflow[..., Any], started: events.WorkflowStarted
) -> tuple[Sequence[object], HistoryDiverged | None]:
    """Return the arguments that a run was started with, or the divergence if the code does not take them.

    It is a change of the code, even if nothing but the arguments is recorded: a deployment with a mistake in it must not
    fail every run that waits in a queue.
    """
    assert workflow.signature is not None
    try:
        args, _ = workflow.signature.decode(started.input)
    except (errors.SerializationError, errors.DefinitionError) as error:
        return (), unfit_arguments(workflow, started, error)
    return args, None


_TOLD: Final = {**dict.fromkeys(answer_kinds(), Driver._settle), **Driver._DELIVERED}
"""What each kind of entry does to the code; a kind that is not here is part of the history and nothing more."""
_ENDS: Final = tuple(ENDS)
_OWN_CANCELLATIONS: Final = frozenset({*(kind.cancelled for kind in COMMANDS.values()), events.ChildCancelled} - {None})
