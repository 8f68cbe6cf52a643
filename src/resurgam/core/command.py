"""Every wish a workflow can have: which command type each kind is counted under, and which events answer it."""

from typing import Final

import msgspec

from resurgam.core import event as events

TYPES: Final[dict[type[events.Command], str]] = {
    events.ActivityScheduled: "Task",
    events.TimerStarted: "Timer",
    events.OperationStarted: "Operation",
    events.StateSet: "State",
    events.StateCleared: "State",
    events.StateRead: "Read",
    events.ListenStarted: "Listen",
    events.BranchStarted: "Branch",
    events.RaceStarted: "Race",
    events.LoopStarted: "Loop",
    events.VersionChecked: "VersionCheck",
    events.StepRemoved: "Removed",
}
"""The type under which a command is counted in its scope: the third ``Task`` of the root is ``Task(2)``."""

ANSWERS: Final[dict[type[events.Command], tuple[type[events.Answer], ...]]] = {
    events.ActivityScheduled: (events.ActivityCompleted, events.ActivityFailed, events.ActivityCancelled),
    events.TimerStarted: (events.TimerFired, events.TimerCancelled),
    events.OperationStarted: (events.OperationCompleted, events.OperationFailed, events.OperationCancelled),
    events.ListenStarted: (events.SignalsConsumed, events.ListenTimedOut, events.ListenCancelled),
    events.RaceStarted: (events.RaceDecided,),
    events.LoopStarted: (events.LoopCompleted,),
    events.StateSet: (),
    events.StateCleared: (),
    events.StateRead: (),
    events.BranchStarted: (),
    events.VersionChecked: (),
    events.StepRemoved: (),
}
"""The events that settle each kind of command. A command without any is settled by being written."""

CANCELLATIONS: Final[dict[type[events.Command], type[events.Answer]]] = {
    events.ActivityScheduled: events.ActivityCancelled,
    events.TimerStarted: events.TimerCancelled,
    events.OperationStarted: events.OperationCancelled,
    events.ListenStarted: events.ListenCancelled,
}
"""What is written when the workflow's own code calls a command off."""


class Wish(msgspec.Struct, gc=False, frozen=True):
    """What the code asks for next in a scope, before it has a place."""

    kind: type[events.Command]
    name: str | None = None
    version: int = 1
    key: str | None = None

    @property
    def type(self) -> str:
        """The command type that this wish is counted under."""
        return TYPES[self.kind]
