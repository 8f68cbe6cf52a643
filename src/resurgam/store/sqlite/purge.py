"""Purge closed executions."""

from typing import Final

from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.sqlite.instances import find
from resurgam.store.sqlite.rows import instance_of
from resurgam.store.sqlite.transaction import Transaction
from resurgam.store.watches import log_key, query_key

_ROW: Final = ("purge_instance", "purge_tags", "purge_answer")
_REST: Final = (
    "purge_events",
    "purge_inbox",
    "purge_activities",
    "purge_promises",
    "forget_tries",
)


def purge(t: Transaction, execution: r.Addressed) -> r.Purged | r.Missing | r.Unfinished:
    """Delete everything of a closed execution."""
    execution_id = execution.execution_id
    row = find(t.session, execution_id)
    if row is None:
        return r.Missing()
    if not Status(row["status"]).terminal:
        return r.Unfinished(status=instance_of(row).status)
    delete(t, execution_id)
    return r.Purged()


def delete(t: Transaction, execution_id: str) -> None:
    """Delete everything of an execution, open or closed."""
    for statement in _ROW:
        t.session.execute(statement, execution_id=execution_id)
    delete_rest(t, execution_id)


def delete_rest(t: Transaction, execution_id: str) -> None:
    """Delete everything of an execution but its row, by which it is found and listed."""
    for statement in _REST:
        t.session.execute(statement, execution_id=execution_id)
    queries = t.session.fetch("purge_queries", execution_id=execution_id)
    t.changes.touched |= {execution_id, log_key(execution_id)}
    t.changes.touched |= {query_key(query["query_id"]) for query in queries}
