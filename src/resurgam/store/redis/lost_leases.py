"""Give back leases that no caller knows of, so that the work is offered again at once and not when they expire.

Such a lease remains if the answer to a claim is lost with the connection, if too few replicas acknowledge the call, or if
the caller is cancelled before the answer comes.
"""

import asyncio
from typing import Any, Final

from resurgam.core.errors import StoreError
from resurgam.store import records as r
from resurgam.store.redis.link import Link
from resurgam.store.redis.parts import release_part

_RETRY: Final = 0.5
"""Seconds until a server is asked again that could not answer."""

_LAST_WORDS: Final = 1.0
"""Seconds that closing waits for leases under way; those that are left expire."""


class LostLeases:
    """The leases of one open store that must be given back."""

    def __init__(self, link: Link, *, lease: int) -> None:
        self._link = link
        self._patience = lease / 1000
        self._numbers: dict[int, set[int]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        link.on_given_up = self._note

    def release(self, lease: r.Lease) -> None:
        """Give back a lease whose claimer is gone."""
        partition = self._link.partition_of(lease.entity_id)
        self._spawn(self._release(partition, release_part(r.Release(lease=lease))))

    async def close(self) -> None:
        """Wait a moment for what is under way."""
        tasks = list(self._tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=_LAST_WORDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _note(self, partition: int, number: int) -> None:
        """Give back what a call has leased whose answer does not count."""
        if self._link.lifetime.over:
            return
        numbers = self._numbers.setdefault(partition, set())
        numbers.add(number)
        if len(numbers) == 1:
            self._spawn(self._give_back(partition))

    def _spawn(self, giving: Any) -> None:
        task = asyncio.get_running_loop().create_task(giving, name="redis give back")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _release(self, partition: int, part: Any) -> None:
        try:
            await self._link.ask(partition, "release", part)
        except StoreError:
            return  # it expires

    async def _give_back(self, partition: int) -> None:
        """Ask until the server answers, or the leases have expired."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._patience
        numbers = self._numbers[partition]
        while numbers:
            asked = sorted(numbers)
            try:
                await self._link.ask(partition, "give_back", [str(number) for number in asked])
            except StoreError:
                if self._link.lifetime.over or loop.time() >= until:
                    break
                await asyncio.sleep(_RETRY)
            else:
                numbers.difference_update(asked)
        del self._numbers[partition]
