"""Whole executions, on their way from one store to another."""

from resurgam.core import event as events
from resurgam.core.outcome import Forgotten
from resurgam.store.records.delivery import Promise
from resurgam.store.records.instance import Instance, Pause, Record
from resurgam.store.records.work import Pending


class Copy(Record, frozen=True):
    """Everything that a store keeps of an execution, except leases.

    *log* includes the forgotten entries; *forgotten* says which those are, in the same order. *answer* is the one that
    a closed child has sent to its parent. The status of the instance is the one below its pause.
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
    """An adopted execution; one that is not *new* was in the store before and is unchanged."""

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
