"""Renew the leases of a worker at a third of their length, and call back when one is lost."""

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
from msgspec import Raw

from resurgam.core.clock import Clock
from resurgam.core.errors import WriteRejected
from resurgam.store.protocol import Store
from resurgam.store.records import Extended, Lease, Refused
from resurgam.worker.tasks import Tasks, log_failure

logger = logging.getLogger("resurgam.worker")


class HasDetails(Protocol):
    """The heartbeat of an attempt: what is stored with its lease."""

    details: Raw | None
    heartbeat_at: int | None


class KeptLease(msgspec.Struct, frozen=True):
    """A lease that is renewed. *lost* is called once if it is lost; the details of *heartbeat* are stored with it."""

    lease: Lease
    lost: Callable[[], object]
    heartbeat: HasDetails | None = None

    def now(self) -> Lease:
        """Return the lease with the details of the last heartbeat."""
        heartbeat = self.heartbeat
        if heartbeat is None or heartbeat.heartbeat_at is None:
            return self.lease
        return msgspec.structs.replace(self.lease, details=heartbeat.details, heartbeat_at=heartbeat.heartbeat_at)


class Leases:
    """The leases of one worker.

    They are distinguished by epoch too: the next claim of an instance may be served before the lease of the last one is
    dropped.
    """

    def __init__(self, store: Store, clock: Clock, tasks: Tasks, *, length: int) -> None:
        self._store = store
        self._clock = clock
        self._tasks = tasks
        self._interval = max(1, length // 3)
        self._kept: dict[tuple[str, int | None, int], KeptLease] = {}
        self._cancel: Callable[[], None] | None = None

    def keep(self, lease: Lease, lost: Callable[[], object], heartbeat: HasDetails | None = None) -> None:
        """Renew *lease* until it is dropped."""
        self._kept[_key(lease)] = KeptLease(lease, lost, heartbeat)
        if self._cancel is None:
            self._schedule()

    def drop(self, lease: Lease) -> None:
        """Stop renewing a lease."""
        self._kept.pop(_key(lease), None)

    def revoke(self, execution_id: str, ref: int) -> None:
        """Drop the lease of an activity that is no longer wanted, and cancel its attempt without waiting for a renewal."""
        for kept in list(self._kept.values()):
            if (kept.lease.execution_id, kept.lease.ref) == (execution_id, ref):
                self.drop(kept.lease)
                kept.lost()

    def all(self) -> list[Lease]:
        """Return the leases that are kept now."""
        # list() is one step of the interpreter: the watchdog calls this from another thread.
        return [kept.now() for kept in list(self._kept.values())]

    async def keep_details(self) -> None:
        """Store the details of heartbeats now; a released activity is delivered again with them."""
        reporting = [kept for kept in self._kept.values() if kept.now().heartbeat_at is not None]
        if reporting:
            await self._extend(reporting)

    def stop(self) -> None:
        """Stop renewing."""
        if self._cancel is not None:
            self._cancel()
            self._cancel = None

    def _schedule(self) -> None:
        self._cancel = self._clock.call_at(self._clock.now() + self._interval, self._due)

    def _due(self) -> None:
        self._cancel = None
        if self._kept:
            self._tasks.spawn(self._renew(), "leases")

    async def _extend(self, kept: Sequence[KeptLease]) -> Sequence[Extended | Refused]:
        """Renew leases; details that the store can never write must not cost other leases."""
        try:
            return await self._store.extend([one.now() for one in kept])
        except WriteRejected as error:
            log_failure("the store cannot write the details of a heartbeat; leases are renewed without details", error)
            return await self._store.extend([one.lease for one in kept])

    async def _renew(self) -> None:
        kept = list(self._kept.values())
        try:
            answers = await self._extend(kept)
        except Exception as error:  # noqa: BLE001 -- to stop renewing would lose every lease
            log_failure("the store failed to renew leases; trying again at the next renewal", error)
            answers = ()
        for one, answer in zip(kept, answers, strict=False):
            if isinstance(answer, Refused) and _key(one.lease) in self._kept:
                logger.warning("a lease on %s is lost: %s", one.lease.execution_id, answer.reason)
                self.drop(one.lease)
                one.lost()
        if self._cancel is None and self._kept:
            self._schedule()


def _key(lease: Lease) -> tuple[str, int | None, int]:
    return lease.execution_id, lease.ref, lease.epoch
