"""`Execution.advance(inbox, clock) -> Outcome`: the one door from history to new events.

Entries that the engine itself makes (a signal meets its listener, a race is decided) are pending until recorded. On
replay they come from the log; live they are made once every recorded entry has been delivered.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from resurgam.core import event as events
from resurgam.core.commands import COMMANDS
from resurgam.core.errors import ContinueAsNew, Evicted, HistoryDiverged
from resurgam.core.failure import root_type
from resurgam.core.outcome import ActivityRequest, Entry, Outcome, Succession, Withdrawal
from resurgam.core.state import Status
from resurgam.runtime.definitions.definition import Workflow
from resurgam.runtime.definitions.settings import Settings
from resurgam.runtime.execution.completion import terminal_event
from resurgam.runtime.execution.entry_source import EntrySource
from resurgam.runtime.execution.late_results import IGNORED, withdraw
from resurgam.runtime.execution.parent_close import notify_children, notify_parent
from resurgam.runtime.matching.divergence import violation
from resurgam.runtime.matching.log import outstanding
from resurgam.runtime.matching.operation import Operation
from resurgam.runtime.rehearsal.rehearsal import Fits, Undecided
from resurgam.runtime.rehearsal.verify import look_ahead

_FAILED: Final = (events.WorkflowFailed, events.WorkflowRetried)

logger = logging.getLogger("resurgam.runtime")

_SETTINGS = Settings()

TICKS_PER_ADVANCE: Final = 1000
"""Ticks after which an advance ends and is committed: ``while True: await ctx.sleep(0)`` must not hold a worker."""


class Execution(EntrySource):
    """The live coroutine of one workflow execution, and the log it stands on."""

    def __init__(
        self, workflow: Workflow[..., Any], log: Sequence[events.Event], settings: Settings = _SETTINGS
    ) -> None:
        super().__init__(workflow, log, settings)
        self._recorder.loop.on_error = self._complain
        # Kept until the code has come to all of it, so that it can be rehearsed.
        self._log: Sequence[events.Event] | None = log
        self._caught_up = False
        # What was begun while it could not be told whether the code comes back to its history.
        self._undecided = False
        # Whether it comes back to all of it, whatever it will be told: then this need not be gone through again.
        self._fits = False
        self._begun: list[str] = []
        # What a worker brought itself and this has not come to yet; no store would bring it again.
        self._left: list[Entry] = []
        # What it had brought when the last advance began: to be told again, should that come to nothing.
        self.brought: list[Entry] = []
        self._base = 0
        # Kept only where it may be needed for another attempt, which begins with what this one has got.
        self._history = list(log) if self._options.retry.max_attempts != 1 else None

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
        if self._history is not None:
            self._keep_history(self._history)
        self._recorder.log.begin(clock)
        self._recorder.outbox.empty()
        self._forgotten, self._consumed = [], []
        self._base, self._mark = self.last_seq, 0
        # In the order of arrival, which is the store's to say: clocks of senders may disagree.
        waiting = deque((*self._left, *inbox))
        self.brought = [entry for entry in waiting if entry.id is None]
        self._catch_up()
        ticks = self._take_in(waiting, clock)
        if self._ran_at is None and self._recorder.log.new:
            self._ran_at = self._recorder.log.new[0].at
        self._left = [entry for entry in waiting if entry.id is None]
        verdict = self._recorder.verdict
        if self._root_ended() and verdict is None:
            self._check_orphans()
            verdict = self._recorder.verdict
        if isinstance(verdict, HistoryDiverged):
            return self._diverged(verdict, worker)
        successor = None
        if self._root_ended() or isinstance(verdict, ContinueAsNew):
            successor = self._end(waiting, verdict)
        return self._outcome(successor, clock if ticks == TICKS_PER_ADVANCE else None)

    def _catch_up(self) -> None:
        """Replay what is recorded; where the code goes its own way, see first whether it comes back."""
        self.replay()
        if self._log is not None and not self._caught_up:
            self._caught_up = True
            self._look_ahead(self._recorder.log.new, self._log)

    def _look_ahead(self, written: Sequence[events.Event], log: Sequence[events.Event]) -> None:
        """If the code asks for something new before it has come to all that is recorded, rehearse how it goes on."""
        found = look_ahead(self, log, written, rehearsed=self._fits)
        if found is not None:
            self._undecided = isinstance(found, Undecided)
            self._fits = isinstance(found, Fits) and found.whole
        if not self._recorder.past.orphans():
            self._log = None

    def _take_in(self, waiting: deque[Entry], clock: int) -> int:
        """Deliver what is new, an entry at a time; return how many there were."""
        ticks = 0
        self._note_pauses(waiting)
        with self._recorder.loop:
            while ticks < TICKS_PER_ADVANCE and self.goes_on:
                entry = self._made_entry(waiting) or self._outside_entry(waiting, clock)
                if entry is None:
                    break
                self._tick(entry)
                ticks += 1
                if self._log is not None:
                    new = self._recorder.log.new
                    self._look_ahead(new[self._mark :], self._so_far(new[: self._mark]))
        if self._updates.waiting and ticks < TICKS_PER_ADVANCE and self._takes_updates:
            self._refuse_updates(clock)
        return ticks

    @property
    def _takes_updates(self) -> bool:
        """Whether the code has begun, goes on and may register handlers."""
        return self._root is not None and self.goes_on and not self.paused

    def _keep_history(self, history: list[events.Event]) -> None:
        """Take in what the last advance brought, which is committed now, and let go of what it has forgotten."""
        gone = {entry.seq for _, forgotten, _ in self._forgotten for entry in forgotten}
        history += self._recorder.log.new
        if gone:
            self._history = [entry for entry in history if entry.seq not in gone]

    def _so_far(self, new: Sequence[events.Event]) -> list[events.Event]:
        """Return the log with what this advance has brought so far, without what it has forgotten."""
        assert self._log is not None
        gone = {entry.seq for _, forgotten, _ in self._forgotten for entry in forgotten}
        return [entry for entry in (*self._log, *new) if entry.seq not in gone]

    def take_operations(self) -> list[Operation]:
        """Return the side effects to be run now that their commands are committed, in the order they were called."""
        ready = [] if self.paused else self._new_operations()
        self._handed_out.update(operation.ref for operation in ready)
        return ready

    def go_on_with(self, operations: Iterable[int]) -> None:
        """Take these side effects for handed out: they run already."""
        self._handed_out.update(operations)

    def wants_more(self) -> bool:
        """Whether there are side effects to be run once the last advance is committed, or answers of some left."""
        return bool(self._left or (not self.paused and self._new_operations()))

    # How an advance ends.

    def _end(self, waiting: deque[Entry], verdict: BaseException | None) -> Succession | None:
        """Record the outcome, and what comes with it; return the execution that follows, if one does."""
        log = self._recorder.log
        successor = self._decide(verdict, waiting) if log.state.ended is None else None
        moves = () if successor is None else successor.moves
        for entry in waiting:
            # What the store holds for a run that goes on, it hands to the execution that follows.
            if entry.id is None or entry.event.type not in moves:
                self._record_late(entry)
        if successor is None:
            # Nobody will ask for it any more; a successor is handed it by the store.
            self._consumed += (entry.id for entry in self._held() if entry.id is not None)
        log.close()
        self.close()
        return successor

    def _decide(self, verdict: BaseException | None, waiting: Iterable[Entry]) -> Succession | None:
        """Record how this execution ends, and tell those who must know."""
        log, outbox = self._recorder.log, self._recorder.outbox
        if verdict is None:
            self._recorder.verdict = Evicted("the workflow has ended")
        self._see_to_orphans()
        self._call_off_births()
        while self._finished_update() is not None:
            pass  # whoever sent it may have been what the workflow waited for
        if self._recorder.handlers.any and (busy := len(self._recorder.handlers.at_work())):
            self._recorder.complain(f"{busy} handlers were at work when it ended, and are not heard of again")
        end, successor = terminal_event(self, verdict, self._whole_log(waiting), self._signal_ids, log.stamp())
        ended = log.append(lambda seq, at: msgspec.structs.replace(end, seq=seq, at=at))
        # Another attempt takes up the children that this one has begun.
        children = (
            () if isinstance(ended, events.WorkflowRetried) else notify_children(self.started, log.state, ended.at)
        )
        for message in (*children, *notify_parent(self.started, ended, ended.at)):
            outbox.add(ended.seq, "messages", message)
        for command in outstanding(log.state):
            # Asked for in this very commit, so nobody can have begun it.
            if command.seq in outbox.activities:
                self._append(events.ActivityCancelled, ref=command.seq)
        return successor

    def _whole_log(self, waiting: Iterable[Entry]) -> list[events.Event] | None:
        """Return all that this run has got, also what it has not been told yet, if another attempt may need it."""
        if self._history is None:
            return None
        gone = {entry.seq for _, forgotten, _ in self._forgotten for entry in forgotten}
        known = (entry for entry in (*self._history, *self._recorder.log.new) if entry.seq not in gone)
        untold = (entry.event for entry in waiting if entry.event.ref and self.is_open(entry.event.ref))
        return [*known, *untold]

    def _record_late(self, entry: Entry) -> None:
        """Record what came too late to be told; what would have begun something is let go."""
        if not isinstance(entry.event, IGNORED):
            self._taken(entry)
        else:
            self._consume(entry)

    def _call_off_births(self) -> None:
        """A child that this very commit would begin, and that must end with its parent, is not begun at all."""
        for command in list(self._recorder.log.state.open.values()):
            ends = isinstance(command, events.ChildScheduled) and command.on_parent_close != "abandon"
            if ends and self._recorder.outbox.take_back(command.seq, "children"):
                self._append(events.ChildCancelled, ref=command.seq)

    def _see_to_orphans(self) -> None:
        """Say what is left of the history that the code did not ask for, and call it off if that is wanted."""
        rule = self._options.orphans
        if rule == "allow":
            return
        for command in self._recorder.orphans():
            logger.warning(
                "workflow %r (%s): %s %r at %s is recorded, but the code does not request it",
                *(self._workflow.name, self.started.entity_id, command.command, command.name, command.location),
            )
            if rule == "cancel" and command in outstanding(self._recorder.log.state):
                self._append(events.ActivityCancelled, ref=command.seq)

    def _diverged(self, verdict: HistoryDiverged, worker: str) -> Outcome:
        """Keep the entries that were delivered, drop the commands of the tick that diverged, and say why."""
        log = self._recorder.log
        kept, lost = log.new[: self._mark], log.new[self._mark :]
        last_kept = self._base + len(kept)
        self._note_begun(kept)
        verdict.ran = tuple(self._begun)
        diagnosis = f"{type(verdict).__name__}: {verdict}"
        logger.error("workflow %r (%s) diverged: %s", self._workflow.name, self.started.entity_id, diagnosis)

        def keep(entry: events.Event) -> None:
            kept.append(msgspec.structs.replace(entry, seq=self._base + len(kept) + 1, at=log.stamp()))

        for left in self._left:
            # Held in memory only: the answer of an operation, which would otherwise be run again.
            if left.event.ref in log.state.open and (left.event.ref or 0) <= self._base + len(kept):
                keep(left.event)
        self.close()
        if self._options.fails(self._matching):
            failure = violation(verdict)
            keep(events.WorkflowFailed(failure=failure))
            answered = {entry.ref for entry in kept if isinstance(entry, COMMANDS[events.ActivityScheduled].answers)}
            outcome = self._failed([ref for ref in self._at_work(lost) if ref not in answered], failure, keep)
        else:
            before = log.state.diverged
            if before is None or before.diagnosis != diagnosis or kept:
                keep(events.WorkflowDiverged(diagnosis=diagnosis, worker=worker))
            outcome = Outcome(status=Status.DIVERGED, diagnosis=diagnosis)
        return self._parted(outcome, tuple(kept), last_kept)

    def _parted(self, outcome: Outcome, written: tuple[events.Event, ...], last_kept: int) -> Outcome:
        """Complete the outcome of an advance that diverged by what is left of it."""
        told = self._recorder.outbox.fields(last_kept)
        told["withdrawals"] = (*self._unwanted(_called_off(written)), *outcome.withdrawals)
        told["messages"] = (*told.get("messages", ()), *outcome.messages)
        return msgspec.structs.replace(
            outcome,
            events=written,
            consumed=tuple(self._consumed),
            activities=self._wanted(written) if outcome.status is Status.DIVERGED else (),
            **told,
            **self._forgets(self._base + len(written)),
        )

    def _failed(self, at_work: list[int], failure: events.Failure, keep: Callable[[events.Event], None]) -> Outcome:
        """Close a run that fails because it diverged, as far as nothing is at work any more."""
        begun = [ref for ref in at_work if ref not in self._recorder.outbox.activities]
        for ref in at_work:
            # Asked for in this very commit, so nobody can have begun it.
            if ref not in begun:
                keep(events.ActivityCancelled(ref=ref))
        if not begun:
            keep(events.WorkflowDeactivated())
        at = self._recorder.log.stamp()
        failed = events.WorkflowFailed(failure=failure)
        messages = (
            *notify_children(self.started, self._recorder.log.state, at),
            *notify_parent(self.started, failed, at),
        )
        withdrawn = withdraw(begun, at)
        return Outcome(
            status=Status.FAILED,
            deactivated=not begun,
            withdrawals=withdrawn,
            messages=messages,
            failure=root_type(failure),
        )

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

    def _outcome(self, successor: Succession | None, wake_at: int | None) -> Outcome:
        log = self._recorder.log
        self._note_begun(log.new)
        state = log.state
        ended = state.ended is not None
        called_off = _called_off(log.new)
        if not ended and self._recorder.start_deadlines:
            self._withdraw_unbegun(log.clock)
        told = self._recorder.outbox.fields(state.last_seq)
        if self._recorder.handlers.accepting.changed and not ended:
            told["signal_schemas"] = self._recorder.handlers.accepting.news()
        withdrawn = withdraw((command.seq for command in outstanding(state)), log.stamp()) if ended else ()
        strict = bool(told) and self._must_know_all(told)
        if ended and isinstance(state.ended, _FAILED):
            told["failure"] = root_type(state.ended.failure)
        return Outcome(
            events=tuple(log.new),
            consumed=tuple(self._consumed),
            activities=tuple(r for r in self._recorder.outbox.activities.values() if r.ref not in called_off),
            withdrawals=(*self._unwanted(called_off), *withdrawn, *told.pop("withdrawals", ())),
            status=state.status if ended and state.status else self._open_status(),
            deactivated=state.deactivated,
            wake_at=None if ended else wake_at or self._wakes_at(),
            successor=successor,
            strict=strict,
            **told,
            **(self._forgets(state.last_seq) if self._forgotten else {}),
        )

    def _open_status(self) -> Status:
        """Return where an execution stands that has not ended.

        A parked run that this code fits is running again, even if there is nothing to record yet; and so is a retry that
        waits for its moment.
        """
        return Status.SCHEDULED if self._root is None and self.started.attempt == 1 else Status.RUNNING

    def _must_know_all(self, told: dict[str, Any]) -> bool:
        """Whether what this commit does would be wrong if something has come that it has not seen.

        A promise that is given up may just have been settled; a child that an earlier attempt began may just have ended.
        """
        return "closed" in told or ("children" in told and self.started.attempt > 1)

    def _wakes_at(self) -> int | None:
        """Return the next moment at which there is something to be done."""
        deadline = self._next_deadline() if self._recorder.deadlines or self._has_deadlines else None
        if self._updates.waiting and self._takes_updates:
            refusal = self._updates.deadline(self._runs_since)
            deadline = min((moment for moment in (deadline, refusal) if moment is not None), default=None)
        if not self._recorder.start_deadlines:
            return deadline
        start_by, _ = self._recorder.start_deadlines[0]
        return start_by if deadline is None else min(deadline, start_by)

    def _wanted(self, written: Sequence[events.Event]) -> tuple[ActivityRequest, ...]:
        """Return the activities to be put on their queues: asked for in these entries, and not called off in them."""
        issued = {entry.seq for entry in written if isinstance(entry, events.ActivityScheduled)} - _called_off(written)
        return tuple(request for request in self._recorder.outbox.activities.values() if request.ref in issued)

    def _unwanted(self, called_off: set[int]) -> Iterator[Withdrawal]:
        """Return the withdrawals of activities that were put on their queues before, and are called off now."""
        for ref in sorted(called_off):
            if ref not in self._recorder.outbox.activities:
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
