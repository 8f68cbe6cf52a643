"""Read the whole tree of a workflow, with all ids: runs, executions, steps, attempts and children.

The ids of steps are derived from their locations (`core.identity`), so they are the same for every attempt of a run;
the attempts are listed below them.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from resurgam.core import event as events
from resurgam.core.commands import COMMANDS
from resurgam.core.flow_event import FLOW
from resurgam.core.identity import entity_of, execution_of
from resurgam.core.lifecycle import WORKFLOW
from resurgam.core.location import Location
from resurgam.flows.requests import is_activity, item_id, place_of
from resurgam.flows.state import FlowState
from resurgam.store.protocol import Store
from resurgam.store.records import Instance, OpenActivity, Query

_PAGE: Final = 1000
_DONE: Final = (1,)
_UNDONE: Final = (2,)
"""The coordinates of a saga step's activity and of its compensation, below the step's own location."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at a step, within one execution of its workflow.

    *redeliveries* and *worker* belong to an open attempt: how often it was claimed again without a result, and the
    worker that holds it.
    """

    execution_id: str
    attempt: int
    status: str
    workflow_execution_id: str
    redeliveries: int = 0
    worker: str | None = None


class Step(msgspec.Struct, kw_only=True):
    """A durable call at one location of a run.

    A ``saga`` has *steps*, each a ``saga_step`` with its *transaction* and, if it was compensated, its *compensation*.
    A saga has no entry of its own in the history: it has the location and the id of its first step.
    A ``flow_step``, of a flow, has its work items as *steps*, each a ``work_item`` unless it is a child; it has no location.
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


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """The call, or the work item, that started a child."""

    location: Location
    entity_id: str
    name: str
    queue: str
    kind: str = "workflow"
    run_id: str | None = None
    detached: bool = False


class Child(msgspec.Struct, kw_only=True):
    """A child workflow or flow started at this location; a detached one is shown without its own steps."""

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
    """A workflow or a flow, and everything below it."""

    entity_id: str
    name: str
    queue: str
    tree_id: str
    runs: list[Run]
    kind: str = "workflow"


async def read_tree(store: Store, instance: Instance) -> Tree:
    """Return the tree of the workflow that an execution belongs to."""
    members: list[Instance] = []
    cursor: str | None = None
    while True:
        page = await store.inspector.list(Query(tree_id=instance.tree_id, limit=_PAGE, cursor=cursor))
        members += page.instances
        cursor = page.cursor
        if cursor is None:
            break
    key = None if instance.parent is None else instance.parent.key
    chain = [member for member in members if member.entity_id == instance.entity_id and _key(member) == key]
    return await _TreeReader(store, members).tree(chain or [instance])


def _key(instance: Instance) -> str | None:
    return None if instance.parent is None else instance.parent.key


class _TreeReader(msgspec.Struct, frozen=True):
    """Read one tree from the store; *members* are all its executions."""

    store: Store
    members: Sequence[Instance]

    async def tree(self, chain: Sequence[Instance], *, inside: bool = True) -> Tree:
        """Return one workflow from the executions of its *chain*; read their histories if *inside*."""
        ordered = sorted(chain, key=lambda execution: (execution.generation, execution.attempt))
        runs: dict[str, list[Instance]] = {}
        for execution in ordered:
            runs.setdefault(execution.run_id, []).append(execution)
        last = ordered[-1]
        return Tree(
            entity_id=last.entity_id,
            name=last.name,
            queue=last.queue,
            tree_id=last.tree_id,
            kind=last.kind,
            runs=[await self._run(executions, inside=inside) for executions in runs.values()],
        )

    async def _run(self, executions: Sequence[Instance], *, inside: bool) -> Run:
        first = executions[0]
        run, steps = Run(run_id=first.run_id, generation=first.generation), _RunSteps(first.run_id)
        calls: Iterable[Call] = ()
        for execution in executions:
            await asyncio.sleep(0)  # a store may answer without a pause, and a tree may have many executions
            log = await self.store.inspector.history(execution, None if inside else 1, forgotten=True)
            started = log[0] if log else None
            run.executions.append(
                Execution(
                    execution_id=execution.execution_id,
                    attempt=execution.attempt,
                    status=str(execution.status),
                    previous=started.previous if isinstance(started, events.Started) else None,
                )
            )
            if inside and execution.kind == FLOW:
                run.steps, calls = read_flow(execution, log, await self._open_activities(execution))
            elif inside:
                steps.read(execution, log, await self._open_activities(execution))
        run.steps = run.steps or steps.nested()
        calls = calls or map(_call_of, steps.children.values())
        run.children = [await self._child(first.run_id, call) for call in calls]
        return run

    async def _open_activities(self, execution: Instance) -> dict[int, OpenActivity]:
        """Return the open activities by the ``seq`` of their commands."""
        work = None if execution.deactivated else await self.store.inspector.open_work(execution)
        return {} if work is None else {activity.request.ref: activity for activity in work.activities}

    async def _child(self, run_id: str, call: Call) -> Child:
        chain = [member for member in self.members if _is_called_by(member, run_id, call)]
        if not chain:
            found = await self.store.inspector.get(call.entity_id, call.run_id)
            chain = [] if found is None else [found]
        nothing = Tree(entity_id=call.entity_id, name=call.name, queue=call.queue, tree_id="", runs=[], kind=call.kind)
        workflow = await self.tree(chain, inside=not call.detached) if chain else nothing
        return Child(location=str(call.location), detached=call.detached, workflow=workflow)


