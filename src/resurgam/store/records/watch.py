"""The conditions that `Store.wait` waits for."""

from typing import TypeAlias

from resurgam.store.records.instance import Record


class Work(Record, frozen=True):
    """Wait for something that *worker* could claim in these queues."""

    worker: str
    queues: tuple[str, ...]
    instances: bool = True
    activities: bool = True
    queries: bool = True


class Closed(Record, frozen=True):
    """Wait for an execution to end."""

    entity_id: str
    execution_id: str


class InboxChanged(Record, frozen=True):
    """Wait for something new in the inbox of an instance that one holds."""

    entity_id: str
    execution_id: str
    wake: int


class LogGrown(Record, frozen=True):
    """Wait for an execution to have more entries than this, or to end."""

    entity_id: str
    execution_id: str
    last_seq: int


class QueryAnswered(Record, frozen=True):
    """Wait for the reply to a question; for one that is gone there is nothing to wait for."""

    query_id: str


class Published(Record, frozen=True):
    """Wait for a message on a topic, after the one with this number."""

    topic: str
    after: int


class FeedGrown(Record, frozen=True):
    """Wait for events in the feed after a cursor, of any execution and type."""

    after: str


Watch: TypeAlias = Work | Closed | InboxChanged | LogGrown | QueryAnswered | Published | FeedGrown
