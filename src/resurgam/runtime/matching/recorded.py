"""The commands of a history as it was loaded, and which of them the code has reached."""

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import Final

import msgspec

from resurgam.core import event as events
from resurgam.core.commands import COMMANDS
from resurgam.core.history import History
from resurgam.core.location import Coordinate, Location
from resurgam.core.matchers import Cursor
from resurgam.runtime.loop.verdict import Verdict
from resurgam.runtime.matching.pending import PendingCommands

_NO_HISTORY: Final = History(())
"""Of runs that begin; a history is a snapshot, so that all of them can share it."""


class RecordedCommands:
    """The recorded commands, and which of them the code has reached or skipped."""

    def __init__(self, log: Sequence[events.Event], matching: str) -> None:
        self._by_location = matching == "location"
        # By type, not isinstance: this is done for every entry of every history that is read.
        self._commands: dict[int, events.Command] = {e.seq: e for e in log if type(e) in COMMANDS}  # type: ignore[misc]
        self._history = History(self._commands.values()) if self._commands else _NO_HISTORY
        self._checkpoints: dict[int, events.LoopCheckpointed] = {}
        self._completions: dict[int, events.LoopCompleted] = {}
        if self._commands and events.LoopStarted in set(map(type, self._commands.values())):
            self._find_checkpoints(log)
        self._reached: dict[int, None] = {}
        self._skipped: dict[int, Location] = {}
        self._keyed: set[tuple[Coordinate, ...]] | None = None
        self._loops: set[tuple[Coordinate, ...]] | None = None
        self.last_seq = log[-1].seq if log else 0

    def _find_checkpoints(self, log: Sequence[events.Event]) -> None:
        for entry in log:
            if isinstance(entry, events.LoopCheckpointed):
                self._checkpoints[entry.ref] = entry
            elif isinstance(entry, events.LoopCompleted):
                self._completions[entry.ref] = entry

    def newest_checkpoint(self, loop: events.LoopStarted) -> events.LoopCheckpointed | None:
        """Return the last recorded checkpoint of a loop."""
        return self._checkpoints.get(loop.seq)

    def completion_of(self, loop: events.LoopStarted) -> events.LoopCompleted | None:
        """Return the recorded end of a loop."""
        return self._completions.get(loop.seq)

    def cursor(self, scope: Location) -> Cursor:
        """Return a cursor at the beginning of what is recorded of a scope."""
        return Cursor(self._history.commands(scope))

    def command(self, seq: int) -> events.Command:
        """Return a command by its ``seq``."""
        return self._commands[seq]

    def reach(self, command: events.Command) -> None:
        """Note that the code has made a recorded call."""
        self._reached[command.seq] = None

    def skip(self, command: events.Command) -> None:
        """Skip a command and everything below it; its answer has no receiver."""
        self._reached[command.seq] = None
        self._skipped[command.seq] = command.location

    def is_reached(self, ref: int) -> bool:
        """Whether the code has made the call with this ``seq``; it has made every call that is not recorded."""
        return ref > self.last_seq or ref in self._reached

    def is_skipped(self, ref: int) -> bool:
        """Whether the command with this ``seq`` is a removed call, or has its location below one."""
        location = self._commands[ref].location
        return ref in self._skipped or any(removed.contains(location) for removed in self._skipped.values())

    def code_location(self, scope: Location) -> Location:
        """Return the same location for every iteration of a recorded loop: an edit of its body is one for all of them."""
        if self._loops is None:
            loops = (entry for entry in self._commands.values() if isinstance(entry, events.LoopStarted))
            self._loops = {entry.location.coordinates for entry in loops}
        parts = scope.coordinates
        body = ((1,) if parts[:depth] in self._loops else part for depth, part in enumerate(parts))
        return Location(*body)

    def at_or_below(self, location: Location) -> list[events.Command]:
        """Return the commands at a location and below it."""
        return [command for command in self._commands.values() if location.contains(command.location)]

    def is_keyed(self, location: Location) -> bool:
        """Whether a command, or one above it, is found by its key, in whatever order the keys come."""
        if self._keyed is None:
            branches = (entry for entry in self._commands.values() if isinstance(entry, events.BranchStarted))
            self._keyed = {entry.location.coordinates for entry in branches if entry.matching == "keyed"}
        parts = location.coordinates
        return any(parts[:depth] in self._keyed for depth in range(1, len(parts))) if self._keyed else False

    def reached(self) -> list[events.Command]:
        """Return the commands that the code has reached, and that were not removed."""
        return [self._commands[seq] for seq in sorted(self._reached) if seq not in self._skipped]

    def unreached(self) -> list[events.Command]:
        """Return the commands that the code has not reached, and that were not removed either.

        Marks of removals do not count: they have no effect, so the code need not keep the note that left them.
        """
        left = (self._commands[seq] for seq in sorted(self._commands.keys() - self._reached.keys()))
        wanted = (command for command in left if type(command) is not events.StepRemoved)
        return [command for command in wanted if not (self._skipped and self.is_skipped(command.seq))]

    def first_missing(self) -> events.Command | None:
        """Return the first command that the code must have reached by its end; by sequence and by key there is none."""
        if not self._by_location:
            return None
        return next((left for left in self.unreached() if not self.is_keyed(left.location)), None)

    def orphans(self) -> list[events.Command]:
        """Return the unreached commands that are no divergence."""
        left = self.unreached()
        return [one for one in left if self.is_keyed(one.location)] if self._by_location else left

    def last_iteration(self, loop: Location) -> int:
        """Return the last iteration of a loop in which a command is recorded."""
        return self._history.last_child(loop)

    def forget(self, seqs: Iterable[int]) -> None:
        """Drop entries that are forgotten."""
        for seq in seqs:
            self._reached.pop(seq, None)
            self._commands.pop(seq, None)
            self._skipped.pop(seq, None)


