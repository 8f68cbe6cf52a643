"""Every intent a workflow can have: which command type each kind is counted under, and which events answer it."""

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
    events.ChildScheduled: "ChildWorkflow",
    events.PromiseCreated: "Promise",
    events.SignalSent: "Signal",
    events.PromiseSettled: "Settlement",
    events.MessagePublished: "Message",
    events.SagaStepRegistered: "Saga",
}
"""The type under which a command is counted in its scope: the third ``Task`` of the root is ``Task(2)``."""

ANSWERS: Final[dict[type[events.Command], tuple[type[events.Answer], ...]]] = {
    events.ActivityScheduled: (events.ActivityCompleted, events.ActivityFailed, events.ActivityCancelled),
    events.TimerStarted: (events.TimerFired, events.TimerCancelled),
    events.OperationStarted: (events.OperationCompleted, events.OperationFailed, events.OperationCancelled),
    events.ListenStarted: (events.SignalsConsumed, events.ListenTimedOut, events.ListenCancelled),
    events.RaceStarted: (events.RaceDecided,),
    events.LoopStarted: (events.LoopCompleted,),
    events.ChildScheduled: (events.ChildCompleted, events.ChildFailed, events.ChildCancelled),
    events.PromiseCreated: (
        *(events.PromiseResolved, events.PromiseRejected),
        *(events.PromiseTimedOut, events.PromiseCancelled),
    ),
    events.SignalSent: (events.SignalDelivered, events.SignalFailed),
    events.PromiseSettled: (events.SignalDelivered, events.SignalFailed),
    events.SagaStepRegistered: (events.SagaClosed,),
    events.MessagePublished: (),
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
    events.PromiseCreated: events.PromiseCancelled,
}
"""What is written when the workflow's own code calls a command off. A child is asked to stop, and waited for."""


class Intent(msgspec.Struct, gc=False, frozen=True):
    """What the code asks for next in a scope, before it has a place. *target* is the id that it gives to a child."""

    kind: type[events.Command]
    name: str | None = None
    version: int = 1
    key: str | None = None
    target: str | None = None

    @property
    def type(self) -> str:
        """The command type that this intent is counted under."""
        return TYPES[self.kind]


def address_of(command: events.Command) -> str | None:
    """Return what an answer from outside names its command by, where it cannot know the ``seq``."""
    if isinstance(command, events.PromiseCreated):
        return command.promise_id
    return str(command.location) if isinstance(command, events.ChildScheduled) else None
