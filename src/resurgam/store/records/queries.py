"""Queries for workers, and their results."""

from msgspec import Raw

from resurgam.core import event as events
from resurgam.store.records.instance import Record


class QueryTask(Record, frozen=True):
    """A query for a worker that has the code. It expires at the moment *until*.

    *query_id* begins with the route of the entity (`core.identity.route_of`), because results are read and completed by
    it alone.
    """

    query_id: str
    entity_id: str
    execution_id: str
    queue: str
    name: str
    input: Raw
    until: int


class Submitted(Record, frozen=True):
    """The query waits for a worker."""


class QueryResult(Record, frozen=True):
    """The result of a query, or its failure; the *query_id* leads to the entity."""

    query_id: str
    result: Raw = events.NULL
    failure: events.Failure | None = None
