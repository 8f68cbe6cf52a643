"""All events of a history, as one closed union of frozen structs.

An event is one of

- a `Command`: workflow code made a durable call. It has a location, a version, a command id such as ``Task(0)`` and
  a digest of its input, if any;
- an `Answer`: the result of a command. It carries ``ref``, the ``seq`` of that command; never a name, never a
  location. The first answer to a command is final;
- an external event (a signal, a cancel request) or a lifecycle event of the instance.

``seq`` counts from 1 without gaps, ``at`` never decreases. On disk an event is one JSON object whose ``type`` is the
tag below. Values passed by users are embedded as plain JSON, so that a history can be read with any tool.
"""

from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

import msgspec
from msgspec import Raw

from resurgam.core import flow_event
from resurgam.core.entry import NULL as NULL
from resurgam.core.entry import Answer as Answer
from resurgam.core.entry import Command as Command
from resurgam.core.entry import Event as Event
from resurgam.core.entry import Failure as Failure
from resurgam.core.entry import encode_event as encode_event
from resurgam.core.lifecycle import Archived as Archived
from resurgam.core.lifecycle import Archiving as Archiving
from resurgam.core.lifecycle import CancelRequested as CancelRequested
from resurgam.core.lifecycle import Carried as Carried
from resurgam.core.lifecycle import EarlierChild as EarlierChild
from resurgam.core.lifecycle import Parent as Parent
from resurgam.core.lifecycle import SignalHandled as SignalHandled
from resurgam.core.lifecycle import SignalReceived as SignalReceived
from resurgam.core.lifecycle import Started as Started
from resurgam.core.lifecycle import UpdateAccepted as UpdateAccepted
from resurgam.core.lifecycle import UpdateCompleted as UpdateCompleted
from resurgam.core.lifecycle import UpdateRejected as UpdateRejected
from resurgam.core.lifecycle import WorkflowArchived as WorkflowArchived
from resurgam.core.lifecycle import WorkflowArchiving as WorkflowArchiving
from resurgam.core.lifecycle import WorkflowBegun as WorkflowBegun
from resurgam.core.lifecycle import WorkflowCancelled as WorkflowCancelled
from resurgam.core.lifecycle import WorkflowCompleted as WorkflowCompleted
from resurgam.core.lifecycle import WorkflowContinued as WorkflowContinued
from resurgam.core.lifecycle import WorkflowDeactivated as WorkflowDeactivated
from resurgam.core.lifecycle import WorkflowDiverged as WorkflowDiverged
from resurgam.core.lifecycle import WorkflowFailed as WorkflowFailed
from resurgam.core.lifecycle import WorkflowPaused as WorkflowPaused
from resurgam.core.lifecycle import WorkflowResumed as WorkflowResumed
from resurgam.core.lifecycle import WorkflowRetried as WorkflowRetried
from resurgam.core.lifecycle import WorkflowStarted as WorkflowStarted
from resurgam.core.lifecycle import WorkflowTerminated as WorkflowTerminated
from resurgam.core.location import Location, shared_location
from resurgam.core.retry import RetryRule


class ActivityScheduled(Command, frozen=True, kw_only=True, tag="activity_scheduled"):
    """Run an activity. It fails if no worker has started it by *start_by*."""

    name: str
    queue: str
    input: Raw = NULL
    start_by: int | None = None


class ActivityCompleted(Answer, frozen=True, kw_only=True, tag="activity_completed"):
    """The activity returned. *carried*: it did so in an earlier attempt of the workflow."""

    attempt: int = 1
    result: Raw = NULL
    carried: bool = False


class ActivityFailed(Answer, frozen=True, kw_only=True, tag="activity_failed"):
    """The activity failed and is not retried."""

    attempt: int = 1
    failure: Failure


class ActivityCancelled(Answer, frozen=True, kw_only=True, tag="activity_cancelled"):
    """The activity was cancelled; a result that it may still return is ignored."""


class ActivityRetryScheduled(Answer, frozen=True, kw_only=True, tag="activity_retry_scheduled"):
    """An attempt failed; the next starts at ``next_at``. Not final: the command stays open."""

    attempt: int
    next_at: int
    failure: Failure


class TimerStarted(Command, frozen=True, kw_only=True, tag="timer_started"):
    """Wake the workflow at ``deadline``."""

    deadline: int


class TimerFired(Answer, frozen=True, kw_only=True, tag="timer_fired"):
    """The timer reached its deadline."""


class TimerCancelled(Answer, frozen=True, kw_only=True, tag="timer_cancelled"):
    """The workflow cancelled the timer."""


