"""All that became of a workflow, with every id: its runs and executions, what they asked for, and their children.

The ids of steps are derived from where they stand (`core.identity`), so they are the same for every attempt of a run; what
each attempt did is listed below them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from resurgam.core import event as events
from resurgam.core.commands import COMMANDS
from resurgam.core.identity import entity_of, execution_of
from resurgam.core.location import Location
from resurgam.store.protocol import Store
from resurgam.store.records import Instance, OpenActivity, Query

_PAGE: Final = 1000
_DONE: Final = (1,)
_UNDONE: Final = (2,)
"""Where a step of a saga is done, and where it is taken back, below its own place."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One try at a step, within one execution of its workflow.

    *redeliveries* and *worker* are of an attempt that is under way: how often it was handed out again without an answer,
    and who holds it.
    """

    execution_id: str
    attempt: int
    status: str
    workflow_execution_id: str
    redeliveries: int = 0
    worker: str | None = None


class Step(msgspec.Struct, kw_only=True):
    """Something that the code asked for at one place of a run.

    A ``saga`` has *steps*, each a ``saga_step`` with its *transaction* and, if it was taken back, its *compensation*. A saga
    has no place of its own in the history: it has the place and the id of its first step.
    """

    kind: str
    entity_id: str
    location: str
    name: str | None = None
    queue: str | None = None
    status: str = "open"
    executions: list[Attempt] = []
    steps: list["Step"] = []
    transaction: list["Step"] = []
    compensation: list["Step"] = []


class Execution(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of a run; *previous* is the execution that it retries or continues."""

    execution_id: str
    attempt: int
    status: str
    previous: str | None = None


class Child(msgspec.Struct, kw_only=True):
    """A workflow that was begun at this place; one that is detached is shown without what it did itself."""

    location: str
    detached: bool
    workflow: "Tree"


class Run(msgspec.Struct, kw_only=True):
    """One generation of a workflow."""

    run_id: str
    generation: int
    executions: list[Execution] = []
    steps: list[Step] = []
    children: list[Child] = []


class Tree(msgspec.Struct, kw_only=True):
    """A workflow and everything below it."""

    entity_id: str
    name: str
    queue: str
    tree_id: str
    runs: list[Run]


async def structure(store: Store, instance: Instance) -> Tree:
    """Return all that became of the workflow which an execution belongs to."""
    members: list[Instance] = []
    cursor: str | None = None
    while True:
        page = await store.list(Query(tree_id=instance.tree_id, limit=_PAGE, cursor=cursor))
        members += page.instances
        cursor = page.cursor
        if cursor is None:
            break
    key = None if instance.parent is None else instance.parent.key
    line = [one for one in members if one.entity_id == instance.entity_id and _key(one) == key]
    return await _Drawing(store, members).tree(line or [instance])


def _key(instance: Instance) -> str | None:
    return None if instance.parent is None else instance.parent.key


@dataclass(frozen=True, slots=True)
class _Drawing:
    """Puts the executions of one tree together; *members* are all of them."""

    store: Store
    members: Sequence[Instance]

    async def tree(self, line: Sequence[Instance], *, inside: bool = True) -> Tree:
        """Return one workflow; *line* are its executions, and *inside* says whether to look into their histories."""
        ordered = sorted(line, key=lambda one: (one.generation, one.attempt))
        runs: dict[str, list[Instance]] = {}
        for one in ordered:
            runs.setdefault(one.run_id, []).append(one)
        last = ordered[-1]
        return Tree(
            entity_id=last.entity_id,
            name=last.name,
            queue=last.queue,
            tree_id=last.tree_id,
            runs=[await self._run(executions, inside=inside) for executions in runs.values()],
        )

    async def _run(self, executions: Sequence[Instance], *, inside: bool) -> Run:
        first = executions[0]
        run, calls = Run(run_id=first.run_id, generation=first.generation), _Steps(first.run_id)
        for one in executions:
            log = await self.store.history(one.execution_id, None if inside else 1, forgotten=True)
            started = log[0] if log else None
            previous = started.previous if isinstance(started, events.WorkflowStarted) else None
            run.executions.append(
                Execution(execution_id=one.execution_id, attempt=one.attempt, status=str(one.status), previous=previous)
            )
            if inside:
                calls.read(one, log, await self._held(one))
        run.steps = calls.nested()
        run.children = [await self._child(first.run_id, command) for command in calls.children.values()]
        return run

    async def _held(self, one: Instance) -> dict[int, OpenActivity]:
        """Return the activities that are not answered, by the command that asked for each."""
        work = None if one.deactivated else await self.store.open_work(one.execution_id)
        return {} if work is None else {activity.request.ref: activity for activity in work.activities}

    async def _child(self, run_id: str, command: events.ChildScheduled) -> Child:
        line = [one for one in self.members if _is_called(one, run_id, command)]
        if not line:
            found = await self.store.get(command.entity_id, command.run_id)
            line = [] if found is None else [found]
        nothing = Tree(entity_id=command.entity_id, name=command.name, queue=command.queue, tree_id="", runs=[])
        workflow = await self.tree(line, inside=not command.detach) if line else nothing
        return Child(location=str(command.location), detached=command.detach, workflow=workflow)


