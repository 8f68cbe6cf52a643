"""The values that cross the seam between the engine and a store."""

from enum import StrEnum
from typing import Final, Protocol, TypeAlias

from msgspec import Raw, field

from resurgam.core import event as events
from resurgam.core.outcome import ActivityRequest, Entry, Forgotten, Outcome
from resurgam.core.state import Status
from resurgam.store.instance import Instance as Instance  # noqa: PLC0414 -- exported from here, with the others
from resurgam.store.instance import Record as Record  # noqa: PLC0414 -- as above

INBOX_CHANGED: Final = "something has come into the inbox meanwhile"
"""Why a strict commit is refused whose lease is still held."""


class Addressed(Protocol):
    """Anything that names an execution, with its entity: a store with partitions finds it without a look-up."""

    @property
    def entity_id(self) -> str:
        """The entity."""
        ...

    @property
    def execution_id(self) -> str:
        """The execution."""
        ...


class ExecutionRef(Record, frozen=True):
    """An execution, named by nothing but its ids."""

    entity_id: str
    execution_id: str


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


class Revived(Record, frozen=True):
    """What was put aside is handed out again; *count* says how much there was."""

    count: int


class Claim(Record, frozen=True):
    """An instance, leased to the worker that asked. Every later word about it names *epoch*.

    *log* is its history, where the store has it at hand; otherwise it is to be read.
    """

    instance: Instance
    epoch: int
    wake: int
    inbox: tuple[Entry, ...] = ()
    log: tuple[events.Event, ...] = ()


class Commit(Record, frozen=True):
    """The outcome of an advance, to be applied whole or not at all.

    *base_seq* is the ``seq`` the advance started from and *wake* the counter of the last claim or commit: an event
    delivered since then makes the instance ready again. With *release* the lease ends with the commit.

    *claim_slots* of the activities it asks for in *queues* may be claimed by the commit itself, unless older work waits in
    their queue. If any is, the lease is kept, so that its result can be told where the coroutine is.
    """

    entity_id: str
    execution_id: str
    epoch: int
    base_seq: int
    wake: int
    outcome: Outcome
    worker: str = ""
    release: bool = True
    claim_slots: int = 0
    queues: tuple[str, ...] = ()


class Committed(Record, frozen=True):
    """The commit is durable. If the lease is kept: what came into the inbox meanwhile, and what was claimed."""

    wake: int
    inbox: tuple[Entry, ...] = ()
    tasks: "tuple[ActivityTask, ...]" = ()


class Refused(Record, frozen=True):
    """Nothing was changed: the lease is lost, or the state is not the one named; `INBOX_CHANGED` if it is only not all of it."""

    reason: str


class Lease(Record, frozen=True):
    """Name a lease on an instance, or with *ref* on one of its activities.

    *details* and *heartbeat_at* are those of the attempt's last heartbeat; None if there was none to report.
    """

    entity_id: str
    execution_id: str
    epoch: int
    ref: int | None = None
    wake: int = 0
    details: Raw | None = None
    heartbeat_at: int | None = None


class Extended(Record, frozen=True):
    """The lease runs on. For an instance: what came into the inbox meanwhile."""

    wake: int = 0
    inbox: tuple[Entry, ...] = ()


class Release(Record, frozen=True):
    """Give a lease back. *failed* counts as a failed delivery, which is limited.

    With *final* the work is put aside at once, as a dead letter whose reason is *failed*; `Store.revive` hands it out
    again.
    """

    lease: Lease
    failed: str | None = None
    final: bool = False


class Released(Record, frozen=True):
    """The lease has ended."""


class ActivityTask(Record, frozen=True):
    """An activity, leased to the worker that asked. *deliveries* counts how often it was handed out before.

    *details* are what an earlier attempt told last.
    """

    entity_id: str
    execution_id: str
    epoch: int
    attempt: int
    deliveries: int
    request: ActivityRequest
    details: Raw | None = None


class ActivityResult(Record, frozen=True):
    """What became of an attempt: completed, failed for good, or to be tried again later, with *details* for the next."""

    entity_id: str
    execution_id: str
    epoch: int
    event: events.ActivityCompleted | events.ActivityFailed | events.ActivityRetryScheduled
    details: Raw | None = None
    heartbeat_at: int | None = None


