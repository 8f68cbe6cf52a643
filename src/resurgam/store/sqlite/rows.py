"""Convert instances and promises to columns, and rows to instances and promises."""

from typing import Any

import msgspec
from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.outcome import OpenPromise
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.encoding import decode, encode
from resurgam.store.rules import first_run
from resurgam.store.sqlite.session import Row

_tags = msgspec.json.Decoder(dict[str, str])
_schemas = msgspec.json.Decoder(dict[str, Raw])


def instance_of(row: Row, activity_dead_letters: tuple[str, ...] = (), *, beneath: bool = False) -> r.Instance:
    """Return the instance that a row holds; with *beneath* its status is the one beneath a pause."""
    paused = row["paused"] is not None and not beneath
    return r.Instance(
        entity_id=row["entity_id"],
        execution_id=row["execution_id"],
        run_id=row["run_id"],
        tree_id=row["tree_id"],
        generation=row["generation"],
        attempt=row["attempt"],
        kind=row["kind"],
        name=row["name"],
        queue=row["queue"],
        status=Status.PAUSED if paused else Status(row["status"]),
        created_at=row["created_at"],
        closed_at=row["closed_at"],
        deactivated=bool(row["deactivated"]),
        last_seq=row["last_seq"],
        wake_at=row["wake_at"],
        tags=_tags.decode(row["tags"]),
        parked=row["parked"],
        dead_letter=row["dead_letter"],
        activity_dead_letters=activity_dead_letters,
        parent=None if row["parent"] is None else decode(row["parent"], events.Parent),
        signal_schemas={} if row["signal_schemas"] is None else _schemas.decode(row["signal_schemas"]),
        failure=row["failure"],
    )


def columns_of(instance: r.Instance, paused: r.Pause | None) -> dict[str, object]:
    """Return the columns with which an instance is inserted."""
    parent = instance.parent
    return {
        "execution_id": instance.execution_id,
        "entity_id": instance.entity_id,
        "run_id": instance.run_id,
        "tree_id": instance.tree_id,
        "generation": instance.generation,
        "attempt": instance.attempt,
        "kind": instance.kind,
        "name": instance.name,
        "queue": instance.queue,
        "status": instance.status.value,
        "created_at": instance.created_at,
        "last_seq": instance.last_seq,
        "wake_at": instance.wake_at,
        "tags": encode(instance.tags),
        "paused": None if paused is None else paused.value,
        "parent": None if parent is None else encode(parent),
        "parent_id": None if parent is None else parent.entity_id,
        "first_run": first_run(instance),
    }


def pause_of(row: Row) -> r.Pause | None:
    """Return how the instance in a row is paused."""
    return None if row["paused"] is None else r.Pause(row["paused"])


def columns_of_promise(execution_id: str, promise: OpenPromise | r.Promise) -> dict[str, Any]:
    """Return the columns of a promise."""
    schema = bytes(promise.schema).decode()
    return {"execution_id": execution_id, "promise_id": promise.promise_id, "name": promise.name, "schema": schema}


def promise_of(row: Row) -> r.Promise:
    """Return the promise that a row holds."""
    schema = Raw(row["schema"].encode())
    return r.Promise(promise_id=row["promise_id"], name=row["name"], settled=bool(row["settled"]), schema=schema)
