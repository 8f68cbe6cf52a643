"""Rebuild a simulated store from a history alone: its open commands are issued again."""

from collections.abc import Sequence
from typing import cast

from resurgam.core import errors
from resurgam.core import event as events
from resurgam.core.failure import capture
from resurgam.core.outcome import Message
from resurgam.core.state import InstanceState
from resurgam.runtime.context.children import first_entry, message_to_child
from resurgam.testing.simulated_store import SimulatedStore, StoredExecution, StoredPromise


def rebuild_store(log: Sequence[events.Event]) -> SimulatedStore:
    """Return a store with this execution; its open children start from the beginning."""
    started, state = cast("events.WorkflowStarted", log[0]), InstanceState(log)
    store = SimulatedStore(log[-1].at)
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
    started = first_entry(execution.started, call, call.input)
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
