"""Events of goal flows and of the catalog of steps.

Work items, and their compensations, are numbered within their flow. An event that answers one carries its number as
``ref``, as answers do; any other event about a work item has it as ``item``. ``cause`` is the ``seq`` of the entry that
led to an event: the result of a step to the start of the next, for instance.
"""

from collections.abc import Iterable
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import Raw

from resurgam.core.entry import NULL, Event, Failure
from resurgam.core.lifecycle import Archived, Archiving, Started

HealthStatus: TypeAlias = Literal["healthy", "unhealthy", "unknown"]

FLOW: Final = "flow"
"""The kind of instances that follow a plan."""
CATALOG: Final = "catalog"
"""The kind of the instance whose log holds the registered steps; its id too, because a store has one."""
SCRIPT_ACTIVITY: Final = "resurgam.script"
"""The activity of the engine itself that evaluates scripts."""
HTTP_ACTIVITY: Final = "resurgam.http"
"""The activity of the engine itself that calls services."""
NOT_COMPLETED: Final = "NotCompleted"
"""The type of the failure of a call that did not lead to a result: it is made again."""
ACKNOWLEDGED: Final = "Acknowledged"
"""The type of the "failure" of an async call that the service has accepted: its answer comes later."""
DEFERRED: Final = "Deferred"
"""The type of the "failure" of a call that was not made yet, because the service is unhealthy."""
CATALOG_QUEUE: Final = "resurgam.catalog"
"""The queue of the catalog. Clients serve it themselves, so that steps can be registered without a worker."""


class FlowRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The input of a flow that is planned when it begins: the values of each given attribute, and its metadata."""

    goals: tuple[str, ...]
    init: dict[str, tuple[Raw, ...]] = {}
    metadata: dict[str, Raw] = {}


def flow_name(goals: Iterable[str]) -> str:
    """Return the name of a flow: its goals."""
    return ",".join(goals)


class FlowStarted(Started, frozen=True, kw_only=True, tag="flow_started"):
    """A flow begins. *input* holds its goals, what it was given, and its plan."""

    kind: str = FLOW


class FlowActivated(Event, frozen=True, kw_only=True, tag="flow_activated"):
    """The flow is among the active ones. *plan* is its plan, if it was started without one."""

    plan: Raw = NULL


class FlowCompleted(Event, frozen=True, kw_only=True, tag="flow_completed"):
    """Every goal is decided. *result* holds the outputs of the goals by name."""

    result: Raw = NULL


class FlowFailed(Event, frozen=True, kw_only=True, tag="flow_failed"):
    """A goal failed or cannot be reached."""

    failure: Failure


class FlowCancelled(Event, frozen=True, kw_only=True, tag="flow_cancelled"):
    """The flow was cancelled on request."""


class FlowDigestUpdated(Event, frozen=True, kw_only=True, tag="flow_digest_updated"):
    """The summary of the flow that lists show: its status, and the message of its failure."""

    status: str
    error: str = ""


class FlowDeactivated(Event, frozen=True, kw_only=True, tag="flow_deactivated"):
    """The flow has ended, and no work of it is outstanding: its log is complete."""


class FlowArchiving(Archiving, frozen=True, kw_only=True, tag="flow_archiving"):
    """A complete flow was selected for an archive."""


class FlowArchived(Archived, frozen=True, kw_only=True, tag="flow_archived"):
    """A flow is in an archive."""


class StepStarted(Event, frozen=True, kw_only=True, tag="step_started"):
    """A step has its inputs. Its work items have the numbers from *first* on, with what differs in the input of each."""

    step: str
    inputs: Raw
    first: int
    items: tuple[Raw, ...]


class StepCompleted(Event, frozen=True, kw_only=True, tag="step_completed"):
    """All work items of a step succeeded."""

    step: str
    outputs: Raw = NULL


class StepFailed(Event, frozen=True, kw_only=True, tag="step_failed"):
    """A work item failed for good, or the step cannot start; *unsatisfied* are the inputs that are the reason."""

    step: str
    failure: Failure
    unsatisfied: tuple[str, ...] = ()


class StepSkipped(Event, frozen=True, kw_only=True, tag="step_skipped"):
    """A step will not run; *unsatisfied* are the inputs that are the reason, if inputs are."""

    step: str
    reason: str
    unsatisfied: tuple[str, ...] = ()


class AttributeSet(Event, frozen=True, kw_only=True, tag="attribute_set"):
    """A step has provided a value of an attribute."""

    attribute: str
    value: Raw
    step: str


class WorkStarted(Event, frozen=True, kw_only=True, tag="work_started"):
    """A worker began an attempt of a work item."""

    item: int
    step: str
    attempt: int = 1


class WorkSucceeded(Event, frozen=True, kw_only=True, tag="work_succeeded"):
    """A work item has its result."""

    ref: int
    step: str
    outputs: Raw = NULL


class WorkFailed(Event, frozen=True, kw_only=True, tag="work_failed"):
    """A work item failed for good."""

    ref: int
    step: str
    failure: Failure


class WorkNotCompleted(Event, frozen=True, kw_only=True, tag="work_not_completed"):
    """An attempt of a work item did not lead to a result."""

    ref: int
    step: str
    failure: Failure


class WorkCancelled(Event, frozen=True, kw_only=True, tag="work_cancelled"):
    """A work item was withdrawn before a worker began it."""

    ref: int
    step: str


class WorkAcknowledged(Event, frozen=True, kw_only=True, tag="work_acknowledged"):
    """The service of an async step has accepted a work item. It is not called again before the moment *deadline*."""

    ref: int
    step: str
    deadline: int


class DispatchDeferred(Event, frozen=True, kw_only=True, tag="dispatch_deferred"):
    """A work item, or a compensation, was not sent to its service; it is tried again at *next_at*."""

    ref: int
    step: str
    next_at: int
    reason: str = ""


class RetryScheduled(Event, frozen=True, kw_only=True, tag="retry_scheduled"):
    """A work item will be attempted again, at *next_retry_at*."""

    item: int
    step: str
    retry_count: int
    next_retry_at: int


class CompStarted(Event, frozen=True, kw_only=True, tag="comp_started"):
    """The compensation of a work item was begun; *number* is that of the compensation."""

    item: int
    step: str
    number: int


class CompRetryScheduled(Event, frozen=True, kw_only=True, tag="comp_retry_scheduled"):
    """A compensation will be attempted again, at *next_retry_at*."""

    ref: int
    step: str
    retry_count: int
    next_retry_at: int
    failure: Failure


class CompSucceeded(Event, frozen=True, kw_only=True, tag="comp_succeeded"):
    """A work item is compensated."""

    ref: int
    step: str


class CompFailed(Event, frozen=True, kw_only=True, tag="comp_failed"):
    """The compensation of a work item failed for good."""

    ref: int
    step: str
    failure: Failure


class CatalogStarted(Started, frozen=True, kw_only=True, tag="catalog_started"):
    """The catalog of a store begins."""

    kind: str = CATALOG


class Registration(Event, frozen=True, kw_only=True):
    """A change of the catalog. *id* is that of the request, by which the client that made it finds it in the log."""

    id: str = ""


class StepRegistered(Registration, frozen=True, kw_only=True, tag="step_registered"):
    """A step was added to the catalog."""

    step: Raw


class StepUpdated(Registration, frozen=True, kw_only=True, tag="step_updated"):
    """A step of the catalog has a new definition."""

    step: Raw


class StepUnregistered(Registration, frozen=True, kw_only=True, tag="step_unregistered"):
    """A step was removed from the catalog."""

    step_id: str


class StepHealthChanged(Registration, frozen=True, kw_only=True, tag="step_health_changed"):
    """The service of a step became healthy or unhealthy. Registering or updating a step makes its health unknown."""

    step_id: str
    status: HealthStatus
    error: str = ""


class EntityDeletionRequested(Registration, frozen=True, kw_only=True, tag="entity_deletion_requested"):
    """A person or a program asked to delete everything about an entity; *tree*: and its descendants.

    *by* is the user and the host. An entry without an `EntityDeleted` after it belongs to a deletion that was interrupted.
    """

    entity_id: str
    reason: str = ""
    by: str = ""
    tree: bool = False


class EntityDeleted(Registration, frozen=True, kw_only=True, tag="entity_deleted"):
    """The executions of an entity are deleted, as many as *executions*; *archived* of them were in an archive."""

    entity_id: str
    executions: int
    archived: int = 0
