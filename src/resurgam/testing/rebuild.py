"""Rebuild a simulated store from a history alone: its open commands are issued again."""

from collections.abc import Sequence
from typing import cast

from resurgam.core import errors
from resurgam.core import event as events
from resurgam.core import flow_event as fe
from resurgam.core.failure import capture
from resurgam.core.outcome import Message
from resurgam.core.state import InstanceState, tags_after
from resurgam.runtime.context.children import first_entry, message_to_child
from resurgam.runtime.matching.dedup import known_as
from resurgam.testing.simulated_store import SimulatedStore, StoredExecution, StoredPromise

_MESSAGES = events.SignalReceived | events.UpdateAccepted | events.UpdateRejected


def rebuild_store(log: Sequence[events.Event]) -> SimulatedStore:
    """Return a store with this execution; its open children start from the beginning."""
    store = SimulatedStore(log[-1].at)
    if isinstance(log[0], fe.FlowStarted):
        assert len(log) == 1, "a flow is simulated from its start, or from a point of another simulation"
        store.begin(log[0])
        return store
    started, state = cast("events.WorkflowStarted", log[0]), InstanceState(log)
    execution = store.begin(started)
    execution.full_log, execution.log, execution.forgotten = list(log), list(log), state.forgotten
    recorded = {entry.ref for entry in log if isinstance(entry, events.ChildStarted)}
    for command in state.open.values() if state.ended is None else ():
        match command:
            case events.PromiseCreated():
                execution.promises[command.promise_id] = StoredPromise(command.name)
            case events.ChildCommand():
                _start_child(store, execution, command, recorded=command.seq in recorded)
                if command.seq in state.cancel_requested:
                    store.send(message_to_child(started, command, events.CancelRequested(at=store.clock)))
            case events.SignalSent():
                _send(store, execution, command)
            case _:
                pass
    return store


def _start_child(
    store: SimulatedStore, execution: StoredExecution, call: events.ChildCommand, *, recorded: bool
) -> None:
    tags = tags_after(entry for entry in execution.log if entry.seq < call.seq)
    started = first_entry(cast("events.WorkflowStarted", execution.started), call, call.input, tags=tags)
    store.begin(started)
    if not recorded:
        store.put(execution, events.ChildStarted(ref=call.seq, at=call.at, execution_id=started.execution_id))


def _send(store: SimulatedStore, execution: StoredExecution, call: events.SignalSent) -> None:
    not_found = capture(errors.NotFound(f"there is no workflow {call.entity_id!r}"))
    failed = events.SignalFailed(ref=call.seq, at=call.at, failure=not_found)
    answer = store.send(
        Message(
            event=events.SignalReceived(at=call.at, name=call.name, id=call.id, value=call.value),
            entity_id=call.entity_id,
            delivered=events.SignalDelivered(ref=call.seq, at=call.at),
            missing=failed,
            ended=failed,
        )
    )
    if answer is not None:
        store.put(execution, answer)


def unsent(messages: Sequence[events.Event], log: Sequence[events.Event]) -> list[events.Event]:
    """Return the messages that a history has not received; forgotten ones count as received."""
    received = {known_as(entry) for entry in log if isinstance(entry, _MESSAGES)}
    received.update(known for entry in log if isinstance(entry, events.Checkpoint) for known in entry.signals)
    others = sum(isinstance(entry, events.CancelRequested) and entry.timeout is None for entry in log)
    unsent = []
    for message in messages:
        if isinstance(message, events.CancelRequested) and others:
            others -= 1
        elif not isinstance(message, _MESSAGES) or known_as(message) not in received:
            unsent.append(message)
    return unsent
