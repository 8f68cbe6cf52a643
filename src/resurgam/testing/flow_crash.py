"""Kill a simulated flow after everything that it records, resume it, and assert that it has the same outcome."""

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from resurgam.core import event as events
from resurgam.core import flow_event as fe
from resurgam.core.codec import codec_for
from resurgam.flows.catalog import Catalog
from resurgam.flows.expressions import Expressions
from resurgam.flows.planner import check_given, plan
from resurgam.flows.state import FlowInput
from resurgam.flows.steps import Goal, goal_ids, step_of
from resurgam.flows.wiring import encode_plan
from resurgam.runtime.definitions.definition import DEFAULT_QUEUE, Activity
from resurgam.runtime.registry import Registry, default_registry
from resurgam.testing.clock import START
from resurgam.testing.crash import Crashes, sweep
from resurgam.testing.loading import catalog_of
from resurgam.testing.simulation import Chooser, First, Key, Point, Possibility, Simulation

T = TypeVar("T")
_ANY = codec_for(Any)


class _Onwards:
    """A chooser that repeats the choices of another simulation as far as they are possible."""

    def __init__(self, choices: Sequence[Key]) -> None:
        self._remaining = iter(choices)

    def choice(self, seq: Sequence[T], /) -> T:
        """Pick the recorded choice, or else the first."""
        key = next(self._remaining, None)
        return next((one for one in seq if isinstance(one, Possibility) and one.key == key), seq[0])


async def crash_flow_everywhere(
    goals: Sequence[Goal],
    init: Mapping[str, object] | None = None,
    *,
    steps: Iterable[object] = (),
    mocks: Mapping[Any, object] | None = None,
    messages: Sequence[events.Event] = (),
    seed: int | None = None,
    registry: Registry = default_registry,
) -> Crashes:
    """Run a flow once undisturbed, then kill it after every commit and resume it.

    The flow and its children are killed together. Raise `AssertionError` if a resumed flow has another outcome, if its
    steps become something else, or if completed work is repeated.

    The steps are the functions of *registry* with ``@step``, and *steps*: those that are services, scripts, flows or
    workflows. *mocks* replace steps and activities, by function or name, by a value, an exception or a callable; each
    service needs one. *messages* are
    cancel requests and the like. *seed* decides the order in which work completes; without it, work completes in the
    order in which it was started.
    """
    catalog = catalog_of(registry, steps)
    started = _started(catalog, goals, init or {})
    named = {_name_of(key): value for key, value in (mocks or {}).items()}

    undisturbed: list[Simulation] = []

    def simulation(at: Point | None) -> Simulation:
        chooser: Chooser = First() if seed is None else random.Random(seed)
        if at is not None:
            # What happened afterwards happens again, so that everything must become the same.
            chooser = _Onwards(undisturbed[0].choices[at.choices :])
        options: dict[str, Any] = {"mocks": named, "messages": messages, "registry": registry, "chooser": chooser}
        made = Simulation(started, at=at, keep=at is None, catalog=catalog, **options)
        undisturbed.append(made)
        return made

    return await sweep(simulation)


def _name_of(function: Any) -> str:
    """Return the name of an activity: one that is a step has that of the step."""
    if isinstance(function, str):
        return function
    return function.name if isinstance(function, Activity) else step_of(function).id


def _started(catalog: Catalog, goals: Sequence[Goal], init: Mapping[str, object]) -> fe.FlowStarted:
    """Return the first entry of a simulated flow."""
    written = {name: Raw(_ANY.encode(value, f"init[{name!r}]")) for name, value in init.items()}
    given = {name: (msgspec.json.decode(value),) for name, value in written.items()}
    made = plan(catalog, goal_ids(goals), given, "strict", Expressions().matches)
    check_given(made)
    return fe.FlowStarted(
        seq=1,
        at=START,
        name=fe.flow_name(made.goals),
        queue=DEFAULT_QUEUE,
        entity_id="simulated",
        execution_id="execution-1",
        run_id="run-1",
        tree_id="run-1",
        input=Raw(
            msgspec.json.encode(FlowInput(encode_plan(made), {name: (value,) for name, value in written.items()}))
        ),
    )
