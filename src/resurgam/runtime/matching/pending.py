"""The durable calls that the code waits for, and what settles each of them."""

import asyncio
from collections.abc import Container, Iterable, Iterator
from heapq import heappop, heappush
from typing import Any

import msgspec

from resurgam.core import event as events
from resurgam.core.location import Location
from resurgam.core.operation import Operation
from resurgam.runtime.loop.futures import Durable
from resurgam.runtime.matching.course import Course


class Race(msgspec.Struct):
    """The competitors of a race, and the first of them that settled."""

    members: "list[asyncio.Future[Any]]"
    winner: int | None = None


class LoopProgress(msgspec.Struct):
    """How far a durable loop has come, and which entry it waits for the engine to write.

    *done* iterations have ended, of which *forgotten* are in the last checkpoint; *state* goes into the next one,
    *value* is the loop's result. *wants* is a checkpoint or the loop's end; *waiting* is settled by the checkpoint.
    *early* are checkpoints that were delivered before the code came to them.
    """

    command: events.LoopStarted
    state: Any
    done: int = 0
    forgotten: int = 0
    value: Any = None
    wants: type[events.Checkpoint] | None = None
    waiting: "asyncio.Future[events.LoopCheckpointed] | None" = None
    early: dict[int, events.LoopCheckpointed] = msgspec.field(default_factory=dict)

    @property
    def forgets(self) -> bool:
        """Whether finished iterations are forgotten."""
        return self.command.forget_every is not None

    def checkpointed(self, entry: events.LoopCheckpointed) -> None:
        """Take in a checkpoint that was written just now, or is replayed."""
        if self.waiting is None or self.waiting.done():
            self.early[entry.iteration] = entry
            return
        self.wants = None
        self.waiting.set_result(entry)


class PendingCommands(msgspec.Struct, eq=False):
    """The open calls of an execution's code, each by the ``seq`` of its command.

    Others read the attributes, and write by the methods.
    """

    course: Course = msgspec.field(default_factory=Course)
    # Plain attributes: an advance first checks which of them are empty.
    futures: dict[int, Durable[Any]] = {}
    listeners: dict[int, tuple[str, ...]] = {}
    operations: dict[int, Operation] = {}
    # The operations that a worker runs, or has run.
    handed_out: dict[int, None] = {}
    races: dict[int, Race] = {}
    loops: dict[int, LoopProgress] = {}
    # Heaps of (moment, seq): when a call times out, and when an activity must have been started.
    deadlines: list[tuple[int, int]] = []
    start_deadlines: list[tuple[int, int]] = []
    # The executions of children that have started.
    started_children: dict[int, str] = {}
    # Recorded commands that the code has cancelled since the last entry, while the history has not. A list only while there
    # are any, as in `Outbox`.
    cancelled: list[events.Command] | tuple[()] = ()

    def add_deadline(self, deadline: int, seq: int) -> None:
        """Let a call time out at *deadline*."""
        heappush(self.deadlines, (deadline, seq))

    def add_listener(self, seq: int, names: tuple[str, ...]) -> None:
        """Let a call wait for signals of these names."""
        self.course.leave()
        self.listeners[seq] = names

    def add_operation(self, operation: Operation) -> None:
        """Keep an operation until it is answered."""
        self.course.leave()
        self.operations[operation.ref] = operation

    def add_race(self, seq: int, race: Race) -> None:
        """Keep a race until it is decided."""
        self.course.leave()
        self.races[seq] = race

    def add_loop(self, progress: LoopProgress) -> None:
        """Keep the progress of a loop until it ends."""
        self.course.leave()
        self.loops[progress.command.seq] = progress

    def remove_loop(self, seq: int) -> None:
        """Remove a loop that has ended, with the call that waits for its end."""
        self.loops.pop(seq, None)
        self.futures.pop(seq, None)

    def add_start_deadline(self, deadline: int, seq: int) -> None:
        """Give up an activity that no worker has started by *deadline*."""
        self.course.leave()
        heappush(self.start_deadlines, (deadline, seq))

    def take(self, seq: int) -> tuple[Durable[Any] | None, tuple[str, ...]]:
        """Remove a call that is answered; return its future, and the names that it listened for."""
        if self.operations:
            self.operations.pop(seq, None)
        names = self.listeners.pop(seq, ()) if self.listeners else ()
        return self.futures.pop(seq, None), names

    def drop(self, seq: int) -> None:
        """Remove a call that the code no longer waits for."""
        self.futures.pop(seq, None)
        self.operations.pop(seq, None)
        self.listeners.pop(seq, None)
        self.races.pop(seq, None)

    def note_cancelled(self, command: events.Command) -> None:
        """Note that the code has cancelled a recorded command."""
        if not self.cancelled:
            self.cancelled = []
        self.cancelled.append(command)

    def next_deadline(self) -> tuple[int, int] | None:
        """Return the first deadline of a call that is still open, and its ``seq``."""
        deadlines = self.deadlines
        while deadlines and deadlines[0][1] not in self.futures:
            heappop(deadlines)
        return deadlines[0] if deadlines else None

    def ready_operations(self, open_commands: Container[int]) -> list[Operation]:
        """Return the operations that no worker runs yet, in the order in which they were called."""
        if not self.operations:
            return []
        return [
            operation
            for seq, operation in self.operations.items()
            if seq in open_commands and seq not in self.handed_out
        ]

    def forget(self, seqs: Iterable[int]) -> None:
        """Drop what is known of commands that are forgotten."""
        for seq in seqs:
            self.handed_out.pop(seq, None)
            self.started_children.pop(seq, None)

    def commands(self) -> Iterator[events.Command]:
        """Return the commands of the open calls."""
        return (future.command for future in self.futures.values())

    def open_promise(self, promise_id: str) -> Durable[Any] | None:
        """Return the future of a promise by its id."""
        for future in self.futures.values():
            command = future.command
            if isinstance(command, events.PromiseCreated) and command.promise_id == promise_id:
                return future
        return None

    def has_call_after(self, seq: int) -> bool:
        """Whether the code waits for a call that was made after an entry was recorded."""
        return any(pending > seq for pending in self.futures)

    def forgetting_loops(self) -> Iterator[events.LoopStarted]:
        """Return the open loops whose finished iterations are forgotten."""
        return (loop.command for loop in self.loops.values() if loop.forgets)

    def is_inside_forgetting_loop(self, location: Location) -> bool:
        """Whether a location is in the body of a loop whose finished iterations are forgotten."""
        return any(loop.location.contains(location) for loop in self.forgetting_loops())