class Accepted(Record, frozen=True):
    """The result counts; the instance will be told."""


class Purged(Record, frozen=True):
    """Every trace of the execution is gone."""


class Unfinished(Record, frozen=True):
    """The execution is still open, and was left alone."""

    status: Status


class Pending(Record, frozen=True, omit_defaults=True):
    """An activity that is not answered yet, whoever may hold it.

    *deliveries* counts how often this attempt was handed out, because some must not be begun twice. *dead_letter* is the
    reason why it was put aside.
    """

    request: ActivityRequest
    visible_at: int
    attempt: int = 1
    deliveries: int = 0
    dead_letter: str | None = None
    details: Raw | None = None
    heartbeat_at: int | None = None


class OpenActivity(Pending, frozen=True):
    """An activity that is not answered yet, with the lease on it. *worker* holds it, until *leased_until* at least."""

    worker: str | None = None
    leased_until: int | None = None


class OpenWork(Record, frozen=True):
    """Work of one execution that the log does not show: its activities, its unread inbox, and who holds it.

    *deliveries* counts how often the execution was handed out since its last commit. Inbox entries that this version
    cannot decode are left out.
    """

    activities: tuple[OpenActivity, ...] = ()
    inbox: tuple[events.Event, ...] = ()
    worker: str | None = None
    leased_until: int | None = None
    deliveries: int = 0


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


class Pause(StrEnum):
    """Whether an instance is halted: it alone, or with whatever it begins."""

    ALONE = "alone"
    TREE = "tree"


class Copy(Record, frozen=True):
    """Everything a store keeps of an execution, but for the leases: what moves to another store.

    *log* has the forgotten entries too, where they stand; *forgotten* says in the same order which those are. The status
    of the instance is that beneath the pause.
    """

    instance: Instance
    log: tuple[events.Event, ...]
    forgotten: tuple[Forgotten, ...] = ()
    inbox: tuple[events.Event, ...] = ()
    activities: tuple[Pending, ...] = ()
    promises: tuple[Promise, ...] = ()
    answer: events.Event | None = None
    paused: Pause | None = None

    @property
    def ready(self) -> bool:
        """Whether somebody must look at it: at everything but a complete history with nothing left to tell."""
        return bool(self.inbox) or not self.instance.deactivated


class Adoption(Record, frozen=True):
    """Take in executions that belong together: all of them, or none."""

    copies: tuple[Copy, ...]


class Arrival(Record, frozen=True):
    """An execution of an adoption as it is here; if it is not *new*, it was here before and was left alone."""

    instance: Instance
    new: bool


class Adopted(Record, frozen=True):
    """Every execution of the part is here."""

    arrivals: tuple[Arrival, ...]


class Work(Record, frozen=True):
    """Wait for something that *worker* could claim in these queues."""

    worker: str
    queues: tuple[str, ...]
    instances: bool = True
    activities: bool = True
    queries: bool = True


class Closed(Record, frozen=True):
    """Wait for an execution to end."""

    entity_id: str
    execution_id: str


class InboxChanged(Record, frozen=True):
    """Wait for something new in the inbox of an instance that one holds."""

    entity_id: str
    execution_id: str
    wake: int


class LogGrown(Record, frozen=True):
    """Wait for an execution to have more entries than this, or to end."""

    entity_id: str
    execution_id: str
    last_seq: int


class QueryAnswered(Record, frozen=True):
    """Wait for the reply to a question; for one that is gone there is nothing to wait for."""

    query_id: str


class Published(Record, frozen=True):
    """Wait for a message on a topic, after the one with this number."""

    topic: str
    after: int


class FeedGrown(Record, frozen=True):
    """Wait for events in the feed after a cursor, of any execution and type."""

    after: str


Watch: TypeAlias = Work | Closed | InboxChanged | LogGrown | QueryAnswered | Published | FeedGrown


class QueryTask(Record, frozen=True):
    """A query for code that the asker does not have. It is given up at the moment *until*."""

    query_id: str
    entity_id: str
    execution_id: str
    queue: str
    name: str
    input: Raw
    until: int


class Submitted(Record, frozen=True):
    """The question waits for a worker."""


