"""Workers that serve a store."""

from resurgam.store.records.instance import Record


class Announcement(Record, frozen=True):
    """What a worker tells of itself. *build* identifies its code; *slots* are its activity slots.

    *worker_id* differs for each start of a worker.
    """

    worker_id: str
    host: str
    pid: int
    build: str
    queues: tuple[str, ...]
    slots: int
    slots_in_use: int = 0


class LiveWorker(Announcement, frozen=True, kw_only=True):
    """A worker that was seen lately, with the moments of its first and its last announcement."""

    started_at: int
    seen_at: int
