"""Steps, plans and moments as the original shows them.

An empty list of names is null in a plan, a moment that has not come is the year one, and what is empty is mostly left out.
"""

from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from resurgam.flows import model as m
from resurgam.flows.catalog import Catalog
from resurgam.flows.expressions import Expressions
from resurgam.flows.planner import Edge, Mode, Plan, plan_child

TYPES: Final = ("sync", "async", "script", "flow")
"""The types of steps that the original has."""

ZERO_TIME: Final = "0001-01-01T00:00:00Z"
"""The moment of what has not happened."""


def moment(at: int | None) -> str:
    """Return a moment in milliseconds as text; None: it has not come."""
    if at is None:
        return ZERO_TIME
    return datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def step_shape(step: m.Step) -> dict[str, Any]:
    """Return a step; the time-out of a service is always shown.

    The original has no steps that are functions or workflows. They are shown as ``sync``, because its clients fail on a
    type that they do not know.
    """
    shape: dict[str, Any] = msgspec.to_builtins(step)
    shape.setdefault("attributes", {})
    if step.type not in TYPES:
        shape["type"] = "sync"
    if step.http is not None:
        shape["http"].setdefault("timeout", step.http.timeout)
    return shape


def steps_shape(steps: Iterable[m.Step]) -> dict[str, Any]:
    """Return steps by id."""
    return {step.id: step_shape(step) for step in steps}


def edge_shape(edge: Edge) -> dict[str, Any]:
    """Return which steps provide an attribute and which take it."""
    return {"providers": _names(edge.providers), "consumers": _names(edge.consumers)}


def edges_of(steps: Iterable[m.Step]) -> dict[str, Any]:
    """Return the attributes of all these steps, with which of them provide and take each."""
    providers: dict[str, list[str]] = {}
    consumers: dict[str, list[str]] = {}
    for step in steps:
        for name in step.outputs:
            providers.setdefault(name, []).append(step.id)
        for name in step.inputs:
            consumers.setdefault(name, []).append(step.id)
    return {
        name: edge_shape(Edge(tuple(providers.get(name, ())), tuple(consumers.get(name, ()))))
        for name in sorted(providers.keys() | consumers.keys())
    }


def plan_shape(plan: Plan, mode: Mode) -> dict[str, Any]:
    """Return a plan, with those of its flow steps as far as they can be told before they start."""
    shape: dict[str, Any] = {
        "goals": plan.goals,
        "required": _names(plan.required),
        "steps": steps_shape(plan.steps.values()),
        "attributes": {name: edge_shape(edge) for name, edge in plan.attributes.items()},
        "excluded": msgspec.to_builtins(plan.excluded),
    }
    if plan.children:
        shape["children"] = {
            step_id: plan_shape(plan_child(Catalog(known), plan, step_id, mode, Expressions().matches), mode)
            for step_id, known in plan.children.items()
        }
    return shape


def _names(names: Collection[str]) -> list[str] | None:
    return list(names) or None
