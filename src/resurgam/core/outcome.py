"""What an instance wants of the world after it has been advanced: the values that go into its next commit."""

from typing import Literal

import msgspec

from resurgam.core.event import NULL, Event, WorkflowStarted
from resurgam.core.location import Location
from resurgam.core.retry import RetryRule
from resurgam.core.state import Status


class Entry(msgspec.Struct, gc=False, frozen=True):
    """Something that waits to be told to an instance. *id* is the store's; None for what a worker brings itself."""

    id: int | None
    event: Event


class ActivityRequest(msgspec.Struct, gc=False, frozen=True, kw_only=True):
    """An activity to be put on a queue. *ref* is the command that asked for it; *executor* None, as it is defined.

    *retry* None, as it is defined where it runs. *of* is the attempt of the workflow that asks for it.
    """

    ref: int
    name: str
    queue: str
    input: msgspec.Raw
    entity_id: str
    retry: RetryRule | None = RetryRule()
    timeout: int | None = None
    heartbeat: int | None = None
    executor: Literal["thread", "process"] | None = None
    of: int = 1


class Withdrawal(msgspec.Struct, gc=False, frozen=True):
    """An activity that is no longer wanted.

    *answered*: its cancellation is in the log already, so it goes whether or not a worker has begun it. Otherwise (the
    workflow has ended) it goes only if nobody is at work on it, and the store puts *entry* into the inbox to say so.
    *never_started*: only if nobody has ever begun it, either.
    """

    ref: int
    answered: bool
    entry: Event | None = None
    never_started: bool = False


class ChildRequest(msgspec.Struct, gc=False, frozen=True, kw_only=True):
    """Another instance to be begun. The store puts *created* into the own inbox if it is there then, else *refused*.

    An open execution of that id which has the same parent's key is the one that is meant: an earlier attempt began it.
    """

    started: WorkflowStarted
    created: Event
    refused: Event


class Message(msgspec.Struct, gc=False, frozen=True, kw_only=True):
    """Something to be told to another instance: to the newest execution of an entity.

    With *run_id* only if that is of this run; with *key* only if that is the child of this key; with *promise_id*, which
    names the target by itself, only if the promise is not settled yet. The store puts one of the three entries, if it is
    given, into the own inbox: *delivered*; *missing*, there is no such instance or promise; *ended*, it takes nothing any
    more or is settled already.
    """

    event: Event
    entity_id: str = ""
    run_id: str | None = None
    key: str | None = None
    promise_id: str | None = None
    delivered: Event | None = None
    missing: Event | None = None
    ended: Event | None = None


class Succession(msgspec.Struct, gc=False, frozen=True, kw_only=True):
    """The execution that follows the one that ends with this commit: a retry, or a continuation.

    Its inbox begins with *inbox*; then comes what is unread in the old one of the event types in *moves*. Promises that
    are open move along if it is of the same run.
    """

    started: WorkflowStarted
    inbox: tuple[Event, ...] = ()
    moves: tuple[str, ...] = ()


class Publication(msgspec.Struct, gc=False, frozen=True):
    """A message for whoever subscribes to its topic at this moment."""

    topic: str
    value: msgspec.Raw


class OpenPromise(msgspec.Struct, gc=False, frozen=True):
    """A promise that can be settled from now on, by its id or by the name. *schema* is of the value that it takes."""

    promise_id: str
    name: str
    schema: msgspec.Raw = NULL


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

    Applied in this order: events, what is consumed, what is forgotten, activities, withdrawals, *promises* that are open
    from now on and those that are *closed*, children, messages, publications, the successor. A terminal status closes all
    promises that are left. *strict*: refuse it all if the end of a child or the settlement of a
    promise has come into the inbox that this has not seen.

    *forgotten* are entries of the log, older ones or of this very commit, that are not read again when the instance is
    loaded; *dropped* are the places whose forgotten entries are not kept any longer, not even for tools.

    *accepts* are the schemas of what the code takes for signals, by their names, for whoever sends one; None if that is
    as it was. *failure* names the type of what a run failed by, for lists; it goes with status ``failed``.
    """

    events: tuple[Event, ...] = ()
    consumed: tuple[int, ...] = ()
    forgotten: tuple[Forgotten, ...] = ()
    dropped: tuple[Span, ...] = ()
    activities: tuple[ActivityRequest, ...] = ()
    withdrawals: tuple[Withdrawal, ...] = ()
    promises: tuple[OpenPromise, ...] = ()
    closed: tuple[str, ...] = ()
    children: tuple[ChildRequest, ...] = ()
    messages: tuple[Message, ...] = ()
    publications: tuple[Publication, ...] = ()
    successor: Succession | None = None
    strict: bool = False
    status: Status = Status.RUNNING
    diagnosis: str | None = None
    deactivated: bool = False
    wake_at: int | None = None
    accepts: dict[str, msgspec.Raw] | None = None
    failure: str | None = None
