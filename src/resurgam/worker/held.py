"""One leased instance: what the worker keeps of it from its claim until its release."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.brain import LiveInstance
from resurgam.core.outcome import Entry
from resurgam.store.records import ActivityResult, Claim, Committed, Extended, Lease


@dataclass(slots=True)
class HeldInstance:
    """A claimed instance and the work in progress for it.

    *inbox* holds what the next advance delivers. *base_seq* and *wake* are those of the last claim or commit, *wake_at*
    is the next deadline. *operations* and *attempts* run now, by the ``seq`` of their commands; *results* of attempts
    go into the next commit. Once *released*, a result is handed to the store by itself. *cancel* stops the task that
    serves it.
    """

    claim: Claim
    live: LiveInstance | None = None
    inbox: list[Entry] = field(default_factory=list)
    base_seq: int = 0
    wake: int = 0
    wake_at: int | None = None
    # The schemas of signals, as the store has them.
    signal_schemas: dict[str, Raw] = field(default_factory=dict)
    operations: dict[int, asyncio.Future[events.Event]] = field(default_factory=dict)
    attempts: dict[int, asyncio.Task[Any]] = field(default_factory=dict)
    results: dict[int, ActivityResult] = field(default_factory=dict)
    released: bool = False
    cancel: Callable[[], object] = lambda: None
    # Waits in the store for a new inbox entry or the next deadline. Kept from one step to the next, since most steps are
    # woken by an attempt of this worker.
    watch: asyncio.Task[bool] | None = None
    changed: asyncio.Future[None] | None = None

    @classmethod
    def of(cls, claim: Claim) -> "HeldInstance":
        """Start from a claim."""
        instance = claim.instance
        return cls(
            claim,
            inbox=list(claim.inbox),
            base_seq=instance.last_seq,
            wake=claim.wake,
            signal_schemas=instance.signal_schemas,
        )

    @property
    def lease(self) -> Lease:
        """The lease on the instance."""
        return Lease(
            entity_id=self.claim.instance.entity_id,
            execution_id=self.claim.instance.execution_id,
            epoch=self.claim.epoch,
            wake=self.wake,
        )

    def receive(self, answer: Committed | Extended) -> None:
        """Add the inbox entries that an answer of the store brought."""
        if answer.wake != self.wake:
            self.wake = answer.wake
            self.stop_watching()
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

    def notify(self, _: object = None) -> None:
        """Wake `wait_for_change`: there may be something to deliver."""
        if self.changed is not None and not self.changed.done():
            self.changed.set_result(None)

    async def wait_for_change(self) -> None:
        """Wait until `notify` is called, unless something has ended since the last wait."""
        missed = bool(self.operations) and any(running.done() for running in self.operations.values())
        if missed or self.inbox or (self.watch is not None and self.watch.done()):
            return
        self.changed = asyncio.get_running_loop().create_future()
        try:
            await self.changed
        finally:
            self.changed = None
