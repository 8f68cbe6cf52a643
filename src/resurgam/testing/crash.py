"""Kills a run after every event it records, resumes it, and holds it to one outcome."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVarTuple

from resurgam.core import event as events
from resurgam.runtime.context import Context
from resurgam.runtime.definition import Activity, Workflow
from resurgam.runtime.registry import Registry, default_registry
from resurgam.testing.simulation import Simulation

Ts = TypeVarTuple("Ts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Crashes:
    """How a workflow stood up to being killed: after how many events, and the one history it always ended with."""

    points: int
    history: tuple[events.Event, ...]


async def crash_everywhere(
    workflow: Callable[[Context, *Ts], Coroutine[Any, Any, Any]],
    *args: *Ts,
    mocks: Mapping[Activity[..., Any] | str, object] | None = None,
    messages: Sequence[events.Event] = (),
    registry: Registry = default_registry,
) -> Crashes:
    """Run *workflow* once undisturbed, then kill it after every event and resume it.

    Raises `AssertionError` if any resumed run ends otherwise, or asks for anything else on its way. *mocks* says what
    activities do, by activity or name: a value, an exception or a callable; *messages* are signals sent meanwhile.
    """
    assert isinstance(workflow, Workflow), f"{workflow!r} is not a workflow; decorate it with @workflow"
    named = {key.name if isinstance(key, Activity) else key: value for key, value in (mocks or {}).items()}

    def world(log: Sequence[events.Event]) -> Simulation:
        return Simulation(workflow, *args, log=log, mocks=named, messages=messages, registry=registry)

    undisturbed = world(())
    whole = await undisturbed.run()
    points = undisturbed.ever[:-1]
    for last in points:
        resumed = await world(undisturbed.as_of(last.seq)).run()
        where = f"killed after entry {last.seq} ({last.type})"
        assert commands(resumed) == commands(whole), f"{where}, the run asked for other things than undisturbed"
        assert outcome(resumed) == outcome(whole), f"{where}, the run ended otherwise than undisturbed"
    return Crashes(points=len(points), history=tuple(whole))


def commands(log: Sequence[events.Event]) -> list[tuple[str, str, str | None]]:
    """Return what a history asked for, in the order of places."""
    issued = sorted((entry for entry in log if isinstance(entry, events.Command)), key=lambda entry: entry.location)
    return [(str(entry.location), entry.type, entry.name) for entry in issued]


def outcome(log: Sequence[events.Event]) -> tuple[str, object]:
    """Return how a history ended: the kind of end, and the result or the error's type and text."""
    for entry in reversed(log):
        if isinstance(entry, events.WorkflowCompleted):
            return entry.type, bytes(entry.result)
        if isinstance(entry, events.WorkflowFailed):
            return entry.type, (entry.failure.type, entry.failure.message)
        if isinstance(entry, events.WorkflowCancelled | events.WorkflowDiverged):
            return entry.type, getattr(entry, "diagnosis", None)
    return "unfinished", None