def _is_called(one: Instance, run_id: str, command: events.ChildScheduled) -> bool:
    call = one.parent
    here = call is not None and call.run_id == run_id and call.location == command.location
    return here and one.entity_id == command.entity_id


@dataclass(frozen=True, slots=True)
class _Steps:
    """The steps of one run, over all its attempts."""

    run_id: str
    found: dict[tuple[Location, str, int], Step] = field(default_factory=dict)
    children: dict[tuple[Location, str, str], events.ChildScheduled] = field(default_factory=dict)
    sagas: dict[Location, Location] = field(default_factory=dict)

    def read(self, of: Instance, log: Iterable[events.Event], held: Mapping[int, OpenActivity]) -> None:
        """Take in what one execution did; *held* are the activities that it waits for."""
        by_seq: dict[int, tuple[events.Command, Step]] = {}
        undone: dict[Location, int] = {}
        blocks = _Blocks(self.sagas)
        for entry in log:
            if isinstance(entry, events.WorkflowStarted):
                undone = {one.location: one.times for one in entry.carried if one.times}
            elif isinstance(entry, events.ChildScheduled):
                # A detached one that is begun once more is another one.
                self.children[entry.location, entry.entity_id, entry.run_id if entry.detach else ""] = entry
            elif isinstance(entry, events.Command) and (kind := COMMANDS[type(entry)].step) is not None:
                by_seq[entry.seq] = (entry, self._step(entry, kind, undone))
                if isinstance(entry, events.SagaStepRegistered):
                    blocks.open(entry)
            elif entry.ref in by_seq:
                _answer(*by_seq[entry.ref], entry, of)
                if isinstance(entry, events.SagaClosed):
                    blocks.close(entry.ref)
        for command, step in by_seq.values():
            _leave_open(command, step, of, held.get(command.seq))

    def _step(self, command: events.Command, kind: str, undone: dict[Location, int]) -> Step:
        place = command.location
        times = 0
        if isinstance(command, events.ActivityScheduled):
            times = next((number for saga, number in undone.items() if saga.contains(place)), 0)
        step = self.found.get((place, kind, times))
        if step is None:
            named = command.promise_id if isinstance(command, events.PromiseCreated) else None
            step = self.found[place, kind, times] = Step(
                kind=kind,
                entity_id=named or entity_of(self.run_id, place, times),
                location=str(place),
                name=command.name,
                queue=getattr(command, "queue", None),
            )
        step.status = "open"
        return step

    def nested(self) -> list[Step]:
        """Return the steps in the order of their places, those of a saga below it."""
        top: list[Step] = []
        blocks: dict[Location, Step] = {}
        sagas = {place: step for (place, kind, _), step in self.found.items() if kind == "saga_step"}
        for (place, *_), step in sorted(self.found.items(), key=lambda item: item[0]):
            above = next((saga for saga in sagas if saga != place and _below(saga, place) is not None), None)
            if step.kind == "saga_step" and above is None:
                first = self.sagas.get(place, place)
                if first not in blocks:
                    top.append(blocks.setdefault(first, _saga(step)))
                blocks[first].steps.append(step)
            elif above is None:
                top.append(step)
            elif _below(above, place) == _UNDONE:
                sagas[above].compensation.append(step)
            else:
                sagas[above].transaction.append(step)
        for block in blocks.values():
            block.status = _outcome({step.status for step in block.steps})
        return top


