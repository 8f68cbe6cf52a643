"""One leased instance: what the worker keeps of it from its claim until its release."""

import asyncio
from collections.abc import Callable
from typing import Any

from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.brain import LiveInstance
from resurgam.core.outcome import ActivityRequest, Entry
from resurgam.store.records import Addressed, Claim, Commit, Committed, Extended, Lease, Refused
from resurgam.worker.heartbeat import RunningAttempt
from resurgam.worker.leases import LeaseKey


class HeldInstance:
    """A claimed instance and the work in progress for it.

    *inbox* holds what the next advance delivers. *base_seq* and *wake* are those of the last claim or commit, *wake_at*
    is the next deadline. *since* is the moment of the claim. *operations* and *attempts* run now, by the ``seq`` of their
    commands; *results* are attempts that have ended and whose results are not committed yet. *covered* are the activities
    that the lease on the instance covers and that may have no row in the store. *commit* is the one that has no answer
    yet; *in_flight*: the store will call back with it. *waiting*: it waits for an attempt, an operation, the store or a
    deadline. *looked_for*: it will be watched if it waits for long (`InboxWatches`). *task* does what takes time: it
    reads the log, or copes with a failure. Once *released*, a result is handed to the store by itself.
    """

    __slots__ = (
        *("attempts", "base_seq", "claim", "commit", "covered", "entity_id", "epoch", "execution_id", "in_flight"),
        *("inbox", "key", "live", "looked_for", "on_attempt_end", "on_commit", "on_lose", "operations", "released"),
        *("results", "signal_schemas", "since", "task", "waiting", "wake", "wake_at", "watch"),
    )

    claim: Claim

    def __init__(self, execution: Addressed, epoch: int = 1) -> None:
        """Hold an execution that begins; its claim comes later, with the answer to its start."""
        self.execution_id = execution.execution_id
        self.entity_id = execution.entity_id
        self.epoch = epoch
        self.key: LeaseKey = (execution.execution_id, None, epoch)
        self.live: LiveInstance | None = None
        self.inbox: list[Entry] = []
        self.base_seq = 1
        self.wake = 0
        self.wake_at: int | None = None
        self.since = 0
        # The schemas of signals, as the store has them.
        self.signal_schemas: dict[str, Raw] = {}
        self.operations: dict[int, asyncio.Future[events.Event]] = {}
        self.attempts: dict[int, RunningAttempt] = {}
        self.results: dict[int, RunningAttempt] = {}
        self.covered: dict[int, ActivityRequest] = {}
        self.commit: Commit | None = None
        self.in_flight = False
        self.waiting = False
        self.released = False
        self.task: asyncio.Task[Any] | None = None
        # Waits in the store for a new inbox entry or the next deadline. Kept from one step to the next, since most steps
        # are woken by an attempt of this worker.
        self.watch: asyncio.Task[bool] | None = None
        self.looked_for = False
        # Set once, by `InstanceRunner._hold`: the same for every step.
        self.on_commit: Callable[[Committed | Refused | Exception], None] = _unserved
        self.on_attempt_end: Callable[[RunningAttempt], None] = _unserved
        self.on_lose: Callable[[], None] = _unserved

    @classmethod
    def of(cls, claim: Claim) -> "HeldInstance":
        """Return a claimed instance."""
        instance = claim.instance
        held = cls(instance, claim.epoch)
        held.claim = claim
        held.inbox += claim.inbox
        held.base_seq = instance.last_seq
        held.wake = claim.wake
        held.signal_schemas = instance.signal_schemas
        return held

    def lease(self) -> Lease:
        """Return the lease on the instance."""
        return Lease(entity_id=self.entity_id, execution_id=self.execution_id, epoch=self.epoch, wake=self.wake)

    @property
    def ending(self) -> bool:
        """Whether the answer to a commit tells if the lease goes on."""
        return self.commit is not None and self.commit.release

    def lose(self) -> None:
        """Stop serving it: its lease is lost."""
        self.on_lose()

    def detach(self) -> None:
        """Drop the callbacks, which refer to it: in a circle, only the garbage collector would free them."""
        self.on_commit = self.on_attempt_end = self.on_lose = _ignore

    def receive(self, answer: Committed | Extended) -> None:
        """Add the inbox entries that an answer of the store brought."""
        if answer.wake != self.wake:
            self.wake = answer.wake
            self.stop_watching()
        if answer.inbox:
            self.inbox += answer.inbox

    def set_deadline(self, moment: int | None) -> None:
        """Set the moment of the next deadline."""
        if moment != self.wake_at:
            self.wake_at = moment
            self.stop_watching()

    def stop_watching(self) -> None:
        """Stop waiting for the store: what was waited for has changed."""
        if self.watch is not None:
            self.watch.cancel()
            self.watch = None


def _ignore(*_: object) -> None:
    """Do nothing: it is no longer served."""


def _unserved(*_: object) -> None:
    raise RuntimeError("this instance is not served")
