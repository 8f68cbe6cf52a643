"""Rebuild a simulated store from a history alone: its open commands are issued again."""

from collections.abc import Sequence
from typing import cast

from resurgam.core import errors
from resurgam.core import event as events
from resurgam.core.failure import capture
from resurgam.core.outcome import Message
from resurgam.core.state import InstanceState
from resurgam.runtime.context.children import child_key, execution_id_of, message_to_child
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
            case events.ChildScheduled():
                _start_child(store, execution, command, recorded=command.seq in recorded)
                if command.seq in state.cancel_requested:
                    store.send(message_to_child(started, command, events.CancelRequested(at=store.clock)))
            case events.SignalSent():
                _send(store, execution, command)
            case _:
                pass
    return store


def _start_child(
    store: SimulatedStore, execution: StoredExecution, call: events.ChildScheduled, *, recorded: bool
) -> None:
    own, execution_id = execution.started, execution_id_of(execution.started, call)
    store.begin(
        events.WorkflowStarted(
            seq=1,
            at=call.at,
            name=call.name,
            queue=call.queue,
            entity_id=call.entity_id,
            execution_id=execution_id,
            run_id=call.run_id,
            tree_id=own.tree_id,
            python=own.python,
            input=call.input,
            parent=events.Parent(
                entity_id=own.entity_id,
                run_id=own.run_id,
                execution_id=own.execution_id,
                location=call.location,
                key=child_key(own, call),
                first_run=call.run_id,
                detached=call.detach,
            ),
            deferred=call.deferred,
            retry=call.retry,
            timeout=call.timeout,
        )
    )
    if not recorded:
        store.put(execution, events.ChildStarted(ref=call.seq, at=call.at, execution_id=execution_id))


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
