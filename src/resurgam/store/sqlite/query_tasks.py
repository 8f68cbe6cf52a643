"""Queries that wait for a worker with the code, and their results."""

from collections.abc import Sequence

import msgspec
from msgspec import Raw

from resurgam.core.clock import Clock
from resurgam.core.event import NULL, Failure
from resurgam.store import records as r
from resurgam.store.encoding import encode
from resurgam.store.sqlite.activities import text_of
from resurgam.store.sqlite.claimable import claimable_queries
from resurgam.store.sqlite.session import Row, Session, Snapshots
from resurgam.store.sqlite.transaction import Transaction, Write
from resurgam.store.watches import query_key

_failures = msgspec.json.Decoder(Failure)


class SqliteQueries:
    """Submit, claim and complete queries."""

    def __init__(self, file: Snapshots, write: Write, clock: Clock) -> None:
        self._file = file
        self._write = write
        self._clock = clock

    async def submit(self, parts: Sequence[r.QueryTask]) -> Sequence[r.Submitted | r.Missing]:
        """Offer queries to the workers that serve their queue."""
        return await self._write(lambda t: [submit(t, part) for part in parts]) if parts else []

    async def claim(self, worker: str, queues: Sequence[str], limit: int) -> Sequence[r.QueryTask]:
        """Lease queries that are not leased to another worker."""
        now = self._clock.now()
        # A read costs no commit; most of the time there is no query.
        if not self._file.read(lambda session: claimable_queries(session, queues, 1, now)):
            return []
        return await self._write(lambda t: claim(t, queues, limit))

    async def complete(self, parts: Sequence[r.QueryResult]) -> None:
        """Keep the first result of each query."""

        def work(t: Transaction) -> None:
            for part in parts:
                complete(t, part)

        if parts:
            await self._write(work)

    async def result(self, query_id: str) -> r.QueryResult | None:
        """Return the result of a query, if there is one."""
        now = self._clock.now()
        return self._file.read(lambda session: result_of(session, query_id, now))


def submit(t: Transaction, task: r.QueryTask) -> r.Submitted | r.Missing:
    """Store a query for a worker that has the code, and delete the queries whose time is over."""
    if not t.session.fetch("progress", execution_id=task.execution_id):
        return r.Missing()
    t.session.execute("expire_queries", now=t.now)
    fields = {name: getattr(task, name) for name in r.QueryTask.__struct_fields__}
    t.session.execute("submit_query", **{**fields, "input": text_of(task.input)})
    t.changes.work = True
    return r.Submitted()


def claim(t: Transaction, queues: Sequence[str], limit: int) -> list[r.QueryTask]:
    """Lease queries that no worker has."""
    t.session.execute("expire_queries", now=t.now)
    rows = claimable_queries(t.session, queues, limit, t.now)
    leased = [{"query_id": row["query_id"], "until": t.lease_until} for row in rows]
    t.session.execute_many("lease_query", leased)
    t.changes.due(t.lease_until)
    return [_task_of(row) for row in rows]


def complete(t: Transaction, result: r.QueryResult) -> None:
    """Store the first result of a query that still waits for one."""
    t.session.execute(
        "complete_query",
        query_id=result.query_id,
        result=text_of(result.result),
        failure=None if result.failure is None else encode(result.failure),
        now=t.now,
    )
    t.changes.touched.add(query_key(result.query_id))


def result_of(session: Session, query_id: str, now: int) -> r.QueryResult | None:
    """Return the result of a query, if there is one."""
    rows = session.fetch("query_result", query_id=query_id, now=now)
    if not rows or not rows[0]["completed"]:
        return None
    result, failure = rows[0]["result"], rows[0]["failure"]
    return r.QueryResult(
        query_id=query_id,
        result=NULL if result is None else Raw(result.encode()),
        failure=None if failure is None else _failures.decode(failure),
    )


def is_open(session: Session, query_id: str, now: int) -> bool:
    """Whether a query may still be answered."""
    rows = session.fetch("query_result", query_id=query_id, now=now)
    return bool(rows) and not rows[0]["completed"]


def _task_of(row: Row) -> r.QueryTask:
    return r.QueryTask(
        query_id=row["query_id"],
        entity_id=row["entity_id"],
        execution_id=row["execution_id"],
        queue=row["queue"],
        name=row["name"],
        input=Raw(row["input"].encode()),
        until=row["until"],
    )
