"""``ctx.flow``: a goal flow as a child of a workflow."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.codec import Codec, codec_for
from resurgam.core.errors import DefinitionError
from resurgam.core.flow_event import FlowRequest, flow_name
from resurgam.runtime.context.children import Child, ChildOptions, fingerprinted, issue_child
from resurgam.runtime.definitions.definition import STEP_MARK
from resurgam.runtime.matching.recorder import Recorder

RESULT: Final[Codec[Any]] = codec_for(dict[str, Any])


def start_flow(
    recorder: Recorder,
    goals: object,
    init: Mapping[str, object] | None,
    metadata: Mapping[str, object] | None,
    options: ChildOptions,
    step: int | None,
) -> Child[dict[str, Any]]:
    """Issue the command that starts a flow. The worker that begins the flow plans it from the catalog."""
    names = goal_names(goals)
    name = flow_name(names)
    given = (
        (events.NULL, None)
        if recorder.mode.rehearsing
        else fingerprinted(recorder, _encode(names, init or {}, metadata or {}), f"init of flow {name!r}")
    )
    return issue_child(recorder, events.FlowScheduled, name, RESULT, given, options, step)


def goal_names(goals: object) -> tuple[str, ...]:
    """Return the ids of the goals of a flow, sorted: their order has no meaning."""
    if isinstance(goals, str) or not isinstance(goals, Iterable):
        raise DefinitionError(f"ctx.flow: goals must be a list of steps or of their names, got {goals!r}")
    names = {_goal_name(goal) for goal in goals}
    if not names:
        raise DefinitionError("ctx.flow: a flow needs a goal: name the steps whose results are wanted")
    return tuple(sorted(names))


def _goal_name(goal: object) -> str:
    definition = getattr(goal, STEP_MARK, goal)
    name = goal if isinstance(goal, str) else getattr(definition, "id", None)
    if not isinstance(name, str) or not name:
        raise DefinitionError(f"ctx.flow: a goal must be a step or the name of one, got {goal!r}")
    return name


def _encode(goals: tuple[str, ...], init: Mapping[str, object], metadata: Mapping[str, object]) -> Raw:
    request = FlowRequest(
        goals=goals,
        init={name: (value,) for name, value in _values("init", init).items()},
        metadata=_values("metadata", metadata),
    )
    return Raw(msgspec.json.encode(request))


def _values(what: str, given: Mapping[str, object]) -> dict[str, Raw]:
    """Return given values as JSON, each by its own type, in the order of their names."""
    if not isinstance(given, Mapping) or not all(isinstance(name, str) and name for name in given):
        raise DefinitionError(f"ctx.flow: {what} must be an object with names as keys, got {given!r}")
    return {name: Raw(codec_for(type(given[name])).encode(given[name], f"{what} {name!r}")) for name in sorted(given)}
