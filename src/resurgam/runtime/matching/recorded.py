"""What the history of an execution held when it was loaded, and how much of that its code has come to."""

from collections.abc import Iterable, Sequence
from heapq import heappush

from resurgam.core import event as events
from resurgam.core.commands import COMMANDS
from resurgam.core.history import History
from resurgam.core.location import Coordinate, Location
from resurgam.core.replay import Cursor


class RecordedCommands:
    """The recorded commands, and which of them have been asked for or passed over."""

    def __init__(self, log: Sequence[events.Event]) -> None:
        # By type, not isinstance: this is done for every entry of every history that is read.
        self._commands: dict[int, events.Command] = {e.seq: e for e in log if type(e) in COMMANDS}  # type: ignore[misc]
        self._history = History(self._commands.values())
        self.checkpoints: dict[int, events.LoopCheckpointed] = {}
        self.completions: dict[int, events.LoopCompleted] = {}
        if any(type(command) is events.LoopStarted for command in self._commands.values()):
            self._find_checkpoints(log)
        self._asked: set[int] = set()
        self._skipped: dict[int, Location] = {}
        self._keyed: set[tuple[Coordinate, ...]] | None = None
        self._loops: set[tuple[Coordinate, ...]] | None = None
        self.last_seq = log[-1].seq if log else 0

    def _find_checkpoints(self, log: Sequence[events.Event]) -> None:
        for entry in log:
            if isinstance(entry, events.LoopCheckpointed):
                self.checkpoints[entry.ref] = entry
            elif isinstance(entry, events.LoopCompleted):
                self.completions[entry.ref] = entry

    def cursor(self, scope: Location) -> Cursor:
        """Return a cursor at the beginning of what is recorded of a scope."""
        return Cursor(self._history.commands(scope))

    def command(self, seq: int) -> events.Command:
        """Return a command by its ``seq``."""
        return self._commands[seq]

    def ask(self, command: events.Command) -> None:
        """The code has come to a command."""
        self._asked.add(command.seq)

    def skip(self, command: events.Command) -> None:
        """Pass over a command and all that stands below it; its answer, come or to come, is for nobody."""
        self._asked.add(command.seq)
        self._skipped[command.seq] = command.location

    def was_asked_for(self, ref: int) -> bool:
        """Whether the code has come to the command with this ``seq``; to one that it made since then it has."""
        return ref > self.last_seq or ref in self._asked

    def is_skipped(self, ref: int) -> bool:
        """Whether the command with this ``seq`` is a removed call, or stands below one."""
        place = self._commands[ref].location
        return ref in self._skipped or any(removed.contains(place) for removed in self._skipped.values())

    def code_place(self, scope: Location) -> Location:
        """Return the same place for every iteration of a recorded loop: an edit of its body is one for all of them."""
        if self._loops is None:
            loops = (entry for entry in self._commands.values() if isinstance(entry, events.LoopStarted))
            self._loops = {entry.location.coordinates for entry in loops}
        parts = scope.coordinates
        body = ((1,) if parts[:depth] in self._loops else part for depth, part in enumerate(parts))
        return Location(*body)

    def at_or_below(self, place: Location) -> list[events.Command]:
        """Return the commands at a place and below it."""
        return [command for command in self._commands.values() if place.contains(command.location)]

    def is_keyed(self, place: Location) -> bool:
        """Whether a command, or one that it stands below, is found by its key, in whatever order the keys come."""
        if self._keyed is None:
            branches = (entry for entry in self._commands.values() if isinstance(entry, events.BranchStarted))
            self._keyed = {entry.location.coordinates for entry in branches if entry.matching == "keyed"}
        parts = place.coordinates
        return any(parts[:depth] in self._keyed for depth in range(1, len(parts))) if self._keyed else False

    def asked(self) -> list[events.Command]:
        """Return the commands that the code has come to, and that were not removed."""
        return [self._commands[seq] for seq in sorted(self._asked) if seq not in self._skipped]

    def orphans(self) -> list[events.Command]:
        """Return the commands that the code has not come to, and that were not removed either.

        The mark of a removal is none of them: it had no effect, so the code need not keep the note that left it.
        """
        left = (self._commands[seq] for seq in sorted(self._commands.keys() - self._asked))
        wanted = (command for command in left if type(command) is not events.StepRemoved)
        return [command for command in wanted if not (self._skipped and self.is_skipped(command.seq))]

    def last_iteration(self, loop: Location) -> int:
        """Return the last iteration of a loop that the history holds a command of."""
        return self._history.last_child(loop)

    def forget(self, seqs: Iterable[int]) -> None:
        """Keep nothing of entries that are forgotten."""
        for seq in seqs:
            self._asked.discard(seq)
            self._commands.pop(seq, None)
            self._skipped.pop(seq, None)


class EarlyAnswers:
    """Answers that came before the code had made the calls: an edit has put those off."""

    def __init__(self) -> None:
        self.answers: dict[int, events.Answer] = {}
        self.checkpoints: dict[int, events.LoopCheckpointed] = {}
        self.put_off: set[int] = set()
        # Those whose calls were made since: they are told in the order in which they came, each in a tick of its own.
        self.overdue: list[tuple[int, events.Event]] = []

    def come_to(self, command: events.Command) -> None:
        """The code makes a call that is answered already."""
        answer = self.answers.pop(command.seq)
        heappush(self.overdue, (answer.seq, answer))
