"""Queries that wait for a worker with the code, and their results, each in the partition of its entity."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec

from resurgam.store import records as r
from resurgam.store.encoding import encode
from resurgam.store.redis.link import Link
from resurgam.store.redis.outlook import QUERIES, Outlook
from resurgam.store.redis.rotation import Rotation

_tasks: Final = msgspec.json.Decoder(r.QueryTask)
_results: Final = msgspec.json.Decoder(r.QueryResult)

_OPEN: Final = b"open"
_ANSWERED: Final = b"answered"


class RedisQueries:
    """Submit, claim and complete queries."""

    def __init__(self, link: Link, outlook: Callable[[str, Sequence[str]], Awaitable[Outlook]]) -> None:
        self._link = link
        self._outlook = outlook
        self._rotation = Rotation(link, QUERIES)

    async def submit(self, parts: Sequence[r.QueryTask]) -> Sequence[r.Submitted | r.Missing]:
        """Offer queries to the workers of their queues."""
        link = self._link
        answers = await asyncio.gather(
            *(link.ask(link.partition_of(task.entity_id), "submit_query", _part_of(task)) for task in parts)
        )
        return [r.Submitted() if answer else r.Missing() for answer in answers]

    async def claim(self, worker: str, queues: Sequence[str], limit: int) -> Sequence[r.QueryTask]:
        """Lease queries, oldest first within a partition."""
        outlook = await self._outlook(worker, queues)
        found = await self._rotation.claim(outlook, limit, lambda share: [queues, share])
        return [_tasks.decode(task) for task in found]

    async def complete(self, parts: Sequence[r.QueryResult]) -> None:
        """Keep the first result of each query."""
        link = self._link
        routed = ((link.partition_of_route(result.query_id), result) for result in parts)
        await asyncio.gather(
            *(
                link.ask(partition, "complete_query", [result.query_id, encode(result)])
                for partition, result in routed
                if partition is not None
            )
        )

    async def result(self, query_id: str) -> r.QueryResult | None:
        """Return the result of a query."""
        state, result = await _state_of(self._link, query_id)
        return _results.decode(result) if state == _ANSWERED else None


async def is_open(link: Link, query_id: str) -> bool:
    """Whether a query may still be answered."""
    state, _ = await _state_of(link, query_id)
    return state == _OPEN


async def _state_of(link: Link, query_id: str) -> tuple[bytes, bytes]:
    partition = link.partition_of_route(query_id)
    if partition is None:
        return b"gone", b""
    found: tuple[bytes, bytes] = await link.ask(partition, "query_result", [query_id])
    return found


def _part_of(task: r.QueryTask) -> list[Any]:
    return [task.query_id, task.entity_id, task.execution_id, task.queue, task.until, encode(task)]
