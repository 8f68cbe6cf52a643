"""The parts and answers of `create` and `deliver`."""

from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.state import Status
from resurgam.store.records.instance import Instance, Record
from resurgam.store.records.work import Claim


class EagerOffer(Record, frozen=True):
    """Whoever makes an instance ready would take it at once: this worker, if it is in one of these queues.

    Nothing comes of it while older work waits in that queue.
    """

    worker: str
    queues: tuple[str, ...]


class Creation(Record, frozen=True):
    """Begin an execution. Repeating it with the same ``run_id`` changes nothing.

    *attach*: if the id has an execution already, open or closed, that one is meant. *replace*: one that is open is ended
    by this first. *inbox* is the first that it is told; an execution that is open already is told it instead.
    *follows*: it must be the newest execution of the entity, if that has any, and ended (a retry by hand); otherwise
    nothing is done and nobody is told anything.
    """

    started: events.Started
    attach: bool = False
    replace: events.WorkflowTerminated | None = None
    inbox: tuple[events.Event, ...] = ()
    follows: str | None = None
    offer: EagerOffer | None = None


class Created(Record, frozen=True):
    """The execution is there and ready to be claimed, or claimed already."""

    instance: Instance
    claim: "Claim | None" = None


class Exists(Record, frozen=True):
    """Nothing was created: the id has this execution.

    If there was something to be told, an open one was told it, but for what was to follow another.
    """

    instance: Instance


class Delivery(Record, frozen=True):
    """Put an event into the inbox of the current execution of an entity, or of one execution.

    A promise is settled once: by its *promise_id*, or by the name *promise* among those of the current execution.
    """

    event: events.Event
    entity_id: str = ""
    execution_id: str | None = None
    promise_id: str | None = None
    promise: str | None = None
    offer: EagerOffer | None = None


class Delivered(Record, frozen=True):
    """The event will be told to the instance, by whoever holds or claims it."""

    claim: "Claim | None" = None


class Missing(Record, frozen=True):
    """There is no such instance or promise: it never existed, or its execution was purged."""


class Ended(Record, frozen=True):
    """The instance has ended; it takes nothing from outside any more."""

    status: Status


class Settled(Record, frozen=True):
    """The promise is settled already, or its execution no longer waits for it; nothing was changed.

    An ended execution keeps its promises until it is purged; settling an open one of them is too late as well.
    """


class Promise(Record, frozen=True):
    """A promise that is open, or *settled*: then it is kept so that later settlements are answered as late.

    *schema* is of the value that it takes, ``null`` if it takes any.
    """

    promise_id: str
    name: str
    settled: bool = False
    schema: Raw = events.NULL


class HeldPromise(Record, frozen=True):
    """A promise and the execution that waits for it, or did."""

    promise: Promise
    instance: "Instance"
