"""Events without a location: lifecycle events of an instance, and messages from outside."""

from typing import Final

import msgspec
from msgspec import Raw

from resurgam.core.entry import NULL, Event, Failure
from resurgam.core.location import Location
from resurgam.core.retry import RetryRule

WORKFLOW: Final = "workflow"
"""The kind of instances that run a workflow function."""


class Parent(msgspec.Struct, gc=False, frozen=True, kw_only=True, omit_defaults=True):
    """The call that started a child. *key* is shared by all executions of the child: retries and continuations.

    So is *first_run*, the run that the call requested: a call that is made again may request another. A *detached*
    child is independent: its parent is not notified of its end.
    """

    entity_id: str
    run_id: str
    execution_id: str
    location: Location
    key: str
    first_run: str = ""
    detached: bool = False


class Carried(msgspec.Struct, gc=False, frozen=True, kw_only=True, omit_defaults=True):
    """A result of an earlier attempt of this run, reused where the new attempt makes the same call.

    *kind* is the type of the command, *answer* the event that answered it, as JSON; for a child that is still open, the
    command that started it. With *times* it counts the compensations of a saga step: the step's next execution must
    have another idempotency key.
    """

    location: Location
    kind: str
    name: str | None = None
    digest: str | None = None
    answer: Raw = NULL
    times: int = 0


class EarlierChild(msgspec.Struct, gc=False, frozen=True, kw_only=True, omit_defaults=True):
    """A child that an earlier attempt of this run started and whose failure it had not received.

    *by* is the execution that made the call, at the time *at*; *execution_id* is the child's first execution, if known.
    If the child is still *open*, this attempt adopts it: it waits for the child, or closes it.
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


class Started(Event, frozen=True, kw_only=True):
    """The first entry of every execution: the fields that stores and workers read, whichever brain advances it.

    *kind* names that brain, *previous* the execution that this one retries or continues. The instance starts at
    *begins_at* if that is given; if *deferred*, on request. Either way `WorkflowBegun` follows.
    """

    kind: str = WORKFLOW
    name: str
    queue: str
    entity_id: str
    execution_id: str
    run_id: str
    tree_id: str
    generation: int = 1
    attempt: int = 1
    previous: str | None = None
    input: Raw = NULL
    tags: dict[str, str] = {}
    parent: Parent | None = None
    begins_at: int | None = None
    deferred: bool = False


class WorkflowStarted(Started, frozen=True, kw_only=True, tag="workflow_started"):
    """The start of a workflow execution; it holds everything needed to run it.

    *matching* is None if the caller knew the workflow by name only: then the definition decides. *since* is the start
    of the run, if that was earlier. *signals* are the ids received by earlier generations, so that a signal sent again
    is not delivered twice. *retry* and *timeout* (milliseconds) override the definition, if the caller gave them for
    this run.
    """

    matching: str | None = None
    python: str
    since: int | None = None
    carried: tuple[Carried, ...] = ()
    signals: tuple[str, ...] = ()
    children: tuple[EarlierChild, ...] = ()
    retry: RetryRule | None = None
    timeout: int | None = None


class WorkflowBegun(Event, frozen=True, kw_only=True, tag="workflow_begun"):
    """A delayed workflow started: its time came, or it was begun on request."""


class WorkflowCompleted(Event, frozen=True, kw_only=True, tag="workflow_completed"):
    """The workflow's function returned."""

    result: Raw = NULL


class WorkflowFailed(Event, frozen=True, kw_only=True, tag="workflow_failed"):
    """An exception left the workflow's function."""

    failure: Failure


class WorkflowCancelled(Event, frozen=True, kw_only=True, tag="workflow_cancelled"):
    """Cancellation was requested, and the workflow's function did not catch it."""


class WorkflowTerminated(Event, frozen=True, kw_only=True, tag="workflow_terminated"):
    """The workflow was ended at once, without running its code."""

    reason: str = ""


class WorkflowContinued(Event, frozen=True, kw_only=True, tag="workflow_continued"):
    """The workflow continues as a new execution with an empty history."""

    run_id: str
    execution_id: str


class WorkflowRetried(Event, frozen=True, kw_only=True, tag="workflow_retried"):
    """An exception left the workflow's function; it is retried from *next_at* on, as a new execution."""

    failure: Failure
    execution_id: str
    next_at: int


class WorkflowPaused(Event, frozen=True, kw_only=True, tag="workflow_paused"):
    """The workflow was paused; with *tree*, the children it starts are paused too."""

    reason: str = ""
    tree: bool = False


class WorkflowResumed(Event, frozen=True, kw_only=True, tag="workflow_resumed"):
    """A paused workflow was resumed."""


class WorkflowDiverged(Event, frozen=True, kw_only=True, tag="workflow_diverged"):
    """The code does not fit the history: the run is parked until a worker has code that does."""

    diagnosis: str
    worker: str = ""


class WorkflowDeactivated(Event, frozen=True, kw_only=True, tag="workflow_deactivated"):
    """The outcome is decided and no activity is outstanding: the history is complete."""


class Archiving(Event, frozen=True, kw_only=True):
    """A complete execution was selected for an archive. *archiver* is the process that writes it there."""

    archiver: str = ""


class Archived(Event, frozen=True, kw_only=True):
    """The last line of an execution in an archive, never in a store. *digest* is that of all lines before it."""

    digest: str


class WorkflowArchiving(Archiving, frozen=True, kw_only=True, tag="workflow_archiving"):
    """A complete workflow execution was selected for an archive."""


class WorkflowArchived(Archived, frozen=True, kw_only=True, tag="workflow_archived"):
    """A workflow execution is in an archive."""


class SignalReceived(Event, frozen=True, kw_only=True, tag="signal_received"):
    """A signal arrived; it stays in the mailbox until a listener or a handler takes it."""

    name: str
    id: str
    value: Raw = NULL


class CancelRequested(Event, frozen=True, kw_only=True, tag="cancel_requested"):
    """Cancellation was requested; the code gets `asyncio.CancelledError`.

    *timeout* is the workflow's own timeout in milliseconds, if that caused it.
    """

    reason: str = ""
    timeout: int | None = None


class SignalHandled(Event, frozen=True, kw_only=True, tag="signal_handled"):
    """A handler took a signal out of the mailbox; its commands are located below ``{0, scope}``."""

    signal: int
    scope: int


class UpdateAccepted(Event, frozen=True, kw_only=True, tag="update_accepted"):
    """An update arrived, and its handler started; its commands are located below ``{0, scope}``."""

    name: str
    id: str
    input: Raw = NULL
    scope: int = 0


class UpdateCompleted(Event, frozen=True, kw_only=True, tag="update_completed"):
    """The handler of the update accepted in entry ``ref`` returned."""

    ref: int
    id: str
    result: Raw = NULL


class UpdateRejected(Event, frozen=True, kw_only=True, tag="update_rejected"):
    """A validator refused an update, or the handler started by entry ``ref`` raised."""

    name: str
    id: str
    failure: Failure
