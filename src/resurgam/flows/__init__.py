"""Goal flows: name the result, and the engine plans, runs and records the steps that lead to it.

A step says what it needs and what it provides. ``@step`` makes one of a Python function; `HttpStep`, `ScriptStep`,
`FlowStep` and `WorkflowStep` define others. ``engine.start_flow(goals, init)`` starts a flow.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from resurgam.flows.catalog import Catalog
    from resurgam.flows.definitions import FlowStep, HttpStep, ScriptStep, WorkflowStep
    from resurgam.flows.errors import ExpressionFailed
    from resurgam.flows.model import Step
    from resurgam.flows.planner import Plan, plan
    from resurgam.flows.steps import Const, Input, Meta, StepDecorator, step
else:
    # The same imports, each made when its name is first used: a worker that serves no flow needs few of them.
    from importlib import import_module

    _MODULES = {
        "Catalog": "resurgam.flows.catalog",
        "Const": "resurgam.flows.steps",
        "ExpressionFailed": "resurgam.flows.errors",
        "FlowStep": "resurgam.flows.definitions",
        "HttpStep": "resurgam.flows.definitions",
        "Input": "resurgam.flows.steps",
        "Meta": "resurgam.flows.steps",
        "Plan": "resurgam.flows.planner",
        "ScriptStep": "resurgam.flows.definitions",
        "Step": "resurgam.flows.model",
        "StepDecorator": "resurgam.flows.steps",
        "WorkflowStep": "resurgam.flows.definitions",
        "plan": "resurgam.flows.planner",
        "step": "resurgam.flows.steps",
    }

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


__all__ = [
    "Catalog",
    "Const",
    "ExpressionFailed",
    "FlowStep",
    "HttpStep",
    "Input",
    "Meta",
    "Plan",
    "ScriptStep",
    "Step",
    "StepDecorator",
    "WorkflowStep",
    "plan",
    "step",
]
