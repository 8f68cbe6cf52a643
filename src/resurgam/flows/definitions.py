"""Define steps that are not functions: scripts, flows of their own, and whole workflows."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict, Unpack

from msgspec import UNSET

from resurgam.core.errors import DefinitionError
from resurgam.core.retry import Duration
from resurgam.flows import model as m
from resurgam.flows import steps as s
from resurgam.flows.validate import check_id
from resurgam.runtime.definitions.definition import Workflow

Attributes: TypeAlias = Sequence[str] | Mapping[str, Any]
"""Names; or the type of each by name, with its role in ``Annotated``, as for the parameters of a function."""


class Options(TypedDict, total=False):
    """The options that all these steps have, as ``@step`` does. *title* is what people are shown instead of the id."""

    title: str
    predicate: str | None
    memoize: Duration | bool | None
    parallelism: int
    labels: Mapping[str, str]


def ScriptStep(  # noqa: N802 -- named after what it makes
    id: str,
    script: str,
    *,
    inputs: Attributes = (),
    outputs: Attributes = (),
    defaults: Mapping[str, Any] = {},
    language: Literal["lua", "cel"] = "lua",
    **options: Unpack[Options],
) -> m.Step:
    """Define a step that is a script: its inputs are variables, the fields of what it returns are its outputs.

    Inputs with a value in *defaults* are optional. Without *outputs* the result is one, named after the step.
    """
    if not isinstance(script, str):
        raise DefinitionError(f"step {id!r}: script must be text, got {script!r}")
    if language not in ("lua", "cel"):
        raise DefinitionError(f"step {id!r}: language must be 'lua' or 'cel', got {language!r}")
    attributes = _attributes(id, inputs, outputs, defaults, {id: "any"})
    return _step(id, "script", attributes, options, script=m.Expression(language=language, script=script))


def FlowStep(  # noqa: N802 -- as above
    id: str,
    goals: Sequence[str],
    *,
    inputs: Attributes = (),
    outputs: Attributes = (),
    defaults: Mapping[str, Any] = {},
    **options: Unpack[Options],
) -> m.Step:
    """Define a step that is a flow of its own: it is given the inputs, and its attributes *outputs* are the result."""
    if isinstance(goals, str) or not isinstance(goals, Sequence) or not goals:
        raise DefinitionError(f"step {id!r}: goals must be a list of steps, such as ['ship'], got {goals!r}")
    names = tuple(goal if isinstance(goal, str) else s.step_of(goal).id for goal in goals)
    attributes = _attributes(id, inputs, outputs, defaults, {})
    return _step(id, "flow", attributes, options, flow=m.FlowConfig(goals=names))


def WorkflowStep(  # noqa: N802 -- as above
    workflow: Workflow[..., Any], *, id: str | None = None, queue: str | None = None, **options: Unpack[Options]
) -> m.Step:
    """Define a step that is a whole workflow: its parameters are inputs and the fields of its result are outputs.

    A parameter with a default is an optional input. The id is the name of the workflow, unless another is given.
    """
    if not isinstance(workflow, Workflow) or workflow.function is None:
        raise DefinitionError(f"a workflow step needs a function with @workflow, got {workflow!r}")
    step_id = workflow.name if id is None else id
    check_id("step", step_id)
    try:
        found = s.describe_function(step_id, workflow.function, skip=1)
    except DefinitionError as error:
        raise DefinitionError(f"step {step_id!r}: {error}") from None
    config = m.WorkflowConfig(workflow=workflow.name, queue=queue or workflow.queue or "", fields=found.fields)
    title = options.get("title") or (inspect.getdoc(workflow.function) or step_id).partition("\n")[0]
    return _step(step_id, "workflow", found.attributes, {**options, "title": title}, workflow=config)


def _attributes(
    step_id: str,
    inputs: Attributes,
    outputs: Attributes,
    defaults: Mapping[str, Any],
    otherwise: Mapping[str, m.ValueType],
) -> dict[str, m.Attribute]:
    try:
        types = _typed(inputs, "inputs")
        unknown = sorted(defaults.keys() - types.keys())
        if unknown:
            raise DefinitionError(f"{unknown[0]!r} has a default, but is not among the inputs")
        made = {name: s.input_of(name, hint, defaults.get(name, UNSET)) for name, hint in types.items()}
        provided = {name: s.type_name(hint) for name, hint in _typed(outputs, "outputs").items()}
        return s.attributes_of(made, provided or otherwise)
    except DefinitionError as error:
        raise DefinitionError(f"step {step_id!r}: {error}") from None


def _typed(attributes: Attributes, what: str) -> dict[str, Any]:
    if isinstance(attributes, str) or not isinstance(attributes, Sequence | Mapping):
        raise DefinitionError(f"{what} must be a list of names, or types by name, got {attributes!r}")
    typed = dict(attributes) if isinstance(attributes, Mapping) else dict.fromkeys(attributes, Any)
    for name in typed:
        if not isinstance(name, str) or not name:
            raise DefinitionError(f"{what} must have names, got {name!r}")
    return typed


def _step(
    step_id: str, kind: m.StepType, attributes: dict[str, m.Attribute], options: Options, **config: Any
) -> m.Step:
    check_id("step", step_id)
    try:
        return m.Step(
            id=step_id,
            name=options.get("title") or step_id,
            type=kind,
            attributes=attributes,
            labels=s.check_labels(options.get("labels", {})),
            predicate=s.cel(options.get("predicate")),
            **s.memo_of(options.get("memoize")),
            work_config=m.WorkConfig(parallelism=s.check_parallelism(options.get("parallelism", 1))),
            **config,
        )
    except DefinitionError as error:
        raise DefinitionError(f"step {step_id!r}: {error}") from None