class OperationStarted(Command, frozen=True, kw_only=True, tag="operation_started"):
    """Run a side effect beside the workflow and record its result."""

    name: str


class OperationCompleted(Answer, frozen=True, kw_only=True, tag="operation_completed"):
    """The operation returned."""

    result: Raw = NULL


class OperationFailed(Answer, frozen=True, kw_only=True, tag="operation_failed"):
    """The operation raised; it is not retried."""

    failure: Failure


class OperationCancelled(Answer, frozen=True, kw_only=True, tag="operation_cancelled"):
    """The workflow cancelled the operation."""


class StateSet(Command, frozen=True, kw_only=True, tag="state_set"):
    """Set ``name`` in the workflow's durable state."""

    name: str
    value: Raw = NULL


class StateCleared(Command, frozen=True, kw_only=True, tag="state_cleared"):
    """Remove ``name`` from the workflow's durable state."""

    name: str


class TagsSet(Command, frozen=True, kw_only=True, tag="tags_set"):
    """Change tags of this run; None removes one."""

    tags: dict[str, str | None]


class StateRead(Command, frozen=True, kw_only=True, tag="state_read"):
    """A branch that runs beside a forgetting loop read the state; the entry that set it may be forgotten later."""

    name: str
    value: Raw = NULL
    found: bool = False


class ListenStarted(Command, frozen=True, kw_only=True, tag="listen_started"):
    """Wait for a signal of one of these names, until ``deadline`` if set; take up to *limit* at once."""

    name: str
    names: tuple[str, ...]
    deadline: int | None = None
    limit: int | None = None


class SignalsConsumed(Answer, frozen=True, kw_only=True, tag="signals_consumed"):
    """A listener took these signals (given by ``seq``) out of the mailbox."""

    signals: tuple[int, ...]


class ListenTimedOut(Answer, frozen=True, kw_only=True, tag="listen_timed_out"):
    """No signal came before the listener's deadline."""


class ListenCancelled(Answer, frozen=True, kw_only=True, tag="listen_cancelled"):
    """The workflow cancelled the listener."""


class BranchStarted(Command, frozen=True, kw_only=True, tag="branch_started"):
    """Start a branch; its commands are located below this one.

    *matching* names the matcher of the branch, if it differs from that of the enclosing scope.
    """

    matching: str | None = None


class RaceStarted(Command, frozen=True, kw_only=True, tag="race_started"):
    """Wait for the first of several futures to settle."""

    size: int


class RaceDecided(Answer, frozen=True, kw_only=True, tag="race_decided"):
    """The competitor with this index settled first; replays keep the decision."""

    winner: int


class LoopStarted(Command, frozen=True, kw_only=True, tag="loop_started"):
    """Start a durable loop; the commands of iteration *i* are located below child *i* of this location.

    After every *forget_every* iterations the completed ones are forgotten; None means never. The last *keep_forgotten*
    forgotten iterations remain readable for tools.
    """

    state: Raw = NULL
    forget_every: int | None = None
    keep_forgotten: int = 100


class Checkpoint(Answer, frozen=True, kw_only=True):
    """The progress of a durable loop: entries of completed iterations may be forgotten.

    *iteration* is the last completed iteration, *variables* the workflow's durable state, *forgotten* the number of
    entries of this execution forgotten so far, *signals* the ids of the latest signals and updates among them,
    *handlers* the number of handlers started so far, *tags* those of the run, if its code has changed any.
    """

    iteration: int
    variables: dict[str, Raw] = {}
    forgotten: int = 0
    signals: tuple[str, ...] = ()
    handlers: int = 0
    tags: dict[str, str] | None = None


class LoopCheckpointed(Checkpoint, frozen=True, kw_only=True, tag="loop_checkpointed"):
    """The loop continues from here with this state. Not final: the loop stays open."""

    state: Raw = NULL


class LoopCompleted(Checkpoint, frozen=True, kw_only=True, tag="loop_completed"):
    """The loop returned a value; *whole*: replay need not run any of its iterations again."""

    result: Raw = NULL
    whole: bool = False


class VersionChecked(Command, frozen=True, kw_only=True, tag="version_checked"):
    """A version check that had no recorded history to decide it; *answer* is the version from now on."""

    answer: int


class StepRemoved(Command, frozen=True, kw_only=True, tag="step_removed"):
    """Mark a call that this run never made, because it had already been removed from the code."""

    removed: str


class ChildCommand(Command, frozen=True, kw_only=True):
    """Start a child, a workflow or a flow. *name* is its definition; the ids are those of its first execution.

    *retry* and *timeout* override the definition, if the call gave them.
    """

    name: str
    queue: str
    entity_id: str
    run_id: str
    input: Raw = NULL
    detach: bool = False
    deferred: bool = False
    on_parent_close: str = "cancel"
    retry: RetryRule | None = None
    timeout: int | None = None


