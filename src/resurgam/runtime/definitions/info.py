"""The identity of running workflow and activity code, and the heartbeat of an attempt."""

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, Protocol

import msgspec
from msgspec import Raw

from resurgam.core.codec import check_size, codec_for
from resurgam.core.event import Parent


class WorkflowInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The identity and progress of an execution."""

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


class ActivityInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of the running attempt.

    *idempotency_key* is the same for every attempt of this activity: pass it to external services, so that a repeated
    call has no further effect. *details* are the latest that an earlier attempt passed to ``activity.heartbeat()``, as
    plain JSON types, or None. *redelivered*: this attempt has begun before, and its worker was lost.
    """

    name: str
    entity_id: str
    execution_id: str
    workflow_id: str
    attempt: int
    queue: str
    details: Any = None
    redelivered: bool = False

    @property
    def idempotency_key(self) -> str:
        """A key that is the same for every attempt."""
        return self.entity_id


_DETAILS: Final = codec_for(Any)


class Attempt(Protocol):
    """A running attempt as seen by its own code: its identity and its connection to the worker. Thread-safe."""

    @property
    def info(self) -> ActivityInfo:
        """Its identity."""
        ...

    @property
    def max_payload(self) -> int:
        """The limit for the details of a heartbeat, in bytes."""
        ...

    def cancelled(self) -> bool:
        """Whether the result is no longer needed."""
        ...

    def beat(self, details: Raw | None) -> None:
        """Send a heartbeat to the worker; None leaves the details unchanged."""
        ...


_running: ContextVar[Attempt] = ContextVar("resurgam.activity")


enter_activity: Final[Callable[[Attempt], object]] = _running.set
"""Make an attempt the running one of this context."""


def activity_info() -> ActivityInfo:
    """Return the identity of the running attempt."""
    return _current("info").info


def activity_cancelled() -> bool:
    """Whether the result of the running attempt is no longer needed."""
    return _current("cancelled").cancelled()


def heartbeat(details: object = None) -> None:
    """Send a heartbeat of the running attempt to the worker."""
    attempt = _current("heartbeat")
    # First, so that details which cannot be encoded are always an error.
    written = None if details is None else _encode_details(details, attempt)
    if attempt.cancelled():
        raise asyncio.CancelledError(f"activity {attempt.info.name!r} was cancelled, timed out, or lost its lease")
    attempt.beat(written)


def _encode_details(details: object, attempt: Attempt) -> Raw:
    where = f"heartbeat of activity {attempt.info.name!r}"
    return check_size(attempt.max_payload, _DETAILS.encode(details, where), where)


def read_details(written: Raw | None) -> Any:
    """Decode the recorded details of a heartbeat."""
    return None if written is None else _DETAILS.decode(written, "details of a heartbeat")


def _current(verb: str) -> Attempt:
    try:
        return _running.get()
    except LookupError:
        raise RuntimeError(f"activity.{verb}() must be called inside an activity") from None
