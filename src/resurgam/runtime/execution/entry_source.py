"""Where the next entry of a history comes from: the engine makes it, a deadline has come, or it is in the inbox.

Entries that the engine itself makes (a signal meets its listener, a race is decided, a handler has returned) are pending
until recorded. On replay they come from the log; live they are made once every recorded entry has been delivered, and
before anything from outside, so that a crash between the two changes nothing.
"""

from collections import deque
from collections.abc import Sequence
from heapq import heappop
from typing import Any

import msgspec

from resurgam.core import event as events
from resurgam.core.commands import COMMANDS
from resurgam.core.errors import NotFound
from resurgam.core.failure import capture
from resurgam.core.outcome import Entry, Forgotten, Span, Withdrawal
from resurgam.core.retry import milliseconds
from resurgam.core.state import is_delayed
from resurgam.runtime.context.durable_loop import DurableLoop
from resurgam.runtime.definitions.definition import Workflow
from resurgam.runtime.definitions.settings import Settings
from resurgam.runtime.matching.dedup import ReceivedIds
from resurgam.runtime.matching.forgetting import dropped
from resurgam.runtime.matching.operation import Operation
from resurgam.runtime.matching.updates import Updates, goes_on
from resurgam.runtime.replay.driver import Driver


class EntrySource(Driver):
    """A coroutine with its log, and everything from which the log may grow."""

    def __init__(self, workflow: Workflow[..., Any], log: Sequence[events.Event], settings: Settings) -> None:
        super().__init__(workflow, log, settings)
        self._forgotten: list[tuple[int, list[Forgotten], tuple[Span, ...]]] = []
        self._handed_out: set[int] = set()
        self._signal_ids = ReceivedIds(log)
        self._consumed: list[int] = []
        self._updates = Updates(log)
        # The moment of the first entry after the start, which the first advance wrote.
        self._ran_at = log[1].at if len(log) > 1 else None
        # Deadlines of the workflow itself: when it begins, and when it must have ended.
        self._has_deadlines = self._options.timeout is not None or self.started.begins_at is not None
        # Somebody halted this run: nothing new is begun until it is resumed. A plain attribute, since every step asks.
        self.paused = False

    @property
    def last_seq(self) -> int:
        """The ``seq`` at which this execution stands."""
        return self._recorder.log.state.last_seq

    def is_open(self, ref: int) -> bool:
        """Whether a command still waits for its answer."""
        return ref in self._recorder.log.state.open

    # Being halted.

    def _note_pauses(self, waiting: deque[Entry]) -> None:
        """Whether this run is paused, once all that has come is known; while it is, only what is at work comes to its end."""
        for entry in waiting:
            if isinstance(entry.event, events.WorkflowPaused | events.WorkflowResumed):
                self.paused = isinstance(entry.event, events.WorkflowPaused)
        if self.paused:
            for entry in [entry for entry in waiting if isinstance(entry.event, events.WorkflowPaused)]:
                waiting.remove(entry)
                self._consume(entry)
                self._recorder.log.take_in(entry.event)

    def _held(self) -> list[Entry]:
        """Return the entries of the inbox that wait for the code to come to them."""
        return [*self._recorder.carryover.held, *self._updates.waiting.values()]

    def is_held(self, entry: Entry) -> bool:
        """Whether an entry that is not consumed waits for the code to come to it: there is no use in telling it again."""
        return self.paused or self._recorder.carryover.holds(entry) or self._updates.holds(entry)

    # Where the next entry comes from.

    def _made_entry(self, waiting: deque[Entry]) -> events.Event | None:
        """Make the first entry that is pending because of what has been delivered so far."""
        recorder = self._recorder
        made = self._carry_over() if recorder.carryover.due else None
        # An update that had to wait for its handler came before what is here now.
        made = made or (self._serve_updates() if recorder.handlers.any else None)
        mail = recorder.listeners and recorder.mailbox
        if mail and made is None and self._awaits_more(waiting):
            return None
        # A signal goes to the first listener that waits for its name, and to a handler only if there is none.
        made = made or (self._meet_listener() if mail else None)
        made = made or (self._meet_handler() if recorder.handlers.any and recorder.mailbox else None)
        made = made or (self._decide_race() if recorder.races else None)
        return made or (self._make_checkpoint() if recorder.loops else None)

    def _outside_entry(self, waiting: deque[Entry], clock: int) -> events.Event | None:
        """Return the next entry from outside; none while operations wait to be run, which comes first."""
        if self._recorder.operations and not self.paused and self._new_operations():
            return None
        watches = (self._recorder.deadlines or self._has_deadlines) and not self.paused
        while True:
            due = self._due_entry(waiting, clock) if watches else None
            entry = self._next_of(waiting) if due is None else None
            if entry is None:
                return due
            # One that means nothing, or has to wait, holds up neither what is due nor what came after it.
            taken = self._taken(entry)
            if taken is not None:
                return taken

    def _carry_over(self) -> events.Event | None:
        """Answer a call by what is carried over for it."""
        found = self._recorder.carryover.next()
        if found is None:
            return None
        answer, held = found
        if held is not None:
            self._consume(held)
        return self._carry_over() if answer is None else self._recorder.log.take_in(answer)

    def _serve_updates(self) -> events.Event | None:
        """Record the outcome of a handler that has returned, or begin the handler of an update that waits for it."""
        handlers = self._recorder.handlers
        finished = self._finished_update() if handlers.finished else None
        if finished is not None:
            return finished
        for entry in self._updates.ready(handlers.updates):
            accepted = self._accept(entry)
            if accepted is not None:
                return accepted
        return None

    def _refuse_updates(self, clock: int) -> None:
        """Refuse the updates that wait in vain for a handler: the code is at rest, and they would wait for too long."""
        until = clock if goes_on(self._recorder.log.state.open) else None
        for entry in self._updates.refuse(until, self._runs_since):
            update = entry.event
            assert isinstance(update, events.UpdateAccepted)
            self._consume(entry)
            unknown = self._recorder.handlers.unknown_update(update.name)
            self._append(events.UpdateRejected, name=update.name, id=update.id, failure=capture(unknown))

    @property
    def _runs_since(self) -> int:
        """When a worker first ran the code: an update that was sent before could not meet a handler.

        A later attempt or generation does not count anew.
        """
        log, begun = self._recorder.log, (self._began_at or 0) if is_delayed(self.started) else 0
        if (self.started.generation, self.started.attempt) != (1, 1):
            return begun
        return max(begun, log.stamp() if self._ran_at is None else self._ran_at)

    def _meet_handler(self) -> events.Event | None:
        """Hand the oldest signal that has a handler to it."""
        signal = self._recorder.mailbox.oldest(tuple(self._recorder.handlers.signals))
        if signal is None:
            return None
        scope = self._recorder.log.state.handlers + 1
        return self._append(events.SignalHandled, signal=signal.seq, scope=scope, cause=signal.seq)

    def _finished_update(self) -> events.Event | None:
        """Record what the handler of an update came to, unless that is on record already."""
        while self._recorder.handlers.finished:
            finished = self._recorder.handlers.finished.pop(0)
            about: dict[str, Any] = {"ref": finished.update.seq, "id": finished.update.id}
            if finished.update.seq not in self._recorder.log.state.updates:
                continue
            if finished.result is not None:
                return self._append(events.UpdateCompleted, result=finished.result, **about)
            return self._append(events.UpdateRejected, name=finished.update.name, failure=finished.failure, **about)
        return None

    def _accept(self, entry: Entry) -> events.Event | None:
        """Begin with an update, unless its validator refuses it, which is recorded too."""
        update = entry.event
        assert isinstance(update, events.UpdateAccepted)
        self._consume(entry)
        refused = self._recorder.handlers.refuses(update)
        log = self._recorder.log
        if refused is not None:
            self._append(events.UpdateRejected, name=update.name, id=update.id, failure=refused)
            return None
        accepted = log.take_in(msgspec.structs.replace(update, scope=log.state.handlers + 1))
        assert isinstance(accepted, events.UpdateAccepted)
        self._signal_ids.add(accepted)
        return accepted

    def _consume(self, entry: Entry) -> None:
        if entry.id is not None:
            self._consumed.append(entry.id)

    def _awaits_more(self, waiting: deque[Entry]) -> bool:
        """Whether somebody has a part of the signals that are wanted at once, and the next is here already."""
        if not waiting or self.paused or not isinstance(waiting[0].event, events.SignalReceived):
            return False
        recorder = self._recorder
        for seq, names in recorder.listeners.items():
            listener = recorder.pending[seq].command
            limit = listener.limit if isinstance(listener, events.ListenStarted) else None
            if limit is not None and 0 < recorder.mailbox.count(names) < limit and self.is_open(seq):
                return True
        return False

    def _meet_listener(self) -> events.Event | None:
        """Hand the oldest signal that somebody listens for to the first who does."""
        for seq in self._recorder.listeners:
            # One that is called off in the history, and that edited code has not called off yet, hears nothing.
            met = self._meet(seq) if self.is_open(seq) else None
            if met is not None:
                return met
        return None

    def _meet(self, seq: int) -> events.Event | None:
        """Hand a listener what waits for it."""
        listener, mailbox = self._recorder.pending[seq].command, self._recorder.mailbox
        names = self._recorder.listeners[seq]
        limit = listener.limit if isinstance(listener, events.ListenStarted) else None
        if limit is None:
            oldest = mailbox.oldest(names)
            taken: tuple[int, ...] = () if oldest is None else (oldest.seq,)
        else:
            taken = tuple(signal.seq for signal in mailbox.several(names, limit))
        return self._append(events.SignalsConsumed, ref=seq, signals=taken, cause=taken[0]) if taken else None

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

    def _forgetting(self, looping: DurableLoop, **fields: Any) -> events.Event:
        log, loop = self._recorder.log, looping.command
        kind, looping.wants = looping.wants, None
        assert kind is not None
        gone = log.footprint.through(loop, looping.done, self._recorder.handlers.unforgettable())
        entry = self._append(
            kind,
            ref=loop.seq,
            iteration=looping.done,
            variables=dict(self._recorder.state.values),
            forgotten=log.state.forgotten + len(gone),
            signals=tuple(self._signal_ids.after(gone)),
            handlers=log.state.handlers,
            **fields,
        )
        log.footprint.forget(gone)
        log.state.forget(entry.seq for entry in gone)
        self._signal_ids.forget(gone)
        self._recorder.past.forget([entry.seq for entry in gone])
        self._handed_out.difference_update(entry.seq for entry in gone)
        for forgotten in gone:
            self._recorder.begun.pop(forgotten.seq, None)
        self._forgotten.append((entry.seq, gone, dropped(loop, looping.done, log.state.handlers)))
        return entry

    def _due_entry(self, waiting: deque[Entry], clock: int) -> events.Event | None:
        """Return the next deadline that has come, unless something in the inbox came before it."""
        deadline = self._next_deadline()
        if deadline is None or deadline > clock or (waiting and waiting[0].event.at < deadline):
            return None
        if deadline == self._ends_at:
            return self._append(events.CancelRequested, at=deadline, reason="its timeout", timeout=self._timeout)
        if deadline == self._begins_at:
            return self._append(events.WorkflowBegun, at=deadline)
        seq = self._recorder.deadlines[0][1]
        command = self._recorder.pending[seq].command
        if isinstance(command, events.PromiseCreated):
            settled = _settlement(waiting, command.promise_id)
            if settled is not None:
                return self._taken(settled)
        met = self._meet(seq) if seq in self._recorder.listeners else None
        if met is not None:
            return met  # it was only waiting for more of them
        heappop(self._recorder.deadlines)
        timed_out = COMMANDS[type(command)].timed_out
        assert timed_out is not None
        entry = self._append(timed_out, ref=seq, at=deadline)
        if isinstance(command, events.PromiseCreated):
            self._recorder.outbox.add(entry.seq, "closed", command.promise_id)
        return entry

    def _next_deadline(self) -> int | None:
        deadlines = self._recorder.deadlines
        while deadlines and deadlines[0][1] not in self._recorder.pending:
            heappop(deadlines)
        first = deadlines[0][0] if deadlines else None
        if not self._has_deadlines:
            return first
        return min((moment for moment in (first, self._ends_at, self._begins_at) if moment is not None), default=None)

    @property
    def _begins_at(self) -> int | None:
        """When the code is to begin, if it has not."""
        return self.started.begins_at if self._root is None and not self._cancel_requested else None

    @property
    def _timeout(self) -> int | None:
        return None if self._options.timeout is None else milliseconds(self._options.timeout)

    @property
    def _ends_at(self) -> int | None:
        """When the workflow's own timeout is over, if it has one and has not been told; also between two attempts."""
        since = self.started.since or self._began_at
        if self._options.timeout is None or self._timed_out is not None or since is None:
            return None
        return since + milliseconds(self._options.timeout)

    def _withdraw_unbegun(self, clock: int) -> None:
        """Call off the activities that nobody has begun in time; whether that is so is the store's to say."""
        deadlines, outbox = self._recorder.start_deadlines, self._recorder.outbox
        while deadlines and (deadlines[0][0] <= clock or not self.is_open(deadlines[0][1])):
            start_by, seq = heappop(deadlines)
            command = self._recorder.log.state.open.get(seq)
            if isinstance(command, events.ActivityScheduled) and seq not in outbox.activities:
                length = (start_by - command.at) / 1000
                late = TimeoutError(f"activity {command.name!r} was not begun within {length:g} s")
                entry = events.ActivityFailed(ref=seq, at=clock, attempt=0, failure=capture(late))
                outbox.add(0, "withdrawals", Withdrawal(seq, answered=False, entry=entry, never_started=True))

    def _next_of(self, waiting: deque[Entry]) -> Entry | None:
        """Take the next entry out of the inbox; while paused, only of what this worker brings itself."""
        if not self.paused:
            if waiting and isinstance(waiting[0].event, events.CancelRequested):
                settled = _settlement(waiting)
                if settled is not None:
                    return settled
            return waiting.popleft() if waiting else None
        own = next((entry for entry in waiting if entry.id is None), None)
        if own is not None:
            waiting.remove(own)
        return own

    def _taken(self, entry: Entry) -> events.Event | None:
        event = entry.event
        if isinstance(event, events.UpdateAccepted):
            return self._update(entry, event)
        if isinstance(event, events.ChildAnswer | events.PromiseAnswer) and not event.ref:
            addressed = self._addressed(entry, event)
            if addressed is None:
                return None
            event = addressed
        self._consume(entry)
        if isinstance(event, events.SignalReceived) and event in self._signal_ids:
            return None
        if isinstance(event, events.WorkflowBegun) and self._root is not None:
            return None
        if isinstance(event, events.CancelRequested) and self._cancel_requested:
            # Whoever asks again, because they do not know whether they were heard, must not interrupt the clean-up.
            return None
        taken = self._recorder.log.take_in(event)
        if isinstance(taken, events.SignalReceived):
            self._signal_ids.add(taken)
        return taken

    def _update(self, entry: Entry, update: events.UpdateAccepted) -> events.Event | None:
        """Let an update meet its handler; one that came before is not begun again."""
        if self._signal_ids.is_forgotten(update):
            self._consume(entry)
            gone = NotFound(f"an update with id {update.id!r} came before, and what became of it is not kept any more")
            self._append(events.UpdateRejected, name=update.name, id=update.id, failure=capture(gone))
            return None
        if update in self._signal_ids or not self._updates.take(entry):
            self._consume(entry)
        return self._serve_updates() if self._recorder.handlers.any else None

    def _addressed(self, entry: Entry, event: events.ChildAnswer | events.PromiseAnswer) -> events.Answer | None:
        """Find the command that an answer from outside is for; one of an earlier attempt may come before its call."""
        state, carryover = self._recorder.log.state, self._recorder.carryover
        address = event.child if isinstance(event, events.ChildAnswer) else event.promise_id
        ref = state.addresses.get(address)
        awaited = carryover.expects(event) if isinstance(event, events.ChildAnswer) else self.started.attempt > 1
        if ref is None and awaited:
            if not carryover.holds(entry):
                carryover.hold(address, entry)
            return None
        if (
            ref is None
            or ref not in state.open
            or (isinstance(event, events.ChildAnswer) and event.by != self._begun_by(ref))
        ):
            self._consume(entry)
            return None
        # If the call was made in this very advance, nothing need be begun for it.
        self._recorder.outbox.take_back(ref, "children")
        return msgspec.structs.replace(event, ref=ref)

    def _begun_by(self, ref: int) -> str:
        """Return the attempt that began the child of a call: another one says nothing of it, even at the same place."""
        call = self._recorder.log.state.open[ref]
        assert isinstance(call, events.ChildScheduled)
        adopted = self._recorder.carryover.adopted(call)
        return self.started.execution_id if adopted is None else adopted.by

    def _append(self, kind: type[events.Event], *, at: int = 0, **fields: Any) -> events.Event:
        return self._recorder.log.append(lambda seq, stamp: kind(seq=seq, at=stamp, **fields), at=at)

    def _new_operations(self) -> list[Operation]:
        if self._closed or not self._recorder.operations:
            return []
        state = self._recorder.log.state
        return [
            operation
            for ref, operation in self._recorder.operations.items()
            if ref in state.open and ref not in self._handed_out
        ]


def _settlement(waiting: deque[Entry], promise_id: str | None = None) -> Entry | None:
    """Take the settlement of a promise out of the inbox, of this one or of any, before the promise is given up.

    Whoever sent it was told that it counts. So it does, however late it was: a promise is open until it is written down
    that it is not.
    """
    for entry in waiting:
        if isinstance(entry.event, events.PromiseAnswer) and promise_id in (None, entry.event.promise_id):
            waiting.remove(entry)
            return entry
    return None
