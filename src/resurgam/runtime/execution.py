"""`Execution.advance(inbox, clock) -> Outcome`: the one door from history to new events.

Live execution and replay are the same code: every entry that came from outside is delivered to the coroutine one at a
time, in the order of ``seq``, and after each the workflow's loop runs until nothing is ready. Replay merely finds the
commands already recorded. The order of delivery is what makes unchanged code replay exactly, through gather, races
and shared variables; handing results over when a call is made, or delivering two entries before running, would not.

Entries that the engine itself makes (a signal meets its listener, a race is decided) are pending until recorded. On
replay they come from the log; live they are made once every recorded entry has been delivered.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextvars import Context as Variables
from heapq import heappop
from typing import Any, Final

import msgspec

from resurgam.core import errors
from resurgam.core import event as events
from resurgam.core.errors import CorruptHistory, Evicted, HistoryDiverged
from resurgam.core.failure import capture, in_user_code
from resurgam.core.outcome import ActivityRequest, Entry, Outcome, Withdrawal
from resurgam.core.state import Status
from resurgam.runtime.context import Context
from resurgam.runtime.definition import Workflow
from resurgam.runtime.delivery import is_answer, settle
from resurgam.runtime.log import outstanding, withdraw
from resurgam.runtime.operation import Operation
from resurgam.runtime.recorder import Recorder

logger = logging.getLogger("resurgam.runtime")

TICKS_PER_ADVANCE: Final = 1000
"""Ticks after which an advance ends and is committed: ``while True: await ctx.sleep(0)`` must not hold a worker."""

_ENDS = (events.WorkflowCompleted, events.WorkflowFailed, events.WorkflowCancelled, events.WorkflowTerminated)


class Execution:
    """The live coroutine of one workflow execution, and the log it stands on."""

    def __init__(self, workflow: Workflow[..., Any], log: Sequence[events.Event]) -> None:
        if not log or not isinstance(log[0], events.WorkflowStarted):
            raise CorruptHistory("a history begins with workflow_started; this one does not")
        self.started = log[0]
        self._workflow = workflow
        self._recorder = Recorder(log, seed=self.started.run_id, matching=self.started.matching)
        self._recorder.loop.on_error = self._complain
        self._undelivered = deque(log)
        self._root: asyncio.Task[Any] | None = None
        self._handed_out: set[int] = set()
        self._signal_ids = {entry.id for entry in log if isinstance(entry, events.SignalReceived)}
        # What a worker brought itself and this has not come to yet; no store would bring it again.
        self._left: list[Entry] = []
        self._cancel_requested = False
        self._base = 0
        self._entry = 0
        self._mark = 0
        self._closed = False

    @property
    def last_seq(self) -> int:
        """The ``seq`` at which this execution stands."""
        return self._recorder.log.state.last_seq

    @property
    def entry(self) -> int:
        """The ``seq`` of the entry that was delivered last."""
        return self._entry

    @property
    def new(self) -> tuple[events.Event, ...]:
        """What has been appended since the last advance began."""
        return tuple(self._recorder.log.new)

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

    def advance(self, inbox: Sequence[Entry], clock: int, worker: str = "") -> Outcome:
        """Deliver what is recorded, then *inbox* and what is due by *clock*; return what to commit."""
        if self._closed:
            raise RuntimeError("this execution has been put away")
        self._recorder.log.begin(clock)
        self._recorder.requests = {}
        self._base, self._mark = self.last_seq, 0
        # In the order of arrival, which is the store's to say: clocks of senders may disagree.
        waiting = deque((*self._left, *inbox))
        consumed: list[int] = []
        self.replay()
        ticks = self._take_in(waiting, consumed, clock)
        self._left = [entry for entry in waiting if entry.id is None]
        if isinstance(self._recorder.verdict, HistoryDiverged):
            return self._park(consumed, worker)
        if self._root_ended():
            self._end(waiting, consumed)
        return self._outcome(consumed, clock if ticks == TICKS_PER_ADVANCE else None)

    def _take_in(self, waiting: deque[Entry], consumed: list[int], clock: int) -> int:
        """Deliver what is new, an entry at a time; return how many there were."""
        ticks = 0
        with self._recorder.loop:
            while ticks < TICKS_PER_ADVANCE and self._goes_on():
                entry = self._made_entry() or self._outside_entry(waiting, consumed, clock)
                if entry is None:
                    break
                self._tick(entry)
                ticks += 1
        return ticks

    def replay(self) -> None:
        """Deliver every recorded entry that has not been delivered yet."""
        if self._undelivered:
            self._recorder.replaying = self._recorder.log.recorded_seq > 1
            with self._recorder.loop:
                while self._undelivered and self._goes_on():
                    self._tick(self._undelivered.popleft())
            self._recorder.replaying = False
        self._recorder.check_ended()
        if self._root_ended() and self._recorder.verdict is None:
            self._check_exception()

    def take_operations(self) -> list[Operation]:
        """Return the side effects to be run now that their commands are committed, in the order they were called."""
        ready = self._new_operations()
        self._handed_out.update(operation.ref for operation in ready)
        return ready

    def wants_more(self) -> bool:
        """Whether there are side effects to be run once the last advance is committed, or answers of some left."""
        return bool(self._left or self._new_operations())

    def is_open(self, ref: int) -> bool:
        """Whether a command still waits for its answer."""
        return ref in self._recorder.log.state.open

    def close(self) -> None:
        """Put the coroutine away. Nothing that its clean-up does is recorded; a later replay brings it back."""
        if not self._closed:
            self._closed = True
            if self._recorder.verdict is None:
                self._recorder.verdict = Evicted("this execution has been put away")
            self._recorder.loop.put_away()

    # One tick.

    def _goes_on(self) -> bool:
        return self._recorder.verdict is None and not self._root_ended()

    def _root_ended(self) -> bool:
        return self._root is not None and self._root.done()

    def _was_ended(self) -> bool:
        return self._recorder.log.state.ended is not None

    def _tick(self, entry: events.Event) -> None:
        """Tell the code one entry and let it run until nothing is ready."""
        deliver = _DELIVERED.get(type(entry)) or (Execution._settle if is_answer(entry) else None)
        self._recorder.position = max(self._recorder.position, entry.seq)
        if deliver is None:
            return
        self._recorder.now = entry.at
        self._entry = entry.seq
        if entry.seq > self._recorder.log.recorded_seq:
            self._mark = len(self._recorder.log.new)
        self._recorder.loop.open = True
        try:
            deliver(self, entry)
            if self._recorder.verdict is None:
                self._recorder.loop.run()
        finally:
            self._recorder.loop.open = False
        if entry.seq > self._recorder.log.recorded_seq:
            self._recorder.check_ended()

    def _start(self, entry: events.Event) -> None:
        assert isinstance(entry, events.WorkflowStarted)
        context = Context(self._recorder, entry)
        coroutine = self._call(context, entry)
        root = self._recorder.root
        self._root = self._recorder.loop.strand(coroutine, root, "root", Variables())

    async def _call(self, context: Context, entry: events.WorkflowStarted) -> Any:
        # Decoding is inside the coroutine, so that arguments that no longer fit end the run like any other error.
        assert self._workflow.signature is not None
        args, _ = self._workflow.signature.decode(entry.input)
        return await self._workflow(context, *args)

    def _settle(self, entry: events.Event) -> None:
        assert isinstance(entry, events.Answer)
        settle(self._recorder, entry)

    def _receive(self, entry: events.Event) -> None:
        assert isinstance(entry, events.SignalReceived)
        self._recorder.put_signal(entry)

    def _cancel(self, entry: events.Event) -> None:
        assert self._root is not None
        self._cancel_requested = True
        self._root.cancel()

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

    # Where the next entry comes from.

    def _made_entry(self) -> events.Event | None:
        """Make the first entry that is pending because of what has been delivered so far."""
        recorder = self._recorder
        made = self._meet_listener() if recorder.listeners and recorder.mailbox else None
        return made or (self._decide_race() if recorder.races else None)

    def _outside_entry(self, waiting: deque[Entry], consumed: list[int], clock: int) -> events.Event | None:
        """Return the next entry from outside; none while operations wait to be run, which comes first."""
        if self._recorder.operations and self._new_operations():
            return None
        due = self._due_entry(waiting, clock) if self._recorder.deadlines else None
        return due or self._taken_entry(waiting, consumed)

    def _meet_listener(self) -> events.Event | None:
        """Hand the oldest signal that somebody listens for to the first who does."""
        mailbox = self._recorder.mailbox
        for seq, names in self._recorder.listeners.items():
            waiting = [mailbox[name][0] for name in names if mailbox.get(name)]
            if waiting:
                signal = min(waiting, key=lambda signal: signal.seq)
                return self._append(events.SignalsConsumed, ref=seq, signals=(signal.seq,), cause=signal.seq)
        return None

    def _decide_race(self) -> events.Event | None:
        for seq, race in self._recorder.races.items():
            if race.winner is not None and seq in self._recorder.pending:
                return self._append(events.RaceDecided, ref=seq, winner=race.winner, cause=self._entry)
        return None

    def _due_entry(self, waiting: deque[Entry], clock: int) -> events.Event | None:
        """Return the next deadline that has come, unless something in the inbox came before it."""
        deadline = self._next_deadline()
        if deadline is None or deadline > clock or (waiting and waiting[0].event.at < deadline):
            return None
        _, seq = heappop(self._recorder.deadlines)
        timed_out = isinstance(self._recorder.pending[seq].command, events.ListenStarted)
        return self._append(events.ListenTimedOut if timed_out else events.TimerFired, ref=seq, at=deadline)

    def _next_deadline(self) -> int | None:
        deadlines = self._recorder.deadlines
        while deadlines and deadlines[0][1] not in self._recorder.pending:
            heappop(deadlines)
        return deadlines[0][0] if deadlines else None

    def _taken_entry(self, waiting: deque[Entry], consumed: list[int]) -> events.Event | None:
        while waiting:
            entry = waiting.popleft()
            if entry.id is not None:
                consumed.append(entry.id)
            if isinstance(entry.event, events.SignalReceived):
                if entry.event.id in self._signal_ids:
                    continue
                self._signal_ids.add(entry.event.id)
            taken = self._recorder.log.take_in(entry.event)
            if taken is not None:
                return taken
        return None

    def _append(self, kind: type[events.Event], *, at: int = 0, **fields: Any) -> events.Event:
        return self._recorder.log.append(lambda seq, stamp: kind(seq=seq, at=stamp, **fields), at=at)

    # How an advance ends.

    def _new_operations(self) -> list[Operation]:
        if not self._recorder.operations:
            return []
        state = self._recorder.log.state
        return [
            operation
            for ref, operation in self._recorder.operations.items()
            if ref in state.open and ref not in self._handed_out
        ]

    def _check_exception(self) -> None:
        """An exception that leaves the root while the history goes on is a change of the code, not a failure."""
        assert self._root is not None
        error = asyncio.CancelledError() if self._root.cancelled() else self._root.exception()
        if error is None:
            return
        further = self._recorder.unasked() or self._undelivered_entry()
        if further is not None:
            self._recorder.verdict = HistoryDiverged(
                self._recorder.root.location,
                "the workflow",
                "end",
                code_value=errors.describe(error),
                history_value=f"{further.type} and what follows it",
                event_seq=further.seq,
            )

    def _undelivered_entry(self) -> events.Event | None:
        """Return the next recorded entry that the code should have heard of before its end."""
        for entry in self._undelivered:
            if isinstance(entry, _ENDS):
                return None
            if is_answer(entry) or type(entry) in _DELIVERED:
                return entry
        return None

    def _end(self, waiting: deque[Entry], consumed: list[int]) -> None:
        """Record the outcome, and what comes with it."""
        log = self._recorder.log
        if not self._was_ended():
            self._recorder.verdict = Evicted("the workflow has ended")
            log.append(self._ending())
            for command in outstanding(log.state):
                # Asked for in this very commit, so nobody can have begun it.
                if command.seq in self._recorder.requests:
                    self._append(events.ActivityCancelled, ref=command.seq)
        while self._taken_entry(waiting, consumed) is not None:
            pass
        log.close()
        self.close()

    def _ending(self) -> Callable[[int, int], events.Event]:
        assert self._root is not None
        if self._root.cancelled():
            error: BaseException = asyncio.CancelledError("cancelled, though nobody asked for it")
        elif (raised := self._root.exception()) is not None:
            error = raised
        else:
            try:
                result = self._workflow.result.check(self._root.result(), f"result of workflow {self._workflow.name!r}")
            except errors.SerializationError as unwritable:
                error = unwritable
            else:
                return lambda seq, at: events.WorkflowCompleted(seq=seq, at=at, result=result)
        if self._root.cancelled() and self._cancel_requested:
            return lambda seq, at: events.WorkflowCancelled(seq=seq, at=at)
        failure = capture(in_user_code(error))
        return lambda seq, at: events.WorkflowFailed(seq=seq, at=at, failure=failure)

    def _park(self, consumed: list[int], worker: str) -> Outcome:
        """Keep the entries that were delivered, drop the commands of the tick that diverged, and say why."""
        log = self._recorder.log
        kept = log.new[: self._mark]
        diagnosis = str(self._recorder.verdict)
        before = log.state.diverged
        logger.error("workflow %r (%s) diverged: %s", self._workflow.name, self.started.entity_id, diagnosis)

        def keep(entry: events.Event) -> None:
            kept.append(msgspec.structs.replace(entry, seq=self._base + len(kept) + 1, at=log.stamp()))

        for left in self._left:
            # Held in memory only: the answer of an operation, which would otherwise be run again.
            if left.event.ref in log.state.open and (left.event.ref or 0) <= self._base + len(kept):
                keep(left.event)
        if before is None or before.diagnosis != diagnosis or kept:
            keep(events.WorkflowDiverged(diagnosis=diagnosis, worker=worker))
        self.close()
        return Outcome(
            events=tuple(kept),
            consumed=tuple(consumed),
            activities=self._wanted(kept),
            withdrawals=tuple(self._unwanted(_called_off(kept))),
            status=Status.DIVERGED,
            diagnosis=diagnosis,
        )

    def _outcome(self, consumed: list[int], wake_at: int | None) -> Outcome:
        log = self._recorder.log
        state = log.state
        ended = state.ended is not None
        called_off = _called_off(log.new)
        withdrawn = withdraw(outstanding(state), log.stamp()) if ended else ()
        return Outcome(
            events=tuple(log.new),
            consumed=tuple(consumed),
            activities=tuple(r for r in self._recorder.requests.values() if r.ref not in called_off),
            withdrawals=(*self._unwanted(called_off), *withdrawn),
            # A parked run that this code fits is running again, even if there is nothing to record yet.
            status=state.status if ended and state.status else Status.RUNNING,
            deactivated=state.deactivated,
            wake_at=None if ended else wake_at or self._next_deadline(),
        )

    def _wanted(self, written: Sequence[events.Event]) -> tuple[ActivityRequest, ...]:
        """Return the activities to be put on their queues: asked for in these entries, and not called off in them."""
        issued = {entry.seq for entry in written} - _called_off(written)
        return tuple(request for request in self._recorder.requests.values() if request.ref in issued)

    def _unwanted(self, called_off: set[int]) -> Iterator[Withdrawal]:
        """Return the withdrawals of activities that were put on their queues before, and are called off now."""
        for ref in sorted(called_off):
            if ref not in self._recorder.requests:
                yield Withdrawal(ref, answered=True)

    def _complain(self, context: dict[str, Any]) -> None:
        if not self._closed and not self._recorder.replaying:
            logger.warning(
                "workflow %r (%s): %s",
                self._workflow.name,
                self.started.entity_id,
                context.get("message"),
                exc_info=context.get("exception"),
            )


_DELIVERED: Final[dict[type[events.Event], Callable[[Execution, events.Event], None]]] = {
    events.WorkflowStarted: Execution._start,
    events.SignalReceived: Execution._receive,
    events.CancelRequested: Execution._cancel,
    **dict.fromkeys(_ENDS, Execution._ended_before),
    events.WorkflowTerminated: Execution._terminate,
}
"""What is told to the code beside the answers to its commands."""


def _called_off(written: Sequence[events.Event]) -> set[int]:
    return {entry.ref for entry in written if isinstance(entry, events.ActivityCancelled)}
