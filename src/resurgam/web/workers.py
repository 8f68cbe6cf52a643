"""The route of workers."""

from datetime import datetime
from typing import Final

from msgspec.structs import asdict

from resurgam.client.pending import moment
from resurgam.store.records import HeldWork, LiveWorker
from resurgam.web import wire
from resurgam.web.access import Role
from resurgam.web.paging import PageQuery, page_of
from resurgam.web.routing import Call, Endpoint, Reply


class Load(wire.Answer, frozen=True):
    """How busy a worker and its machine are.

    *loop* is the share of the time since the sign of life before in which the event loop computed, *process* the processor
    time of the process in that time, in processors; both are null at first. *machine* is the load average of the last
    minute, null where the system has none, and *processors* what the machine has.
    """

    loop: float | None
    process: float | None
    machine: float | None
    processors: int


class HeldInstance(wire.Answer, frozen=True):
    """An instance that a worker holds, *since* it was claimed."""

    entity_id: str
    name: str
    since: datetime


class HeldActivity(wire.Answer, frozen=True):
    """An activity that a worker runs, *since* it was claimed; *workflow_id* is the instance that it belongs to."""

    entity_id: str
    workflow_id: str
    name: str
    attempt: int
    since: datetime


class Held(wire.Answer, frozen=True):
    """How many instances and activities a worker holds, and the oldest of each, at most 20."""

    instances: int
    activities: int
    oldest_instances: tuple[HeldInstance, ...]
    oldest_activities: tuple[HeldActivity, ...]


class Worker(wire.Answer, frozen=True):
    """A worker that serves the store, as it was when it was last seen.

    *build* identifies its code; *slots* are its activity slots. *load* and *held* are null if it does not tell them.
    """

    worker_id: str
    host: str
    pid: int
    build: str
    queues: tuple[str, ...]
    slots: int
    slots_in_use: int
    load: Load | None
    held: Held | None
    started_at: datetime
    seen_at: datetime


class WorkerPage(wire.Answer, frozen=True):
    """A page of workers, in the order in which they started; *cursor* gives the next page, null on the last."""

    workers: tuple[Worker, ...]
    cursor: str | None


async def list_(call: Call[PageQuery, None]) -> Reply:
    """Return a page of workers."""
    found = await call.engine.workers()
    shown, cursor = page_of(found, lambda one: f"{one.started_at:015d} {one.worker_id}", call.query)
    return Reply(WorkerPage(workers=tuple(map(_shown, shown)), cursor=cursor))


def _shown(worker: LiveWorker) -> Worker:
    return Worker(
        worker_id=worker.worker_id,
        host=worker.host,
        pid=worker.pid,
        build=worker.build,
        queues=worker.queues,
        slots=worker.slots,
        slots_in_use=worker.slots_in_use,
        load=None if worker.load is None else Load(**asdict(worker.load)),
        held=None if worker.held is None else _held(worker.held),
        started_at=moment(worker.started_at),
        seen_at=moment(worker.seen_at),
    )


def _held(held: HeldWork) -> Held:
    return Held(
        instances=held.instances,
        activities=held.activities,
        oldest_instances=tuple(
            HeldInstance(entity_id=one.entity_id, name=one.name, since=moment(one.since))
            for one in held.oldest_instances
        ),
        oldest_activities=tuple(
            HeldActivity(**asdict(one) | {"since": moment(one.since)}) for one in held.oldest_activities
        ),
    )


ENDPOINTS: Final = (
    Endpoint(
        method="GET",
        path="/workers",
        handle=list_,
        role=Role.READ,
        summary="List the workers that serve the store, with their load and what they hold.",
        query=PageQuery,
        answers={200: WorkerPage},
    ),
)
