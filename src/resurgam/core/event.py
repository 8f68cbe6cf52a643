"""Every fact that can be in a history, as one closed union of frozen structs.

An event is one of

- a `Command`: the workflow's code asked for something and thereby took a place. It has a location, a version, a
  command id such as ``Task(0)`` and, where it has input, a digest of it;
- an `Answer`: what became of a command. It carries ``ref``, the ``seq`` of that command; never a name, never a
  location. The first answer to a command is final;
- something from outside (a signal, a request to cancel) or a step in the life of the instance.

``seq`` counts from 1 without a gap, ``at`` never goes back. On disk an event is one JSON object whose ``type`` is the
tag below; values that users passed stand in it as they are, so that a person can read a history with any tool.
"""

from typing import TypeAlias

import msgspec
from msgspec import Raw

from resurgam.core.location import Location

NULL = Raw(b"null")


class Failure(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, kw_only=True):
    """An exception as it is recorded: enough to show it, and to rebuild it where its type is known."""

    type: str
    message: str
    bases: tuple[str, ...] = ()
    traceback: str = ""
    notes: tuple[str, ...] = ()
    args: Raw = NULL
    fields: dict[str, Raw] = {}
    cause: "Failure | None" = None
    members: tuple["Failure", ...] = ()


class Event(
    msgspec.Struct, gc=False, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True, tag_field="type"
):
    """One entry of a history. Fields that a kind does not have are None."""

    seq: int = 0
    at: int = 0
    cause: int | None = None
    ref: int | None = None
    location: Location | None = None
    version: int | None = None
    command: str | None = None
    name: str | None = None

    @property
    def type(self) -> str:
        """The kind of event, in snake_case and past tense."""
        return str(self.__struct_config__.tag)

    def to_json(self) -> str:
        """Return the event as one line of JSON, the form it has on disk."""
        return encode_event(self).decode()


class Command(Event, frozen=True, kw_only=True):
    """A wish of the workflow's code, at the place it took.

    *digest* is a fingerprint of its input. *gate*: it was inserted right behind a version check that had answered this,
    and must go on answering it. *key* tells it from its siblings where they are found by key.
    """

    location: Location
    version: int = 1
    command: str
    digest: str | None = None
    gate: int | None = None
    key: str | None = None


class Answer(Event, frozen=True, kw_only=True):
    """What became of the command with ``seq == ref``."""

    ref: int


class WorkflowStarted(Event, frozen=True, kw_only=True, tag="workflow_started"):
    """The first entry of every execution; it holds all that is needed to run it.

    *matching* is None where whoever started it knew the workflow by its name only: then it is as the code says.
    """

    name: str
    queue: str
    entity_id: str
    execution_id: str
    run_id: str
    tree_id: str
    generation: int = 1
    attempt: int = 1
    matching: str | None = None
    python: str
    input: Raw = NULL
    tags: dict[str, str] = {}


class WorkflowCompleted(Event, frozen=True, kw_only=True, tag="workflow_completed"):
    """The workflow's function returned."""

    result: Raw = NULL


class WorkflowFailed(Event, frozen=True, kw_only=True, tag="workflow_failed"):
    """An exception left the workflow's function."""

    failure: Failure


class WorkflowCancelled(Event, frozen=True, kw_only=True, tag="workflow_cancelled"):
    """Cancellation was requested and the workflow's function let it through."""


class WorkflowTerminated(Event, frozen=True, kw_only=True, tag="workflow_terminated"):
    """Somebody ended the workflow at once; its code was not asked."""

    reason: str = ""


class WorkflowDiverged(Event, frozen=True, kw_only=True, tag="workflow_diverged"):
    """The code no longer fits the history: the run is parked until code that fits takes it up."""

    diagnosis: str
    worker: str = ""


class WorkflowDeactivated(Event, frozen=True, kw_only=True, tag="workflow_deactivated"):
    """The outcome is decided and no work is outstanding: the history is complete."""


