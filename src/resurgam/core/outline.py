"""What stores must know about the log of any kind of instance: its start, its end, and the activities it waits for.

`InstanceState` says it of workflows, `FlowOutline` of flows and of the catalog. Everything else about a flow is known to
its brain only.
"""

from typing import Final, TypeAlias

from resurgam.core import event as events
from resurgam.core import flow_event as fe
from resurgam.core.errors import CorruptHistory
from resurgam.core.state import FLOW_ENDS, InstanceState, Status

_ANSWERS: Final = (fe.WorkSucceeded, fe.WorkFailed, fe.WorkCancelled, fe.CompSucceeded, fe.CompFailed)
_AFTER_THE_END: Final = (events.Archiving, events.Archived)


class FlowOutline:
    """The outline of a flow, or of the catalog, after the events applied so far."""

    def __init__(self) -> None:
        self.status: Status | None = None
        self.started: events.Started | None = None
        self.deactivated = False
        self.last_seq = 0
        self.open: set[int] = set()
        """The numbers of the work items and compensations without an answer."""

    def skip_to(self, seq: int) -> int:
        """Leave out entries that are forgotten, so that *seq* is the next; return how many these are."""
        missing = max(0, seq - self.last_seq - 1)
        self.last_seq += missing
        return missing

    def apply(self, entry: events.Event) -> None:
        """Apply one event."""
        if entry.seq != self.last_seq + 1:
            raise CorruptHistory(f"entry {entry.seq} follows entry {self.last_seq}: an entry is missing or duplicated")
        if isinstance(entry, events.Started) != (self.started is None) or self.deactivated != isinstance(
            entry, _AFTER_THE_END
        ):
            raise CorruptHistory(f"entry {entry.seq} is {entry.type}, which cannot occur in status {self.status}")
        self.last_seq = entry.seq
        match entry:
            case events.Started():
                self.started, self.status = entry, Status.RUNNING
            case fe.StepStarted():
                self.open.update(range(entry.first, entry.first + len(entry.items)))
            case fe.CompStarted():
                self.open.add(entry.number)
            case fe.FlowDeactivated() | events.WorkflowDeactivated():
                self.deactivated = True
            case _ if isinstance(entry, _ANSWERS):
                self.open.discard(entry.ref)
            case _:
                self.status = FLOW_ENDS.get(type(entry), self.status)


Outline: TypeAlias = InstanceState | FlowOutline


def outline_of(kind: str) -> Outline:
    """Return the outline of an empty log."""
    return InstanceState() if kind not in (fe.FLOW, fe.CATALOG) else FlowOutline()


def awaits_activity(outline: Outline, ref: int) -> bool:
    """Whether an activity with this ref has no answer yet."""
    if isinstance(outline, FlowOutline):
        return ref in outline.open
    return isinstance(outline.open.get(ref), events.ActivityScheduled)
