"""The world around a history of which nothing else is known: what it has asked for and not got is asked for again."""

from collections.abc import Sequence
from typing import cast

from resurgam.core import errors
from resurgam.core import event as events
from resurgam.core.failure import capture
from resurgam.core.outcome import Message
from resurgam.core.state import InstanceState
from resurgam.runtime.context.children import child_key, execution_id_of, message_to_child
from resurgam.testing.world import Life, Promised, World


def rebuild(log: Sequence[events.Event]) -> World:
    """Return a world with this execution in it; its children begin anew, whatever they had come to."""
    started, state = cast("events.WorkflowStarted", log[0]), InstanceState(log)
    world = World(log[-1].at)
    life = world.begin(started)
    life.ever, life.log, life.forgotten = list(log), list(log), state.forgotten
    begun = {entry.ref for entry in log if isinstance(entry, events.ChildStarted)}
    for command in state.open.values() if state.ended is None else ():
        match command:
            case events.PromiseCreated():
                life.promises[command.promise_id] = Promised(command.name)
            case events.ChildScheduled():
                _bear(world, life, command, told=command.seq in begun)
                if command.seq in state.cancel_requested:
                    world.send(message_to_child(started, command, events.CancelRequested(at=world.clock)))
            case events.SignalSent():
                _send(world, life, command)
            case _:
                pass
    return world


def _bear(world: World, life: Life, call: events.ChildScheduled, *, told: bool) -> None:
    own, execution_id = life.started, execution_id_of(life.started, call)
    world.begin(
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
                detached=call.detach,
            ),
            deferred=call.deferred,
            retry=call.retry,
            timeout=call.timeout,
        )
    )
    if not told:
        world.put(life, events.ChildStarted(ref=call.seq, at=call.at, execution_id=execution_id))


def _send(world: World, life: Life, call: events.SignalSent) -> None:
    gone = capture(errors.NotFound(f"there is no workflow {call.entity_id!r}"))
    failed = events.SignalFailed(ref=call.seq, at=call.at, failure=gone)
    answer = world.send(
        Message(
            event=events.SignalReceived(at=call.at, name=call.name, id=call.id, value=call.value),
            entity_id=call.entity_id,
            delivered=events.SignalDelivered(ref=call.seq, at=call.at),
            missing=failed,
            ended=failed,
        )
    )
    if answer is not None:
        world.put(life, answer)
