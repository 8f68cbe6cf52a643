"""The values of one commit: the events, effects and status that result from advancing an instance."""

from typing import Literal

import msgspec

from resurgam.core.event import NULL, Event, Started
from resurgam.core.flow_event import WorkStarted
from resurgam.core.location import Location
from resurgam.core.retry import RetryRule
from resurgam.core.state import Status


class Entry(msgspec.Struct, gc=False, frozen=True):
    """An inbox entry. *id* is assigned by the store; None for an entry that a worker brings itself."""

    id: int | None
    event: Event


class Memo(msgspec.Struct, gc=False, frozen=True):
    """Where the result of an activity is kept for others, and for how long: milliseconds; 0 is without limit."""

    key: str
    ttl: int = 0


class ActivityRequest(msgspec.Struct, gc=False, frozen=True, kw_only=True, omit_defaults=True):
    """An activity to be queued. *ref* is the command that scheduled it.

    If *executor* or *retry* is None, the definition on the worker that runs the activity decides. *workflow_attempt* is
    the number of the attempt of the workflow. With *memo* the worker takes a result that is kept under this key, and
    keeps one that it has computed. One that *outlives* its instance is begun even after the instance has ended.

    *starts* is the entry that each claim from the queue puts into the inbox of the instance, with the number of the delivery
    as its attempt.
    """

    ref: int
    starts: WorkStarted | None = None  # the second field: stores find it at the beginning of the text
    name: str
    queue: str
    input: msgspec.Raw
    entity_id: str
    retry: RetryRule | None = RetryRule()
    timeout: int | None = None
    heartbeat: int | None = None
    executor: Literal["thread", "process"] | None = None
    workflow_attempt: int = 1
    memo: Memo | None = None
    outlives: bool = False  # the last field: stores find it at the end of the text


class Withdrawal(msgspec.Struct, gc=False, frozen=True):
    """An activity to be removed from its queue.

    *answered*: its cancellation is already in the log, so it is removed even if a worker is running it. Otherwise (the
    workflow has ended) it is removed only if no worker is running it, and the store puts *entry* into the inbox.
    *never_started*: remove it only if no attempt has ever started.
    """

    ref: int
    answered: bool
    entry: Event | None = None
    never_started: bool = False


class ChildRequest(msgspec.Struct, gc=False, frozen=True, kw_only=True):
    """A child to be started. The store puts *created* into the parent's inbox if the child exists then, else *refused*.

    The request names the run of the parent, the call and the run of the child (``started.parent``, ``started.run_id``).
    A target that already ran for it, open or closed, is not started again: *created* is followed by the answer that it
    has sent to its parent, if it has. An open execution of that id with the same parent key counts as the child too: an
    earlier attempt has started it.
    """

    started: Started
    created: Event
    refused: Event


class Message(msgspec.Struct, gc=False, frozen=True, kw_only=True):
    """An event for the inbox of another instance: of the newest execution of an entity.

    With *run_id*, only if that execution belongs to the run; with *key*, only if it is the child with that key; with
    *promise_id*, which addresses the target by itself, only if the promise is still open. The store puts one of three
    entries, if given, into the sender's inbox: *delivered*; *missing* if there is no such instance or promise; *ended*
    if the target is closed or the promise settled. *kept*: this is the answer of a child to its parent, which the store
    keeps with the sender for a parent that requests the child again.
    """

    event: Event
    entity_id: str = ""
    run_id: str | None = None
    key: str | None = None
    promise_id: str | None = None
    delivered: Event | None = None
    missing: Event | None = None
    ended: Event | None = None
    kept: bool = False


class Succession(msgspec.Struct, gc=False, frozen=True, kw_only=True):
    """The execution that follows the one ended by this commit: a retry, or a continuation.

    Its inbox starts with *inbox*, followed by the unread entries of the old inbox whose event types are in *moves*.
    Open promises move along if both executions belong to the same run.
    """

    started: Started
    inbox: tuple[Event, ...] = ()
    moves: tuple[str, ...] = ()


class Publication(msgspec.Struct, gc=False, frozen=True):
    """A message to the current subscribers of a topic."""

    topic: str
    value: msgspec.Raw


class OpenPromise(msgspec.Struct, gc=False, frozen=True):
    """A promise that can now be settled, by its id or by its name. *schema* describes the value.

    *promise_id* begins with the route of the entity (`identity.route_of`), because settlements may name it alone.
    """

    promise_id: str
    name: str
    schema: msgspec.Raw = NULL


class Forgotten(msgspec.Struct, gc=False, frozen=True):
    """An entry of the log that replay no longer needs; tools find it under its *location*."""

    seq: int
    location: Location


class Span(msgspec.Struct, gc=False, frozen=True):
    """The half-open range of locations from *start* to *end*."""

    start: Location
    end: Location


class Outcome(msgspec.Struct, gc=False, frozen=True, kw_only=True):
    """The atomic result of one advance. *diagnosis* says why a run is parked, with status ``diverged``.

    Applied in this order: events, forgotten entries, consumed entries, activities, withdrawals, newly open *promises*
    and *closed* ones, children, messages, publications, the successor. A terminal status closes all remaining promises.
    *strict*: refuse the commit if the inbox holds the end of a child or the settlement of a promise that the advance
    has not seen.

    *forgotten* are entries of the log, older ones or of this commit, that are not read when the instance is loaded;
    *dropped* are spans of locations whose forgotten entries are deleted, for tools too.

    *signal_schemas* are the schemas of the signals that the code accepts, by name, checked by senders, and *tags* all tags
    of the instance; None if unchanged. *failure* is the type name of the error that failed the run, for lists; it goes
    with status ``failed``.
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
    signal_schemas: dict[str, msgspec.Raw] | None = None
    tags: dict[str, str] | None = None
    failure: str | None = None
