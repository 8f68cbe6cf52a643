"""`resurgam workers`: the workers that serve a store, and what one of them holds."""

from collections.abc import Sequence
from typing import Any, Final

import click
import msgspec

from resurgam.cli import output
from resurgam.cli.arguments import call_engine, check_text, example, with_store
from resurgam.cli.text import one_line
from resurgam.runtime.system import SystemClock
from resurgam.store.records import HeldAttempt, HeldRun, HeldWork, LiveWorker, WorkerLoad

_LIST: Final = (
    *("WORKER", "HOST", "PID", "QUEUES", "BUILD", "SLOTS", "INSTANCES"),
    *("LOAD", "MACHINE", "STARTED", "SEEN"),
)
_DISPENSABLE: Final = ("PID", "STARTED", "MACHINE", "BUILD")
"""Columns that a narrow terminal leaves out, in this order."""

_MOST_NAMED: Final = 5
"""How many workers an error names."""

_UNITS: Final = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))


@click.command(epilog=example("resurgam workers --store sqlite:///shop.db"))
@click.argument("worker", metavar="[WORKER]", required=False, callback=check_text)
@with_store
def workers(*, worker: str | None, store: str, as_json: bool) -> None:
    """List the workers that serve the store, in the order in which they started; or show WORKER and what it holds.

    WORKER is the id of a worker, or a beginning that no other id has. SLOTS are the activities that a worker runs, and how
    many it may run at once; INSTANCES those that it holds. LOAD is the share of the time in which its event loop computed,
    MACHINE the load average of its machine and the number of processors. All values are from the worker's last
    announcement (SEEN): at least once in the length of its lease, 10 seconds by default. One that was killed is listed until it was
    not seen for three lengths, or until another process detects that it died.
    """
    live = call_engine(store, lambda engine: engine.workers())
    if worker is not None:
        chosen = _choose(live, worker)
        if as_json:
            output.document(_document(chosen))
        else:
            _show(chosen)
    elif as_json:
        output.document({"workers": [_document(one) for one in live]})
    else:
        now = SystemClock().now()
        output.fitted_table(_LIST, [_row(one, now) for one in live], _DISPENSABLE)


def _choose(live: Sequence[LiveWorker], wanted: str) -> LiveWorker:
    """Return the worker of an id, or the only one whose id begins so."""
    found = [one for one in live if one.worker_id == wanted] or [
        one for one in live if one.worker_id.startswith(wanted)
    ]
    match found:
        case [one]:
            return one
        case []:
            message = f"there is no worker {wanted!r}; resurgam workers lists those that serve the store"
        case _:
            names = ", ".join(one.worker_id for one in found[:_MOST_NAMED])
            rest = ", ..." if len(found) > _MOST_NAMED else ""
            message = f"{wanted!r} is the beginning of {len(found)} ids; give more of one of them: {names}{rest}"
    raise click.ClickException(one_line(message))


def _row(worker: LiveWorker, now: int) -> list[str]:
    load, held = worker.load, worker.held
    return [
        worker.worker_id,
        worker.host,
        str(worker.pid),
        ", ".join(worker.queues),
        worker.build,
        f"{worker.slots_in_use}/{worker.slots}",
        "" if held is None else str(held.instances),
        "" if load is None or load.loop is None else f"{load.loop:.0%}",
        "" if load is None or load.machine is None else f"{load.machine:g}/{load.processors}",
        output.time_text(worker.started_at),
        _ago(worker.seen_at, now),
    ]


def _show(worker: LiveWorker) -> None:
    now = SystemClock().now()
    held = worker.held
    rows = [
        ("worker", worker.worker_id),
        ("host", worker.host),
        ("pid", str(worker.pid)),
        ("build", worker.build),
        ("queues", ", ".join(worker.queues)),
        ("slots", f"{worker.slots_in_use} of {worker.slots} in use"),
        ("load", "" if worker.load is None else _load_text(worker.load)),
        ("started", f"{output.time_text(worker.started_at)} ({_ago(worker.started_at, now)})"),
        ("seen", f"{output.time_text(worker.seen_at)} ({_ago(worker.seen_at, now)})"),
        ("instances", "unknown" if held is None else f"{held.instances} held"),
    ]
    output.table(None, [row for row in rows if row[1]])
    if held is not None:
        _show_held(held, now)


def _show_held(held: HeldWork, now: int) -> None:
    instances = [(one.entity_id, one.name, _ago(one.since, now)) for one in held.oldest_instances]
    _section(("INSTANCE", "NAME", "CLAIMED"), instances, held.instances)
    activities = [
        (one.entity_id, one.workflow_id, one.name, str(one.attempt), _ago(one.since, now))
        for one in held.oldest_activities
    ]
    _section(("ACTIVITY", "OF", "NAME", "ATTEMPT", "CLAIMED"), activities, held.activities)


def _section(headings: Sequence[str], rows: Sequence[Sequence[str]], total: int) -> None:
    """Print a part of what a worker holds, and how much of it the worker has not listed."""
    if not total:
        return
    click.echo()
    output.table(headings, rows)
    if total > len(rows):
        click.echo(f"and {total - len(rows)} more, claimed later")


def _load_text(load: WorkerLoad) -> str:
    parts = [] if load.loop is None else [f"event loop {load.loop:.0%}"]
    if load.process is not None:
        parts.append(f"process {load.process:.2f} processors")
    if load.machine is not None:
        parts.append(f"machine {load.machine:g} on {load.processors} processors")
    return ", ".join(parts)


def _ago(at: int, now: int) -> str:
    """Return how long ago a moment was, in its largest unit; the clocks of two machines may differ a little."""
    seconds = max(0, now - at) // 1000
    unit, length = next((one for one in _UNITS if seconds >= one[1]), _UNITS[-1])
    return f"{seconds // length} {unit} ago"


def _document(worker: LiveWorker) -> dict[str, object]:
    fields: dict[str, Any] = msgspec.structs.asdict(worker)
    moments = {name: output.moment(fields[name]) for name in ("started_at", "seen_at")}
    return fields | moments | {"held": None if worker.held is None else _held_document(worker.held)}


def _held_document(held: HeldWork) -> dict[str, object]:
    lists = {name: [_item(one) for one in getattr(held, name)] for name in ("oldest_instances", "oldest_activities")}
    return msgspec.structs.asdict(held) | lists


def _item(one: HeldRun | HeldAttempt) -> dict[str, object]:
    return msgspec.structs.asdict(one) | {"since": output.moment(one.since)}
