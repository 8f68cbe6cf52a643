"""Wake waiters when something they wait for may be there.

Three things can bring it: a commit of this store (`note`), a commit of another connection (a wake-up by its pipe, or
the poll), and time (the alarm, set to the next moment at which something becomes due).
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final

from resurgam.core.clock import Clock
from resurgam.core.errors import StoreError
from resurgam.store import records as r
from resurgam.store.lifetime import Lifetime
from resurgam.store.sqlite.conditions import are_met, has_progressed, next_due
from resurgam.store.sqlite.connection import Database
from resurgam.store.sqlite.open_file import OpenFile
from resurgam.store.sqlite.peers import Peers
from resurgam.store.sqlite.transaction import Transaction
from resurgam.store.sqlite.wakeup import Wakeups
from resurgam.store.watches import Waiters, WatchKey

_HEARD: Final = 1.0
"""Seconds between two polls of a store that others wake by its pipe: it only misses what one wrote that then died."""

_POLL: Final = 0.01
"""Seconds until the next poll of one that must look by itself, after a poll that found a change."""

_UNHEARD: Final = 0.1
"""The longest interval between two polls of such a store; each poll in vain doubles it.

It has no pipe, or it follows a log: commits do not wake others for every entry.
"""

_CHECK_OWNERS: Final = 1.0
"""Seconds between two checks of the owners: an idle worker, too, must notice that another is dead."""

_SOON: Final = 1500
"""Milliseconds. If something becomes due sooner than this, other stores are woken: their own poll may be too late."""


class Watcher:
    """The waiters of one open store."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        *,
        lifetime: Lifetime,
        peers: Peers,
        wakeups: Wakeups,
        reap_dead_owners: Callable[[], Awaitable[None]],
    ) -> None:
        self._database = database
        self._file = OpenFile(database, lifetime)
        self._clock = clock
        self._lifetime = lifetime
        self._peers = peers
        wakeups.heed(keys=self._look_at, due=self._set_alarm_by, anything=self._poll_soon)
        self._wakeups = wakeups
        self._reap_dead_owners = reap_dead_owners
        self._waiting = Waiters(clock, self._are_met)
        # None after a failed read: waiters may not have been woken, and the next poll reads again.
        self._version: int | None = database.version()
        self._poll: asyncio.Task[None] | None = None
        self._interval = _POLL / 2
        self._sleep: asyncio.Future[None] | None = None

    @property
    def polls(self) -> bool:
        """Whether the poll runs, which also reaps dead owners."""
        return self._poll is not None

    async def wait(self, watch: r.Watch, until: int | None) -> bool:
        """Return True once what is watched for is there, False at the moment *until*."""
        self._file.check()
        if self._poll is None:
            self._peers.listen()
            self._poll = asyncio.get_running_loop().create_task(self._poll_others(), name="sqlite poll")
            # From now on every change, of this store or of others, sets the alarm by what it makes due.
            moment = self._next_due()
            if moment is not None:
                self._set_alarm_by(moment)
        return await self._waiting.wait(watch, until)

    def is_met(self, watch: r.Watch) -> bool:
        """Whether what is watched for is there now."""
        [met] = self._are_met([watch])
        return met

    def note(self, transaction: Transaction) -> None:
        """Wake the waiters that a durable transaction of this store concerns, here and in other processes."""
        if self._lifetime.refusal is not None:
            return
        changes = transaction.changes
        moment, shared = changes.moment, changes.work or changes.touched
        if moment is not None:
            self._set_alarm_by(moment)
        if shared or self._waiting.followers:  # else it is a step that no watch waits for
            try:
                self._waiting.look(changes.touched, changes.grown, closed=changes.closed, work=changes.work)
            except StoreError:  # a failed read must not fail the write
                self._look_later()
        soon = moment if moment is not None and moment < transaction.now + _SOON else None
        if shared or soon is not None:  # stores that follow a log poll
            self._wakeups.wake_others({*changes.touched, None} if changes.work else changes.touched, soon)

    async def close(self) -> None:
        """Fail the waiters, and end the poll."""
        self._waiting.close()
        if self._poll is not None:
            self._poll.cancel()
            await asyncio.gather(self._poll, return_exceptions=True)

    def _are_met(self, watches: Sequence[r.Watch]) -> Sequence[bool]:
        watch = watches[0]
        if len(watches) == 1 and isinstance(watch, r.Closed | r.InboxChanged | r.LogGrown):
            # Most watches are of one instance; a single statement needs no transaction.
            rows = self._file.fetch("progress", execution_id=watch.execution_id)
            return [has_progressed(watch, rows[0] if rows else None)]
        now = self._clock.now()
        return self._file.read(lambda session: list(are_met(session, watches, now)))

    def _next_due(self) -> int | None:
        now = self._clock.now()
        return self._file.read(lambda session: next_due(session, now))

    async def _poll_others(self) -> None:
        """Check from time to time whether another connection has written or an owner is dead."""
        loop = asyncio.get_running_loop()
        check_owners = loop.time()
        while True:
            found = False
            with contextlib.suppress(StoreError, OSError):
                if loop.time() >= check_owners:
                    check_owners = loop.time() + _CHECK_OWNERS
                    self._check_files()
                    await self._reap_dead_owners()
                found = self._find_change()
            self._sleep = loop.create_future()
            timer = loop.call_later(self._next_interval(found=found), _end, self._sleep)
            await self._sleep
            timer.cancel()

    def _next_interval(self, *, found: bool) -> float:
        if self._peers.heard and not self._waiting.followers:
            return _HEARD
        self._interval = _POLL if found else min(2 * self._interval, _UNHEARD)
        return self._interval

    def _find_change(self) -> bool:
        """Wake the waiters if another connection has written; return whether it has."""
        version = self._database.version()
        if version == self._version:
            return False
        self._version = version
        self._look_at_all()
        return True

    def _poll_soon(self) -> None:
        """End the sleep of the poll."""
        if self._sleep is not None:
            _end(self._sleep)

    def _check_files(self) -> None:
        """Fail the waiters if the file is gone: nothing will ever come out of it."""
        try:
            self._database.check_files()
        except StoreError as error:
            self._waiting.fail(error)
            raise

    def _look_at_all(self) -> None:
        """Check every watch: anything may have changed."""
        if self._lifetime.over:
            return
        try:
            # The alarm first: what becomes due between the two is then seen by the check.
            self._waiting.set_alarm(self._next_due(), self._ring)
            self._waiting.look_at_all()
        except StoreError:
            self._version = None

    def _look_at(self, keys: Collection[WatchKey]) -> None:
        """Check the watches of some keys, which another store has touched; None stands for work."""
        if self._lifetime.over:
            return
        try:
            self._waiting.look(keys, work=False)  # if there is work, it is among the keys
        except StoreError:
            self._look_later()

    def _look_later(self) -> None:
        """Check every watch at the next poll, and poll soon, because the disk failed at a look."""
        self._version = None
        self._poll_soon()

    def _set_alarm_by(self, moment: int) -> None:
        self._waiting.set_alarm_by(moment, self._ring)

    def _ring(self) -> None:
        self._waiting.rang()
        self._look_at_all()
        if self._version is None:
            self._poll_soon()


def _end(sleep: asyncio.Future[None]) -> None:
    if not sleep.done():
        sleep.set_result(None)
