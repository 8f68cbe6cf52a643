"""Kills a run after every event it records, resumes it, and holds it to one outcome."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVarTuple

from resurgam.core import event as events
from resurgam.core.commands import COMMANDS
from resurgam.core.state import ENDS
from resurgam.runtime.context.context import Context
from resurgam.runtime.definitions.definition import Activity, Workflow
from resurgam.runtime.registry import Registry, default_registry
from resurgam.testing.simulation import Point, Simulation

Ts = TypeVarTuple("Ts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Crashes:
    """How a workflow stood up to being killed: after how many events, and the one history it always ended with.

    *histories* are those of all executions that came of it, by their ids, in the order in which they began: children,
    attempts, generations. Of these *history* is the one of the workflow's last.
    """

    points: int
    history: tuple[events.Event, ...]
    histories: Mapping[str, tuple[events.Event, ...]]

    def __repr__(self) -> str:
        """Return the counts and how the workflow ended, in one line; the histories would fill pages."""
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
) -> Crashes:
    """Run *workflow* once undisturbed, then kill it after every event and resume it.

    Killed is everything at once: the workflow and what it began, after every event of any of them. Raises
    `AssertionError` if any resumed run ends otherwise, asks for anything else on its way, or does again what was done.

    *mocks* says what activities do, by activity or name: a value, an exception or a callable; *messages* are signals,
    updates and requests to cancel sent to the workflow meanwhile; *promises* says how those who wait for promises are
    answered, by name: a value or an exception.
    """
    assert isinstance(workflow, Workflow), f"{workflow!r} is not a workflow; decorate it with @workflow"
    named = {key.name if isinstance(key, Activity) else key: value for key, value in (mocks or {}).items()}

    def world(at: Point | None = None) -> Simulation:
        given: dict[str, Any] = {"mocks": named, "messages": messages, "promises": promises, "registry": registry}
        return Simulation(workflow, *args, at=at, keep=at is None, **given)

    undisturbed = world()
    whole = await undisturbed.run()
    for point in undisturbed.points[:-1]:
        resumed = world(point)
        await resumed.run()
        _compare(undisturbed, resumed, point)
    histories = {key: tuple(log) for key, log in undisturbed.histories.items()}
    return Crashes(points=len(undisturbed.points) - 1, history=tuple(whole), histories=histories)


def _compare(whole: Simulation, resumed: Simulation, point: Point) -> None:
    where = f"killed after entry {point.entry.seq} ({point.entry.type})"
    if len(whole.world.lives) > 1:
        where += f" of {point.world.lives[point.execution_id].started.name!r} ({point.execution_id})"
    before, after = whole.histories, resumed.histories
    for execution_id, log in before.items():
        again, name = after.get(execution_id, []), f"the run of {whole.world.lives[execution_id].started.name!r}"
        assert again, f"{where}, {name} ({execution_id}) was not begun"
        assert commands(again) == commands(log), f"{where}, {name} asked for other things than undisturbed"
        assert outcome(again) == outcome(log), f"{where}, {name} ended otherwise than undisturbed"
    assert after.keys() == before.keys(), f"{where}, more executions were begun than undisturbed"
    done = {(of, ref) for of, life in point.world.lives.items() for ref in answered(life.ever)}
    twice = done & set(resumed.performed_by)
    assert not twice, f"{where}, activities that were done are done again: {sorted(twice)}"
    assert resumed.published == whole.published, f"{where}, other messages were published than undisturbed"


def answered(log: Sequence[events.Event]) -> set[int]:
    """Return the activities that a history holds the answer of."""
    return {entry.ref for entry in log if isinstance(entry, COMMANDS[events.ActivityScheduled].answers)}


def commands(log: Sequence[events.Event]) -> list[tuple[str, str, str | None]]:
    """Return what a history asked for, in the order of places."""
    issued = sorted((entry for entry in log if isinstance(entry, events.Command)), key=lambda entry: entry.location)
    return [(str(entry.location), entry.type, entry.name) for entry in issued]


def outcome(log: Sequence[events.Event]) -> tuple[str, object]:
    """Return how a history ended: the kind of end, and the result or the error's type and text."""
    for entry in reversed(log):
        if isinstance(entry, events.WorkflowCompleted):
            return entry.type, bytes(entry.result)
        if isinstance(entry, events.WorkflowFailed | events.WorkflowRetried):
            return entry.type, (entry.failure.type, entry.failure.message)
        if isinstance(entry, (*ENDS, events.WorkflowDiverged)):
            return entry.type, getattr(entry, "diagnosis", None)
    return "unfinished", None
