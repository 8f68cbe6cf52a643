"""Queries that wait for a worker with the code, and their results."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from resurgam.core.clock import Clock
from resurgam.core.event import NULL, Failure
from resurgam.store import records as r
from resurgam.store.encoding import encode
from resurgam.store.postgres.inspector import moment_of
from resurgam.store.postgres.outlook import QUERIES
from resurgam.store.postgres.pool import Pool

_failures: Final = msgspec.json.Decoder(Failure)


class PostgresQueries:
    """Submit, claim and complete queries. *claim* calls a verb for a worker and its queues, unless they are known to be empty."""

    def __init__(
        self, pool: Pool, clock: Clock, claim: Callable[[str, str, Sequence[str], object], Awaitable[list[Any]]]
    ) -> None:
        self._pool = pool
        self._claim = claim
        self._moment = moment_of(clock)

    async def submit(self, parts: Sequence[r.QueryTask]) -> Sequence[r.Submitted | r.Missing]:
        """Offer queries to the workers of their queues."""
        answers = await asyncio.gather(*(self._pool.ask("submit_query", _part_of(task)) for task in parts))
        return [r.Submitted() if answer else r.Missing() for answer in answers]

    async def claim(self, worker: str, queues: Sequence[str], limit: int) -> Sequence[r.QueryTask]:
        """Lease queries, oldest first."""
        rows = await self._claim(QUERIES, worker, queues, [list(queues), limit])
        return [_task_of(row) for row in rows]

    async def complete(self, parts: Sequence[r.QueryResult]) -> None:
        """Keep the first result of each query."""
        await asyncio.gather(*(self._pool.ask("complete_query", _result_part(result)) for result in parts))

    async def result(self, query_id: str) -> r.QueryResult | None:
        """Return the result of a query."""
        rows = await self._pool.select("query_result", self._moment(), query_id)
        if not rows or not rows[0][0]:
            return None
        _, result, failure = rows[0]
        return r.QueryResult(
            query_id=query_id,
            result=NULL if result is None else Raw(result.encode()),
            failure=None if failure is None else _failures.decode(failure),
        )

    async def is_open(self, query_id: str) -> bool:
        """Whether a query may still be answered."""
        rows = await self._pool.select("query_result", self._moment(), query_id)
        return bool(rows) and not rows[0][0]


def _part_of(task: r.QueryTask) -> list[Any]:
    return [
        *(task.query_id, task.entity_id, task.execution_id, task.queue, task.name, bytes(task.input).decode()),
        task.until,
    ]


def _task_of(row: Sequence[Any]) -> r.QueryTask:
    query_id, entity_id, execution_id, queue, name, given, until = row
    return r.QueryTask(
        query_id=query_id,
        entity_id=entity_id,
        execution_id=execution_id,
        queue=queue,
        name=name,
        input=Raw(given.encode()),
        until=until,
    )


def _result_part(result: r.QueryResult) -> list[Any]:
    failure = None if result.failure is None else encode(result.failure)
    return [result.query_id, bytes(result.result).decode(), failure]
