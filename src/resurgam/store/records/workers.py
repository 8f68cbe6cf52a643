"""Workers that serve a store."""

from resurgam.store.records.instance import Record


class WorkerLoad(Record, frozen=True):
    """How busy a worker is, and the machine that it runs on.

    *loop* is the share of the time since the announcement before in which the thread of the event loop computed, *process*
    the processor time of the whole process in that time, in processors; both are None in the first announcement.
    *machine* is the load average of the last minute, None where the system has none, and *processors* what the machine has.
    """

    loop: float | None
    process: float | None
    machine: float | None
    processors: int


class HeldRun(Record, frozen=True, array_like=True):
    """An instance that a worker holds, *since* it was claimed. As an array: announcements are read by all workers."""

    entity_id: str
    name: str
    since: int


class HeldAttempt(Record, frozen=True, array_like=True):
    """An attempt of an activity that a worker runs, *since* it was claimed. *workflow_id* is the instance it belongs to."""

    entity_id: str
    workflow_id: str
    name: str
    attempt: int
    since: int


class HeldWork(Record, frozen=True):
    """How many instances and activities a worker holds, and the oldest of them."""

    instances: int = 0
    activities: int = 0
    oldest_instances: tuple[HeldRun, ...] = ()
    oldest_activities: tuple[HeldAttempt, ...] = ()


class Announcement(Record, frozen=True):
    """The state that a worker announces. *build* identifies its code; *slots* are its activity slots.

    *worker_id* differs for each start of a worker. *load* and *held* are None if the worker does not report them.
    """

    worker_id: str
    host: str
    pid: int
    build: str
    queues: tuple[str, ...]
    slots: int
    slots_in_use: int = 0
    load: WorkerLoad | None = None
    held: HeldWork | None = None


class LiveWorker(Announcement, frozen=True, kw_only=True):
    """A worker that was seen lately, with the moments of its first and its last announcement."""

    started_at: int
    seen_at: int
