"""Carry the effects of commits from the outboxes of partitions to the partitions that they are for.

The commit that fills an outbox names it in its answer, and the store that made it drives it at once. An outbox that was
left behind is reported to any store that looks for work. Two stores may drive one outbox at the same time: the target
counts each effect once, and in order.
"""

import asyncio
import logging
from typing import Any, Final

from resurgam.core.errors import StoreError
from resurgam.store.redis.library import text_of
from resurgam.store.redis.link import Link

_AT_ONCE: Final = 100
"""Effects that one call carries at most."""

_RETRY: Final = 1.0
"""Seconds until effects are carried again that a server could not take."""

_LAST_WORDS: Final = 1.0
"""Seconds that closing waits for effects under way; others carry what is left."""

_logger: Final = logging.getLogger("resurgam.store")

_Way = tuple[int, int]
"""The source and the target of effects."""


class OutboxDriver:
    """Drive outboxes, each pair of partitions in a task of its own."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._tasks: dict[_Way, asyncio.Task[None]] = {}
        self._again: set[_Way] = set()

    def drive(self, source: int, target: int) -> None:
        """Carry what is in the outbox of a partition for another one."""
        way = source, target
        if way in self._tasks:
            self._again.add(way)  # it may have read the end already
            return
        task = asyncio.get_running_loop().create_task(self._run(way), name=f"outbox {source} to {target}")
        self._tasks[way] = task

    async def flush(self) -> None:
        """Carry everything that is in any outbox, and what follows from it."""
        while ways := [
            (source, int(target))
            for source, targets in enumerate(await self._link.ask_all("unsent", []))
            for target in targets
        ]:
            await asyncio.gather(*(self._carry(way) for way in ways))

    @property
    def is_busy(self) -> bool:
        """Whether effects are under way."""
        return bool(self._tasks)

    async def arrived(self) -> None:
        """Wait until the effects of commits so far have arrived, and the answers to them."""
        while self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    async def close(self) -> None:
        """Wait a moment for effects under way."""
        tasks = list(self._tasks.values())
        if tasks:
            await asyncio.wait(tasks, timeout=_LAST_WORDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, way: _Way) -> None:
        try:
            await self._carry(way)
            while way in self._again:
                self._again.discard(way)
                await self._carry(way)
        except StoreError as error:
            if not self._link.lifetime.over:
                _logger.warning("effects of partition %d on partition %d are delayed: %s", *way, error)
                asyncio.get_running_loop().call_later(_RETRY, self._retry, way)
        finally:
            self._again.discard(way)
            del self._tasks[way]

    def _retry(self, way: _Way) -> None:
        if not self._link.lifetime.over:
            self.drive(*way)

    async def _carry(self, way: _Way) -> None:
        source, target = way
        entries = await self._link.ask(source, "trim_outbox", [target, 0, _AT_ONCE])
        while entries:
            mark = await self._link.ask(target, "apply_effects", [source, *map(_as_text, entries)])
            entries = await self._link.ask(source, "trim_outbox", [target, mark, _AT_ONCE])


def _as_text(item: Any) -> Any:
    return text_of(item) if isinstance(item, bytes) else item
