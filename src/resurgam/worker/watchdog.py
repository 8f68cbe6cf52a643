"""Watch the thread that runs workflow code, so that a coroutine that does not yield blocks no other instance for long.

While a tick runs, the event loop cannot advance other instances or renew leases. A thread does so in its place: it
renews the leases, reports where the tick is stuck, and past a limit interrupts it, which counts as a failed delivery of
that instance alone.
"""

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Final, Protocol, TypeVar, TypeVarTuple

from resurgam.core.event import Started
from resurgam.store.protocol import Store
from resurgam.store.records import Lease
from resurgam.worker.interrupt import absorb_pending, raise_in
from resurgam.worker.leases import Leases
from resurgam.worker.tasks import log_failure

logger = logging.getLogger("resurgam.worker")

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

REPORT_AFTER: Final = 1.0
"""Seconds after which a tick that has not yielded is reported with its stack."""

_INTERVAL: Final = 0.25
"""Seconds between two checks."""

_FRAMES: Final = 8
"""The number of innermost frames in a report."""


class TickInterrupted(BaseException):
    """Raised in workflow code that has run too long. Not an `Exception`, so that few handlers swallow it."""


class TickTooLong(Exception):
    """Workflow code was interrupted."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"its code ran {seconds:g} s without yielding and was interrupted; "
            "put long work into an activity, or await something in between"
        )
        self.seconds = seconds


class Watched(Protocol):
    """The instance whose code runs, and how far it has come: a tick that delivers another entry has yielded."""

    @property
    def started(self) -> Started:
        """The first entry of its history."""
        ...

    @property
    def delivered_seq(self) -> int:
        """The ``seq`` of the entry that was delivered last."""
        ...


class Watchdog:
    """A thread that watches the one it was started in."""

    def __init__(self, leases: Leases, *, lease: float, limit: float, reopen: Callable[[], Store] | None) -> None:
        self._leases = leases
        self._renew_after = lease / 3
        self._limit = limit
        self._reopen = reopen
        self._store: Store | None = None
        self._runner: asyncio.Runner | None = None
        self._watched = threading.get_ident()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        # An interruption must hit the tick it is meant for, or none. The watching thread holds the lock while it
        # interrupts: it notes that first, and then looks which tick runs. A tick that ends does it the other way round,
        # and takes the lock only if it finds that note, so that one of the two always sees the other.
        self._lock = threading.Lock()
        self._running: Watched | None = None
        self._interrupted = False
        # State of the checks.
        self._pinged: float | None = None
        self._renewed = 0.0
        self._seen: tuple[Watched | None, int] = (None, 0)
        self._since = 0.0
        self._reported = False

    # Called by the thread that is watched.

    def start(self) -> None:
        """Start watching the running loop and its thread."""
        self._loop = asyncio.get_running_loop()
        self._watched = threading.get_ident()
        self._thread = threading.Thread(target=self._watch, name="resurgam-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def run(self, execution: Watched, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Run workflow code under watch; `TickTooLong` if it was interrupted."""
        self._running = execution
        try:
            try:
                return function(*args)
            finally:
                self._running = None
                if self._interrupted:
                    self._leave()
        except TickInterrupted:
            # It may have been raised while leaving.
            self._leave(quietly=True)
            raise TickTooLong(self._limit) from None

    def _leave(self, *, quietly: bool = False) -> None:
        with self._lock:
            self._running = None
            interrupted, self._interrupted = self._interrupted, False
        if interrupted:
            # Not raised yet, or swallowed by the code: the tick still counts as interrupted.
            absorb_pending(TickInterrupted)
            if not quietly:
                raise TickInterrupted

    def _pong(self) -> None:
        self._pinged = None

    # Called by the watching thread.

    def _watch(self) -> None:
        try:
            while not self._stopped.wait(_INTERVAL):
                self.check(time.monotonic())
        except Exception:
            logger.exception("the watchdog of this worker failed; leases are renewed only while the event loop runs")
        finally:
            self._close_store()

    def check(self, now: float) -> None:
        """Check how long the current tick has been running, and whether the loop is blocked."""
        running = self._running
        seen = (running, 0 if running is None else running.delivered_seq)
        still = self._pinged is not None
        if seen != self._seen or not still:
            self._seen, self._since, self._reported = seen, now, False
        if not still:
            self._pinged = now
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._pong)
            return
        if now - self._since >= REPORT_AFTER and not self._reported:
            self._reported = True
            self._report(now)
        if running is not None and now - self._since >= self._limit:
            self._interrupt(running)
            self._since = now - self._limit + REPORT_AFTER  # again soon, if the code swallows it
        if self._pinged is not None and now - max(self._pinged, self._renewed) >= self._renew_after:
            self._renewed = now
            self._renew()

    def _report(self, now: float) -> None:
        frame = sys._current_frames().get(self._watched)
        stack = "".join(traceback.format_stack(frame)[-_FRAMES:]) if frame is not None else ""
        running, waited = self._running, now - self._since
        if running is None:
            logger.warning("the event loop has been blocked for %.1f s:\n%s", waited, stack)
            return
        logger.warning(
            "workflow %r (%s) has not yielded for %.1f s and blocks other workflows; it is interrupted after %g s:\n%s",
            running.started.name,
            running.started.entity_id,
            waited,
            self._limit,
            stack,
        )

    def _interrupt(self, running: Watched) -> None:
        with self._lock:
            self._interrupted = True
            if self._running is running:
                raise_in(self._watched, TickInterrupted)
            else:
                self._interrupted = False  # it has yielded meanwhile

    def _renew(self) -> None:
        """Renew every lease by a connection of this thread's own. A loss is found by the worker when it runs again."""
        held = self._leases.all()
        if not held or self._reopen is None:
            return
        try:
            if self._store is None or self._runner is None:
                self._store, self._runner = self._reopen(), asyncio.Runner()
            self._runner.run(_extend(self._store, held))
        except Exception as error:  # noqa: BLE001 -- the next check tries again
            log_failure("the store failed to renew leases while the event loop was blocked", error)

    def _close_store(self) -> None:
        if self._runner is not None:
            if self._store is not None:
                self._runner.run(self._store.close())
            self._runner.close()
            self._store = self._runner = None


async def _extend(store: Store, held: list[Lease]) -> None:
    await store.extend(held)
