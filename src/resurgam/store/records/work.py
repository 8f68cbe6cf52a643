"""The parts and answers of the verbs that workers call: claims, commits, leases, activities."""

from typing import Final

from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.outcome import ActivityRequest, Entry, Outcome
from resurgam.core.state import Status
from resurgam.store.records.instance import Instance, Record

INBOX_CHANGED: Final = "unseen entries in the inbox overtake this strict commit"
"""The reason with which a strict commit is refused though its lease holds."""


class Claim(Record, frozen=True):
    """A leased instance. Every later part about it names *epoch*. *log* is its history, if the store has it at hand."""

    instance: Instance
    epoch: int
    wake: int
    inbox: tuple[Entry, ...] = ()
    log: tuple[events.Event, ...] = ()


class Commit(Record, frozen=True):
    """The outcome of an advance, to be applied whole or not at all.

    *base_seq* is the ``seq`` the advance started from and *wake* the counter of the last claim or commit: an event
    delivered since then makes the instance ready again. With *release* the lease ends with the commit.

    Of the activities that it schedules, the commit claims those whose refs are in *eager*, except in queues where
    older work waits. If it claims any, the lease is kept, so that their results are delivered to the coroutine in
    memory.

    With *covers* the lease on the instance covers what the commit claims: such an activity has epoch 0 and no lease of
    its own, and a store need not keep a row for it. It gets one when the lease on the instance ends without it (see
    `Store.commit`). *running* are the activities that earlier commits have claimed so, that still run, and that have
    no row. *retries* are further attempts of such activities; the failed ones are among the events of the outcome.
    *answered* are the refs of answered activities that have a row, which is removed.
    """

    entity_id: str
    execution_id: str
    epoch: int
    base_seq: int
    wake: int
    outcome: Outcome
    worker: str = ""
    release: bool = True
    eager: frozenset[int] = frozenset()
    covers: bool = False
    running: tuple[ActivityRequest, ...] = ()
    retries: "tuple[Pending, ...]" = ()
    answered: tuple[int, ...] = ()


class Committed(Record, frozen=True):
    """The commit is durable. With a kept lease: the inbox entries since *wake* of the part, and the claimed activities."""

    wake: int
    inbox: tuple[Entry, ...] = ()
    tasks: "tuple[ActivityTask, ...]" = ()


class Refused(Record, frozen=True):
    """Nothing was changed: the lease is lost, or the log is elsewhere, or `INBOX_CHANGED`."""

    reason: str


class Lease(Record, frozen=True):
    """A lease on an instance, or with *ref* on one of its activities.

    *details* and *heartbeat_at* are those of the last heartbeat; None if there was none since the last renewal.
    """

    entity_id: str
    execution_id: str
    epoch: int
    ref: int | None = None
    wake: int = 0
    details: Raw | None = None
    heartbeat_at: int | None = None


class Extended(Record, frozen=True):
    """The lease is renewed. For an instance: the inbox entries since *wake* of the lease."""

    wake: int = 0
    inbox: tuple[Entry, ...] = ()


class Release(Record, frozen=True):
    """End a lease. With *failed*, the reason, the delivery counts towards the limit of redeliveries.

    With *final* the work becomes a dead letter at once, with that reason; `Store.revive` offers it again.
    """

    lease: Lease
    failed: str | None = None
    final: bool = False


class Released(Record, frozen=True):
    """The lease has ended."""


class ActivityTask(Record, frozen=True):
    """A leased activity. *deliveries* counts its earlier ones, *details* are those of the last heartbeat before.

    With *epoch* 0 it is covered by the lease on its instance.
    """

    entity_id: str
    execution_id: str
    epoch: int
    attempt: int
    deliveries: int
    request: ActivityRequest
    details: Raw | None = None


class ActivityResult(Record, frozen=True):
    """The result of an attempt: completed, failed, or to be retried later, with *details* for the next attempt.

    With *epoch* 0 the lease on its instance has covered the attempt. Then it counts as long as the activity is at this
    attempt and has no answer, even if another worker has leased it meanwhile: the first answer wins.
    """

    entity_id: str
    execution_id: str
    epoch: int
    event: events.ActivityCompleted | events.ActivityFailed | events.ActivityRetryScheduled
    details: Raw | None = None
    heartbeat_at: int | None = None


class Accepted(Record, frozen=True):
    """The result is in the inbox of the instance."""


class Revived(Record, frozen=True):
    """*count* dead letters and parked runs are offered again."""

    count: int


class Purged(Record, frozen=True):
    """The execution is deleted."""


class Unfinished(Record, frozen=True):
    """The execution is open, and was not deleted."""

    status: Status


class Pending(Record, frozen=True, omit_defaults=True):
    """An activity without an answer, apart from its lease.

    *deliveries* counts those of this attempt, because some activities must not start twice. *dead_letter* is the reason
    why it is no longer handed out.
    """

    request: ActivityRequest
    visible_at: int
    attempt: int = 1
    deliveries: int = 0
    dead_letter: str | None = None
    details: Raw | None = None
    heartbeat_at: int | None = None


class OpenActivity(Pending, frozen=True):
    """An activity without an answer, with its lease: *worker* holds it, until *leased_until* at least."""

    worker: str | None = None
    leased_until: int | None = None


class OpenWork(Record, frozen=True):
    """Work of one execution that the log does not show: its activities, its unread inbox and its lease.

    *deliveries* counts those since its last commit. Inbox entries that this version cannot decode are left out.
    """

    activities: tuple[OpenActivity, ...] = ()
    inbox: tuple[events.Event, ...] = ()
    worker: str | None = None
    leased_until: int | None = None
    deliveries: int = 0