class ChildScheduled(ChildCommand, frozen=True, kw_only=True, tag="child_scheduled"):
    """Start a child workflow."""


class ChildStarted(Answer, frozen=True, kw_only=True, tag="child_started"):
    """The child was created. Not final unless the child is detached: the command stays open."""

    execution_id: str


class ChildCancelRequested(Answer, frozen=True, kw_only=True, tag="child_cancel_requested"):
    """Workflow code cancelled the child; the command stays open until the child has ended."""


class ChildAnswer(Answer, frozen=True, kw_only=True):
    """The end of a child, in its last generation.

    The child sends it with ``ref`` 0, the location of the call as *child* and the execution that made the call as *by*;
    the parent resolves them to one of its commands.
    """

    child: str = ""
    by: str = ""
    carried: bool = False


class ChildCompleted(ChildAnswer, frozen=True, kw_only=True, tag="child_completed"):
    """The child returned."""

    result: Raw = NULL


class ChildFailed(ChildAnswer, frozen=True, kw_only=True, tag="child_failed"):
    """The child failed, was terminated, or could not be started."""

    failure: Failure


class ChildCancelled(ChildAnswer, frozen=True, kw_only=True, tag="child_cancelled"):
    """The child was cancelled; without *child*, before it had been started."""


class FlowScheduled(ChildCommand, frozen=True, kw_only=True, tag="flow_scheduled"):
    """Start a goal flow as a child. *name* is its goals, *input* holds them with what the flow is given."""


class FlowAnswered(ChildAnswer, frozen=True, kw_only=True, tag="flow_answered"):
    """The end of a flow that was started as a child. *outcome* is ``completed``, ``failed`` or ``cancelled``.

    As with `ChildCancelled`, a flow that was cancelled before it had been started has no *child*.
    """

    outcome: str = "completed"
    result: Raw = NULL
    failure: Failure | None = None


class PromiseCreated(Command, frozen=True, kw_only=True, tag="promise_created"):
    """Wait for a value given from outside, by the promise's id or by its name."""

    name: str
    promise_id: str
    deadline: int | None = None


class PromiseAnswer(Answer, frozen=True, kw_only=True):
    """The settlement of a promise from outside; it arrives with the promise's id and ``ref`` 0."""

    promise_id: str = ""
    carried: bool = False


class PromiseResolved(PromiseAnswer, frozen=True, kw_only=True, tag="promise_resolved"):
    """The promise was settled with a value."""

    value: Raw = NULL


class PromiseRejected(PromiseAnswer, frozen=True, kw_only=True, tag="promise_rejected"):
    """The promise was settled with a failure."""

    failure: Failure


class PromiseTimedOut(Answer, frozen=True, kw_only=True, tag="promise_timed_out"):
    """The promise was not settled before its deadline."""


class PromiseCancelled(Answer, frozen=True, kw_only=True, tag="promise_cancelled"):
    """The workflow cancelled the promise."""


class SignalSent(Command, frozen=True, kw_only=True, tag="signal_sent"):
    """Send a signal to another workflow."""

    name: str
    entity_id: str
    id: str
    value: Raw = NULL


class PromiseSettled(Command, frozen=True, kw_only=True, tag="promise_settled"):
    """Settle a promise of any workflow with a value."""

    name: str
    value: Raw = NULL


class SignalDelivered(Answer, frozen=True, kw_only=True, tag="signal_delivered"):
    """The target received the signal or settlement. *first*: the promise had not been settled before."""

    first: bool = True


class SignalFailed(Answer, frozen=True, kw_only=True, tag="signal_failed"):
    """The target of a signal or settlement does not exist, or is closed."""

    failure: Failure


class MessagePublished(Command, frozen=True, kw_only=True, tag="message_published"):
    """Publish a message to the topic's current subscribers, if there are any."""

    name: str
    value: Raw = NULL


class SagaStepRegistered(Command, frozen=True, kw_only=True, tag="saga_step_registered"):
    """Register a step of a saga: its action runs below ``1`` of this location, its compensation below ``2``.

    *name* is the activity of the action, *undo* that of the compensation, in *queue*.
    """

    name: str
    undo: str | None = None
    queue: str = "default"
    unknown: bool = False


class SagaCompensationStarted(Answer, frozen=True, kw_only=True, tag="saga_compensation_started"):
    """The saga failed, and the compensation of this step has started. Not final: the command stays open."""


