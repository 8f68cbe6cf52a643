"""Whole executions, on their way from one store to another."""

from resurgam.core import event as events
from resurgam.core.outcome import Forgotten
from resurgam.store.records.delivery import Promise
from resurgam.store.records.instance import Instance, Pause, Record
from resurgam.store.records.work import Pending


class Copy(Record, frozen=True):
    """Everything a store keeps of an execution, but for the leases: what moves to another store.

    *log* has the forgotten entries too, where they stand; *forgotten* says in the same order which those are. The status
    of the instance is that beneath the pause.
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
        """Whether somebody must look at it: at everything but a complete history with nothing left to tell."""
        return bool(self.inbox) or not self.instance.deactivated


class Adoption(Record, frozen=True):
    """Take in executions that belong together: all of them, or none."""

    copies: tuple[Copy, ...]


class Arrival(Record, frozen=True):
    """An execution of an adoption as it is here; if it is not *new*, it was here before and was left alone."""

    instance: Instance
    new: bool


class Adopted(Record, frozen=True):
    """Every execution of the part is here."""

    arrivals: tuple[Arrival, ...]
