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

from resurgam.core.entry import NULL as NULL
from resurgam.core.entry import Answer as Answer
from resurgam.core.entry import Command as Command
from resurgam.core.entry import Event as Event
from resurgam.core.entry import Failure as Failure
from resurgam.core.entry import encode_event as encode_event
from resurgam.core.lifecycle import CancelRequested as CancelRequested
from resurgam.core.lifecycle import Carried as Carried
from resurgam.core.lifecycle import EarlierChild as EarlierChild
from resurgam.core.lifecycle import Parent as Parent
from resurgam.core.lifecycle import SignalHandled as SignalHandled
from resurgam.core.lifecycle import SignalReceived as SignalReceived
from resurgam.core.lifecycle import UpdateAccepted as UpdateAccepted
from resurgam.core.lifecycle import UpdateCompleted as UpdateCompleted
from resurgam.core.lifecycle import UpdateRejected as UpdateRejected
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
from resurgam.core.location import Location
from resurgam.core.retry import RetryRule


class ActivityScheduled(Command, frozen=True, kw_only=True, tag="activity_scheduled"):
    """Run an activity. It is called off if nobody has begun it by *start_by*."""

    name: str
    queue: str
    input: Raw = NULL
    start_by: int | None = None


class ActivityCompleted(Answer, frozen=True, kw_only=True, tag="activity_completed"):
    """The activity returned. *carried*: in an earlier attempt of the workflow."""

    attempt: int = 1
    result: Raw = NULL
    carried: bool = False


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
    """Wait for a signal of one of these names, until ``deadline`` if there is one; for up to *limit* at once."""

    name: str
    names: tuple[str, ...]
    deadline: int | None = None
    limit: int | None = None


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
    this execution that are forgotten by now, *signals* the ids of the last signals and updates among them, *handlers* the
    number of handlers that have begun.
    """

    iteration: int
    variables: dict[str, Raw] = {}
    forgotten: int = 0
    signals: tuple[str, ...] = ()
    handlers: int = 0


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


class ChildScheduled(Command, frozen=True, kw_only=True, tag="child_scheduled"):
    """Begin another workflow. *name* is that of its definition, the ids are those that it begins with.

    *retry* and *timeout* are those of the call, if it gave any.
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


class ChildStarted(Answer, frozen=True, kw_only=True, tag="child_started"):
    """The child is there. Not an answer yet, unless it is detached: the command stays open."""

    execution_id: str


class ChildCancelRequested(Answer, frozen=True, kw_only=True, tag="child_cancel_requested"):
    """The workflow's own code asked the child to stop; the command stays open until it has."""


class ChildAnswer(Answer, frozen=True, kw_only=True):
    """How a child ended, in its last generation.

    It comes from the child with the place of the call, as *child*, the execution that made it, as *by*, and ``ref`` 0;
    the parent knows which of its commands that is.
    """

    child: str = ""
    by: str = ""
    carried: bool = False


class ChildCompleted(ChildAnswer, frozen=True, kw_only=True, tag="child_completed"):
    """The child returned."""

    result: Raw = NULL


class ChildFailed(ChildAnswer, frozen=True, kw_only=True, tag="child_failed"):
    """The child failed, was terminated, or could not be begun."""

    failure: Failure


class ChildCancelled(ChildAnswer, frozen=True, kw_only=True, tag="child_cancelled"):
    """The child was asked to stop, and stopped; without *child* it was called off before it had been begun."""


class PromiseCreated(Command, frozen=True, kw_only=True, tag="promise_created"):
    """Wait for a value that somebody outside gives, by the id or by the name."""

    name: str
    promise_id: str
    deadline: int | None = None


class PromiseAnswer(Answer, frozen=True, kw_only=True):
    """How a promise was settled from outside; it comes with its id and ``ref`` 0."""

    promise_id: str = ""
    carried: bool = False


class PromiseResolved(PromiseAnswer, frozen=True, kw_only=True, tag="promise_resolved"):
    """Somebody gave the value."""

    value: Raw = NULL


class PromiseRejected(PromiseAnswer, frozen=True, kw_only=True, tag="promise_rejected"):
    """Somebody said that there will be no value."""

    failure: Failure


class PromiseTimedOut(Answer, frozen=True, kw_only=True, tag="promise_timed_out"):
    """Nobody settled the promise before its deadline."""


class PromiseCancelled(Answer, frozen=True, kw_only=True, tag="promise_cancelled"):
    """The workflow no longer waits for this promise."""


class SignalSent(Command, frozen=True, kw_only=True, tag="signal_sent"):
    """Send a signal to another workflow."""

    name: str
    entity_id: str
    id: str
    value: Raw = NULL


class PromiseSettled(Command, frozen=True, kw_only=True, tag="promise_settled"):
    """Settle a promise of some workflow with a value."""

    name: str
    value: Raw = NULL


class SignalDelivered(Answer, frozen=True, kw_only=True, tag="signal_delivered"):
    """What was sent is in the mailbox of its target. *first*: a promise had not been settled before."""

    first: bool = True


class SignalFailed(Answer, frozen=True, kw_only=True, tag="signal_failed"):
    """What was sent has no target, or it takes nothing any more."""

    failure: Failure


class MessagePublished(Command, frozen=True, kw_only=True, tag="message_published"):
    """Tell whoever listens at this moment; nobody need."""

    name: str
    value: Raw = NULL


class SagaStepRegistered(Command, frozen=True, kw_only=True, tag="saga_step_registered"):
    """A step of a saga: it is done below ``1`` of this place, and taken back below ``2``.

    *name* is the activity that does it, *undo* the one that takes it back, in *queue*.
    """

    name: str
    undo: str | None = None
    queue: str = "default"
    unknown: bool = False


class SagaCompensationStarted(Answer, frozen=True, kw_only=True, tag="saga_compensation_started"):
    """The saga failed, and this step is being taken back. Not an answer yet: the command stays open."""


class SagaClosed(Answer, frozen=True, kw_only=True, tag="saga_closed"):
    """What became of a step of a saga: *completed*, *compensated*, *failed* if it could not be taken back, or *skipped*."""

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
)


def _read_location(kind: type, value: object) -> Location:
    if kind is Location and isinstance(value, str):
        return Location.parse(value)
    raise ValueError(f"expected a location, got {value!r}")


_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent, dec_hook=_read_location)


def decode_event(data: bytes | str) -> AnyEvent:
    """Return the event that this JSON holds; an unknown type or a missing field is a ``ValueError``."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        text = data if isinstance(data, str) else data.decode(errors="replace")
        raise ValueError(f"not an event of this version: {error}: {text[:200]}") from error
