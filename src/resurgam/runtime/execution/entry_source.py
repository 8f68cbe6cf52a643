"""Find the next entry of a live history: the engine makes it, a deadline has passed, or it is in the inbox.

Entries that the engine itself makes (a signal meets its listener, a race is decided, a handler has returned) are
pending until recorded. On replay they come from the log; live they are made once every recorded entry has been
delivered, and before anything from outside, so that a crash between the two changes nothing.
"""

from collections import deque

from resurgam.core import event as events
from resurgam.core.outcome import Entry
from resurgam.runtime.execution.checkpoints import Checkpoints
from resurgam.runtime.execution.deadlines import Deadlines
from resurgam.runtime.execution.inbox import Inbox
from resurgam.runtime.execution.signals import awaits_more, meet_any_listener, meet_handler
from resurgam.runtime.replay.driver import Driver


class EntrySource:
    """Append the next entry to the log of an execution, from wherever it comes."""

    def __init__(self, driver: Driver, inbox: Inbox, checkpoints: Checkpoints, deadlines: Deadlines) -> None:
        self._recorder, self._handlers = driver.recorder, driver.handlers
        self._pending = driver.recorder.pending
        self._inbox = inbox
        self._checkpoints = checkpoints
        self._deadlines = deadlines

    def next(self, waiting: deque[Entry], clock: int) -> events.Event | None:
        """Return the next entry, taken out of *waiting* or due by *clock*; None if there is nothing to deliver."""
        return self._made_entry(waiting) or self._outside_entry(waiting, clock)

    def _made_entry(self, waiting: deque[Entry]) -> events.Event | None:
        """Make the first entry that is pending because of what has been delivered so far."""
        recorder, pending, handlers = self._recorder, self._pending, self._handlers
        made = self._carry_over() if recorder.carryover.due else None
        # An update that had to wait for its handler came before what is in the mailbox now.
        made = made or (self._inbox.updates.next_entry() if handlers.any else None)
        mail = pending.listeners and recorder.mailbox
        if mail and made is None and not self._inbox.paused and awaits_more(recorder, waiting):
            return None
        # A signal goes to the first listener that waits for its name, and to a handler only if there is none.
        made = made or (meet_any_listener(recorder) if mail else None)
        made = made or (meet_handler(recorder, handlers) if handlers.any and recorder.mailbox else None)
        made = made or (self._decide_race() if pending.races else None)
        return made or (self._checkpoints.next_entry() if pending.loops else None)

    def _outside_entry(self, waiting: deque[Entry], clock: int) -> events.Event | None:
        """Return the next entry from outside; none while operations wait to be run, which come first."""
        inbox, pending = self._inbox, self._pending
        if pending.operations and not inbox.paused and pending.ready_operations(self._recorder.log.state.open):
            return None
        watches = (pending.deadlines or self._deadlines.of_workflow) and not inbox.paused
        while True:
            due = self._deadlines.due_entry(waiting, clock) if watches else None
            entry = inbox.next(waiting) if due is None else None
            if entry is None:
                return due
            # One that means nothing, or has to wait, delays neither what is due nor what came after it.
            taken = inbox.take(entry)
            if taken is not None:
                return taken

    def _carry_over(self) -> events.Event | None:
        """Answer a call by what an earlier attempt got, or by what came before the call was made."""
        found = self._recorder.carryover.next()
        if found is None:
            return None
        answer, held = found
        if held is not None:
            self._inbox.consumed.add(held)
        return self._carry_over() if answer is None else self._recorder.log.take_in(answer)

    def _decide_race(self) -> events.Event | None:
        for seq, race in self._pending.races.items():
            if race.winner is not None and seq in self._pending.futures:
                cause = self._recorder.entry
                return self._recorder.log.add(events.RaceDecided, ref=seq, winner=race.winner, cause=cause)
        return None
