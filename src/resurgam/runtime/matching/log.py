"""The history of one execution, and the entries appended to it since the last commit."""

from collections.abc import Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from resurgam.core import event as events
from resurgam.core.state import RUNNING, InstanceState
from resurgam.runtime.matching.forgetting import BEGINNINGS, Footprint

E = TypeVar("E", bound=events.Event)
S = TypeVar("S", events.ActivityScheduled, events.TimerStarted)


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
        clock, last_at = self._clock, self.state.last_at
        if clock > last_at:
            return clock
        return last_at

    def append(self, entry: E) -> E:
        """Append an entry, made with the next ``seq`` and the `stamp` of now."""
        self.state.apply(entry)
        if self.footprint.watches or type(entry) in BEGINNINGS:
            self.footprint.add(entry)
        self.new.append(entry)
        return entry

    def schedule(self, command: S) -> S:
        """Append the command of an activity or a timer: `append` for the entry that most others are."""
        state = self.state
        if state.status is not RUNNING or self.footprint.watches:
            return self.append(command)
        state.schedule(command)
        self.new.append(command)
        return command

    def add(self, kind: type[E], *, at: int = 0, **fields: Any) -> E:
        """Append an entry of this kind with these fields, not stamped before *at*."""
        return self.append(kind(seq=self.state.last_seq + 1, at=max(self.stamp(), at), **fields))

    def add_copy(self, event: E) -> E:
        """Append an entry that has no ``seq`` yet."""
        return self.append(replace(event, seq=self.state.last_seq + 1, at=self.stamp()))

    def take_in(self, event: E) -> E | None:
        """Append an entry from outside, unless it is a second answer to the same command."""
        return self.add_copy(event) if self.state.accepts(event) else None

    def take_result(self, result: events.ActivityCompleted) -> events.ActivityCompleted:
        """Append the result of an open activity to a run on its plain course: `take_in` for the entry that most are.

        A tick begins with it.
        """
        state = self.state
        entry = replace(result, seq=state.last_seq + 1, at=self.stamp())
        state.complete(entry)
        self.new.append(entry)
        self.tick_start = len(self.new)
        return entry

    def close(self) -> None:
        """Append that the history is complete, if the instance has ended and no activity is outstanding."""
        state = self.state
        if state.status is not None and state.status.terminal and not state.deactivated and not outstanding(state):
            self.add(events.WorkflowDeactivated)


def outstanding(state: InstanceState) -> list[events.ActivityScheduled]:
    """Return the activities that are not answered: a worker may be running them."""
    return [command for command in state.open.values() if isinstance(command, events.ActivityScheduled)]
