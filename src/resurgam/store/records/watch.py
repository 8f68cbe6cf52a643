"""The conditions that `Store.wait` waits for."""

from collections.abc import Callable
from typing import TypeAlias

from resurgam.core import event as events
from resurgam.store.records.instance import Record


class Work(Record, frozen=True):
    """Wait for work that *worker* could claim in these queues."""

    worker: str
    queues: tuple[str, ...]
    instances: bool = True
    activities: bool = True
    queries: bool = True


class Closed(Record, frozen=True):
    """Wait until an execution is closed.

    A store that writes the entry which closes it during the wait may call *tell* with it, so that it need not be read.
    """

    entity_id: str
    execution_id: str
    tell: Callable[[events.Event], None] | None = None


class InboxChanged(Record, frozen=True):
    """Wait for a new entry in the inbox of a leased instance."""

    entity_id: str
    execution_id: str
    wake: int


class LogGrown(Record, frozen=True):
    """Wait until an execution has more entries than this, or is closed."""

    entity_id: str
    execution_id: str
    last_seq: int


class QueryAnswered(Record, frozen=True):
    """Wait for the result of a query; a query that was deleted fulfils the watch too."""

    query_id: str


class Published(Record, frozen=True):
    """Wait for a message on a topic after a cursor."""

    topic: str
    after: str


class FeedGrown(Record, frozen=True):
    """Wait for events in the feed after a cursor, of any execution and type."""

    after: str


Watch: TypeAlias = Work | Closed | InboxChanged | LogGrown | QueryAnswered | Published | FeedGrown
