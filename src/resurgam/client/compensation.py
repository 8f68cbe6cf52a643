"""Find saga steps that are not compensated, and compensate one manually, also long after the saga's run is closed."""

from collections.abc import Sequence

import msgspec
from msgspec import Raw

from resurgam.client.access import ANY, Access
from resurgam.core import event as events
from resurgam.core.errors import AlreadyExists, NotFound, WrongState
from resurgam.core.location import ROOT, Location
from resurgam.runtime.context.compensation import NAME, run_id_of
from resurgam.runtime.ids import derived_id
from resurgam.runtime.system import python
from resurgam.store.protocol import Store
from resurgam.store.records import Creation, Exists, Instance


class SagaStep(msgspec.Struct, frozen=True, kw_only=True):
    """A saga step: the *result* of its activity if it completed, and the *outcome* of `SagaClosed`, None until then."""

    command: events.SagaStepRegistered
    result: Raw | None = None
    outcome: str | None = None

    @property
    def may_have_effect(self) -> bool:
        """Whether there is, or may be, something to compensate."""
        return self.result is not None or self.command.unknown

    @property
    def is_cut_off(self) -> bool:
        """Whether a compensation is wanted that the saga has not come to."""
        return self.outcome is None and self.command.undo is not None and self.may_have_effect


def steps_of(log: Sequence[events.Event]) -> list[SagaStep]:
    """Return the steps of all sagas of an execution, in order of registration."""
    commands = {entry.seq: entry for entry in log if isinstance(entry, events.Command)}
    results = {
        commands[entry.ref].location: entry.result
        for entry in log
        if isinstance(entry, events.ActivityCompleted) and entry.ref in commands
    }
    outcomes = {entry.ref: entry.outcome for entry in log if isinstance(entry, events.SagaClosed)}
    return [
        SagaStep(
            command=command,
            result=results.get(Location(*command.location.coordinates, (1,), (1,))),
            outcome=outcomes.get(command.seq),
        )
        for command in commands.values()
        if isinstance(command, events.SagaStepRegistered)
    ]


def uncompensated(log: Sequence[events.Event], *, ended: bool) -> tuple[SagaStep, ...]:
    """Return the steps whose compensation failed finally, or whose saga was cut off when the workflow closed.

    Of a saga that was cut off these are the completed steps, and those with ``undo_on_unknown``, which may have an effect.
    """
    return tuple(step for step in steps_of(log) if step.outcome == "failed" or (ended and step.is_cut_off))


async def compensated_manually(store: Store, instance: Instance, log: Sequence[events.Event]) -> list[Location]:
    """Return the locations of the steps that were compensated manually."""
    locations = []
    for step in steps_of(log):
        manual = await store.inspector.get(compensation_id(instance, step.command)) if step.command.undo else None
        if manual is not None and manual.status == "completed":
            locations.append(step.command.location)
    return locations


async def compensate(access: Access, instance: Instance, location: Location) -> Instance:
    """Start the compensation of a step as a workflow of its own, and return its execution."""
    log = await access.store.inspector.history(instance, forgotten=True)
    step = _find(instance, steps_of(log), location)
    earlier = await _check(access.store, instance, step)
    started = _started(access, instance, step, log[0])
    # Attempts of the saga itself and earlier manual ones count.
    attempts = int(step.outcome == "failed") if earlier is None else earlier.attempt
    previous = None if earlier is None else earlier.execution_id
    started = msgspec.structs.replace(started, attempt=attempts + 1, previous=previous)
    [answer] = await access.store.create([Creation(started=started)])
    if isinstance(answer, Exists):
        raise AlreadyExists(
            f"saga step {step.command.name!r} at {location} is already being compensated, by {started.entity_id!r}"
        )
    return answer.instance


def _find(instance: Instance, steps: Sequence[SagaStep], location: Location) -> SagaStep:
    for step in steps:
        if step.command.location == location:
            return step
    known = ", ".join(f"{step.command.name!r} at {step.command.location}" for step in steps) or "none"
    raise NotFound(f"workflow {instance.entity_id!r} has no saga step at {location}; it has {known}")


async def _check(store: Store, instance: Instance, step: SagaStep) -> Instance | None:
    """Refuse a step that cannot be compensated, or is already; return the last manual compensation."""
    what = f"saga step {step.command.name!r} at {step.command.location} of workflow {instance.entity_id!r}"
    if step.command.undo is None:
        raise WrongState(f"{what} cannot be compensated: it was registered without undo")
    if step.outcome is None and not instance.status.terminal:
        raise WrongState(f"{what} belongs to a saga that is still open, which compensates its own steps")
    earlier = await store.inspector.get(compensation_id(instance, step.command))
    if step.outcome == "compensated" or (earlier is not None and earlier.status == "completed"):
        raise AlreadyExists(f"{what} is already compensated")
    if not step.may_have_effect:
        raise WrongState(f"{what} never completed, so there is nothing to compensate")
    return earlier


def compensation_id(instance: Instance, command: events.SagaStepRegistered) -> str:
    """Return the id of the workflow that compensates a step manually."""
    return f"{run_id_of(instance.run_id, command.location)}/compensation"


def _started(access: Access, instance: Instance, step: SagaStep, first: events.Event) -> events.WorkflowStarted:
    command, now = step.command, access.clock.now()
    earlier = first.carried if isinstance(first, events.WorkflowStarted) else ()
    undone = next((one.times for one in earlier if one.times and one.location == command.location), 0)
    result = None if step.result is None else msgspec.json.decode(step.result)
    return events.WorkflowStarted(
        seq=1,
        at=now,
        name=NAME,
        queue=command.queue,
        entity_id=compensation_id(instance, command),
        execution_id=derived_id(now, instance.execution_id, command.location, "compensation"),
        run_id=run_id_of(instance.run_id, command.location),
        tree_id=instance.tree_id,
        tags=instance.tags,
        python=python(),
        input=ANY.encode([command.undo, result], "arguments of a compensation"),
        # Its activity must have the key of the saga's own compensation, however often the step was compensated before.
        carried=(events.Carried(location=ROOT, kind=command.type, times=undone),) if undone else (),
        parent=events.Parent(
            entity_id=instance.entity_id,
            run_id=instance.run_id,
            execution_id=instance.execution_id,
            location=command.location,
            key=compensation_id(instance, command),
            detached=True,
        ),
    )
