"""Whole executions, on their way from one store to another."""

from resurgam.core import event as events
from resurgam.core.outcome import Forgotten
from resurgam.store.records.delivery import Promise
from resurgam.store.records.instance import Instance, Pause, Record
from resurgam.store.records.work import Pending


class Copy(Record, frozen=True):
    """Everything that a store keeps of an execution, except leases.

    *log* includes the forgotten entries; *forgotten* says which those are, in the same order. It is empty if the execution
    is archived. *answer* is the one that a closed child has sent to its parent. The status of the instance is the one below
    its pause.
    """

    instance: Instance
    log: tuple[events.Event, ...]
    forgotten: tuple[Forgotten, ...] = ()
    inbox: tuple[events.Event, ...] = ()
    activities: tuple[Pending, ...] = ()
    promises: tuple[Promise, ...] = ()
    answer: events.Event | None = None
    paused: Pause | None = None

    @property
    def ready(self) -> bool:
        """Whether it must be claimed once: unless its history is complete and its inbox empty."""
        return bool(self.inbox) or not self.instance.deactivated


class Adoption(Record, frozen=True):
    """Adopt executions of one entity: all of them, or none."""

    entity_id: str
    copies: tuple[Copy, ...]


class Arrival(Record, frozen=True):
    """An adopted execution; one that is not *new* was in the store before and is unchanged.

    An archived execution that gets back its log is new.
    """

    instance: Instance
    new: bool


class Adopted(Record, frozen=True):
    """Every execution of the part is in the store."""

    arrivals: tuple[Arrival, ...]


class Removal(Record, frozen=True):
    """Remove executions of one entity, open or closed, if all of them are still as these copies show them."""

    entity_id: str
    copies: tuple[Copy, ...]


class Removed(Record, frozen=True):
    """The executions are no longer in the store."""


class Changed(Record, frozen=True):
    """One of the executions has changed since it was copied, or is gone. Nothing was removed."""


class Reservation(Record, frozen=True):
    """Append the entry that says that a complete execution is being archived; its ``seq`` follows the last one."""

    entity_id: str
    execution_id: str
    event: events.Archiving


class Reserved(Record, frozen=True):
    """The entry is in the log."""


class Archival(Record, frozen=True):
    """Delete everything but the rows of complete executions of one entity, if all are still as these copies show them.

    *archive* is the URL of the file that holds them.
    """

    entity_id: str
    copies: tuple[Copy, ...]
    archive: str


class Archived(Record, frozen=True):
    """Of the executions only their rows are left."""
