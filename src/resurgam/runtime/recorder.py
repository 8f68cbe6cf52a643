"""Takes the wishes of workflow code to the history: each is matched with a recorded command, or recorded.

Rule 1: a wish takes its place when it is made, and its command event is in the commit of that same tick.
Rule 2: once there is a verdict (the code diverged, or is being put away) every further wish raises it, so no
``except BaseException`` of the user can swallow it.
"""

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappush
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.codec import Codec, codec_for
from resurgam.core.command import CANCELLATIONS, TYPES, Wish
from resurgam.core.errors import CorruptHistory, HistoryDiverged, LatentHistory, NotDeterministic
from resurgam.core.history import History
from resurgam.core.location import ROOT
from resurgam.core.outcome import ActivityRequest
from resurgam.core.replay import Cursor, Diverged, New, Replayed, matcher
from resurgam.core.retry import milliseconds
from resurgam.runtime.futures import Durable
from resurgam.runtime.log import Log
from resurgam.runtime.loop import WorkflowLoop
from resurgam.runtime.operation import Operation
from resurgam.runtime.scope import Scope, current

T = TypeVar("T")
ANY = codec_for(Any)

_OWN_CANCELLATIONS = tuple(CANCELLATIONS.values())

_PATIENCE = 1000
"""Refused calls after which a future that never settles is returned: a loop around ``except BaseException`` would
otherwise never give the thread back."""

_NOWHERE = events.ActivityScheduled(location=ROOT, command="", name="", queue="")
"""The command of a future that is returned when there is nothing to be asked for any more."""

_OWN_FILES = (str(Path(__file__).parent), str(Path(asyncio.__file__).parent))


@dataclass(slots=True)
class Race:
    """The competitors of a race, and which of them settled first."""

    members: list[asyncio.Future[Any]]
    winner: int | None = None


