"""Promises in the memory store: opened by commits, settled once."""

import msgspec

from resurgam.core import event as events
from resurgam.core.outcome import OpenPromise
from resurgam.store import records as r
from resurgam.store.memory.rows import Row
from resurgam.store.memory.table import Table
from resurgam.store.rules import PROMISES_KEPT, settlement


class Promises:
    """The promises of all executions; each belongs to one."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def open(self, row: Row, promise: OpenPromise) -> None:
        """Open a promise, or open it again for a later attempt, unless its settlement waits in the inbox."""
        settled = promise.promise_id in row.promises and any(
            getattr(entry.event, "promise_id", None) == promise.promise_id for _, entry in row.inbox.values()
        )
        kept = r.Promise(promise_id=promise.promise_id, name=promise.name, settled=settled, schema=promise.schema)
        self.keep(row, kept)

    def keep(self, row: Row, promise: r.Promise) -> None:
        """Give a promise to this execution, and take it from any other."""
        elsewhere = self._table.rows.get(self._table.promises.get(promise.promise_id, ""), row)
        if elsewhere is not row:
            del elsewhere.promises[promise.promise_id]
        row.promises[promise.promise_id] = promise
        self._table.promises[promise.promise_id] = row.instance.execution_id

    def close(self, row: Row, promise_id: str) -> None:
        """Mark a promise as settled, if it is there."""
        promise = row.promises.get(promise_id)
        if promise is not None:
            self._mark_settled(row, promise)

    def _mark_settled(self, row: Row, promise: r.Promise) -> None:
        """Mark a promise as settled, and delete the oldest of those that are."""
        row.promises[promise.promise_id] = msgspec.structs.replace(promise, settled=True)
        settled = [promise.promise_id for promise in row.promises.values() if promise.settled]
        for old in settled[:-PROMISES_KEPT]:
            del row.promises[old], self._table.promises[old]

    def settle(self, promise_id: str, event: events.Event, closing: Row | None = None) -> Row | r.Missing | r.Settled:
        """Put a settlement into the inbox of the execution that holds the promise, the first time.

        A commit that closes an execution (*closing*) may still settle its promises: the next attempt takes them over.
        """
        row = self._table.rows.get(self._table.promises.get(promise_id, ""))
        if row is None:
            return r.Missing()
        if row.promises[promise_id].settled or (row.instance.status.terminal and row is not closing):
            return r.Settled()
        self._mark_settled(row, row.promises[promise_id])
        self._table.put(row, settlement(event, promise_id))
        return row

    def named(self, row: Row, name: str) -> r.Promise | None:
        """Return the oldest open promise of a name; if none is open, the oldest."""
        named = (promise for promise in row.promises.values() if promise.name == name)
        return min(named, key=lambda promise: promise.settled, default=None)

    def find(self, to: r.Delivery) -> tuple[Row | None, r.Promise | None]:
        """Return the promise that a delivery is addressed to, and its execution."""
        table = self._table
        if to.promise_id is not None:
            row = table.rows.get(table.promises.get(to.promise_id, ""))
            return row, None if row is None else row.promises[to.promise_id]
        row = table.rows.get(to.execution_id) if to.execution_id else table.newest(to.entity_id)
        return row, None if row is None or to.promise is None else self.named(row, to.promise)

    def holder(self, promise_id: str) -> r.Instance | None:
        """Return the execution that a promise belongs to."""
        row = self._table.rows.get(self._table.promises.get(promise_id, ""))
        return None if row is None else row.instance

    def move(self, row: Row, successor: Row) -> None:
        """Give the promises of a closed execution to the next attempt of its run."""
        if successor.instance.run_id == row.instance.run_id:
            successor.promises, row.promises = row.promises, {}
            self._table.promises.update(dict.fromkeys(successor.promises, successor.instance.execution_id))