class SignalReceived(Event, frozen=True, kw_only=True, tag="signal_received"):
    """Somebody sent a signal; it waits in the mailbox until a listener takes it."""

    name: str
    id: str
    value: Raw = NULL


class CancelRequested(Event, frozen=True, kw_only=True, tag="cancel_requested"):
    """Somebody asked the workflow to stop; its code hears of it as `asyncio.CancelledError`."""

    reason: str = ""


class ActivityScheduled(Command, frozen=True, kw_only=True, tag="activity_scheduled"):
    """Run an activity."""

    name: str
    queue: str
    input: Raw = NULL


class ActivityCompleted(Answer, frozen=True, kw_only=True, tag="activity_completed"):
    """The activity returned."""

    attempt: int = 1
    result: Raw = NULL


class ActivityFailed(Answer, frozen=True, kw_only=True, tag="activity_failed"):
    """The activity failed, and no further attempt will be made."""

    attempt: int = 1
    failure: Failure


class ActivityCancelled(Answer, frozen=True, kw_only=True, tag="activity_cancelled"):
    """The activity was called off; what it may still return is not heard."""


class ActivityRetryScheduled(Answer, frozen=True, kw_only=True, tag="activity_retry_scheduled"):
    """An attempt failed; the next begins at ``next_at``. Not an answer yet: the command stays open."""

    attempt: int
    next_at: int
    failure: Failure


class TimerStarted(Command, frozen=True, kw_only=True, tag="timer_started"):
    """Wake the workflow at ``deadline``."""

    deadline: int


class TimerFired(Answer, frozen=True, kw_only=True, tag="timer_fired"):
    """The deadline of a timer has come."""


class TimerCancelled(Answer, frozen=True, kw_only=True, tag="timer_cancelled"):
    """The workflow no longer waits for this timer."""


class OperationStarted(Command, frozen=True, kw_only=True, tag="operation_started"):
    """Run a side effect beside the workflow, and keep what it gave."""

    name: str


class OperationCompleted(Answer, frozen=True, kw_only=True, tag="operation_completed"):
    """The operation returned."""

    result: Raw = NULL


class OperationFailed(Answer, frozen=True, kw_only=True, tag="operation_failed"):
    """The operation raised; it is not tried again."""

    failure: Failure


class OperationCancelled(Answer, frozen=True, kw_only=True, tag="operation_cancelled"):
    """The workflow no longer waits for this operation."""


class StateSet(Command, frozen=True, kw_only=True, tag="state_set"):
    """The workflow's state holds this value under ``name`` from here on."""

    name: str
    value: Raw = NULL


class StateCleared(Command, frozen=True, kw_only=True, tag="state_cleared"):
    """The workflow's state holds nothing under ``name`` from here on."""

    name: str


class StateRead(Command, frozen=True, kw_only=True, tag="state_read"):
    """A strand beside a loop that forgets read the state: what the loop had set by then may be forgotten later."""

    name: str
    value: Raw = NULL
    found: bool = False


class ListenStarted(Command, frozen=True, kw_only=True, tag="listen_started"):
    """Wait for a signal of one of these names, until ``deadline`` if there is one."""

    name: str
    names: tuple[str, ...]
    deadline: int | None = None


class SignalsConsumed(Answer, frozen=True, kw_only=True, tag="signals_consumed"):
    """A listener took these signals (their ``seq``) out of the mailbox."""

    signals: tuple[int, ...]


class ListenTimedOut(Answer, frozen=True, kw_only=True, tag="listen_timed_out"):
    """No signal came before the listener's deadline."""


class ListenCancelled(Answer, frozen=True, kw_only=True, tag="listen_cancelled"):
    """The workflow no longer waits for this listener."""


