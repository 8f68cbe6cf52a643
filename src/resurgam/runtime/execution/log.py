"""The end of a history where new entries are appended, and the closing of an instance that has ended."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from resurgam.core import event as events
from resurgam.core.outcome import Entry, Message, Outcome, Withdrawal
from resurgam.core.state import InstanceState, Status
from resurgam.runtime.execution.parent_close import closing, telling
from resurgam.runtime.matching.forgetting import Footprint

LET_GO: Final = (
    *(events.UpdateAccepted, events.WorkflowBegun),
    *(events.WorkflowPaused, events.WorkflowResumed),
)
"""What has no meaning for an instance that has ended, and is not recorded: it would have begun or halted something."""


class Log:
    """What an execution's history amounts to, and what has been appended to it since the last commit."""

    def __init__(self, recorded: Sequence[events.Event]) -> None:
        self.state = InstanceState(recorded)
        self.footprint = Footprint(recorded)
        self.recorded_seq = self.state.last_seq
        self.new: list[events.Event] = []
        self._clock = 0

    def begin(self, clock: int) -> None:
        """Start an advance: what is appended from now on is stamped with *clock*, or later."""
        self._clock = clock
        self.new = []

    @property
    def clock(self) -> int:
        """The moment of this advance."""
        return self._clock

    def stamp(self) -> int:
        """Return the ``at`` of the next entry; it never goes back, whatever the machine's clock does."""
        return max(self._clock, self.state.last_at)

    def append(self, make: Callable[[int, int], events.Event], *, at: int = 0) -> events.Event:
        """Append what *make* returns for the next ``seq`` and its ``at``."""
        entry = make(self.state.last_seq + 1, max(self.stamp(), at))
        self.state.apply(entry)
        self.footprint.add(entry)
        self.new.append(entry)
        return entry

    def take_in(self, event: events.Event) -> events.Event | None:
        """Append what came from outside, unless it is a second answer to the same command."""
        if not self.state.accepts(event):
            return None
        return self.append(lambda seq, at: msgspec.structs.replace(event, seq=seq, at=at))

    def close(self) -> None:
        """Append that the history is complete, if the instance has ended and no activity is outstanding."""
        state = self.state
        if state.status is not None and state.status.terminal and not state.deactivated and not outstanding(state):
            self.append(lambda seq, at: events.WorkflowDeactivated(seq=seq, at=at))


def outstanding(state: InstanceState) -> list[events.ActivityScheduled]:
    """Return the activities that somebody may still be at work on."""
    return [command for command in state.open.values() if isinstance(command, events.ActivityScheduled)]


def withdraw(refs: Iterable[int], clock: int) -> tuple[Withdrawal, ...]:
    """Return the withdrawals that end what nobody has begun yet, once the workflow itself has ended."""
    return tuple(Withdrawal(ref, answered=False, entry=events.ActivityCancelled(at=clock, ref=ref)) for ref in refs)


def conclude(recorded: Sequence[events.Event], inbox: Sequence[Entry], clock: int) -> Outcome:
    """Record what comes for an instance whose outcome is decided. Its code is not run again.

    Recording is unconditional while work is outstanding; once the history is complete, what still lies in the inbox
    (a signal that crossed the end on its way) is taken out without a trace.
    """
    log = Log(recorded)
    log.begin(clock)
    for entry in inbox:
        event = _addressed(log.state, entry.event)
        if not log.state.deactivated and not isinstance(event, LET_GO):
            log.take_in(event)
    messages = _last_words(log, recorded)
    log.close()
    return Outcome(
        messages=messages,
        events=tuple(log.new),
        consumed=tuple(entry.id for entry in inbox if entry.id is not None),
        # Again, because an attempt that has failed since then may have left a retry behind.
        withdrawals=withdraw((command.seq for command in outstanding(log.state)), log.stamp()),
        status=log.state.status or Status.RUNNING,
        deactivated=log.state.deactivated,
    )


def _last_words(log: Log, recorded: Sequence[events.Event]) -> tuple[Message, ...]:
    """Return what an instance that the store has ended has to say to others: nobody has told them yet.

    It may come to this again while work is outstanding. Who knows already takes it for a double; but to be asked to stop
    once more would call off the clean-up of a child, so it is written down that it was asked.
    """
    started, ended, at = log.state.started, log.state.ended, log.clock
    if not isinstance(ended, events.WorkflowTerminated) or log.state.deactivated:
        return ()
    assert isinstance(started, events.WorkflowStarted)
    first = recorded[-1] is ended
    messages = (*closing(started, log.state, at, earlier=first), *telling(started, ended, at))
    for command in list(log.state.open.values()):
        asked = isinstance(command, events.ChildScheduled) and command.on_parent_close == "cancel"
        if asked and command.seq not in log.state.cancel_requested:
            log.append(lambda seq, at, ref=command.seq: events.ChildCancelRequested(seq=seq, at=at, ref=ref))  # type: ignore[misc]
    return messages


def _addressed(state: InstanceState, event: events.Event) -> events.Event:
    """Return an answer that came with an address as one to the command that has it."""
    if isinstance(event, events.PromiseAnswer) and not event.ref:
        return msgspec.structs.replace(event, ref=state.addresses.get(event.promise_id, 0))
    own = state.started is not None and state.started.execution_id
    if isinstance(event, events.ChildAnswer) and not event.ref and event.by == own:
        return msgspec.structs.replace(event, ref=state.addresses.get(event.child, 0))
    return event
