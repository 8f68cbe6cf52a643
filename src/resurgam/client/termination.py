"""Terminate executions that are deleted before a worker can notify others of their end, and notify those."""

from collections.abc import Iterable, Sequence
from typing import Any

from resurgam.client.access import Access
from resurgam.core import errors
from resurgam.core import event as events
from resurgam.core.failure import capture
from resurgam.core.flow_event import FLOW
from resurgam.core.lifecycle import WORKFLOW
from resurgam.core.outcome import Message
from resurgam.core.state import Status
from resurgam.flows.brain import FlowBrain
from resurgam.flows.expressions import Expressions
from resurgam.flows.stored_catalog import CatalogReader
from resurgam.runtime.execution import late_results
from resurgam.store import records as r
from resurgam.store.rules import is_addressed


async def terminate(access: Access, execution: r.Instance, reason: str) -> None:
    """Terminate an open execution. Its worker notifies its parent and children, or `notify_parent` and `notify_children` do."""
    ended = events.WorkflowTerminated(at=access.clock.now(), reason=reason)
    await access.store.deliver(
        [r.Delivery(event=ended, entity_id=execution.entity_id, execution_id=execution.execution_id)]
    )


async def notify_parent(access: Access, terminated: r.Instance, reason: str) -> None:
    """Send a failure to the parent that waits for a terminated execution, unless its worker has done so.

    A second answer is harmless: the first one to a call is final.
    """
    call = terminated.parent
    if terminated.status is not Status.TERMINATED or terminated.deactivated or call is None or call.detached:
        return
    failure = capture(errors.WorkflowTerminated(terminated.name, terminated.entity_id, reason, terminated.kind))
    about: dict[str, Any] = {"ref": 0, "at": access.clock.now(), "child": str(call.location), "by": call.execution_id}
    answer: events.ChildAnswer
    if terminated.kind == FLOW:
        answer = events.FlowAnswered(**about, outcome="failed", failure=failure)
    else:
        answer = events.ChildFailed(**about, failure=failure)
    await _send(access, [Message(event=answer, entity_id=call.entity_id, run_id=call.run_id)])


async def notify_children(access: Access, terminated: Sequence[r.Copy]) -> None:
    """Send to open children of terminated executions what their ``on_parent_close`` says."""
    await _send(access, [message for copy in terminated for message in _to_children(access, copy)])


def _to_children(access: Access, copy: r.Copy) -> Iterable[Message]:
    instance = copy.instance
    if instance.deactivated or not copy.log:  # its worker has sent them, or they cannot be known
        return ()
    forgotten = {one.seq for one in copy.forgotten}
    read = [entry for entry in copy.log if entry.seq not in forgotten]
    if instance.kind == WORKFLOW:
        outcome = late_results.record(read, (), access.clock.now())
    elif instance.kind == FLOW:
        brain = FlowBrain(Expressions(), CatalogReader(access.store))
        outcome = brain.record_late(read, (), access.clock.now())
    else:
        return ()
    return [message for message in outcome.messages if not isinstance(message.event, events.ChildAnswer)]


async def _send(access: Access, messages: Sequence[Message]) -> None:
    """Deliver messages to the executions to which they are addressed, if those are open."""
    for message in messages:
        target = await access.store.inspector.get(message.entity_id)
        if target is not None and not target.status.terminal and is_addressed(target, message):
            to = r.Delivery(event=message.event, entity_id=target.entity_id, execution_id=target.execution_id)
            await access.store.deliver([to])
