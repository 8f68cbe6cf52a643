"""What an instance wants of the world after it has been advanced: the values that go into its next commit."""

from typing import Literal

import msgspec

from resurgam.core.event import Event
from resurgam.core.location import Location
from resurgam.core.retry import RetryRule
from resurgam.core.state import Status


class Entry(msgspec.Struct, gc=False, frozen=True):
    """Something that waits to be told to an instance. *id* is the store's; None for what a worker brings itself."""

    id: int | None
    event: Event


class ActivityRequest(msgspec.Struct, gc=False, frozen=True, kw_only=True):
    """An activity to be put on a queue. *ref* is the command that asked for it; *executor* None, as it is defined."""

    ref: int
    name: str
    queue: str
    input: msgspec.Raw
    entity_id: str
    retry: RetryRule = RetryRule()
    timeout: int | None = None
    executor: Literal["thread", "process"] | None = None


class Withdrawal(msgspec.Struct, gc=False, frozen=True):
    """An activity that is no longer wanted.

    *answered*: its cancellation is in the log already, so it goes whether or not a worker has begun it. Otherwise (the
    workflow has ended) it goes only if nobody has begun it, and the store puts *entry* into the inbox to say so.
    """

    ref: int
    answered: bool
    entry: Event | None = None


class Forgotten(msgspec.Struct, gc=False, frozen=True):
    """An entry of the log that replay needs no longer; tools find it under its *place*."""

    seq: int
    place: Location


class Span(msgspec.Struct, gc=False, frozen=True):
    """All places from *start* on and before *end*, in the order of locations."""

    start: Location
    end: Location


class Outcome(msgspec.Struct, gc=False, frozen=True, kw_only=True):
    """The atomic result of one advance. *diagnosis* says why a run is parked, with status ``diverged``.

    *forgotten* are entries of the log, older ones or of this very commit, that are not read again when the instance is
    loaded; *dropped* are the places whose forgotten entries are not kept any longer, not even for tools.
    """

    events: tuple[Event, ...] = ()
    consumed: tuple[int, ...] = ()
    forgotten: tuple[Forgotten, ...] = ()
    dropped: tuple[Span, ...] = ()
    activities: tuple[ActivityRequest, ...] = ()
    withdrawals: tuple[Withdrawal, ...] = ()
    status: Status = Status.RUNNING
    diagnosis: str | None = None
    deactivated: bool = False
    wake_at: int | None = None
