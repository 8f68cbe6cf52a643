"""Events without a place: the life of an instance, and what comes to it from outside."""

import msgspec
from msgspec import Raw

from resurgam.core.entry import NULL, Event, Failure
from resurgam.core.location import Location
from resurgam.core.retry import RetryRule


class Parent(msgspec.Struct, gc=False, frozen=True, kw_only=True, omit_defaults=True):
    """The call that began a child. *key* is the same for all that becomes of the child: retries and continuations.

    One that is *detached* is on its own: its parent does not hear of it again.
    """

    entity_id: str
    run_id: str
    execution_id: str
    location: Location
    key: str
    detached: bool = False


class Carried(msgspec.Struct, gc=False, frozen=True, kw_only=True, omit_defaults=True):
    """What an earlier attempt of this run has got already, to be had again where the same is asked for.

    *kind* is the type of the command, *answer* the event that answered it, as JSON; of a child that is still under way, the
    command that began it. With *times* it is a step of a saga that was taken back so often: what is done anew there must
    not be taken for the same by anybody outside.
    """

    location: Location
    kind: str
    name: str | None = None
    digest: str | None = None
    answer: Raw = NULL
    times: int = 0


class EarlierChild(msgspec.Struct, gc=False, frozen=True, kw_only=True, omit_defaults=True):
    """A child that an earlier attempt of this run called for, and of whose failure it had not heard by its end.

    *by* is the execution that called for it, at the moment *at*; *execution_id* is the one that it began as, if that was
    heard of. It may still be *open*: then it is this attempt's to wait for, and to close.
    """

    location: Location
    name: str
    digest: str | None = None
    entity_id: str
    run_id: str
    execution_id: str = ""
    by: str
    at: int
    on_parent_close: str = "cancel"
    open: bool = True


class WorkflowStarted(Event, frozen=True, kw_only=True, tag="workflow_started"):
    """The first entry of every execution; it holds all that is needed to run it.

    *matching* is None where whoever started it knew the workflow by its name only: then it is as the code says.
    *previous* is the execution that this one retries or continues, *since* when the run began, if that was earlier.
    The code begins at *begins_at* if that is given, if *deferred* when somebody says so: then `WorkflowBegun` follows.
    *signals* are the ids of those that earlier generations have had, so that one which is sent again is not heard again.
    *retry* and *timeout*, in milliseconds, are there if the caller gave them for this run: they replace what the code says.
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
    parent: Parent | None = None
    previous: str | None = None
    since: int | None = None
    begins_at: int | None = None
    deferred: bool = False
    carried: tuple[Carried, ...] = ()
    signals: tuple[str, ...] = ()
    children: tuple[EarlierChild, ...] = ()
    retry: RetryRule | None = None
    timeout: int | None = None


class WorkflowBegun(Event, frozen=True, kw_only=True, tag="workflow_begun"):
    """The start of a workflow that was put off: its moment has come, or somebody has begun it."""


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


class WorkflowContinued(Event, frozen=True, kw_only=True, tag="workflow_continued"):
    """The workflow goes on as a new execution with an empty history."""

    run_id: str
    execution_id: str


class WorkflowRetried(Event, frozen=True, kw_only=True, tag="workflow_retried"):
    """An exception left the workflow's function, and it is tried again from *next_at* on, as a new execution."""

    failure: Failure
    execution_id: str
    next_at: int


class WorkflowPaused(Event, frozen=True, kw_only=True, tag="workflow_paused"):
    """Somebody halted the workflow; with *tree*, what it begins is halted too."""

    reason: str = ""
    tree: bool = False


class WorkflowResumed(Event, frozen=True, kw_only=True, tag="workflow_resumed"):
    """Somebody let a paused workflow go on."""


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
    """Somebody asked the workflow to stop; its code hears of it as `asyncio.CancelledError`.

    *timeout* is its own, in milliseconds, if it was that which ran out.
    """

    reason: str = ""
    timeout: int | None = None


class SignalHandled(Event, frozen=True, kw_only=True, tag="signal_handled"):
    """A handler took a signal out of the mailbox; its steps stand below ``{0, scope}``."""

    signal: int
    scope: int


class UpdateAccepted(Event, frozen=True, kw_only=True, tag="update_accepted"):
    """Somebody sent an update, and a handler began with it; its steps stand below ``{0, scope}``."""

    name: str
    id: str
    input: Raw = NULL
    scope: int = 0


class UpdateCompleted(Event, frozen=True, kw_only=True, tag="update_completed"):
    """The handler of the update that was accepted in entry ``ref`` returned."""

    ref: int
    id: str
    result: Raw = NULL


class UpdateRejected(Event, frozen=True, kw_only=True, tag="update_rejected"):
    """A validator refused an update, or the handler that had begun with it (in entry ``ref``) raised."""

    name: str
    id: str
    failure: Failure
