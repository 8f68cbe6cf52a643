"""Queries for workers, and their results."""

from msgspec import Raw

from resurgam.core import event as events
from resurgam.store.records.instance import Record


class QueryTask(Record, frozen=True):
    """A query for code that the asker does not have. It is given up at the moment *until*."""

    query_id: str
    entity_id: str
    execution_id: str
    queue: str
    name: str
    input: Raw
    until: int


class Submitted(Record, frozen=True):
    """The question waits for a worker."""


class QueryResult(Record, frozen=True):
    """What a worker answered: a result, or a failure."""

    query_id: str
    result: Raw = events.NULL
    failure: events.Failure | None = None
