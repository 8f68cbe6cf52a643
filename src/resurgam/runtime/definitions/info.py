"""What running code may know of itself: ids, attempt, place in the tree; and what an attempt tells its worker."""

import asyncio
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from msgspec import Raw

from resurgam.core.codec import check_size, codec_for
from resurgam.core.event import Parent


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
    parent: Parent | None = None
    history_length: int
    is_replaying: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityInfo:
    """The identity of the attempt that is running.

    *idempotency_key* is the same for every attempt of this activity: hand it to the outside world, so that doing it
    twice has the effect of once. *details* is what an earlier attempt told last by ``activity.heartbeat()``, as plain
    JSON types; None if there was nothing.
    """

    name: str
    entity_id: str
    execution_id: str
    workflow_id: str
    attempt: int
    queue: str
    details: Any = None

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt."""
        return self.entity_id


_DETAILS: Final = codec_for(Any)


class Attempt:
    """A running attempt, as its own code sees it: who it is, and its line to the worker. Any thread may use it."""

    __slots__ = ("info", "max_payload")

    info: ActivityInfo
    max_payload: int

    def cancelled(self) -> bool:
        """Whether nobody waits for it any more."""
        raise NotImplementedError

    def beat(self, details: Raw | None) -> None:
        """Tell the worker that it is alive, and how far it has come; None says no more than that."""
        raise NotImplementedError


_running: ContextVar[Attempt] = ContextVar("resurgam.activity")


def enter_activity(attempt: Attempt) -> None:
    """Make *attempt* the running one of this context."""
    _running.set(attempt)


def activity_info() -> ActivityInfo:
    """Return the activity that is running."""
    return _current("info").info


def activity_cancelled() -> bool:
    """Whether nobody waits for the running attempt any more."""
    return _current("cancelled").cancelled()


def heartbeat(details: object = None) -> None:
    """Tell the worker that the running attempt is alive, and how far it has come."""
    attempt = _current("heartbeat")
    # First, so that details which cannot be written are an error whenever they are told.
    written = None if details is None else _written(details, attempt)
    if attempt.cancelled():
        raise asyncio.CancelledError(f"activity {attempt.info.name!r} is not waited for any more")
    attempt.beat(written)


def _written(details: object, attempt: Attempt) -> Raw:
    where = f"heartbeat of activity {attempt.info.name!r}"
    return check_size(attempt.max_payload, _DETAILS.encode(details, where), where)


def read_details(written: Raw | None) -> Any:
    """Return the details that an attempt told, from their recorded bytes."""
    return None if written is None else _DETAILS.decode(written, "details of a heartbeat")


def _current(verb: str) -> Attempt:
    try:
        return _running.get()
    except LookupError:
        raise RuntimeError(f"activity.{verb}() was called outside of an activity") from None