class SagaClosed(Answer, frozen=True, kw_only=True, tag="saga_closed"):
    """The outcome of a saga step: *completed*, *compensated*, *failed* (its compensation failed), or *skipped*."""

    outcome: str


AnyEvent: TypeAlias = (
    WorkflowStarted
    | WorkflowCompleted
    | WorkflowFailed
    | WorkflowCancelled
    | WorkflowTerminated
    | WorkflowBegun
    | WorkflowContinued
    | WorkflowRetried
    | WorkflowPaused
    | WorkflowResumed
    | WorkflowDiverged
    | WorkflowDeactivated
    | WorkflowArchiving
    | WorkflowArchived
    | SignalReceived
    | SignalHandled
    | UpdateAccepted
    | UpdateCompleted
    | UpdateRejected
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
    | TagsSet
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
    | ChildScheduled
    | ChildStarted
    | ChildCancelRequested
    | ChildCompleted
    | ChildFailed
    | ChildCancelled
    | FlowScheduled
    | FlowAnswered
    | PromiseCreated
    | PromiseResolved
    | PromiseRejected
    | PromiseTimedOut
    | PromiseCancelled
    | PromiseSettled
    | SignalSent
    | SignalDelivered
    | SignalFailed
    | MessagePublished
    | SagaStepRegistered
    | SagaCompensationStarted
    | SagaClosed
    | flow_event.FlowStarted
    | flow_event.FlowActivated
    | flow_event.FlowCompleted
    | flow_event.FlowFailed
    | flow_event.FlowCancelled
    | flow_event.FlowDigestUpdated
    | flow_event.FlowDeactivated
    | flow_event.FlowArchiving
    | flow_event.FlowArchived
    | flow_event.StepStarted
    | flow_event.StepCompleted
    | flow_event.StepFailed
    | flow_event.StepSkipped
    | flow_event.AttributeSet
    | flow_event.WorkStarted
    | flow_event.WorkSucceeded
    | flow_event.WorkFailed
    | flow_event.WorkNotCompleted
    | flow_event.WorkCancelled
    | flow_event.WorkAcknowledged
    | flow_event.DispatchDeferred
    | flow_event.RetryScheduled
    | flow_event.CompStarted
    | flow_event.CompRetryScheduled
    | flow_event.CompSucceeded
    | flow_event.CompFailed
    | flow_event.CatalogStarted
    | flow_event.StepRegistered
    | flow_event.StepUpdated
    | flow_event.StepUnregistered
    | flow_event.StepHealthChanged
    | flow_event.EntityDeletionRequested
    | flow_event.EntityDeleted
)


def child_outcome(answer: ChildAnswer) -> str:
    """Return how a child ended, a workflow or a flow: ``completed``, ``failed`` or ``cancelled``."""
    match answer:
        case FlowAnswered():
            return answer.outcome
        case ChildCompleted():
            return "completed"
        case ChildCancelled():
            return "cancelled"
        case _:
            return "failed"


def was_never_started(entry: Event) -> bool:
    """Whether an entry records that the code cancelled a child before it was started."""
    return isinstance(entry, ChildAnswer) and not entry.child and child_outcome(entry) == "cancelled"


def _read_location(kind: type, value: object) -> Location:
    if kind is Location and type(value) is str:
        return shared_location(value) or Location.parse(value)
    raise ValueError(f"a location must be text such as {{2, 1.1}}, got {value!r}")


_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent, dec_hook=_read_location)
_log_decoder: msgspec.json.Decoder[list[AnyEvent]] = msgspec.json.Decoder(list[AnyEvent], dec_hook=_read_location)
_BATCH: Final = 500
"""Events that are decoded by one call; more would only keep a longer copy of their text."""


def decode_event(data: bytes | str) -> AnyEvent:
    """Decode an event from JSON; raise ``ValueError`` for an unknown type or a missing field."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        text = data if isinstance(data, str) else data.decode(errors="replace")
        raise ValueError(f"not an event of this version: {error}: {text[:200]}") from error


def decode_events(texts: Sequence[str]) -> Iterator[AnyEvent]:
    """Decode many events, a batch by one call; raise ``ValueError`` at the first that cannot be decoded.

    A batch that is no array of as many events is decoded one by one, up to the one at fault.
    """
    for start in range(0, len(texts), _BATCH):
        batch = texts[start : start + _BATCH]
        try:
            decoded = _log_decoder.decode(f"[{','.join(batch)}]")
        except (msgspec.MsgspecError, UnicodeError):
            decoded = []
        yield from decoded if len(decoded) == len(batch) else map(decode_event, batch)