class BranchStarted(Command, frozen=True, kw_only=True, tag="branch_started"):
    """A strand of its own begins; its steps stand below this place.

    *matching* is the rule by which they are matched, where it is not that of the strand around it.
    """

    matching: str | None = None


class RaceStarted(Command, frozen=True, kw_only=True, tag="race_started"):
    """Wait for the first of several to settle."""

    size: int


class RaceDecided(Answer, frozen=True, kw_only=True, tag="race_decided"):
    """The competitor with this index settled first, for ever."""

    winner: int


class LoopStarted(Command, frozen=True, kw_only=True, tag="loop_started"):
    """A loop begins; iteration *i* of it has its steps below the child *i* of this place.

    After every *forget_every* iterations those that are done are forgotten; None, never. Of the forgotten ones the last
    *keep_forgotten* are kept for tools.
    """

    state: Raw = NULL
    forget_every: int | None = None
    keep_forgotten: int = 100


class Checkpoint(Answer, frozen=True, kw_only=True):
    """A loop has come so far that what it did before can be forgotten.

    *iteration* is the last that is done, *variables* the workflow's durable state, *forgotten* the number of entries of
    this execution that are forgotten by now, *signals* the ids of the last signals among them.
    """

    iteration: int
    variables: dict[str, Raw] = {}
    forgotten: int = 0
    signals: tuple[str, ...] = ()


class LoopCheckpointed(Checkpoint, frozen=True, kw_only=True, tag="loop_checkpointed"):
    """The loop goes on from here with this state. Not an answer yet: the loop stays open."""

    state: Raw = NULL


class LoopCompleted(Checkpoint, frozen=True, kw_only=True, tag="loop_completed"):
    """The loop ended with a value; *whole* if none of its iterations need be run again to know it."""

    result: Raw = NULL
    whole: bool = False


class VersionChecked(Command, frozen=True, kw_only=True, tag="version_checked"):
    """The code asked which version of it this run belongs to, where there was no history to tell."""

    answer: int


class StepRemoved(Command, frozen=True, kw_only=True, tag="step_removed"):
    """A call that this run never made, because it had been removed from the code by then."""

    removed: str


AnyEvent: TypeAlias = (
    WorkflowStarted
    | WorkflowCompleted
    | WorkflowFailed
    | WorkflowCancelled
    | WorkflowTerminated
    | WorkflowDiverged
    | WorkflowDeactivated
    | SignalReceived
    | CancelRequested
    | ActivityScheduled
    | ActivityCompleted
    | ActivityFailed
    | ActivityCancelled
    | ActivityRetryScheduled
    | TimerStarted
    | TimerFired
    | TimerCancelled
    | OperationStarted
    | OperationCompleted
    | OperationFailed
    | OperationCancelled
    | StateSet
    | StateCleared
    | StateRead
    | ListenStarted
    | SignalsConsumed
    | ListenTimedOut
    | ListenCancelled
    | BranchStarted
    | RaceStarted
    | RaceDecided
    | LoopStarted
    | LoopCheckpointed
    | LoopCompleted
    | VersionChecked
    | StepRemoved
)


def _write_location(value: object) -> str:
    if isinstance(value, Location):
        return str(value)
    raise TypeError(f"an event holds a {type(value).__name__}, which has no JSON form")


def _read_location(kind: type, value: object) -> Location:
    if kind is Location and isinstance(value, str):
        return Location.parse(value)
    raise ValueError(f"expected a location, got {value!r}")


_encoder = msgspec.json.Encoder(enc_hook=_write_location)
_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent, dec_hook=_read_location)


def encode_event(event: Event) -> bytes:
    """Return the JSON of an event."""
    return _encoder.encode(event)


def decode_event(data: bytes | str) -> AnyEvent:
    """Return the event that this JSON holds; an unknown type or a missing field is a ``ValueError``."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        text = data if isinstance(data, str) else data.decode(errors="replace")
        raise ValueError(f"not an event of this version: {error}: {text[:200]}") from error