class _Blocks:
    """Finds which steps belong to one saga, though the history has no entry for it.

    A saga closes all its steps when it ends, so a step that is registered while another one of its scope is open belongs
    to the same saga. *known* maps the place of each step to that of the first step of its saga, for all attempts.
    """

    def __init__(self, known: dict[Location, Location]) -> None:
        self._known = known
        self._open: dict[tuple[tuple[int, ...], ...], dict[int, Location]] = {}

    def open(self, step: events.SagaStepRegistered) -> None:
        """Take in a step that was registered."""
        others = self._open.setdefault(step.location.coordinates[:-1], {})
        first = next(iter(others.values()), step.location)
        others[step.seq] = self._known.setdefault(step.location, first)

    def close(self, ref: int | None) -> None:
        """Take in that the step of this entry has come to its end."""
        for others in self._open.values():
            others.pop(ref or 0, None)


def _saga(first: Step) -> Step:
    return Step(kind="saga", entity_id=first.entity_id, location=first.location)


def _outcome(statuses: set[str]) -> str:
    """Return what became of a saga whose steps came to these ends."""
    return next((one for one in ("open", "compensating", "completed", "failed") if one in statuses), "compensated")


def _below(saga: Location, place: Location) -> tuple[int, ...] | None:
    """Return which part of a saga's step a place is in: where it is done, or where it is taken back."""
    depth = len(saga.coordinates)
    inside = place.coordinates[:depth] == saga.coordinates and len(place.coordinates) > depth
    return place.coordinates[depth] if inside and place.coordinates[depth] in (_DONE, _UNDONE) else None


def _answer(command: events.Command, step: Step, entry: events.Event, of: Instance) -> None:
    """Note what became of a step, or of one attempt at it."""
    if isinstance(entry, events.SagaCompensationStarted):
        step.status = "compensating"
        return
    if isinstance(entry, events.ActivityRetryScheduled):
        _add(step, entry.attempt, "failed", of)
        return
    outcome = entry.outcome if isinstance(entry, events.SagaClosed) else entry.type.partition("_")[2]
    step.status = outcome
    if getattr(entry, "carried", False):
        known = step.executions[-1].execution_id if step.executions else None
        _add(step, getattr(entry, "attempt", 1), f"{outcome}, carried over", of, known)
    elif isinstance(command, events.ActivityScheduled):
        begun = [one.attempt for one in step.executions if one.workflow_execution_id == of.execution_id]
        _add(step, getattr(entry, "attempt", max(begun, default=0) + 1), outcome, of)
    elif isinstance(command, events.OperationStarted):
        _add(step, of.attempt, outcome, of)


def _leave_open(command: events.Command, step: Step, of: Instance, held: OpenActivity | None) -> None:
    """Note the attempt that is under way, or waits to be."""
    if step.status != "open":
        return
    if isinstance(command, events.ActivityScheduled):
        begun = [one.attempt for one in step.executions if one.workflow_execution_id == of.execution_id]
        _add(step, max(begun, default=0) + 1, "open", of, held=held)
    elif isinstance(command, events.OperationStarted):
        _add(step, of.attempt, "open", of)


def _add(
    step: Step, attempt: int, status: str, of: Instance, known: str | None = None, held: OpenActivity | None = None
) -> None:
    """Add an attempt: one that is *known* already, or one that this execution of the workflow made."""
    made_by = of.attempt if step.kind == "activity" else 1
    step.executions.append(
        Attempt(
            execution_id=known or execution_of(step.entity_id, attempt, made_by),
            attempt=attempt,
            status=status,
            workflow_execution_id=of.execution_id,
            redeliveries=0 if held is None else max(0, held.deliveries - 1),
            worker=None if held is None else held.worker,
        )
    )
