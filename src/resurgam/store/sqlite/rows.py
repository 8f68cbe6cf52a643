"""Convert instances and promises to columns, and rows to instances and promises."""

from typing import Any, Final

from msgspec import Raw, json

from resurgam.core import event as events
from resurgam.core.outcome import OpenPromise
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.encoding import decode, encode
from resurgam.store.rules import first_run
from resurgam.store.sqlite.session import Row

_tags = json.Decoder(dict[str, str])
_schemas = json.Decoder(dict[str, Raw])
_fields = json.Decoder(list[Any])

_NONE: Final = "[]"
_NO_TAGS: Final = "{}"
_STATUSES: Final = {status.value: status for status in Status}


def instance_of(row: Row, activity_dead_letters: tuple[str, ...] = (), *, beneath: bool = False) -> r.Instance:
    """Return the instance that a row holds; with *beneath* its status is the one beneath a pause.

    The row begins with all columns of the table, in its order (``SELECT *``): sqlite3 looks for a name from the first
    column on, which for each field of an instance costs ten times as much as this.
    """
    # fmt: off
    (
        _, execution_id, entity_id, run_id, tree_id, generation, attempt, kind, name, queue, status, created_at, closed_at,
        deactivated, last_seq, wake_at, tags, parked, dead_letter, _ready, _wake, _epoch, _owner, _until, _deliveries,
        _last_failure, paused, parent, _parent_id, _first_run, signal_schemas, failure, _covered, archived, *_
    ) = row
    return _instance(
        execution_id, entity_id, run_id, tree_id, generation, attempt, kind, name, queue, status, created_at, closed_at,
        deactivated, last_seq, wake_at, tags, parked, dead_letter, None if beneath else paused, parent, signal_schemas,
        failure, archived, activity_dead_letters=activity_dead_letters,
    )
    # fmt: on


def unpack(packed: str, dead_letters: str = _NONE) -> r.Instance:
    """Return the instance that ``{instance}`` has packed, with the JSON of the dead letters among its activities."""
    letters = () if dead_letters == _NONE else tuple(json.decode(dead_letters))
    return _instance(*_fields.decode(packed), activity_dead_letters=letters)


def _instance(  # noqa: PLR0913, PLR0917 -- the columns of an instance
    execution_id: str,
    entity_id: str,
    run_id: str,
    tree_id: str,
    generation: int,
    attempt: int,
    kind: str,
    name: str,
    queue: str,
    status: str,
    created_at: int,
    closed_at: int | None,
    deactivated: int,
    last_seq: int,
    wake_at: int | None,
    tags: str,
    parked: str | None,
    dead_letter: str | None,
    paused: str | None,
    parent: str | None,
    signal_schemas: str | None,
    failure: str | None,
    archived: str | None,
    *,
    activity_dead_letters: tuple[str, ...],
) -> r.Instance:
    return r.Instance(
        entity_id=entity_id,
        execution_id=execution_id,
        run_id=run_id,
        tree_id=tree_id,
        generation=generation,
        attempt=attempt,
        kind=kind,
        name=name,
        queue=queue,
        status=status_of(status) if paused is None else Status.PAUSED,
        created_at=created_at,
        closed_at=closed_at,
        deactivated=bool(deactivated),
        last_seq=last_seq,
        wake_at=wake_at,
        tags={} if tags == _NO_TAGS else _tags.decode(tags),
        parked=parked,
        dead_letter=dead_letter,
        activity_dead_letters=activity_dead_letters,
        parent=None if parent is None else decode(parent, events.Parent),
        signal_schemas=schemas_of(signal_schemas),
        failure=failure,
        archived=archived,
    )


def schemas_of(stored: str | None) -> dict[str, Raw]:
    """Return the schemas of signals by name."""
    return {} if stored is None else _schemas.decode(stored)


def status_of(stored: str) -> Status:
    """Return the status with this name; raise `ValueError` for one of a newer version."""
    # A call of an enum is two calls in Python.
    return _STATUSES.get(stored) or Status(stored)


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
