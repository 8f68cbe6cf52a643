"""The asyncio tasks of a worker: none is forgotten, and none dies unheard."""

import asyncio
import logging
from collections.abc import Coroutine
from contextvars import Context
from typing import Any

logger = logging.getLogger("resurgam.worker")


class Tasks:
    """Tasks that run until they are done, or are cancelled together."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def spawn(
        self, coroutine: Coroutine[Any, Any, Any], name: str, context: Context | None = None
    ) -> asyncio.Task[Any]:
        """Run a coroutine beside the caller."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name, context=context)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    async def finish(self, timeout: float) -> None:
        """Wait for all to end, at most *timeout* seconds, then cancel the rest."""
        if self._running:
            await asyncio.wait(self._running, timeout=timeout)
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a part of the worker (%s) failed", task.get_name(), exc_info=error)