class QueryResult(Record, frozen=True):
    """What a worker answered: a result, or a failure."""

    query_id: str
    result: Raw = events.NULL
    failure: events.Failure | None = None


class Messages(Record, frozen=True):
    """What was published on a topic, in order, and the number of the newest message of all."""

    last: int
    values: tuple[Raw, ...] = ()


class Query(Record, frozen=True):
    """Which instances to list: newest first, those after *cursor*. *parent* is the entity that began them.

    They were created at *since* or later, and before *until*. *newest_only*: of each entity only the newest execution,
    and that one only if it fits the rest of the query.
    """

    status: Status | None = None
    kind: str | None = None
    name: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    since: int | None = None
    until: int | None = None
    failure: str | None = None
    newest_only: bool = False
    parent: str | None = None
    tree_id: str | None = None
    limit: int = 100
    cursor: str | None = None

    def fits(self, instance: Instance) -> bool:
        """Whether an instance is one of those asked for, if it is the newest of its entity or any may be listed."""
        return (
            self.status in (None, instance.status)
            and self.kind in (None, instance.kind)
            and self.name in (None, instance.name)
            and self.tags.items() <= instance.tags.items()
            and (self.since is None or instance.created_at >= self.since)
            and (self.until is None or instance.created_at < self.until)
            and self.failure in (None, instance.failure)
            and (self.parent is None or (instance.parent is not None and instance.parent.entity_id == self.parent))
            and self.tree_id in (None, instance.tree_id)
            and (self.cursor is None or instance.cursor < self.cursor)
        )


class EndedQuery(Record, frozen=True):
    """Which ended executions to list: complete ones that ended before a moment, in the order in which they ended.

    *after* is the end and the id of the last one of the listing before.
    """

    before: int
    status: Status | None = None
    name: str | None = None
    limit: int = 100
    after: tuple[int, str] | None = None

    def fits(self, instance: Instance) -> bool:
        """Whether an instance is one of those asked for."""
        at = instance.closed_at
        return (
            (at is not None and at < self.before and instance.deactivated)
            and self.status in (None, instance.status)
            and self.name in (None, instance.name)
            and (self.after is None or (at, instance.execution_id) > self.after)
        )


class Page(Record, frozen=True):
    """Some instances, and where the next page begins; None if there is none."""

    instances: tuple[Instance, ...]
    cursor: str | None = None


class QueueStats(Record, frozen=True):
    """What waits in a queue, and what of it is being worked on."""

    instances: int = 0
    activities: int = 0
    claimed_activities: int = 0


class Stats(Record, frozen=True):
    """How much there is of everything."""

    instances: dict[str, int]
    queues: dict[str, QueueStats]
    dead_activities: int = 0
    dead_instances: int = 0


class FeedQuery(Record, frozen=True):
    """Which events of the feed to read: at most *limit* after the cursor *after*, or from the beginning.

    *entity_id*: only those of one entity. *types*: only those of these types, as they are stored.
    """

    after: str = ""
    entity_id: str | None = None
    types: tuple[str, ...] = ()
    limit: int = 100

    def fits(self, entry: "FeedEntry") -> bool:
        """Whether an event is one of those asked for."""
        return self.entity_id in (None, entry.entity_id) and (not self.types or entry.type in self.types)


class FeedEntry(Record, frozen=True):
    """An event of an execution. *body* is the event as JSON, also one that this version cannot decode."""

    entity_id: str
    execution_id: str
    kind: str
    seq: int
    type: str
    body: Raw


class FeedPage(Record, frozen=True):
    """Some events of the feed. The next page begins after *cursor*, which moves on though no event fits the query.

    *more*: there are events after the cursor by now, which may fit or not.
    """

    entries: tuple[FeedEntry, ...]
    cursor: str
    more: bool


class Announcement(Record, frozen=True):
    """What a worker tells of itself. *build* identifies its code; *slots* are its activity slots.

    *worker_id* differs for each start of a worker.
    """

    worker_id: str
    host: str
    pid: int
    build: str
    queues: tuple[str, ...]
    slots: int
    slots_in_use: int = 0


class LiveWorker(Announcement, frozen=True, kw_only=True):
    """A worker that was seen lately, with the moments of its first and its last announcement."""

    started_at: int
    seen_at: int
