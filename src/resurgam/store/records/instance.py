"""Executions as stores know them, and the base of all values that cross the seam."""

from enum import StrEnum
from typing import Protocol

import msgspec
from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.state import Status, is_scheduled


class Record(msgspec.Struct, gc=False, frozen=True, kw_only=True):
    """A value that crosses the seam."""


class Instance(Record, frozen=True, omit_defaults=True):
    """One execution, as a store knows it without its log.

    *parked* is the diagnosis of a divergence, *dead_letter* the reason why it is no longer handed out, and
    *activity_dead_letters* the same for its activities. *signal_schemas* are the schemas of the signals that its code
    accepts, by name. *failure* is the type name of the error that failed it, *kind* names the brain that advances it.
    *archived* is the URL of the file that holds its log; None while the store has it.
    """

    entity_id: str
    execution_id: str
    run_id: str
    tree_id: str
    generation: int
    attempt: int
    kind: str
    name: str
    queue: str
    status: Status
    created_at: int
    closed_at: int | None = None
    deactivated: bool = False
    last_seq: int = 1
    wake_at: int | None = None
    tags: dict[str, str] = {}
    parked: str | None = None
    dead_letter: str | None = None
    activity_dead_letters: tuple[str, ...] = ()
    parent: events.Parent | None = None
    signal_schemas: dict[str, Raw] = {}
    failure: str | None = None
    archived: str | None = None

    @classmethod
    def of(cls, started: events.Started) -> "Instance":
        """Return the instance that a first entry begins."""
        return cls(
            entity_id=started.entity_id,
            execution_id=started.execution_id,
            run_id=started.run_id,
            tree_id=started.tree_id,
            generation=started.generation,
            attempt=started.attempt,
            kind=started.kind,
            name=started.name,
            queue=started.queue,
            status=Status.SCHEDULED if is_scheduled(started) else Status.RUNNING,
            created_at=started.at,
            wake_at=started.begins_at,
            tags=started.tags,
            parent=started.parent,
        )

    @property
    def cursor(self) -> str:
        """Its position in a listing: milliseconds with leading zeros, so that text sorts by time, then the id."""
        return f"{self.created_at:015d}-{self.execution_id}"


class Addressed(Protocol):
    """Anything that names an execution, with its entity: a store with partitions finds it without a look-up."""

    @property
    def entity_id(self) -> str:
        """The entity."""
        ...

    @property
    def execution_id(self) -> str:
        """The execution."""
        ...


class ExecutionRef(Record, frozen=True):
    """An execution, named by nothing but its ids."""

    entity_id: str
    execution_id: str


class Pause(StrEnum):
    """How an instance is paused: alone, or with the children that it starts."""

    ALONE = "alone"
    TREE = "tree"