class Recorder:
    """The history of one execution as its code sees it: what it asked for, and what it waits for."""

    def __init__(self, log: Sequence[events.Event], *, seed: str, matching: str = "location") -> None:
        self.log = Log(log)

        # What the loop forbids is set on the class from a table, where mypy does not see it.
        self.loop = WorkflowLoop(seed, self)  # type: ignore[abstract]
        self.pending: dict[int, Durable[Any]] = {}
        self.deadlines: list[tuple[int, int]] = []
        self.requests: dict[int, ActivityRequest] = {}
        self.operations: dict[int, Operation] = {}
        self.races: dict[int, Race] = {}
        self.mailbox: dict[str, deque[events.SignalReceived]] = {}
        self.taken: list[events.SignalReceived] = []
        self.listeners: dict[int, tuple[str, ...]] = {}
        self.variables: dict[str, Raw] = {}
        self.verdict: BaseException | None = None
        self.now = 0
        self.position = 0
        self.replaying = False
        self._match = matcher(matching)
        self._history = History(log)
        self._recorded = {entry.seq: entry for entry in log if isinstance(entry, events.Command)}
        self._called_off = {entry.ref: entry.seq for entry in log if isinstance(entry, _OWN_CANCELLATIONS)}
        self._asked: set[int] = set()
        self._ended: list[Scope] = []
        self._refusals = 0
        self._busy = ""
        self.root = self._scope_at(ROOT)

    # Wishes.

    def scope(self) -> Scope:
        """Return the running strand, which must be one of this execution's."""
        scope = current.get(None)
        if scope is None or scope.owner is not self:
            if self.verdict is not None:
                self._refusals += 1
                raise self.verdict
            raise NotDeterministic("a workflow's context was used outside of that workflow's own code")
        return scope

    def issue(self, kind: type[events.Command], name: str | None = None, **fields: Any) -> events.Command:
        """Take the next place of the running strand for a command, and return its event, recorded or new."""
        self._refuse_if_over(kind)
        if name is not None and not isinstance(name, str):
            raise TypeError(f"the name of a {TYPES[kind]} is {name!r}; it must be a string")
        scope = self.scope()
        command_id = scope.command_id(TYPES[kind])
        verdict = self._match(scope.cursor, Wish(kind, name))
        if isinstance(verdict, Diverged):
            raise self._diverge(verdict, command_id)
        scope.cursor.take(verdict)
        if isinstance(verdict, Replayed):
            self.position = max(self.position, verdict.event.seq)
            self._asked.add(verdict.event.seq)
            return verdict.event
        return self._record(kind, verdict, scope, command=command_id, name=name, **fields)

    def _record(self, kind: type[events.Command], verdict: New, scope: Scope, **fields: Any) -> events.Command:
        location = scope.location.child(verdict.coordinate)
        ended = self.log.state.ended
        if ended is not None:
            asked = fields["name"] or kind.__struct_config__.tag
            self.verdict = HistoryDiverged(
                location,
                fields["command"],
                "end",
                code_value=f"goes on with {asked}",
                history_value=ended.type,
                event_seq=ended.seq,
                source=_source(),
            )
            raise self.verdict

        def make(seq: int, at: int) -> events.Command:
            return kind(seq=seq, at=at, location=location, **fields)

        entry = self.log.append(make)
        self.position = entry.seq
        assert isinstance(entry, kind)
        return entry

    def call(
        self, kind: type[events.Command], name: str | None = None, codec: Codec[Any] = ANY, **fields: Any
    ) -> Durable[Any]:
        """Issue a command that has an answer, and return the future of it. *codec* reads the answer's value."""
        if self.exhausted:
            return Durable(self.loop, _NOWHERE, self, codec)
        command = self.issue(kind, name, **fields)
        future: Durable[Any] = Durable(self.loop, command, self, codec)
        self.pending[command.seq] = future
        deadline = getattr(command, "deadline", None)
        if deadline is not None:
            heappush(self.deadlines, (deadline, command.seq))
        return future

    @property
    def exhausted(self) -> bool:
        """Whether the code has been refused so often that it must be catching the refusals in a loop."""
        return self._refusals > _PATIENCE

    def is_new(self, command: events.Command) -> bool:
        """Whether a command was not in the history that this execution was loaded with."""
        return command.seq > self.log.recorded_seq

    def was_asked_for(self, ref: int) -> bool:
        """Whether the code has issued the command with this ``seq``."""
        return ref > self.log.recorded_seq or ref in self._asked

    def recorded(self, seq: int) -> events.Command:
        """Return a command of the history by its ``seq``."""
        return self._recorded[seq]

    def unasked(self) -> events.Command | None:
        """Return the first recorded command that the code has not issued yet."""
        left = self._recorded.keys() - self._asked
        return self._recorded[min(left)] if left else None

    def start_timer(self, seconds: float) -> Durable[None]:
        """Start a durable timer of this length."""
        return self.call(events.TimerStarted, deadline=self.log.stamp() + max(0, milliseconds(seconds)))

    def branch(self, name: str | None = None) -> Scope:
        """Open a strand at the next place of the running one."""
        return self._scope_at(self.issue(events.BranchStarted, name).location)

    def scope_below(self, command: events.Command) -> Scope:
        """Return the strand whose steps stand below a command."""
        return self._scope_at(command.location)

    def call_off(self, command: events.Command) -> None:
        """Record that the code no longer waits for a command, unless the history holds an answer to it."""
        self.pending.pop(command.seq, None)
        self.operations.pop(command.seq, None)
        self.listeners.pop(command.seq, None)
        kind = CANCELLATIONS.get(type(command))
        if kind is None or self.verdict is not None:
            return
        if command.seq in self.log.state.open:
            self.position = self.log.append(lambda seq, at: kind(seq=seq, at=at, ref=command.seq)).seq
        else:
            self.position = max(self.position, self._called_off.get(command.seq, 0))

    def put_signal(self, signal: events.SignalReceived) -> None:
        """Put a signal into the mailbox, behind those of its name."""
        self.mailbox.setdefault(signal.name, deque()).append(signal)

    def take_signal(self, seq: int) -> events.SignalReceived:
        """Take a signal out of the mailbox."""
        for waiting in self.mailbox.values():
            for signal in waiting:
                if signal.seq == seq:
                    waiting.remove(signal)
                    return signal
        raise CorruptHistory(f"signal {seq} was consumed, but is not in the mailbox")

    def close_scope(self, scope: Scope) -> None:
        """A strand has ended by returning; the history may not go on where its code does not."""
        if scope.cursor.next is not None:
            # Not a verdict yet: a callback that the strand left behind may still ask for what is recorded.
            self._ended.append(scope)

    def check_ended(self) -> None:
        """Once every recorded entry is delivered, nothing may be left in the history of a strand that has ended."""
        if not self._ended:
            return
        left = next((scope.cursor.next for scope in self._ended if scope.cursor.next is not None), None)
        if left is not None and self.verdict is None:
            self.verdict = LatentHistory(
                left.location,
                left.command,
                "end",
                code_value="ended",
                history_value=left.name or left.type,
                event_seq=left.seq,
            )

    def without_wishes(self, what: str, function: Callable[[], T]) -> T:
        """Call a function of the user that must not make durable calls."""
        self._busy, before = what, self._busy
        try:
            return function()
        finally:
            self._busy = before

    def _scope_at(self, location: Any) -> Scope:
        return Scope(location, Cursor(self._history.commands(location)), seed=self.loop.seed, owner=self)

    # Refusals.

    def _refuse_if_over(self, kind: type[events.Command]) -> None:
        if self.verdict is not None:
            self._refusals += 1
            raise self.verdict
        if self._busy:
            raise NotDeterministic(
                f"a durable call ({TYPES[kind]}) inside {self._busy}; make it before, and pass on what it gave"
            )

    def _diverge(self, verdict: Diverged, command_id: str) -> HistoryDiverged:
        error = HistoryDiverged(
            verdict.event.location,
            command_id,
            verdict.field,
            code_value=verdict.code_value,
            history_value=verdict.history_value,
            event_seq=verdict.event.seq,
            source=_source(),
        )
        self.verdict = error
        return error


def _source() -> str:
    """Return file and line of the user's code that is being run."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(_OWN_FILES):
        frame = frame.f_back  # type: ignore[assignment]
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else ""
