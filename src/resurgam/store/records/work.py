"""The parts and answers of the verbs that workers call: claims, commits, leases, activities."""

from typing import Final

from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.outcome import ActivityRequest, Entry, Outcome
from resurgam.core.state import Status
from resurgam.store.records.instance import Instance, Record

INBOX_CHANGED: Final = "something has come into the inbox meanwhile"
"""Why a strict commit is refused whose lease is still held."""


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


class Revived(Record, frozen=True):
    """What was put aside is handed out again; *count* says how much there was."""

    count: int


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
