"""The asyncio tasks of a worker: each is kept until it ends, and a failure is logged."""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterator
from typing import Any, Final

from resurgam.core.clock import Clock
from resurgam.core.errors import StoreError

logger = logging.getLogger("resurgam.worker")

RETRY_DELAY: Final = 1.0
"""Seconds to wait before a store that failed is called again."""


async def sleep(clock: Clock, seconds: float) -> None:
    """Sleep by the engine's own clock."""
    due: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    cancel = clock.call_at(clock.now() + round(seconds * 1000), lambda: settle(due))
    try:
        await due
    finally:
        cancel()


def log_failure(message: str, error: BaseException) -> None:
    """Log an error: a `StoreError` in one line, since it names its cause and remedy; any other with its traceback."""
    logger.error("%s: %s", message, error, exc_info=None if isinstance(error, StoreError) else error)


def settle(waiter: asyncio.Future[None]) -> None:
    """Settle a future without a value, unless it is done."""
    if not waiter.done():
        waiter.set_result(None)


_CANCEL_TIMEOUT: Final = 1.0
"""Seconds to wait for cancelled tasks; user code that swallows cancellation must not block the engine."""


class Grace:
    """The time in which running work may finish once the worker stops, from `begin` on; `skip` ends it early."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until: float | None = None
        self._skipped = asyncio.Event()

    @property
    def is_over(self) -> bool:
        """Whether nothing is waited for any more: it has not begun, has passed, or was skipped."""
        if self._until is None or self._skipped.is_set():
            return True
        return asyncio.get_running_loop().time() >= self._until

    def begin(self) -> None:
        """Start the time, unless it runs already."""
        if self._until is None:
            self._until = asyncio.get_running_loop().time() + self._seconds

    def skip(self) -> None:
        """End the time now."""
        self._skipped.set()

    async def wait(self, running: Collection[asyncio.Task[Any]]) -> None:
        """Wait until all of *running* have ended, or the time is over."""
        if self._until is None or self._skipped.is_set():
            return
        left = max(0.0, self._until - asyncio.get_running_loop().time())
        ended = asyncio.ensure_future(asyncio.wait(set(running)))
        skipped = asyncio.ensure_future(self._skipped.wait())
        try:
            await asyncio.wait({ended, skipped}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
            skipped.cancel()


async def complete(begin: Callable[[], Coroutine[Any, Any, None]], hurry: Callable[[], object]) -> None:
    """Run the coroutine of *begin* to its end in a task of its own, however often the caller is cancelled.

    Each cancellation calls *hurry*, and is raised afterwards. If the task itself is cancelled, as by a program that
    cancels every task of its loop, *begin* is called again.
    """
    cancelled: asyncio.CancelledError | None = None
    task = asyncio.get_running_loop().create_task(begin())
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
            hurry()
        if task.cancelled():
            hurry()
            task = asyncio.get_running_loop().create_task(begin())
    if cancelled is not None:
        raise cancelled from task.exception()
    task.result()


async def cancel_all(running: Collection[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait a moment for them to end."""
    tasks = list(running)
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_CANCEL_TIMEOUT)
    for task in tasks:
        if not task.done():
            logger.warning("%s does not stop when it is cancelled, and is abandoned", task.get_name())


class Tasks:
    """Tasks that run until they are done, or are cancelled together."""

    def __init__(self, *, on_end: Callable[[asyncio.Task[Any]], object] = lambda _: None) -> None:
        self._running: set[asyncio.Task[Any]] = set()
        self._on_end = on_end

    def __len__(self) -> int:
        return len(self._running)

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        return iter(list(self._running))

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run a coroutine beside the caller."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    async def wait(self, grace: Grace) -> None:
        """Wait for all to end within *grace*."""
        if self._running:
            await grace.wait(self._running)

    async def finish(self, grace: Grace | None = None) -> None:
        """Wait for all to end within *grace*, then cancel the rest."""
        if grace is not None:
            await self.wait(grace)
        await cancel_all(self._running)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        self._on_end(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log_failure(f"a task of the worker ({task.get_name()}) failed", error)