def _call_of(command: events.ChildCommand) -> Call:
    return Call(
        location=command.location,
        entity_id=command.entity_id,
        name=command.name,
        queue=command.queue,
        kind=FLOW if isinstance(command, events.FlowScheduled) else WORKFLOW,
        run_id=command.run_id,
        detached=command.detach,
    )


def _is_called_by(child: Instance, run_id: str, call: Call) -> bool:
    parent = child.parent
    same_call = parent is not None and parent.run_id == run_id and parent.location == call.location
    return same_call and child.entity_id == call.entity_id


class _RunSteps(msgspec.Struct, frozen=True):
    """The steps of one run, over all its attempts."""

    run_id: str
    found: dict[tuple[Location, str, int], Step] = msgspec.field(default_factory=dict)
    children: dict[tuple[Location, str, str], events.ChildCommand] = msgspec.field(default_factory=dict)
    sagas: dict[Location, Location] = msgspec.field(default_factory=dict)

    def read(self, execution: Instance, log: Iterable[events.Event], activities: Mapping[int, OpenActivity]) -> None:
        """Add the steps of one execution; *activities* are its open ones."""
        by_seq: dict[int, tuple[events.Command, Step]] = {}
        undone: dict[Location, int] = {}
        groups = _SagaGroups(self.sagas)
        for entry in log:
            if isinstance(entry, events.WorkflowStarted):
                undone = {carried.location: carried.times for carried in entry.carried if carried.times}
            elif isinstance(entry, events.ChildCommand):
                # A detached child that is started once more is another child.
                self.children[entry.location, entry.entity_id, entry.run_id if entry.detach else ""] = entry
            elif isinstance(entry, events.Command) and (kind := COMMANDS[type(entry)].step) is not None:
                by_seq[entry.seq] = (entry, self._step(entry, kind, undone))
                if isinstance(entry, events.SagaStepRegistered):
                    groups.open(entry)
            elif entry.ref in by_seq:
                _add_answer(*by_seq[entry.ref], entry, execution)
                if isinstance(entry, events.SagaClosed):
                    groups.close(entry.ref)
        for command, step in by_seq.values():
            _add_open(command, step, execution, activities.get(command.seq))

    def _step(self, command: events.Command, kind: str, undone: dict[Location, int]) -> Step:
        location = command.location
        times = 0
        if isinstance(command, events.ActivityScheduled):
            times = next((number for saga, number in undone.items() if saga.contains(location)), 0)
        step = self.found.get((location, kind, times))
        if step is None:
            promise_id = command.promise_id if isinstance(command, events.PromiseCreated) else None
            step = self.found[location, kind, times] = Step(
                kind=kind,
                entity_id=promise_id or entity_of(self.run_id, location, times),
                location=str(location),
                name=command.name,
                queue=getattr(command, "queue", None),
            )
        step.status = "open"
        return step

    def nested(self) -> list[Step]:
        """Return the steps in the order of their locations, those of a saga below it."""
        top: list[Step] = []
        sagas: dict[Location, Step] = {}
        saga_steps = {location: step for (location, kind, _), step in self.found.items() if kind == "saga_step"}
        for (location, *_), step in sorted(self.found.items(), key=lambda item: item[0]):
            above = next((saga for saga in saga_steps if saga != location and _part(saga, location) is not None), None)
            if step.kind == "saga_step" and above is None:
                first = self.sagas.get(location, location)
                if first not in sagas:
                    top.append(sagas.setdefault(first, _saga(step)))
                sagas[first].steps.append(step)
            elif above is None:
                top.append(step)
            elif _part(above, location) == _UNDONE:
                saga_steps[above].compensation.append(step)
            else:
                saga_steps[above].transaction.append(step)
        for saga in sagas.values():
            saga.status = _saga_status({step.status for step in saga.steps})
        return top


class _SagaGroups:
    """Group steps by saga, for which the history has no entry of its own.

    A saga closes all its steps when it ends, so a step that is registered while another one of its scope is open
    belongs to the same saga. *known* maps the location of each step to that of the first step of its saga, for all
    attempts.
    """

    def __init__(self, known: dict[Location, Location]) -> None:
        self._known = known
        self._open: dict[tuple[tuple[int, ...], ...], dict[int, Location]] = {}

    def open(self, step: events.SagaStepRegistered) -> None:
        """Add a registered step."""
        others = self._open.setdefault(step.location.coordinates[:-1], {})
        first = next(iter(others.values()), step.location)
        others[step.seq] = self._known.setdefault(step.location, first)

    def close(self, ref: int | None) -> None:
        """Close the step with this ``seq``."""
        for others in self._open.values():
            others.pop(ref or 0, None)


