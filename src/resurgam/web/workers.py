"""The route of workers."""

from datetime import datetime
from typing import Final

from resurgam.client.pending import moment
from resurgam.store.records import LiveWorker
from resurgam.web import wire
from resurgam.web.access import Role
from resurgam.web.paging import PageQuery, page_of
from resurgam.web.routing import Call, Endpoint, Reply


class Worker(wire.Answer, frozen=True):
    """A worker that serves the store. *build* identifies its code; *slots* are its activity slots."""

    worker_id: str
    host: str
    pid: int
    build: str
    queues: tuple[str, ...]
    slots: int
    slots_in_use: int
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
        started_at=moment(worker.started_at),
        seen_at=moment(worker.seen_at),
    )


ENDPOINTS: Final = (
    Endpoint(
        method="GET",
        path="/workers",
        handle=list_,
        role=Role.READ,
        summary="List the workers that serve the store, whichever process they run in.",
        query=PageQuery,
        answers={200: WorkerPage},
    ),
)
