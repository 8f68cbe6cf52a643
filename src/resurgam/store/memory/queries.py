"""Queries for workers, in the memory store."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final

import msgspec

from resurgam.store import records as r
from resurgam.store.memory.table import Table
from resurgam.store.watches import query_key

_NO_EXECUTION: Final = ""
"""No execution has this id: a reminder for it only has the waiters checked again."""


class _Row(msgspec.Struct):
    """A query, how long it is leased, and its result."""

    task: r.QueryTask
    leased_until: int = 0
    result: r.QueryResult | None = None


class MemoryQueries:
    """Queries and their results, each kept until its deadline.

    *refresh* is called at the beginning of a verb, *changed* at its end.
    """

    def __init__(self, table: Table, refresh: Callable[[], None], changed: Callable[[], None]) -> None:
        self._table = table
        self._refresh = refresh
        self._changed = changed
        self._rows: dict[str, _Row] = {}

    async def submit(self, parts: Sequence[r.QueryTask]) -> Sequence[r.Submitted | r.Missing]:
        """Offer queries to workers."""
        self._refresh()
        now = self._table.clock.now()
        self._rows = {key: row for key, row in self._rows.items() if now < row.task.until}
        answers = [self._submit(task) for task in parts]
        self._changed()
        return answers

    def _submit(self, task: r.QueryTask) -> r.Submitted | r.Missing:
        if self._table.find(task) is None:
            return r.Missing()
        self._rows.setdefault(task.query_id, _Row(task))
        return r.Submitted()

    async def claim(self, worker: str, queues: Sequence[str], limit: int) -> Sequence[r.QueryTask]:
        """Lease queries that are not leased."""
        self._refresh()
        until = self._table.clock.now() + self._table.lease
        tasks = list(islice(self.claimable(queues), limit))
        for task in tasks:
            self._rows[task.query_id].leased_until = until
        if tasks:
            self._table.remind(until, _NO_EXECUTION)
        self._changed()
        return tasks

    async def complete(self, parts: Sequence[r.QueryResult]) -> None:
        """Keep the first result of each query."""
        self._refresh()
        for result in parts:
            if self.is_open(result.query_id):
                self._rows[result.query_id].result = result
            self._table.touched.add(query_key(result.query_id))
        self._changed()

    async def result(self, query_id: str) -> r.QueryResult | None:
        """Return the result of a query."""
        row = self._rows.get(query_id)
        return None if row is None or row.task.until <= self._table.clock.now() else row.result

    def claimable(self, queues: Sequence[str]) -> Iterator[r.QueryTask]:
        """Yield the queries that may be claimed, oldest first."""
        now = self._table.clock.now()
        for row in self._rows.values():
            if row.leased_until <= now and row.task.queue in queues and self.is_open(row.task.query_id):
                yield row.task

    def is_open(self, query_id: str) -> bool:
        """Whether a query waits for its result."""
        row = self._rows.get(query_id)
        return row is not None and row.result is None and self._table.clock.now() < row.task.until

    def purge(self, execution_id: str) -> None:
        """Delete the queries of an execution."""
        for query_id in [key for key, row in self._rows.items() if row.task.execution_id == execution_id]:
            del self._rows[query_id]
            self._table.touched.add(query_key(query_id))
