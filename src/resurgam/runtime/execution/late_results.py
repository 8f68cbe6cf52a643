"""Record entries that arrive for an instance whose outcome is decided. Its code does not run again."""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from resurgam.core import event as events
from resurgam.core.outcome import Entry, Message, Outcome, Withdrawal
from resurgam.core.state import InstanceState, Status
from resurgam.runtime.execution.parent_close import notify_children, notify_parent
from resurgam.runtime.matching.log import Log, outstanding

IGNORED: Final = (
    *(events.UpdateAccepted, events.WorkflowBegun),
    *(events.WorkflowPaused, events.WorkflowResumed),
)
"""Entries that would start or halt something; an ended instance consumes them without recording them."""


def withdraw(refs: Iterable[int], clock: int) -> tuple[Withdrawal, ...]:
    """Return the withdrawals of activities that no worker has started, once the workflow has ended."""
    return tuple(Withdrawal(ref, answered=False, entry=events.ActivityCancelled(at=clock, ref=ref)) for ref in refs)


def record(recorded: Sequence[events.Event], inbox: Sequence[Entry], clock: int) -> Outcome:
    """Record the inbox of an instance whose outcome is decided.

    Every entry is recorded while activities are outstanding. Once the history is complete, an entry that crossed the
    end on its way, such as a signal, is consumed without a record.
    """
    log = Log(recorded)
    log.begin(clock)
    for entry in inbox:
        event = _addressed(log.state, entry.event)
        if not log.state.deactivated and not isinstance(event, IGNORED):
            log.take_in(event)
    messages = _notifications(log, recorded)
    log.close()
    return Outcome(
        messages=messages,
        events=tuple(log.new),
        consumed=tuple(entry.id for entry in inbox if entry.id is not None),
        # Again, because an attempt that has failed since then may have scheduled a retry.
        withdrawals=withdraw((command.seq for command in outstanding(log.state)), log.stamp()),
        status=log.state.status or Status.RUNNING,
        deactivated=log.state.deactivated,
    )


def _notifications(log: Log, recorded: Sequence[events.Event]) -> tuple[Message, ...]:
    """Return the notifications of an instance that the store has terminated: no execution has sent them.

    They may be sent again while activities are outstanding, and the receivers deduplicate them. A second request to
    stop, however, would cancel the clean-up of a child, so the first one is recorded.
    """
    started, ended, at = log.state.started, log.state.ended, log.clock
    if not isinstance(ended, events.WorkflowTerminated) or log.state.deactivated:
        return ()
    assert isinstance(started, events.WorkflowStarted)
    first = recorded[-1] is ended
    messages = (*notify_children(started, log.state, at, earlier=first), *notify_parent(started, ended, at))
    for command in list(log.state.open.values()):
        asked = isinstance(command, events.ChildCommand) and command.on_parent_close == "cancel"
        if asked and command.seq not in log.state.cancel_requested:
            log.add(events.ChildCancelRequested, ref=command.seq)
    return messages


def _addressed(state: InstanceState, event: events.Event) -> events.Event:
    """Return an answer that names its command by an address with the command's ``seq``."""
    if isinstance(event, events.PromiseAnswer) and not event.ref:
        return msgspec.structs.replace(event, ref=state.addresses.get(event.promise_id, 0))
    own = state.started is not None and state.started.execution_id
    if isinstance(event, events.ChildAnswer) and not event.ref and event.by == own:
        return msgspec.structs.replace(event, ref=state.addresses.get(event.child, 0))
    return event
