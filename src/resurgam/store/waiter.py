"""Calls of `Store.wait` on a store that is reached over a network: each looks when something may have changed."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from resurgam.core import event as events
from resurgam.store import records as r
from resurgam.store.watches import WatchKey, log_key

_RETRY: Final = 1.0
"""Seconds until a look is repeated that the server could not answer."""

_PENDING: Final = 0.005
"""Seconds until a look is repeated that found what cannot be read yet; each time doubles it."""


class Waiter:
    """One call of `wait`, which makes one look at a time.

    One for the end of an execution that this store leases is *near*: it does not look until the lease is gone.
    """

    def __init__(self, watch: r.Watch) -> None:
        self.watch = watch
        self.ended: asyncio.Future[bool | None] = asyncio.get_running_loop().create_future()
        """Whether what is watched for is there; None if a waiter is no longer near."""

        self.only_once = False
        """Whether the wait ends with the first look."""

        self.near = False

        self._looking = True  # until `start`
        self._again = False
        self._first = True
        self._pause = _PENDING
        self._later: asyncio.TimerHandle | None = None

    @property
    def is_looking(self) -> bool:
        """Whether a look is under way, or comes next."""
        return self._looking and not self.near

    @property
    def has_looked(self) -> bool:
        """Whether a look was answered."""
        return not self._first

    def move_away(self) -> None:
        """Have a near waiter go on as any other."""
        if not self.ended.done():
            self.ended.set_result(None)

    def start(self) -> None:
        """Look for the first time, now that changes are heard of."""
        self._looking = False
        self.touch()

    def touch(self) -> None:
        """Look, now or after the look under way."""
        if self._looking:
            self._again = True
        elif not self.ended.done():
            self._looking, self._again = True, False
            self._look()

    def end(self, *, there: bool = False) -> None:
        """End the wait."""
        if not self.ended.done():
            self.ended.set_result(there)

    def fail(self, error: Exception) -> None:
        """End the wait with an error."""
        if not self.ended.done():
            self.ended.set_exception(error)

    def close(self) -> None:
        """Release what the waiter holds."""
        if self._later is not None:
            self._later.cancel()
        if not self.ended.cancel() and not self.ended.cancelled():
            self.ended.exception()  # a wait that was cancelled does not ask for it

    def _look(self) -> None:
        """Ask the store, and call `_looked` with its answer."""
        raise NotImplementedError

    def _looked(self, answer: Any) -> None:
        """Take the answer of a look; None: what it found cannot be read yet.

        An error of the first look ends the wait, later ones are repeated.
        """
        self._looking = False
        if isinstance(answer, Exception):
            if self._first:
                self.fail(answer)
            else:
                self._look_in(_RETRY)
            return
        self._first = False
        if answer or self.only_once:
            self.end(there=bool(answer))
        elif answer is None:
            self._look_in(self._pause)
            self._pause = min(2 * self._pause, _RETRY)
        elif self._again:
            self.touch()

    def _look_in(self, seconds: float) -> None:
        if not self.ended.done():
            self._later = asyncio.get_running_loop().call_later(seconds, self.touch)


class WaiterTable:
    """The waiters of a store, by what they wait for."""

    def __init__(self) -> None:
        self._waiters: dict[WatchKey, list[Waiter]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiters)

    @property
    def all(self) -> list[Waiter]:
        """All waiters."""
        return [waiter for waiters in self._waiters.values() for waiter in waiters]

    def under(self, *keys: WatchKey) -> list[Waiter]:
        """Return the waiters under some keys."""
        return [waiter for key in keys for waiter in self._waiters.get(key, ())]

    def add(self, key: WatchKey, waiter: Waiter) -> None:
        """Add a waiter."""
        self._waiters.setdefault(key, []).append(waiter)

    def remove(self, key: WatchKey, waiter: Waiter) -> None:
        """Remove a waiter."""
        self._waiters[key].remove(waiter)
        if not self._waiters[key]:
            del self._waiters[key]

    def touch(self, *keys: WatchKey) -> None:
        """Have the waiters under some keys look."""
        for waiter in self.under(*keys):
            waiter.touch()

    def note_lease_gone(self, execution_id: str) -> None:
        """Have those who wait for the end of an execution look for it: it is no longer leased by this store."""
        for waiter in self.under(execution_id):
            if waiter.near:
                waiter.move_away()

    def note_closed(self, execution_id: str, entry: events.Event | None) -> None:
        """End the waits for the end of an execution that a commit of this store has closed, with the entry that did so.

        The notice of the same call may have ended them just now; their callers go on only after this.
        """
        for waiter in self.under(execution_id):
            watch = waiter.watch
            if isinstance(watch, r.Closed):
                if entry is not None and watch.tell is not None:
                    watch.tell(entry)
                waiter.end(there=True)

    def note_end(self, execution_id: str) -> None:
        """End the waits that the end of an execution fulfils, wherever it was closed."""
        for waiter in self.under(execution_id, log_key(execution_id)):
            if isinstance(waiter.watch, r.Closed | r.LogGrown):
                waiter.end(there=True)


def has_progressed(watch: r.Closed | r.InboxChanged | r.LogGrown, *, last_seq: int, wake: int, closed: bool) -> bool:
    """Whether an execution has come as far as a watch waits for."""
    if isinstance(watch, r.InboxChanged):
        return wake > watch.wake
    return closed or (isinstance(watch, r.LogGrown) and last_seq > watch.last_seq)


def look_at(waiters: Sequence[Waiter]) -> None:
    """Have waiters look: what they wait for may have been missed."""
    for waiter in waiters:
        waiter.move_away() if waiter.near else waiter.touch()
