"""The parts and answers of `create` and `deliver`."""

from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.state import Status
from resurgam.store.records.instance import Instance, Record
from resurgam.store.records.work import Claim, Commit, Committed


class EagerOffer(Record, frozen=True):
    """An offer of a worker to claim an instance in the verb that makes it ready, if it is in one of these queues.

    The store declines it while older work waits in that queue.
    """

    worker: str
    queues: tuple[str, ...]


class Creation(Record, frozen=True):
    """Create an execution. Repeating it with the same ``run_id`` and attempt changes nothing.

    *attach*: use the execution that the entity has, open or closed. *replace*: terminate an open one first. *inbox* are
    the first entries of its inbox; an open execution that stays receives them instead. *follows*: create it only if the
    newest execution of the entity is this one, and closed (a manual retry); otherwise do nothing.

    *first* is the commit of the first advance, made from the start record alone before anything is stored. It is applied
    with the creation if the execution is created and the *offer* accepted, and ignored otherwise.
    """

    started: events.Started
    attach: bool = False
    replace: events.WorkflowTerminated | None = None
    inbox: tuple[events.Event, ...] = ()
    follows: str | None = None
    offer: EagerOffer | None = None
    first: "Commit | None" = None


class Created(Record, frozen=True):
    """The execution exists, ready to be claimed or, with *claim*, claimed by the offer.

    *committed* answers the commit of the first advance: that was applied after the claim, which therefore shows the
    execution as it was before.
    """

    instance: Instance
    claim: "Claim | None" = None
    committed: "Committed | None" = None


class Exists(Record, frozen=True):
    """Nothing was created: the entity has this execution. An open one received the inbox, unless *follows* was given."""

    instance: Instance


class Delivery(Record, frozen=True):
    """Put an event into the inbox of the current execution of an entity, or of one execution.

    A promise is settled once: by its *promise_id*, or by the name *promise* among those of the current execution. The
    *promise_id* begins with the route of the entity (`core.identity.route_of`), so it needs no *entity_id* beside it. It
    may come from outside: one that begins with no route is `Missing`.

    With *schemas* the sender of a signal has checked it against these: if the execution has others, nothing is delivered.
    """

    event: events.Event
    entity_id: str = ""
    execution_id: str | None = None
    promise_id: str | None = None
    promise: str | None = None
    schemas: dict[str, Raw] | None = None
    offer: EagerOffer | None = None


class Delivered(Record, frozen=True):
    """The event is in the inbox, or applied; with *claim* the instance is claimed by the offer."""

    claim: "Claim | None" = None


class Missing(Record, frozen=True):
    """There is no such instance or promise: it never existed, or was purged."""


class Ended(Record, frozen=True):
    """The instance is closed and accepts no more events."""

    status: Status


class Settled(Record, frozen=True):
    """The promise was settled before, or its execution is closed or has given it up; nothing was changed."""


class Outdated(Record, frozen=True):
    """Nothing was delivered: the instance has other schemas of signals than those of the delivery."""


class Promise(Record, frozen=True):
    """A promise that is open, or *settled* and kept so that later settlements are answered as late.

    *promise_id* begins with the route of the entity that made it. *schema* is that of its value, ``null`` for any.
    """

    promise_id: str
    name: str
    settled: bool = False
    schema: Raw = events.NULL


class HeldPromise(Record, frozen=True):
    """A promise, and the execution that it belongs to."""

    promise: Promise
    instance: "Instance"
