"""What running code may know of itself: ids, attempt, place in the tree."""

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowInfo:
    """The identity of an execution, and how far it has come."""

    name: str
    entity_id: str
    execution_id: str
    run_id: str
    tree_id: str
    generation: int
    attempt: int
    queue: str
    history_length: int
    is_replaying: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityInfo:
    """The identity of the attempt that is running.

    *idempotency_key* is the same for every attempt of this activity: hand it to the outside world, so that doing it
    twice has the effect of once.
    """

    name: str
    entity_id: str
    execution_id: str
    workflow_id: str
    attempt: int
    queue: str

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt."""
        return self.entity_id


_running: ContextVar[ActivityInfo] = ContextVar("resurgam.activity")


def activity_info() -> ActivityInfo:
    """Return the activity that is running."""
    try:
        return _running.get()
    except LookupError:
        raise RuntimeError("activity.info() was called outside of an activity") from None


def enter_activity(info: ActivityInfo) -> None:
    """Make *info* the running activity of this context."""
    _running.set(info)
