"""`resurgam workers`: the workers that serve a store."""

from typing import Any

import click
import msgspec

from resurgam.cli import output
from resurgam.cli.arguments import call_engine, example, with_store
from resurgam.store.records import LiveWorker

_LIST = ("WORKER", "HOST", "PID", "QUEUES", "SLOTS", "STARTED", "SEEN")


@click.command(epilog=example("resurgam workers --store sqlite:///shop.db"))
@with_store
def workers(*, store: str, as_json: bool) -> None:
    """List the workers that serve the store, in the order in which they started.

    SLOTS are the activities that a worker runs, and how many it may run at once. A worker that was killed is listed
    until it was not seen for three lengths of its lease, 30 seconds by default.
    """
    live = call_engine(store, lambda engine: engine.workers())
    if as_json:
        output.document({"workers": [_document(worker) for worker in live]})
        return
    rows = [
        (
            worker.worker_id,
            worker.host,
            str(worker.pid),
            ", ".join(worker.queues),
            f"{worker.slots_in_use}/{worker.slots}",
            output.time_text(worker.started_at),
            output.time_text(worker.seen_at),
        )
        for worker in live
    ]
    output.table(_LIST, rows)


def _document(worker: LiveWorker) -> dict[str, object]:
    fields: dict[str, Any] = msgspec.structs.asdict(worker)
    return fields | {name: output.moment(fields[name]) for name in ("started_at", "seen_at")}
