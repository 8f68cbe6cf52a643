"""The deadlines of an execution: of its open calls, of unstarted activities, and of the workflow itself."""

from collections import deque
from heapq import heappop

from resurgam.core import event as events
from resurgam.core.commands import COMMANDS
from resurgam.core.failure import capture
from resurgam.core.outcome import Entry, Withdrawal
from resurgam.core.retry import milliseconds
from resurgam.runtime.execution.inbox import Inbox, take_settlement
from resurgam.runtime.execution.signals import meet_listener
from resurgam.runtime.replay.driver import Driver


class Deadlines:
    """Find the next deadline, and write the entry of one that has passed."""

    def __init__(self, driver: Driver, inbox: Inbox) -> None:
        self._driver = driver
        self._recorder = driver.recorder
        self._inbox = inbox
        timeout = driver.options.timeout
        self._timeout = None if timeout is None else milliseconds(timeout)
        # Whether the workflow itself has a deadline: when it begins, or when it must have ended.
        self.of_workflow = timeout is not None or driver.started.begins_at is not None

    def next(self) -> int | None:
        """Return the first deadline of the open calls and of the workflow."""
        found = self._recorder.pending.next_deadline()
        first = None if found is None else found[0]
        if not self.of_workflow:
            return first
        return min((moment for moment in (first, self._ends_at, self._begins_at) if moment is not None), default=None)

    @property
    def _begins_at(self) -> int | None:
        """When the code is to begin, if it has not."""
        waits = self._driver.root is None and not self._driver.cancel_requested
        return self._driver.started.begins_at if waits else None

    @property
    def _ends_at(self) -> int | None:
        """When the workflow's own timeout is over, if that has not been delivered; also between two attempts."""
        since = self._driver.started.since or self._driver.began_at
        if self._timeout is None or self._recorder.timed_out is not None or since is None:
            return None
        return since + self._timeout

    def due_entry(self, waiting: deque[Entry], clock: int) -> events.Event | None:
        """Write the entry of the next deadline that has passed, unless an entry of the inbox came before it."""
        deadline, log = self.next(), self._recorder.log
        if deadline is None or deadline > clock or (waiting and waiting[0].event.at < deadline):
            return None
        if deadline == self._ends_at:
            return log.add(events.CancelRequested, at=deadline, reason="its timeout", timeout=self._timeout)
        if deadline == self._begins_at:
            return log.add(events.WorkflowBegun, at=deadline)
        return self._time_out(waiting, deadline)

    def _time_out(self, waiting: deque[Entry], deadline: int) -> events.Event | None:
        """Answer the call whose deadline has passed, by what it waited for if that is here."""
        recorder, pending = self._recorder, self._recorder.pending
        seq = pending.deadlines[0][1]
        command = pending.futures[seq].command
        if isinstance(command, events.PromiseCreated):
            settled = take_settlement(waiting, command.promise_id)
            if settled is not None:
                return self._inbox.take(settled)
        met = meet_listener(recorder, seq) if seq in pending.listeners else None
        if met is not None:
            return met  # it was only waiting for more of them
        heappop(pending.deadlines)
        timed_out = COMMANDS[type(command)].timed_out
        assert timed_out is not None
        entry = recorder.log.add(timed_out, ref=seq, at=deadline)
        if isinstance(command, events.PromiseCreated):
            recorder.outbox.add(entry.seq, "closed", command.promise_id)
        return entry

    def withdraw_unstarted(self, clock: int) -> None:
        """Ask the store to withdraw the activities that no worker has started in time; only the store knows."""
        recorder = self._recorder
        deadlines, commands = recorder.pending.start_deadlines, recorder.log.state.open
        while deadlines and (deadlines[0][0] <= clock or deadlines[0][1] not in commands):
            start_by, seq = heappop(deadlines)
            command = commands.get(seq)
            if isinstance(command, events.ActivityScheduled) and seq not in recorder.outbox.activities:
                length = (start_by - command.at) / 1000
                late = TimeoutError(f"activity {command.name!r} was not begun within {length:g} s")
                entry = events.ActivityFailed(ref=seq, at=clock, attempt=0, failure=capture(late))
                recorder.outbox.add(0, "withdrawals", Withdrawal(seq, answered=False, entry=entry, never_started=True))
