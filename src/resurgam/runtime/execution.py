"""`Execution.advance(inbox, clock) -> Outcome`: the one door from history to new events.

Entries that the engine itself makes (a signal meets its listener, a race is decided) are pending until recorded. On
replay they come from the log; live they are made once every recorded entry has been delivered.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop
from typing import Any, Final

import msgspec

from resurgam.core import errors
from resurgam.core import event as events
from resurgam.core.command import ANSWERS
from resurgam.core.errors import Evicted, HistoryDiverged
from resurgam.core.failure import capture, in_user_code
from resurgam.core.outcome import ActivityRequest, Entry, Forgotten, Outcome, Span, Withdrawal
from resurgam.core.state import Status
from resurgam.runtime.definition import Workflow
from resurgam.runtime.driver import Driver
from resurgam.runtime.forgetting import SignalIds, dropped
from resurgam.runtime.log import outstanding, withdraw
from resurgam.runtime.looping import Looping
from resurgam.runtime.operation import Operation
from resurgam.runtime.rehearsal import Fits, Undecided
from resurgam.runtime.verify import foresee

logger = logging.getLogger("resurgam.runtime")

TICKS_PER_ADVANCE: Final = 1000
"""Ticks after which an advance ends and is committed: ``while True: await ctx.sleep(0)`` must not hold a worker."""


class Execution(Driver):
    """The live coroutine of one workflow execution, and the log it stands on."""

    def __init__(self, workflow: Workflow[..., Any], log: Sequence[events.Event]) -> None:
        super().__init__(workflow, log)
        self._recorder.loop.on_error = self._complain
        # Kept until the code has come to all of it, so that it can be rehearsed.
        self._log: Sequence[events.Event] | None = log
        self._caught_up = False
        self._forgotten: list[tuple[int, list[Forgotten], tuple[Span, ...]]] = []
        self._handed_out: set[int] = set()
        self._signal_ids = SignalIds(log)
        # What was begun while it could not be told whether the code comes back to its history.
        self._undecided = False
        # Whether it comes back to all of it, whatever it will be told: then this need not be gone through again.
        self._fits = False
        self._begun: list[str] = []
        # What a worker brought itself and this has not come to yet; no store would bring it again.
        self._left: list[Entry] = []
        self._base = 0

    @property
    def last_seq(self) -> int:
        """The ``seq`` at which this execution stands."""
        return self._recorder.log.state.last_seq

    @property
    def new(self) -> tuple[events.Event, ...]:
        """What has been appended since the last advance began."""
        return tuple(self._recorder.log.new)

    def advance(self, inbox: Sequence[Entry], clock: int, worker: str = "") -> Outcome:
        """Deliver what is recorded, then *inbox* and what is due by *clock*; return what to commit."""
        if self._closed:
            raise RuntimeError("this execution has been put away")
        if self._log is not None:
            self._log = self._so_far(self._recorder.log.new)
        self._recorder.log.begin(clock)
        self._recorder.requests = {}
        self._forgotten = []
        self._base, self._mark = self.last_seq, 0
        # In the order of arrival, which is the store's to say: clocks of senders may disagree.
        waiting = deque((*self._left, *inbox))
        consumed: list[int] = []
        self._catch_up()
        ticks = self._take_in(waiting, consumed, clock)
        self._left = [entry for entry in waiting if entry.id is None]
        if self._root_ended():
            self._check_orphans()
        if isinstance(self._recorder.verdict, HistoryDiverged):
            return self._diverged(self._recorder.verdict, consumed, worker)
        if self._root_ended():
            self._end(waiting, consumed)
        return self._outcome(consumed, clock if ticks == TICKS_PER_ADVANCE else None)

    def _catch_up(self) -> None:
        """Replay what is recorded; where the code goes its own way, see first whether it comes back."""
        self.replay()
        if self._log is not None and not self._caught_up:
            self._caught_up = True
            self._look_ahead(self._recorder.log.new, self._log)

    def _look_ahead(self, written: Sequence[events.Event], log: Sequence[events.Event]) -> None:
        """If the code asks for something new before it has come to all that is recorded, rehearse how it goes on."""
        found = foresee(self, log, written, rehearsed=self._fits)
        if found is not None:
            self._undecided = isinstance(found, Undecided)
            self._fits = isinstance(found, Fits) and found.whole
        if not self._recorder.past.orphans():
            self._log = None

    def _take_in(self, waiting: deque[Entry], consumed: list[int], clock: int) -> int:
        """Deliver what is new, an entry at a time; return how many there were."""
        ticks = 0
        with self._recorder.loop:
            while ticks < TICKS_PER_ADVANCE and self.goes_on:
                entry = self._made_entry() or self._outside_entry(waiting, consumed, clock)
                if entry is None:
                    break
                self._tick(entry)
                ticks += 1
                if self._log is not None:
                    new = self._recorder.log.new
                    self._look_ahead(new[self._mark :], self._so_far(new[: self._mark]))
        return ticks

    def _so_far(self, new: Sequence[events.Event]) -> list[events.Event]:
        """Return the log with what this advance has brought so far, without what it has forgotten."""
        assert self._log is not None
        gone = {entry.seq for _, forgotten, _ in self._forgotten for entry in forgotten}
        return [entry for entry in (*self._log, *new) if entry.seq not in gone]

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

    # Where the next entry comes from.

    def _made_entry(self) -> events.Event | None:
        """Make the first entry that is pending because of what has been delivered so far."""
        recorder = self._recorder
        made = self._meet_listener() if recorder.listeners and recorder.mailbox else None
        made = made or (self._decide_race() if recorder.races else None)
        return made or (self._make_checkpoint() if recorder.loops else None)

    def _outside_entry(self, waiting: deque[Entry], consumed: list[int], clock: int) -> events.Event | None:
        """Return the next entry from outside; none while operations wait to be run, which comes first."""
        if self._recorder.operations and self._new_operations():
            return None
        due = self._due_entry(waiting, clock) if self._recorder.deadlines else None
        return due or self._taken_entry(waiting, consumed)

    def _meet_listener(self) -> events.Event | None:
        """Hand the oldest signal that somebody listens for to the first who does."""
        for seq, names in self._recorder.listeners.items():
            # One that is called off in the history, and that edited code has not called off yet, hears nothing.
            signal = self._recorder.mailbox.oldest(names) if self.is_open(seq) else None
            if signal is not None:
                return self._append(events.SignalsConsumed, ref=seq, signals=(signal.seq,), cause=signal.seq)
        return None

    def _decide_race(self) -> events.Event | None:
        for seq, race in self._recorder.races.items():
            if race.winner is not None and seq in self._recorder.pending:
                return self._append(events.RaceDecided, ref=seq, winner=race.winner, cause=self._entry)
        return None

    def _make_checkpoint(self) -> events.Event | None:
        """Write down how far a loop has come, or its end, and forget what led there."""
        for looping in self._recorder.loops.values():
            if looping.wants is events.LoopCheckpointed:
                return self._forgetting(looping, state=looping.state)
            whole = looping.command.forget_every is not None and looping.is_quiet()
            if looping.wants is events.LoopCompleted and whole:
                return self._forgetting(looping, result=looping.value, whole=True)
            if looping.wants is events.LoopCompleted:
                looping.wants = None
                ref, done = looping.command.seq, looping.done
                return self._append(events.LoopCompleted, ref=ref, iteration=done, result=looping.value)
        return None

    def _forgetting(self, looping: Looping, **fields: Any) -> events.Event:
        log, loop = self._recorder.log, looping.command
        kind, looping.wants = looping.wants, None
        assert kind is not None
        gone = log.footprint.through(loop, looping.done)
        entry = self._append(
            kind,
            ref=loop.seq,
            iteration=looping.done,
            variables=dict(self._recorder.variables),
            forgotten=log.state.forgotten + len(gone),
            signals=tuple(self._signal_ids.after(gone)),
            **fields,
        )
        log.footprint.forget(gone)
        log.state.forget(entry.seq for entry in gone)
        self._signal_ids.forget(gone)
        self._recorder.past.forget([entry.seq for entry in gone])
        self._handed_out.difference_update(entry.seq for entry in gone)
        self._forgotten.append((entry.seq, gone, dropped(loop, looping.done)))
        return entry

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
            if isinstance(entry.event, events.SignalReceived) and entry.event.id in self._signal_ids:
                continue
            taken = self._recorder.log.take_in(entry.event)
            if isinstance(taken, events.SignalReceived):
                self._signal_ids.add(taken)
            if taken is not None:
                return taken
        return None

    def _append(self, kind: type[events.Event], *, at: int = 0, **fields: Any) -> events.Event:
        return self._recorder.log.append(lambda seq, stamp: kind(seq=seq, at=stamp, **fields), at=at)

    # How an advance ends.

    def _new_operations(self) -> list[Operation]:
        if self._closed or not self._recorder.operations:
            return []
        state = self._recorder.log.state
        return [
            operation
            for ref, operation in self._recorder.operations.items()
            if ref in state.open and ref not in self._handed_out
        ]

    def _end(self, waiting: deque[Entry], consumed: list[int]) -> None:
        """Record the outcome, and what comes with it."""
        log = self._recorder.log
        if log.state.ended is None:
            self._recorder.verdict = Evicted("the workflow has ended")
            self._see_to_orphans()
            log.append(self._ending())
            for command in outstanding(log.state):
                # Asked for in this very commit, so nobody can have begun it.
                if command.seq in self._recorder.requests:
                    self._append(events.ActivityCancelled, ref=command.seq)
        while self._taken_entry(waiting, consumed) is not None:
            pass
        log.close()
        self.close()

    def _see_to_orphans(self) -> None:
        """Say what is left of the history that the code did not ask for, and call it off if that is wanted."""
        rule = self._options.orphans
        if rule == "allow":
            return
        for command in self._recorder.orphans():
            logger.warning(
                "workflow %r (%s): %s %r at %s is recorded, and the code does not ask for it",
                *(self._workflow.name, self.started.entity_id, command.command, command.name, command.location),
            )
            if rule == "cancel" and command in outstanding(self._recorder.log.state):
                self._append(events.ActivityCancelled, ref=command.seq)

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

    def _diverged(self, verdict: HistoryDiverged, consumed: list[int], worker: str) -> Outcome:
        """Keep the entries that were delivered, drop the commands of the tick that diverged, and say why."""
        log = self._recorder.log
        kept, lost = log.new[: self._mark], log.new[self._mark :]
        self._note_begun(kept)
        verdict.ran = tuple(self._begun)
        diagnosis = str(verdict)
        logger.error("workflow %r (%s) diverged: %s", self._workflow.name, self.started.entity_id, diagnosis)

        def keep(entry: events.Event) -> None:
            kept.append(msgspec.structs.replace(entry, seq=self._base + len(kept) + 1, at=log.stamp()))

        for left in self._left:
            # Held in memory only: the answer of an operation, which would otherwise be run again.
            if left.event.ref in log.state.open and (left.event.ref or 0) <= self._base + len(kept):
                keep(left.event)
        self.close()
        if self._options.fails(self._matching):
            keep(events.WorkflowFailed(failure=events.Failure(type="DETERMINISM_VIOLATION", message=diagnosis)))
            answered = {entry.ref for entry in kept if isinstance(entry, ANSWERS[events.ActivityScheduled])}
            outcome = self._failed([ref for ref in self._at_work(lost) if ref not in answered], keep)
        else:
            before = log.state.diverged
            if before is None or before.diagnosis != diagnosis or kept:
                keep(events.WorkflowDiverged(diagnosis=diagnosis, worker=worker))
            outcome = Outcome(status=Status.DIVERGED, diagnosis=diagnosis)
        written = tuple(kept)
        return msgspec.structs.replace(
            outcome,
            events=written,
            consumed=tuple(consumed),
            activities=self._wanted(written) if outcome.status is Status.DIVERGED else (),
            withdrawals=(*self._unwanted(_called_off(written)), *outcome.withdrawals),
            **self._forgets(self._base + len(written)),
        )

    def _failed(self, at_work: list[int], keep: Callable[[events.Event], None]) -> Outcome:
        """Close a run that fails because it diverged, as far as nothing is at work any more."""
        begun = [ref for ref in at_work if ref not in self._recorder.requests]
        for ref in at_work:
            # Asked for in this very commit, so nobody can have begun it.
            if ref not in begun:
                keep(events.ActivityCancelled(ref=ref))
        if not begun:
            keep(events.WorkflowDeactivated())
        withdrawn = withdraw(begun, self._recorder.log.stamp())
        return Outcome(status=Status.FAILED, deactivated=not begun, withdrawals=withdrawn)

    def _at_work(self, lost: Sequence[events.Event]) -> list[int]:
        """Return the activities that are still at work once the entries of the tick that diverged are dropped."""
        gone = {entry.seq for entry in lost}
        at_work = {command.seq for command in outstanding(self._recorder.log.state)}
        return sorted((at_work | _called_off(lost)) - gone)

    def _forgets(self, last_seq: int) -> dict[str, Any]:
        """Return what is forgotten by the checkpoints up to an entry."""
        made = [(gone, spans) for seq, gone, spans in self._forgotten if seq <= last_seq]
        return {
            "forgotten": tuple(entry for gone, _ in made for entry in gone),
            "dropped": tuple(span for _, spans in made for span in spans),
        }

    def _note_begun(self, written: Sequence[events.Event]) -> None:
        if self._undecided:
            commands = (entry for entry in written if isinstance(entry, events.Command))
            self._begun += (f"{entry.name or entry.type} at {entry.location}" for entry in commands)

    def _outcome(self, consumed: list[int], wake_at: int | None) -> Outcome:
        log = self._recorder.log
        self._note_begun(log.new)
        state = log.state
        ended = state.ended is not None
        called_off = _called_off(log.new)
        withdrawn = withdraw((command.seq for command in outstanding(state)), log.stamp()) if ended else ()
        return Outcome(
            events=tuple(log.new),
            consumed=tuple(consumed),
            activities=tuple(r for r in self._recorder.requests.values() if r.ref not in called_off),
            withdrawals=(*self._unwanted(called_off), *withdrawn),
            # A parked run that this code fits is running again, even if there is nothing to record yet.
            status=state.status if ended and state.status else Status.RUNNING,
            deactivated=state.deactivated,
            wake_at=None if ended else wake_at or self._next_deadline(),
            **(self._forgets(state.last_seq) if self._forgotten else {}),
        )

    def _wanted(self, written: Sequence[events.Event]) -> tuple[ActivityRequest, ...]:
        """Return the activities to be put on their queues: asked for in these entries, and not called off in them."""
        issued = {entry.seq for entry in written if isinstance(entry, events.ActivityScheduled)} - _called_off(written)
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


def _called_off(written: Sequence[events.Event]) -> set[int]:
    return {entry.ref for entry in written if isinstance(entry, events.ActivityCancelled)}
