"""The kinds of durable calls: one table with everything that the rest of the engine knows of each kind.

A new kind of call is an event in `event`, a row here, and a verb of the context; the matchers, the transition table,
the remedies and the descriptions of open work follow from the row.
"""

from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias

import msgspec

from resurgam.core import event as events

CommandEvent: TypeAlias = type[events.Command]
AnswerEvent: TypeAlias = type[events.Answer]


class CommandKind(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of durable call.

    *event* is the entry that records it, *type* the name under which it is counted in its scope: the third ``Task`` of
    the root is ``Task(2)``. *verb* is the method of `Context` that makes it, *label* its name in lists of open work,
    *step* its name in trees of steps, where it has one.

    *answers* are the events that settle it; a command without any is settled by being recorded. *cancelled* is recorded
    when the workflow's own code cancels it, *timed_out* when its deadline passes. *late*: its answers are recorded even
    after the workflow has ended. *address* returns the name by which an answer from outside finds it, where the sender
    cannot know the ``seq``.

    *answered_by*: ``"work"`` is done without a further message, ``"message"`` waits for one until its deadline,
    ``"code"`` is settled by the workflow's own code. *has_effect*: it does something itself, apart from the calls below
    it.

    *compares_name*: ``"always"``; ``"given"``, where code and history both have a name; ``"never"``.
    """

    event: CommandEvent
    type: str
    verb: str
    label: str
    step: str | None = None
    answers: tuple[AnswerEvent, ...] = ()
    cancelled: AnswerEvent | None = None
    timed_out: AnswerEvent | None = None
    late: bool = False
    address: Callable[[Any], str] | None = None
    answered_by: Literal["work", "message", "code"] = "code"
    has_effect: bool = True
    compares_name: Literal["always", "given", "never"] = "always"

    @property
    def tag(self) -> str:
        """The name of the event in a history."""
        return str(self.event.__struct_config__.tag)


def _promise_id(command: events.PromiseCreated) -> str:
    return command.promise_id


def _call_location(command: events.ChildCommand) -> str:
    return str(command.location)


_KINDS: Final = (
    CommandKind(
        event=events.ActivityScheduled,
        type="Task",
        verb="activity",
        label="activity",
        step="activity",
        answers=(events.ActivityCompleted, events.ActivityFailed, events.ActivityCancelled),
        cancelled=events.ActivityCancelled,
        late=True,
        answered_by="work",
    ),
    CommandKind(
        event=events.TimerStarted,
        type="Timer",
        verb="sleep",
        label="timer",
        step="timer",
        answers=(events.TimerFired, events.TimerCancelled),
        cancelled=events.TimerCancelled,
        timed_out=events.TimerFired,
        answered_by="work",
    ),
    CommandKind(
        event=events.OperationStarted,
        type="Operation",
        verb="run",
        label="operation",
        step="side_effect",
        answers=(events.OperationCompleted, events.OperationFailed, events.OperationCancelled),
        cancelled=events.OperationCancelled,
        late=True,
        answered_by="work",
    ),
    CommandKind(event=events.StateSet, type="State", verb="set", label="state"),
    CommandKind(event=events.StateCleared, type="State", verb="clear", label="state"),
    CommandKind(event=events.StateRead, type="Read", verb="get", label="state"),
    CommandKind(event=events.TagsSet, type="Tags", verb="tag", label="tags"),
    CommandKind(
        event=events.ListenStarted,
        type="Listen",
        verb="listen",
        label="listener",
        answers=(events.SignalsConsumed, events.ListenTimedOut, events.ListenCancelled),
        cancelled=events.ListenCancelled,
        timed_out=events.ListenTimedOut,
        answered_by="message",
        compares_name="never",
    ),
    CommandKind(
        event=events.BranchStarted,
        type="Branch",
        verb="branch",
        label="branch",
        has_effect=False,
        compares_name="given",
    ),
    CommandKind(
        event=events.RaceStarted,
        type="Race",
        verb="race",
        label="race",
        answers=(events.RaceDecided,),
        has_effect=False,
    ),
    CommandKind(
        event=events.LoopStarted,
        type="Loop",
        verb="loop",
        label="loop",
        answers=(events.LoopCompleted,),
        has_effect=False,
    ),
    CommandKind(
        event=events.VersionChecked,
        type="VersionCheck",
        verb="check_version",
        label="version check",
        compares_name="given",
    ),
    CommandKind(event=events.StepRemoved, type="Removed", verb="removed", label="removal", has_effect=False),
    CommandKind(
        # Cancelling asks the child to stop; its own end is the answer, so there is nothing to record at once.
        event=events.ChildScheduled,
        type="ChildWorkflow",
        verb="workflow",
        label="child",
        answers=(events.ChildCompleted, events.ChildFailed, events.ChildCancelled),
        late=True,
        address=_call_location,
        answered_by="work",
    ),
    CommandKind(
        event=events.FlowScheduled,
        type="Flow",
        verb="flow",
        label="flow",
        answers=(events.FlowAnswered,),
        late=True,
        address=_call_location,
        answered_by="work",
    ),
    CommandKind(
        event=events.PromiseCreated,
        type="Promise",
        verb="promise",
        label="promise",
        step="promise",
        answers=(
            *(events.PromiseResolved, events.PromiseRejected),
            *(events.PromiseTimedOut, events.PromiseCancelled),
        ),
        cancelled=events.PromiseCancelled,
        timed_out=events.PromiseTimedOut,
        late=True,
        address=_promise_id,
        answered_by="message",
    ),
    CommandKind(
        event=events.SignalSent,
        type="Signal",
        verb="signal",
        label="signal",
        answers=(events.SignalDelivered, events.SignalFailed),
        late=True,
        answered_by="work",
    ),
    CommandKind(
        event=events.PromiseSettled,
        type="Settlement",
        verb="resolve",
        label="settlement",
        answers=(events.SignalDelivered, events.SignalFailed),
        late=True,
        answered_by="work",
    ),
    CommandKind(event=events.MessagePublished, type="Message", verb="publish", label="message"),
    CommandKind(
        event=events.SagaStepRegistered,
        type="Saga",
        verb="step",
        label="compensation",
        step="saga_step",
        answers=(events.SagaClosed,),
    ),
)

COMMANDS: Final[dict[CommandEvent, CommandKind]] = {kind.event: kind for kind in _KINDS}
"""Every kind of command, by the event that records it."""

COMMANDS_BY_TAG: Final[dict[str, CommandKind]] = {kind.tag: kind for kind in _KINDS}
"""Every kind of command, by the name of its event in a history."""

ANSWERS: Final[tuple[type[events.Answer], ...]] = tuple({answer: None for kind in _KINDS for answer in kind.answers})
"""Every event that settles a command."""


class Intent(msgspec.Struct, gc=False, frozen=True):
    """A durable call that has no location yet. *target* is the id that the code gives to a child."""

    kind: CommandEvent
    name: str | None = None
    version: int = 1
    key: str | None = None
    target: str | None = None

    @property
    def type(self) -> str:
        """The type under which the call is counted."""
        return COMMANDS[self.kind].type


def address_of(command: events.Command) -> str:
    """Return the name by which an answer from outside finds a command; empty if none comes from there."""
    address = COMMANDS[type(command)].address
    return "" if address is None else address(command)