def _saga(first: Step) -> Step:
    return Step(kind="saga", entity_id=first.entity_id, location=first.location)


def _saga_status(statuses: set[str]) -> str:
    """Return the status of a saga whose steps have these statuses."""
    return next(
        (status for status in ("open", "compensating", "completed", "failed") if status in statuses), "compensated"
    )


def _part(step: Location, location: Location) -> tuple[int, ...] | None:
    """Return which part of a saga step a location belongs to: `_DONE`, `_UNDONE`, or None if it is outside of it."""
    depth = len(step.coordinates)
    inside = location.coordinates[:depth] == step.coordinates and len(location.coordinates) > depth
    return location.coordinates[depth] if inside and location.coordinates[depth] in (_DONE, _UNDONE) else None


def _add_answer(command: events.Command, step: Step, entry: events.Event, execution: Instance) -> None:
    """Add the outcome of a step, or of one attempt at it."""
    if isinstance(entry, events.SagaCompensationStarted):
        step.status = "compensating"
        return
    if isinstance(entry, events.ActivityRetryScheduled):
        _add_attempt(step, entry.attempt, "failed", execution)
        return
    outcome = entry.outcome if isinstance(entry, events.SagaClosed) else entry.type.partition("_")[2]
    step.status = outcome
    if getattr(entry, "carried", False):
        known = step.executions[-1].execution_id if step.executions else None
        _add_attempt(step, getattr(entry, "attempt", 1), f"{outcome}, carried over", execution, known)
    elif isinstance(command, events.ActivityScheduled):
        _add_attempt(step, getattr(entry, "attempt", _attempts(step, execution) + 1), outcome, execution)
    elif isinstance(command, events.OperationStarted):
        _add_attempt(step, execution.attempt, outcome, execution)


def _add_open(command: events.Command, step: Step, execution: Instance, activity: OpenActivity | None) -> None:
    """Add the open attempt of a step, running or waiting."""
    if step.status != "open":
        return
    if isinstance(command, events.ActivityScheduled):
        _add_attempt(step, _attempts(step, execution) + 1, "open", execution, activity=activity)
    elif isinstance(command, events.OperationStarted):
        _add_attempt(step, execution.attempt, "open", execution)


def _attempts(step: Step, execution: Instance) -> int:
    """Return how many attempts this execution has made at a step."""
    made = (attempt for attempt in step.executions if attempt.workflow_execution_id == execution.execution_id)
    return max((attempt.attempt for attempt in made), default=0)


def _add_attempt(
    step: Step,
    attempt: int,
    status: str,
    execution: Instance,
    known: str | None = None,
    activity: OpenActivity | None = None,
) -> None:
    """Add an attempt: one whose id is *known*, or one that this execution of the workflow made."""
    made_by = execution.attempt if step.kind == "activity" else 1
    step.executions.append(
        Attempt(
            execution_id=known or execution_of(step.entity_id, attempt, made_by),
            attempt=attempt,
            status=status,
            workflow_execution_id=execution.execution_id,
            redeliveries=0 if activity is None else max(0, activity.deliveries - 1),
            worker=None if activity is None else activity.worker,
        )
    )


# Flows.


def read_flow(
    execution: Instance, log: Sequence[events.Event], activities: Mapping[int, OpenActivity]
) -> tuple[list[Step], list[Call]]:
    """Return the steps of a flow, with their work items, and its work items that are children."""
    state = FlowState(log)
    steps, calls = [], []
    for step_id, found in state.steps.items():
        step = Step(kind="flow_step", entity_id="", location="", name=step_id, status=str(found.status))
        for number in found.items:
            if is_activity(state, number):
                step.steps.append(_work_item(state, number, execution, activities.get(number)))
            else:
                calls.append(_child_item(state, number))
        steps.append(step)
    return steps, calls


def _work_item(state: FlowState, number: int, execution: Instance, activity: OpenActivity | None) -> Step:
    item = state.items[number]
    python = state.plan.steps[item.step].python
    made = Step(
        kind="work_item",
        entity_id=item_id(state, number),
        location=str(place_of(number)),
        name=item.step,
        queue=(python.queue if python is not None else "") or execution.queue,
        status=str(item.status),
    )
    last = max(item.attempts, item.retry_count, 0 if activity is None else activity.attempt)
    for attempt in range(1, last):
        _add_attempt(made, attempt, "failed", execution)
    if last:
        _add_attempt(made, last, str(item.status), execution, activity=activity)
    return made


def _child_item(state: FlowState, number: int) -> Call:
    step, own = state.plan.steps[state.items[number].step], state.started
    workflow = step.workflow
    return Call(
        location=place_of(number),
        entity_id=item_id(state, number),
        name=workflow.workflow if workflow is not None else step.id,
        queue=(workflow.queue if workflow is not None else "") or own.queue,
        kind=FLOW if workflow is None else WORKFLOW,
    )
