"""Promises: opened and closed by their execution, settled once."""

from collections.abc import Sequence

from resurgam.core import event as events
from resurgam.core.outcome import OpenPromise
from resurgam.store import records as r
from resurgam.store.rules import PROMISES_KEPT, settlement
from resurgam.store.sqlite import inbox
from resurgam.store.sqlite.rows import columns_of_promise
from resurgam.store.sqlite.session import Row
from resurgam.store.sqlite.transaction import Transaction


def open_promises(t: Transaction, execution_id: str, promises: Sequence[OpenPromise]) -> None:
    """Open promises of an execution."""
    t.session.execute_many("open_promise", [columns_of_promise(execution_id, promise) for promise in promises])


def close_promises(t: Transaction, execution_id: str, promise_ids: Sequence[str]) -> None:
    """Mark promises as settled that their execution no longer waits for, and forget the oldest settled ones."""
    closed = [{"execution_id": execution_id, "promise_id": promise_id} for promise_id in promise_ids]
    t.session.execute_many("close_promise", closed)
    t.session.execute("forget_promises", execution_id=execution_id, kept=PROMISES_KEPT)


def settle(t: Transaction, promise_id: str, event: events.Event, ending: str = "") -> str | r.Missing | r.Settled:
    """Settle a promise and return the execution that holds it; *ending* may still settle its own."""
    hit = t.session.fetch("settle_promise", promise_id=promise_id, ending=ending)
    if not hit:
        return r.Settled() if t.session.fetch("promise", promise_id=promise_id) else r.Missing()
    execution_id: str = hit[0]["execution_id"]
    inbox.put(t, execution_id, settlement(event, promise_id))
    t.session.execute("forget_promises", execution_id=execution_id, kept=PROMISES_KEPT)
    return execution_id


def settle_by_name(t: Transaction, execution_id: str, name: str, event: events.Event) -> str | r.Missing | r.Settled:
    """Settle the oldest open promise of an execution with this name."""
    rows = promises_named(t, execution_id, name)
    return settle(t, rows[0]["promise_id"], event) if rows else r.Missing()


def promises_named(t: Transaction, execution_id: str, name: str) -> Sequence[Row]:
    """Return the promises of an execution with this name: the open ones, oldest first, then the settled ones."""
    return t.session.fetch("promises_named", execution_id=execution_id, name=name)


def move_promises(t: Transaction, before: Row, successor: r.Instance) -> None:
    """Move the promises of a closed execution to the next attempt of its run."""
    if successor.run_id == before["run_id"]:
        t.session.execute("move_promises", execution_id=before["execution_id"], successor=successor.execution_id)
