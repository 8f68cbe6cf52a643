"""Keeps what this worker holds: leases are renewed at a third of their length, and whoever lost one is told."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
from msgspec import Raw

from resurgam.core.clock import Clock
from resurgam.core.errors import WriteRejected
from resurgam.store.protocol import Store
from resurgam.store.records import Extended, Lease, Refused
from resurgam.worker.tasks import Tasks, complain

logger = logging.getLogger("resurgam.worker")


class Tells(Protocol):
    """Whoever has something to be kept with a lease."""

    details: Raw | None
    heartbeat_at: int | None


@dataclass(frozen=True, slots=True)
class Held:
    """A lease that is being kept. *lost* is called once if it is found to be gone; *teller* is whose details go with it."""

    lease: Lease
    lost: Callable[[], object]
    teller: Tells | None = None

    def now(self) -> Lease:
        """Return the lease with what there is to be told by now."""
        teller = self.teller
        if teller is None or teller.heartbeat_at is None:
            return self.lease
        return msgspec.structs.replace(self.lease, details=teller.details, heartbeat_at=teller.heartbeat_at)


class Leases:
    """The leases of one worker.

    They are told apart by their epoch too: the next turn of an instance may begin before the last one has put its
    own lease down.
    """

    def __init__(self, store: Store, clock: Clock, tasks: Tasks, *, length: int) -> None:
        self._store = store
        self._clock = clock
        self._tasks = tasks
        self._pause = max(1, length // 3)
        self._held: dict[tuple[str, int | None, int], Held] = {}
        self._call_off: Callable[[], None] | None = None

    def keep(self, lease: Lease, lost: Callable[[], object], teller: Tells | None = None) -> None:
        """Renew *lease* until it is dropped."""
        self._held[_key(lease)] = Held(lease, lost, teller)
        if self._call_off is None:
            self._schedule()

    def drop(self, lease: Lease) -> None:
        """Renew it no longer."""
        self._held.pop(_key(lease), None)

    def revoke(self, execution_id: str, ref: int) -> None:
        """The activity is no longer wanted: whoever runs it here need not wait for the next renewal to hear of it."""
        for held in list(self._held.values()):
            if (held.lease.execution_id, held.lease.ref) == (execution_id, ref):
                self.drop(held.lease)
                held.lost()

    def all(self) -> list[Lease]:
        """Return what is held now."""
        # One step of the interpreter: the watchdog asks from another thread.
        return [held.now() for held in list(self._held.values())]

    async def keep_details(self) -> None:
        """Have what was told since the last renewal kept now: what is given back is handed out with it."""
        told = [held for held in self._held.values() if held.now().heartbeat_at is not None]
        if told:
            await self._extend(told)

    def stop(self) -> None:
        """Renew nothing any more."""
        if self._call_off is not None:
            self._call_off()
            self._call_off = None

    def _schedule(self) -> None:
        self._call_off = self._clock.call_at(self._clock.now() + self._pause, self._due)

    def _due(self) -> None:
        self._call_off = None
        if self._held:
            self._tasks.spawn(self._renew(), "leases")

    async def _extend(self, held: Sequence[Held]) -> Sequence[Extended | Refused]:
        """Renew leases; details that the store can never take must not cost the leases of others."""
        try:
            return await self._store.extend([one.now() for one in held])
        except WriteRejected as error:
            complain("the store cannot take the details of a heartbeat; leases are renewed without any", error)
            return await self._store.extend([one.lease for one in held])

    async def _renew(self) -> None:
        held = list(self._held.values())
        try:
            answers = await self._extend(held)
        except Exception as error:  # noqa: BLE001 -- whatever it is: to stop renewing would be to lose all that is held
            complain("the store failed at renewing leases; they may still hold, so it is tried again", error)
            answers = ()
        for one, answer in zip(held, answers, strict=False):
            if isinstance(answer, Refused) and _key(one.lease) in self._held:
                logger.warning("a lease on %s is lost: %s", one.lease.execution_id, answer.reason)
                self.drop(one.lease)
                one.lost()
        if self._call_off is None and self._held:
            self._schedule()


def _key(lease: Lease) -> tuple[str, int | None, int]:
    return lease.execution_id, lease.ref, lease.epoch
