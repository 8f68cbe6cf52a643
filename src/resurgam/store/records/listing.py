"""The queries and answers of an `Inspector`."""

from msgspec import Raw, field

from resurgam.core.state import Status
from resurgam.store.records.instance import Instance, Record


class Query(Record, frozen=True):
    """A list of instances, newest first, after *cursor*. *parent* is the entity that started them.

    They were created at *since* or later, and before *until*. *newest_only*: of each entity only the newest execution,
    if that fits the rest of the query.
    """

    status: Status | None = None
    kind: str | None = None
    name: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    since: int | None = None
    until: int | None = None
    failure: str | None = None
    newest_only: bool = False
    parent: str | None = None
    tree_id: str | None = None
    limit: int = 100
    cursor: str | None = None

    def fits(self, instance: Instance) -> bool:
        """Whether an instance fits, apart from *newest_only*."""
        return (
            self.status in (None, instance.status)
            and self.kind in (None, instance.kind)
            and self.name in (None, instance.name)
            and self.tags.items() <= instance.tags.items()
            and (self.since is None or instance.created_at >= self.since)
            and (self.until is None or instance.created_at < self.until)
            and self.failure in (None, instance.failure)
            and (self.parent is None or (instance.parent is not None and instance.parent.entity_id == self.parent))
            and self.tree_id in (None, instance.tree_id)
            and (self.cursor is None or instance.cursor < self.cursor)
        )


class EndedQuery(Record, frozen=True):
    """A list of complete executions that ended before a moment, in the order in which they ended.

    *after* is the end and the id of the last one of the page before. *archived*: only those whose log is in an archive;
    otherwise only those whose log is in the store.
    """

    before: int
    status: Status | None = None
    name: str | None = None
    limit: int = 100
    after: tuple[int, str] | None = None
    archived: bool = False

    def fits(self, instance: Instance) -> bool:
        """Whether an instance fits."""
        at = instance.closed_at
        return (
            (at is not None and at < self.before and instance.deactivated)
            and self.archived == (instance.archived is not None)
            and self.status in (None, instance.status)
            and self.name in (None, instance.name)
            and (self.after is None or (at, instance.execution_id) > self.after)
        )


class Page(Record, frozen=True):
    """Instances, and the cursor of the next page; None on the last one."""

    instances: tuple[Instance, ...]
    cursor: str | None = None


class QueueStats(Record, frozen=True):
    """Counts of a queue: ready instances, waiting and claimed activities."""

    instances: int = 0
    activities: int = 0
    claimed_activities: int = 0


class Stats(Record, frozen=True):
    """Counts of instances by status, of queues, and of dead letters."""

    instances: dict[str, int]
    queues: dict[str, QueueStats]
    dead_activities: int = 0
    dead_instances: int = 0


class Messages(Record, frozen=True):
    """Messages of a topic, in order, and the cursor after the last of them.

    A cursor is opaque and belongs to one topic of one store; the empty one is before every message.
    """

    cursor: str
    values: tuple[Raw, ...] = ()