class EarlyAnswers(msgspec.Struct, eq=False):
    """Answers that were delivered before the code made the calls, which an edit has delayed.

    *pending* are the calls of the code, if an answer may come early only while the code waits for a call that was
    recorded after it; None if answers may always come early.
    """

    pending: PendingCommands | None
    verdict: Verdict
    answers: dict[int, events.Answer] = {}
    _checkpoints: dict[int, events.LoopCheckpointed] = {}
    delayed: dict[int, None] = {}
    # Entries whose calls were made since: delivered in the order of the log, each in a tick of its own.
    # A heap by their ``seq``; a list only while there are any, as in `Outbox`.
    overdue: list[tuple[int, events.Event]] | tuple[()] = ()

    @property
    def anything(self) -> bool:
        """Whether an entry waits for its call."""
        return bool(self.answers or self._checkpoints or self.overdue)

    def may_hold(self, entry: int) -> bool:
        """Whether the code may still come to the call that an entry is for."""
        return self.pending is None or self.pending.has_call_after(entry)

    def keep(self, answer: events.Answer) -> None:
        """Keep an answer until its call is made."""
        self.verdict.end_routine()
        self.answers[answer.ref] = answer

    def keep_checkpoint(self, checkpoint: events.LoopCheckpointed) -> None:
        """Keep a checkpoint until the code reaches its loop."""
        self._checkpoints[checkpoint.ref] = checkpoint

    def take_checkpoint(self, loop: events.LoopStarted) -> events.LoopCheckpointed | None:
        """Return the checkpoint of a loop that the code reaches only now."""
        return self._checkpoints.pop(loop.seq, None)

    def come_to(self, command: events.Command) -> None:
        """Deliver the answer of a call that is made only now."""
        self.add_overdue(self.answers.pop(command.seq))

    def add_overdue(self, entry: events.Event) -> None:
        """Deliver an entry as soon as the code is at rest."""
        if not self.overdue:
            self.overdue = []
        heappush(self.overdue, (entry.seq, entry))

    def next_overdue(self) -> events.Event:
        """Return the overdue entry that comes first in the log."""
        assert self.overdue
        return heappop(self.overdue)[1]
