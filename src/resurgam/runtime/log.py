"""The end of a history where new entries are appended, and the closing of an instance that has ended."""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from resurgam.core import event as events
from resurgam.core.outcome import Entry, Outcome, Withdrawal
from resurgam.core.state import InstanceState, Status
from resurgam.runtime.forgetting import Footprint


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
        if not log.state.deactivated:
            log.take_in(entry.event)
    log.close()
    return Outcome(
        events=tuple(log.new),
        consumed=tuple(entry.id for entry in inbox if entry.id is not None),
        # Again, because an attempt that has failed since then may have left a retry behind.
        withdrawals=withdraw((command.seq for command in outstanding(log.state)), log.stamp()),
        status=log.state.status or Status.RUNNING,
        deactivated=log.state.deactivated,
    )
