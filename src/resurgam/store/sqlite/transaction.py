"""One write transaction: the session it writes through, its moment, and a record of what it changes."""

from collections.abc import Callable
from typing import Final, Protocol, TypeVar

import msgspec

from resurgam.core.event import Event
from resurgam.store.sqlite.session import Session
from resurgam.store.watches import WatchKey

T = TypeVar("T")

_MAX_STEP_BACK: Final = 1_000_000
"""Microseconds. A clock that was set back by less than this does not reorder ready instances."""


class Changes(msgspec.Struct):
    """What a transaction changed that a waiter may be waiting for.

    *touched*: the watched keys, as `watches` names them. *closed*: those of them that are executions which were closed,
    with the entries that closed them, as far as these are known. *grown*: executions whose log has grown. *work*: something may have become claimable. *moment*: the earliest moment
    at which something becomes claimable by itself.
    """

    touched: set[WatchKey] = msgspec.field(default_factory=set)
    closed: dict[str, Event | None] = msgspec.field(default_factory=dict)
    grown: list[str] = msgspec.field(default_factory=list)
    work: bool = False
    moment: int | None = None

    def due(self, moment: int | None) -> None:
        """Note that something becomes claimable at *moment*."""
        if moment is not None and (self.moment is None or moment < self.moment):
            self.moment = moment


class ReadyTimestamps:
    """Increasing timestamps in microseconds, one for each instance that becomes ready.

    The clock counts milliseconds, so instances that become ready within one of them are counted beyond it. An instance
    that is due at a moment, a thousand times that moment, precedes those that become ready in it.
    """

    def __init__(self) -> None:
        self._last = 0

    def next(self, now: int) -> int:
        """Return the next timestamp at the moment *now*."""
        first = now * 1000 + 1
        ahead = self._last - first
        self._last = self._last + 1 if 0 <= ahead < _MAX_STEP_BACK else first
        return self._last


class Transaction(msgspec.Struct, eq=False):
    """The transaction in which verbs run, one part at a time, all at one moment and for one owner of leases.

    *busy_queues*: whether older activities wait in a queue, for queues that a commit of this transaction has asked for.
    *idle_queue*: a queue in which no instance waited when a start of this transaction asked.
    """

    session: Session
    now: int
    lease_until: int
    owner: str
    timestamps: ReadyTimestamps
    changes: Changes = msgspec.field(default_factory=Changes)
    busy_queues: dict[str, bool] = msgspec.field(default_factory=dict)
    idle_queue: str | None = None

    def ready_at(self) -> int:
        """Return the timestamp of an instance that becomes ready now."""
        return self.timestamps.next(self.now)


class Write(Protocol):
    """A function that writes to the file."""

    async def __call__(self, work: Callable[[Transaction], T], /) -> T:
        """Run *work* in the writer's next transaction, and return its answer."""
        ...
