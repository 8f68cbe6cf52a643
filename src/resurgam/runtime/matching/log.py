"""The history of one execution, and the entries appended to it since the last commit."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from resurgam.core import event as events
from resurgam.core.state import InstanceState
from resurgam.runtime.matching.forgetting import Footprint


class Log:
    """The state that a history amounts to, and the entries appended since the last commit."""

    def __init__(self, recorded: Sequence[events.Event]) -> None:
        self.state = InstanceState(recorded)
        self.footprint = Footprint(recorded)
        self.recorded_seq = self.state.last_seq
        self.new: list[events.Event] = []
        # Where in `new` the tick began that runs now or ran last.
        self.tick_start = 0
        self._clock = 0

    def begin(self, clock: int) -> None:
        """Start an advance: the entries of the last one are committed, new ones are stamped with *clock* or later."""
        self._clock = clock
        self.new = []
        self.tick_start = 0

    @property
    def clock(self) -> int:
        """The moment of this advance."""
        return self._clock

    def is_new(self, command: events.Command) -> bool:
        """Whether a command was not in the history that this execution was loaded with."""
        return command.seq > self.recorded_seq

    def is_open(self, command: events.Command) -> bool:
        """Whether the history holds no answer to a command."""
        return command.seq in self.state.open

    def stamp(self) -> int:
        """Return the ``at`` of the next entry; it never decreases, whatever the machine's clock does."""
        return max(self._clock, self.state.last_at)

    def append(self, make: Callable[[int, int], events.Event], *, at: int = 0) -> events.Event:
        """Append what *make* returns for the next ``seq`` and its ``at``."""
        entry = make(self.state.last_seq + 1, max(self.stamp(), at))
        self.state.apply(entry)
        self.footprint.add(entry)
        self.new.append(entry)
        return entry

    def add(self, kind: type[events.Event], *, at: int = 0, **fields: Any) -> events.Event:
        """Append an entry of this kind with these fields, not stamped before *at*."""
        return self.append(lambda seq, stamp: kind(seq=seq, at=stamp, **fields), at=at)

    def take_in(self, event: events.Event) -> events.Event | None:
        """Append an entry from outside, unless it is a second answer to the same command."""
        if not self.state.accepts(event):
            return None
        return self.append(lambda seq, at: msgspec.structs.replace(event, seq=seq, at=at))

    def take_result(self, result: events.ActivityCompleted) -> events.ActivityCompleted:
        """Append the result of an open activity to a run on its plain course: `take_in` for the entry that most are."""
        state, clock = self.state, self._clock
        at = max(state.last_at, clock)
        entry = msgspec.structs.replace(result, seq=state.last_seq + 1, at=at)
        state.complete(entry)
        self.new.append(entry)
        return entry

    def close(self) -> None:
        """Append that the history is complete, if the instance has ended and no activity is outstanding."""
        state = self.state
        if state.status is not None and state.status.terminal and not state.deactivated and not outstanding(state):
            self.append(lambda seq, at: events.WorkflowDeactivated(seq=seq, at=at))


def outstanding(state: InstanceState) -> list[events.ActivityScheduled]:
    """Return the activities that are not answered: a worker may be running them."""
    return [command for command in state.open.values() if isinstance(command, events.ActivityScheduled)]
