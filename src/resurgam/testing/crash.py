"""Kill a simulated run after every recorded event, resume it, and assert that it has the same outcome."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVarTuple

import msgspec

from resurgam.core import event as events
from resurgam.core import flow_event as fe
from resurgam.core.commands import COMMANDS
from resurgam.core.state import ENDS
from resurgam.runtime.context.context import Context
from resurgam.runtime.definitions.definition import Activity, Workflow
from resurgam.runtime.registry import Registry, default_registry
from resurgam.testing.loading import catalog_of
from resurgam.testing.simulation import Point, Simulation

Ts = TypeVarTuple("Ts")

_WORK_ANSWERS = (fe.WorkSucceeded, fe.WorkFailed, fe.CompSucceeded, fe.CompFailed)
_DECISIONS = (fe.StepCompleted, fe.StepFailed, fe.StepSkipped, fe.AttributeSet)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crashes:
    """The result of `crash_everywhere`: the number of crash *points*, and the undisturbed history.

    *histories* are those of all executions (children, attempts, generations) by id, in the order of their start.
    *history* is that of the workflow's last execution.
    """

    points: int
    history: tuple[events.Event, ...]
    histories: Mapping[str, tuple[events.Event, ...]]

    def __repr__(self) -> str:
        """Return the counts and the outcome in one line, without the histories."""
        end, _ = outcome(self.history)
        executions = "1 execution" if len(self.histories) == 1 else f"{len(self.histories)} executions"
        return f"<Crashes: killed after each of {self.points} events in {executions}, always {end}>"


async def crash_everywhere(
    workflow: Callable[[Context, *Ts], Coroutine[Any, Any, Any]],
    *args: *Ts,
    mocks: Mapping[Activity[..., Any] | str, object] | None = None,
    messages: Sequence[events.Event] = (),
    promises: Mapping[str, object] | None = None,
    registry: Registry = default_registry,
    steps: Sequence[object] = (),
) -> Crashes:
    """Run *workflow* once undisturbed, then kill it after every event and resume it.

    The workflow and its children are killed together, after every event of any of them. Raise `AssertionError` if a
    resumed run has another outcome, issues other commands, or repeats completed activities.

    *mocks* replace activities, by activity or name, by a value, an exception or a callable. *messages* are signals,
    updates and cancel requests that are sent to the workflow. *promises* are settled by name, with a value or an
    exception. *steps* are those of flows that the workflow starts, beside the functions in *registry* that are steps.
    """
    assert isinstance(workflow, Workflow), f"{workflow!r} is not a workflow; decorate it with @workflow"
    named = {key.name if isinstance(key, Activity) else key: value for key, value in (mocks or {}).items()}

    options: dict[str, Any] = {"mocks": named, "messages": messages, "promises": promises, "registry": registry}
    catalog = catalog_of(registry, steps)

    def simulation(at: Point | None) -> Simulation:
        return Simulation(workflow, *args, at=at, keep=at is None, catalog=catalog, **options)

    return await sweep(simulation)


async def sweep(simulation: Callable[[Point | None], Simulation]) -> Crashes:
    """Run a simulation undisturbed, and then from each of its points; compare."""
    undisturbed = simulation(None)
    whole = await undisturbed.run()
    for point in undisturbed.points[:-1]:
        resumed = simulation(point)
        await resumed.run()
        _compare(undisturbed, resumed, point)
    histories = {key: tuple(log) for key, log in undisturbed.histories.items()}
    return Crashes(points=len(undisturbed.points) - 1, history=tuple(whole), histories=histories)


def _compare(whole: Simulation, resumed: Simulation, point: Point) -> None:
    where = f"killed after entry {point.entry.seq} ({point.entry.type})"
    if len(whole.store.executions) > 1:
        where += f" of {point.store.executions[point.execution_id].started.name!r} ({point.execution_id})"
    before, after = whole.histories, resumed.histories
    for execution_id, log in before.items():
        again, name = after.get(execution_id, []), f"the run of {whole.store.executions[execution_id].started.name!r}"
        assert again, f"{where}, {name} ({execution_id}) was not started"
        assert commands(again) == commands(log), f"{where}, {name} issued other commands than undisturbed"
        assert decisions(again) == decisions(log), f"{where}, {name} had other steps than undisturbed"
        assert outcome(again) == outcome(log), f"{where}, {name} had another outcome than undisturbed"
    assert after.keys() == before.keys(), f"{where}, more executions were started than undisturbed"
    done = {(of, ref) for of, execution in point.store.executions.items() for ref in answered(execution.full_log)}
    twice = done & set(resumed.performed_by)
    assert not twice, f"{where}, completed activities ran again: {sorted(twice)}"
    assert resumed.published == whole.published, f"{where}, other messages were published than undisturbed"


def answered(log: Sequence[events.Event]) -> set[int]:
    """Return the ``seq`` of the answered activities of a history, or the numbers of the work items of a flow."""
    answers = COMMANDS[events.ActivityScheduled].answers
    found = (entry.ref for entry in log if isinstance(entry, (answers, _WORK_ANSWERS)))
    return {ref for ref in found if ref is not None}


def commands(log: Sequence[events.Event]) -> list[tuple[str, str, str | None]]:
    """Return the commands of a history, in the order of their locations."""
    issued = sorted((entry for entry in log if isinstance(entry, events.Command)), key=lambda entry: entry.location)
    return [(str(entry.location), entry.type, entry.name) for entry in issued]


def decisions(log: Sequence[events.Event]) -> list[bytes]:
    """Return what became of the steps of a flow, and the values that they provided; the order is left out."""
    told = (entry for entry in log if isinstance(entry, _DECISIONS))
    return sorted(msgspec.json.encode(msgspec.structs.replace(entry, seq=0, at=0, cause=None)) for entry in told)


def outcome(log: Sequence[events.Event]) -> tuple[str, object]:
    """Return the outcome of a history: the type of its last entry, and the result or the error's type and text."""
    for entry in reversed(log):
        if isinstance(entry, events.WorkflowCompleted | fe.FlowCompleted):
            return entry.type, bytes(entry.result)
        if isinstance(entry, events.WorkflowFailed | events.WorkflowRetried | fe.FlowFailed):
            return entry.type, (entry.failure.type, entry.failure.message)
        if isinstance(entry, (*ENDS, events.WorkflowDiverged, fe.FlowCancelled)):
            return entry.type, getattr(entry, "diagnosis", None)
    return "unfinished", None
