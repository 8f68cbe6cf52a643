"""Listen for the notices of other processes, on a connection of its own.

Without one the store hears nothing, and must look by itself: with a pooler that changes the connection after every
transaction, and while the connection is lost and cannot be made again.

Logs grow with every step, so writers tell of that only while somebody follows: a store that does shares an advisory lock,
which writers try to take. Transactions that have tried before are not told of. They are over, and seen by a look, when the
oldest transaction that runs is younger than the lock: until then the followers look again and again.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import asyncpg
import msgspec

from resurgam.core.errors import StoreError
from resurgam.store.postgres.functions import channel_of, literal
from resurgam.store.postgres.pool import Pool

_FIRST_PAUSE: Final = 0.05
"""Seconds until the connection is made again that was lost; each failure doubles it."""

_LONGEST_PAUSE: Final = 5.0

_CHECK: Final = 10.0
"""Seconds of silence after which the connection is tried: nobody tells of a server that has vanished."""

_PATIENCE: Final = 10.0
"""Seconds within which the server must answer on this connection."""

_KEPT: Final = 10.0
"""Seconds for which the lock of a follower is kept after the last one: most come again."""

_FIRST_LOOK: Final = 0.002
"""Seconds until a follower looks again for transactions that were under way when it began; each look doubles it."""

_LONGEST_LOOK: Final = 0.5

_LOST: Final = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError)

_notices: Final = msgspec.json.Decoder(list[str])


class Listener:
    """The notices of other processes. *heard* is called with them, *missed* when some may have been lost.

    *grown* is called when logs may have grown of which no notice tells.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        heard: Callable[[Sequence[str]], None],
        missed: Callable[[], None],
        grown: Callable[[], None],
    ) -> None:
        self._pool = pool
        self._heard = heard
        self._missed = missed
        self._grown = grown
        self._task: asyncio.Task[None] | None = None
        self._tried = asyncio.Event()
        self._followed = asyncio.Event()
        self._followers = 0
        self._wake = asyncio.Event()
        self.listens = False
        """Whether every change of others is heard of."""

    @property
    def begins(self) -> bool:
        """Whether it is about to listen, or to follow."""
        waits = self.listens and self._followers > 0 and not self._followed.is_set()
        return waits or (self._task is not None and not self._tried.is_set())

    async def start(self) -> None:
        """Listen from now on; return once that is so, or cannot be."""
        if self._pool.address.pooler:
            return
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._keep_listening(), name="postgres listener")
        await self._tried.wait()

    async def follow(self) -> None:
        """Hear of logs that grow, until `unfollow`; return once that is so, or cannot be."""
        self._followers += 1
        self._wake.set()
        await self.start()
        if self.listens:
            await self._followed.wait()

    def unfollow(self) -> None:
        """Take back one `follow`."""
        self._followers -= 1

    def close(self) -> None:
        """End the connection."""
        if self._task is not None:
            self._task.cancel()

    async def _keep_listening(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            try:
                connection = await self._pool.connect()
            except StoreError:
                self._tried.set()
            else:
                try:
                    await self._listen(connection)
                except _LOST:
                    pass
                finally:
                    pause = _FIRST_PAUSE if self.listens else pause
                    self.listens = False
                    self._tried.set()
                    self._followed.set()  # who waits for it must look by itself
                    connection.terminate()
            self._missed()
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _listen(self, connection: Any) -> None:
        """Listen as long as the connection lasts."""
        connection.add_termination_listener(lambda _: self._wake.set())
        await connection.add_listener(channel_of(self._pool.address.schema), self._on_notice)
        self._followed.clear()
        self.listens = True
        self._tried.set()
        self._missed()
        loop = asyncio.get_running_loop()
        last_followed = 0.0
        while not connection.is_closed():
            self._wake.clear()
            if self._followers and not self._followed.is_set():
                await self._begin_to_follow(connection)
            elif self._followers:
                last_followed = loop.time()
            elif self._followed.is_set() and loop.time() >= last_followed + _KEPT:
                self._followed.clear()
                await connection.execute(f"SELECT pg_advisory_unlock_shared({self._lock()})", timeout=_PATIENCE)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), _CHECK)
                continue
            await connection.execute("SELECT 1", timeout=_PATIENCE)

    async def _begin_to_follow(self, connection: Any) -> None:
        """Take the lock, and look until all transactions have ended that may not have seen it."""
        taken = f"SELECT pg_advisory_lock_shared({self._lock()})"
        await connection.execute(taken, timeout=_PATIENCE)
        newest = await connection.fetchval(
            "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint", timeout=_PATIENCE
        )
        self._followed.set()
        pause = _FIRST_LOOK
        while not connection.is_closed():
            oldest = await connection.fetchval(
                "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint", timeout=_PATIENCE
            )
            self._grown()
            if oldest >= newest or not self._followers:
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_LOOK)

    def _lock(self) -> str:
        """Return the key of the lock, as the function ``notices_followers`` in ``functions/shared/notices.sql`` does."""
        return f"hashtextextended('resurgam followers of ' || {literal(channel_of(self._pool.address.schema))}, 0)"

    def _on_notice(self, _: object, __: int, ___: str, payload: object) -> None:
        try:
            owner, *notices = _notices.decode(str(payload))
        except ValueError:  # of somebody else: every user of the database may send one
            self._missed()
            return
        if owner != self._pool.owner:  # its own come with the answers to its calls
            self._heard(notices)
