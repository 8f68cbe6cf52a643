"""The messages of a workflow that ends: to its children by their close policies, to its parent with its outcome."""

from collections.abc import Iterator
from typing import Any

from resurgam.core import errors
from resurgam.core import event as events
from resurgam.core.failure import capture
from resurgam.core.outcome import Message
from resurgam.core.state import InstanceState
from resurgam.runtime.context.children import message_to_child


def notify_children(
    own: events.WorkflowStarted, state: InstanceState, at: int, *, earlier: bool = True
) -> Iterator[Message]:
    """Return the messages to the open children that were not asked to stop before.

    With *earlier* also to children of earlier attempts which the last attempt has not adopted.
    """
    reason = f"its parent {own.entity_id} has ended"
    before = () if earlier else state.earlier_children
    for call in (call for call in state.awaited_children if call not in before):
        asked = isinstance(call, events.ChildCommand) and call.seq in state.cancel_requested
        if call.on_parent_close == "terminate":
            yield message_to_child(own, call, events.WorkflowTerminated(at=at, reason=reason))
        elif call.on_parent_close == "cancel" and not asked:
            # A paused child could not stop.
            yield message_to_child(own, call, events.WorkflowResumed(at=at))
            yield message_to_child(own, call, events.CancelRequested(at=at, reason=reason))


def notify_parent(own: events.WorkflowStarted, ended: events.Event | None, at: int) -> Iterator[Message]:
    """Return the message with the outcome to the parent; none if the run goes on in another execution."""
    parent = own.parent
    if parent is None or parent.detached:
        return
    about: dict[str, Any] = {"ref": 0, "at": at, "child": str(parent.location), "by": parent.execution_id}
    answer: events.Event
    match ended:
        case events.WorkflowCompleted():
            answer = events.ChildCompleted(**about, result=ended.result)
        case events.WorkflowFailed():
            answer = events.ChildFailed(**about, failure=ended.failure)
        case events.WorkflowTerminated():
            error = errors.WorkflowTerminated(own.name, own.entity_id, ended.reason)
            answer = events.ChildFailed(**about, failure=capture(error))
        case events.WorkflowCancelled():
            answer = events.ChildCancelled(**about)
        case _:
            return
    yield Message(event=answer, entity_id=parent.entity_id, run_id=parent.run_id, kept=True)
