"""Renew the leases of a worker at a third of their length, and call back when one is lost."""

import logging
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import msgspec

from resurgam.core.clock import Clock
from resurgam.core.errors import WriteRejected
from resurgam.store.protocol import Store
from resurgam.store.records import Extended, Lease, Refused
from resurgam.worker.tasks import Tasks, log_failure

logger = logging.getLogger("resurgam.worker")

LeaseKey: TypeAlias = tuple[str, int | None, int]
"""The execution, the activity or None, and the epoch of a lease."""


class Leased(Protocol):
    """What a worker has leased: an instance, or an activity that has a lease of its own."""

    def lease(self) -> Lease:
        """Return its lease, with the details of the last heartbeat."""
        ...

    @property
    def ending(self) -> bool:
        """Whether a commit on its way may end the lease: a renewal that crosses it does not tell that it is lost."""
        ...

    def lose(self) -> None:
        """Stop, because the lease is lost; called once."""
        ...


class Leases:
    """The leases of one worker, by their keys.

    The epoch is part of a key: the next claim of an instance may be served before the lease of the last one is dropped.
    """

    def __init__(self, store: Store, clock: Clock, tasks: Tasks, *, length: int) -> None:
        self._store = store
        self._clock = clock
        self._tasks = tasks
        self._interval = max(1, length // 3)
        self._kept: dict[LeaseKey, Leased] = {}
        self._cancel: Callable[[], None] | None = None
        # Called before a renewal: attempts that have sent a heartbeat get a lease of their own.
        self.before_renewal: Callable[[], None] = lambda: None

    def keep(self, key: LeaseKey, leased: Leased) -> None:
        """Renew the lease of *leased* until it is dropped."""
        self._kept[key] = leased
        if self._cancel is None:
            self._schedule()

    def drop(self, key: LeaseKey) -> None:
        """Stop renewing a lease."""
        self._kept.pop(key, None)

    def revoke(self, execution_id: str, ref: int) -> None:
        """Drop the lease of an activity that is no longer wanted, and stop its attempt without waiting for a renewal."""
        for key, leased in list(self._kept.items()):
            if key[:2] == (execution_id, ref):
                self.drop(key)
                leased.lose()

    def all(self) -> list[Lease]:
        """Return the leases that are kept now."""
        # list() is one step of the interpreter: the watchdog calls this from another thread.
        return [leased.lease() for leased in list(self._kept.values())]

    async def keep_details(self) -> None:
        """Store the details of heartbeats now; a released activity is delivered again with them."""
        self.before_renewal()
        reporting = [lease for lease in self.all() if lease.heartbeat_at is not None]
        if reporting:
            await self.extend(reporting)

    def renew_soon(self) -> None:
        """Renew all leases now, to find out which are lost."""
        self._tasks.spawn(self._renew(), "leases")

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

    async def extend(self, leases: Sequence[Lease]) -> Sequence[Extended | Refused]:
        """Renew leases; details that the store can never write must not cost other leases."""
        try:
            return await self._store.extend(leases)
        except WriteRejected as error:
            log_failure("the store cannot write the details of a heartbeat; leases are renewed without details", error)
            bare = [msgspec.structs.replace(lease, details=None, heartbeat_at=None) for lease in leases]
            return await self._store.extend(bare)

    async def _renew(self) -> None:
        self.before_renewal()
        kept = list(self._kept.items())
        try:
            answers = await self.extend([leased.lease() for _, leased in kept])
        except Exception as error:  # noqa: BLE001 -- to stop renewing would lose every lease
            log_failure("the store failed to renew leases; trying again at the next renewal", error)
            answers = ()
        for (key, leased), answer in zip(kept, answers, strict=False):
            if isinstance(answer, Refused) and self._kept.get(key) is leased and not leased.ending:
                logger.warning("a lease on %s is lost: %s", key[0], answer.reason)
                self.drop(key)
                leased.lose()
        if self._cancel is None and self._kept:
            self._schedule()
