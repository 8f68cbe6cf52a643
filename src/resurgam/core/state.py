"""Fold events into the state of an instance, by a transition table.

`TRANSITIONS` lists which events may occur in each status, and which status follows. Recording is unconditional: an
answer that arrives after the end is still appended, but never delivered. Any further effect of an event is one short
function, found by its type in `_EFFECTS`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final, TypeVar, cast

from msgspec import Raw

from resurgam.core import event as events
from resurgam.core import flow_event
from resurgam.core.commands import ANSWERS, COMMANDS, address_of
from resurgam.core.errors import CorruptHistory


class Status(StrEnum):
    """The status of an execution."""

    SCHEDULED = "scheduled"
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TERMINATED = "terminated"
    CONTINUED = "continued"
    DIVERGED = "diverged"

    @property
    def terminal(self) -> bool:
        """Whether the outcome is decided, so that no new work starts."""
        return self in _TERMINAL


RUNNING: Final = Status.RUNNING
"""For the hot path: to look up a member of an enum costs more than the rest of applying an entry."""

_TERMINAL = frozenset(
    {Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.TERMINATED, Status.CONTINUED},
)
ENDS: Final[dict[type[events.Event], Status]] = {
    events.WorkflowCompleted: Status.COMPLETED,
    events.WorkflowFailed: Status.FAILED,
    events.WorkflowCancelled: Status.CANCELLED,
    events.WorkflowTerminated: Status.TERMINATED,
    events.WorkflowContinued: Status.CONTINUED,
    events.WorkflowRetried: Status.FAILED,
}
"""The events that decide the outcome of a workflow, and the status that follows."""
FLOW_ENDS: Final[dict[type[events.Event], Status]] = {
    flow_event.FlowCompleted: Status.COMPLETED,
    flow_event.FlowFailed: Status.FAILED,
    flow_event.FlowCancelled: Status.CANCELLED,
    events.WorkflowTerminated: Status.TERMINATED,
}
"""The same for a goal flow."""
_CLOSING: Final = frozenset({*ENDS, *FLOW_ENDS})
_LATE: Final[tuple[type[events.Event], ...]] = (
    *(answer for kind in COMMANDS.values() if kind.late for answer in kind.answers),
    *(events.ActivityRetryScheduled, events.ChildStarted, events.ChildCancelRequested),
)
_EXTERNAL = (events.SignalReceived, events.CancelRequested)
_PAUSES = (events.WorkflowPaused, events.WorkflowResumed)


def _stay(status: Status, *kinds: type[events.Event]) -> dict[type[events.Event], Status]:
    return dict.fromkeys(kinds, status)


_PROGRESS = (
    *(events.ActivityRetryScheduled, events.LoopCheckpointed, events.ChildStarted, events.ChildCancelRequested),
    *(events.SagaCompensationStarted, events.WorkflowBegun),
    *(events.SignalHandled, events.UpdateAccepted, events.UpdateCompleted, events.UpdateRejected),
)
_WHILE_RUNNING = _stay(Status.RUNNING, *COMMANDS, *ANSWERS, *_PROGRESS, *_EXTERNAL, *_PAUSES)

TRANSITIONS: Final[Mapping[Status | None, Mapping[type[events.Event], Status]]] = {
    None: {events.WorkflowStarted: Status.RUNNING},
    Status.SCHEDULED: _stay(Status.SCHEDULED, *_EXTERNAL, *_PAUSES) | ENDS | {events.WorkflowBegun: Status.RUNNING},
    Status.RUNNING: _WHILE_RUNNING | ENDS | {events.WorkflowDiverged: Status.DIVERGED},
    # A parked run that fits again continues as a running one: any entry but another divergence implies it.
    Status.DIVERGED: _WHILE_RUNNING | ENDS | {events.WorkflowDiverged: Status.DIVERGED},
    **{status: _stay(status, *_LATE, *_EXTERNAL, events.WorkflowDeactivated) for status in _TERMINAL},
}
"""Status before, event, status after. A pair that is not listed makes the history corrupt."""

ARCHIVAL: Final[tuple[type[events.Event], ...]] = (events.WorkflowArchiving, events.WorkflowArchived)
"""The only events that follow `WorkflowDeactivated`; they change nothing."""


class InstanceState:
    """The state of an instance after the events applied so far."""

    def __init__(self, log: Iterable[events.Event] = ()) -> None:
        self.status: Status | None = None
        self.started: events.Started | None = None
        self.begun = False
        self.last_seq = 0
        self.last_at = 0
        self.open: dict[int, events.Command] = {}
        # Commands whose answers come from outside, by the address that such an answer carries.
        self.addresses: dict[str, int] = {}
        self.variables: dict[str, Raw] = {}
        self.tags: dict[str, str] = {}
        self.mailbox: dict[int, events.SignalReceived] = {}
        self.ended: events.Event | None = None
        self.diverged: events.WorkflowDiverged | None = None
        self.deactivated = False
        # Children whose cancellation was requested.
        self.cancel_requested: dict[int, None] = {}
        # Children that were cancelled before they had been started.
        self.never_started: dict[int, None] = {}
        # Run ids of all scheduled children.
        self.children: dict[str, None] = {}
        # Saga steps whose compensation is running.
        self.compensating: dict[int, None] = {}
        # Number of signal and update handlers started so far, and the updates whose handlers are running.
        self.handlers = 0
        self.updates: dict[int, events.UpdateAccepted] = {}
        # Number of forgotten entries, according to the latest checkpoint.
        self.forgotten = 0
        self._load(log)

    def _load(self, log: Iterable[events.Event]) -> None:
        """Apply the recorded entries; exactly the forgotten ones must be missing."""
        missing = 0
        for entry in log:
            if entry.seq > self.last_seq + 1:
                missing += self.skip_to(entry.seq)
            self.apply(entry)
        if self.forgotten and missing < self.forgotten:
            raise CorruptHistory(
                f"the history must not contain forgotten entries, got {self.forgotten - missing} of them; pass history() "
                "without forgotten=True, or an export"
            )
        if missing != self.forgotten:
            raise CorruptHistory(
                f"the history has a gap: {missing} entries are missing, but only {self.forgotten} are forgotten"
            )

    def skip_to(self, seq: int) -> int:
        """Leave out entries that are forgotten, so that *seq* is the next; return how many these are.

        The caller compares their number with `forgotten` in the end: only then the last checkpoint is known.
        """
        missing = max(0, seq - self.last_seq - 1)
        self.last_seq += missing
        return missing

    def apply(self, entry: events.Event) -> None:
        """Apply one event; every event appended to a history passes through here."""
        seq, status = entry.seq, self.status
        if seq != self.last_seq + 1:
            raise CorruptHistory(f"entry {seq} follows entry {self.last_seq}: an entry is missing or duplicated")
        found = (_AFTERWARDS if self.deactivated else _STEPS)[status].get(type(entry))
        if found is None:
            raise CorruptHistory(f"entry {seq} is {entry.type}, which cannot occur in status {status}")
        following, effect = found
        if effect is not None:
            effect(self, entry)
        if status is None and not self.begun and isinstance(entry, events.Started) and is_scheduled(entry):
            following = Status.SCHEDULED
        self.status = following
        self.last_seq = seq
        self.last_at = max(self.last_at, entry.at)

    def schedule(self, command: events.ActivityScheduled | events.TimerStarted) -> None:
        """Apply the next command of a running instance, not stamped before the last entry: `apply` for most commands."""
        self.open[command.seq] = command
        self.last_seq, self.last_at = command.seq, command.at

    def complete(self, entry: events.ActivityCompleted) -> None:
        """Apply the result of an activity that is open in a running instance: `apply` for the entry that most are."""
        del self.open[entry.ref]
        self.status = RUNNING
        self.last_seq, self.last_at = entry.seq, entry.at

    @property
    def earlier_children(self) -> list[events.EarlierChild]:
        """The open children of earlier attempts whose call this attempt has not come to."""
        children = self.started.children if isinstance(self.started, events.WorkflowStarted) else ()
        return [child for child in children if child.open and child.run_id not in self.children]

    @property
    def awaited_children(self) -> list[events.ChildCommand | events.EarlierChild]:
        """The calls of the children whose end this execution waits for: its own open calls, and earlier ones."""
        calls = [command for command in self.open.values() if isinstance(command, events.ChildCommand)]
        return [*self.earlier_children, *calls]

    def accepts(self, answer: events.Event) -> bool:
        """Whether the answered command is still open; a second answer is not appended."""
        return answer.ref is None or answer.ref in self.open

    def forget(self, seqs: Iterable[int]) -> None:
        """Drop forgotten commands that are still open: abandoned races and timers."""
        for seq in seqs:
            self.open.pop(seq, None)
            self.never_started.pop(seq, None)


def closing_entry(log: Sequence[events.Event]) -> events.Event | None:
    """Return the entry that decided the outcome, searching from the end; None if there is none."""
    for entry in reversed(log):
        if type(entry) in _CLOSING:
            return entry
    return None


def tags_after(log: Iterable[events.Event]) -> dict[str, str]:
    """Return the tags of a run at the end of a log."""
    tags: dict[str, str] = {}
    for entry in log:
        if isinstance(entry, events.TagsSet):
            tags = _changed(tags, entry)
        elif isinstance(entry, events.Started | events.Checkpoint) and entry.tags is not None:
            tags = entry.tags
    return tags


def _changed(tags: dict[str, str], entry: events.TagsSet) -> dict[str, str]:
    return {name: value for name, value in (tags | entry.tags).items() if value is not None}


def is_delayed(started: events.Started) -> bool:
    """Whether the code of an execution starts later than its creation."""
    return started.deferred or started.begins_at is not None


def is_scheduled(started: events.Started) -> bool:
    """Whether the run as a whole is delayed; a run that waits for its next attempt is already running."""
    return (started.deferred or started.begins_at is not None) and started.attempt == 1


E_ = TypeVar("E_", bound=events.Event)
_Effect = Callable[[InstanceState, events.Event], None]
_EFFECTS: Final[dict[type[events.Event], _Effect]] = {}


def _effect(*kinds: type[E_]) -> Callable[[Callable[[InstanceState, E_], None]], Callable[[InstanceState, E_], None]]:
    def register(function: Callable[[InstanceState, E_], None]) -> Callable[[InstanceState, E_], None]:
        _EFFECTS.update(dict.fromkeys(kinds, cast("_Effect", function)))
        return function

    return register


@_effect(events.WorkflowStarted)
def _start(state: InstanceState, entry: events.Started) -> None:
    state.started = entry
    state.begun = not is_delayed(entry)
    state.tags = entry.tags


@_effect(events.WorkflowBegun)
def _begin(state: InstanceState, entry: events.WorkflowBegun) -> None:
    state.begun = True


@_effect(*(kind.event for kind in COMMANDS.values() if kind.answers))
def _open(state: InstanceState, entry: events.Command) -> None:
    state.open[entry.seq] = entry


@_effect(*(kind.event for kind in COMMANDS.values() if kind.address))
def _open_to_outside(state: InstanceState, entry: events.Command) -> None:
    state.open[entry.seq] = entry
    state.addresses[address_of(entry)] = entry.seq
    if isinstance(entry, events.ChildCommand):
        state.children[entry.run_id] = None


@_effect(*ANSWERS)
def _close(state: InstanceState, entry: events.Answer) -> None:
    command = state.open.get(entry.ref)
    if command is None or type(entry) not in COMMANDS[type(command)].answers:
        what = "not open" if command is None else command.type
        raise CorruptHistory(f"entry {entry.seq} ({entry.type}) answers entry {entry.ref}, which is {what}")
    del state.open[entry.ref]


@_effect(events.SignalsConsumed)
def _consume(state: InstanceState, entry: events.SignalsConsumed) -> None:
    _close(state, entry)
    for seq in entry.signals:
        if state.mailbox.pop(seq, None) is None:
            raise CorruptHistory(f"entry {entry.seq} consumes signal {seq}, which is not in the mailbox")


@_effect(events.LoopCompleted)
def _end_loop(state: InstanceState, entry: events.LoopCompleted) -> None:
    _close(state, entry)
    if entry.whole:
        _restore(state, entry)


@_effect(*(answer for kind in COMMANDS.values() if kind.address for answer in kind.answers))
def _close_to_outside(state: InstanceState, entry: events.Answer) -> None:
    command = state.open.get(entry.ref)
    _close(state, entry)
    assert command is not None
    state.addresses.pop(address_of(command), None)
    state.cancel_requested.pop(entry.ref, None)
    if events.was_never_started(entry):
        state.never_started[entry.ref] = None


@_effect(events.SagaClosed)
def _end_saga_step(state: InstanceState, entry: events.SagaClosed) -> None:
    _close(state, entry)
    state.compensating.pop(entry.ref, None)


@_effect(events.ChildStarted)
def _child(state: InstanceState, entry: events.ChildStarted) -> None:
    if _open_child(state, entry).detach:
        del state.open[entry.ref]


@_effect(events.ChildCancelRequested)
def _request_cancel(state: InstanceState, entry: events.ChildCancelRequested) -> None:
    _open_child(state, entry)
    state.cancel_requested[entry.ref] = None


def _open_child(state: InstanceState, entry: events.Answer) -> events.ChildCommand:
    command = state.open.get(entry.ref)
    if not isinstance(command, events.ChildCommand):
        raise CorruptHistory(f"entry {entry.seq} ({entry.type}) refers to entry {entry.ref}, which is no open child")
    return command


@_effect(events.SagaCompensationStarted)
def _compensate(state: InstanceState, entry: events.SagaCompensationStarted) -> None:
    if not isinstance(state.open.get(entry.ref), events.SagaStepRegistered):
        raise CorruptHistory(
            f"entry {entry.seq} ({entry.type}) refers to entry {entry.ref}, which is no open saga step"
        )
    state.compensating[entry.ref] = None


@_effect(events.SignalHandled)
def _handle(state: InstanceState, entry: events.SignalHandled) -> None:
    if state.mailbox.pop(entry.signal, None) is None:
        raise CorruptHistory(f"entry {entry.seq} handles signal {entry.signal}, which is not in the mailbox")
    state.handlers = max(state.handlers, entry.scope)


@_effect(events.UpdateAccepted)
def _accept(state: InstanceState, entry: events.UpdateAccepted) -> None:
    state.updates[entry.seq] = entry
    state.handlers = max(state.handlers, entry.scope)


@_effect(events.UpdateCompleted, events.UpdateRejected)
def _updated(state: InstanceState, entry: events.Event) -> None:
    if entry.ref is not None and state.updates.pop(entry.ref, None) is None:
        raise CorruptHistory(f"entry {entry.seq} ({entry.type}) refers to entry {entry.ref}, which is no open update")


@_effect(events.ActivityRetryScheduled)
def _retry(state: InstanceState, entry: events.ActivityRetryScheduled) -> None:
    if not isinstance(state.open.get(entry.ref), events.ActivityScheduled):
        raise CorruptHistory(f"entry {entry.seq} ({entry.type}) refers to entry {entry.ref}, which is no open activity")


@_effect(events.LoopCheckpointed)
def _checkpoint(state: InstanceState, entry: events.LoopCheckpointed) -> None:
    if not isinstance(state.open.get(entry.ref), events.LoopStarted):
        raise CorruptHistory(f"entry {entry.seq} ({entry.type}) refers to entry {entry.ref}, which is no open loop")
    _restore(state, entry)


def _restore(state: InstanceState, checkpoint: events.Checkpoint) -> None:
    state.forgotten, state.variables = checkpoint.forgotten, dict(checkpoint.variables)
    state.handlers = max(state.handlers, checkpoint.handlers)
    if checkpoint.tags is not None:
        state.tags = checkpoint.tags


@_effect(events.TagsSet)
def _tag(state: InstanceState, entry: events.TagsSet) -> None:
    state.tags = _changed(state.tags, entry)


@_effect(events.StateSet)
def _set(state: InstanceState, entry: events.StateSet) -> None:
    state.variables[entry.name] = entry.value


@_effect(events.StateCleared)
def _clear(state: InstanceState, entry: events.StateCleared) -> None:
    state.variables.pop(entry.name, None)


@_effect(events.SignalReceived)
def _receive(state: InstanceState, entry: events.SignalReceived) -> None:
    state.mailbox[entry.seq] = entry


@_effect(*ENDS)
def _end(state: InstanceState, entry: events.Event) -> None:
    state.ended = entry


@_effect(events.WorkflowDiverged)
def _park(state: InstanceState, entry: events.WorkflowDiverged) -> None:
    state.diverged = entry


@_effect(events.WorkflowDeactivated)
def _deactivate(state: InstanceState, entry: events.WorkflowDeactivated) -> None:
    state.deactivated = True


_STEPS: Final[dict[Status | None, dict[type[events.Event], tuple[Status, _Effect | None]]]] = {
    status: {kind: (following, _EFFECTS.get(kind)) for kind, following in table.items()}
    for status, table in TRANSITIONS.items()
}
"""`TRANSITIONS` and `_EFFECTS` in one table: every entry of every log looks once."""
_AFTERWARDS: Final[dict[Status | None, dict[type[events.Event], tuple[Status, _Effect | None]]]] = {
    status: dict.fromkeys(ARCHIVAL, (status, None)) for status in _TERMINAL
}
"""The same for a log that is complete."""
