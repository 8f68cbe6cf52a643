"""Define steps that are not functions: services, scripts, flows of their own, and whole workflows."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, TypedDict, Unpack

from msgspec import UNSET
from msgspec.structs import replace

from resurgam.core.errors import DefinitionError
from resurgam.core.retry import Duration, RetryPolicy, milliseconds
from resurgam.flows import model as m
from resurgam.flows import steps as s
from resurgam.flows.validate import check_id
from resurgam.runtime.definitions.definition import Workflow

Attributes: TypeAlias = Sequence[str] | Mapping[str, Any]
"""Names; or the type of each by name, with its role in ``Annotated``, as for the parameters of a function."""


_USUAL_WORK: Final = m.WorkConfig()


class Options(TypedDict, total=False):
    """The options that all these steps have, as ``@step`` does. *title* is what people are shown instead of the id."""

    title: str
    predicate: str | None
    memoize: Duration | bool | None
    parallelism: int
    labels: Mapping[str, str]


class ServiceOptions(Options, total=False):
    """The options of a step that is a service.

    *timeout* is that of one call. *compensate* is the address that undoes a work item, *health_check* one that answers
    whether the service can be called.
    """

    method: m.Method
    asynchronous: bool
    timeout: Duration | None
    deadline: Duration | None
    retry: RetryPolicy | None
    compensate: str | None
    health_check: str | None


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


def HttpStep(  # noqa: N802 -- as above
    id: str,
    url: str,
    *,
    inputs: Attributes = (),
    outputs: Attributes = (),
    defaults: Mapping[str, Any] = {},
    **options: Unpack[ServiceOptions],
) -> m.Step:
    """Define a step that is a service: it gets its inputs as a JSON object, and returns one of its outputs.

    A service that needs longer than a call is *asynchronous*: it accepts the call by any answer 2xx, and sends its
    outputs to the webhook that came with the call, within the *deadline*. Parameters in braces in *url* are inputs.
    Without *outputs* there is one, named after the step.
    """
    if not isinstance(url, str) or not url:
        raise DefinitionError(f"step {id!r}: url must be an address such as 'http://localhost:8080/pay', got {url!r}")
    kind: m.StepType = "async" if options.get("asynchronous", False) else "sync"
    attributes = _attributes(id, inputs, outputs, defaults, {id: "any"})
    try:
        config = m.HttpConfig(
            endpoint=url,
            method=options.get("method", "POST"),
            health_check=options.get("health_check") or "",
            compensate=options.get("compensate") or "",
            timeout=_length("timeout", options.get("timeout")),
            deadline=_length("deadline", options.get("deadline")),
        )
        work = _retries(options.get("retry"))
    except (DefinitionError, ValueError) as error:
        raise DefinitionError(f"step {id!r}: {error}") from None
    return _step(id, kind, attributes, options, work, http=config)


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


def _length(what: str, duration: Duration | None) -> int:
    if duration is None:
        return 0
    length = milliseconds(duration)
    if length <= 0:
        raise DefinitionError(f"{what} must be more than 0 seconds, got {duration!r}")
    return length


def _retries(policy: RetryPolicy | None) -> m.WorkConfig:
    """Return a policy in the form in which services of every language state theirs."""
    if policy is None:
        return _USUAL_WORK
    usual = RetryPolicy()
    if policy.non_retryable or not policy.redeliver or policy.jitter != usual.jitter:
        raise DefinitionError(
            "retry of a service has no non_retryable, redeliver or jitter; its answers say what is final"
        )
    if policy.backoff not in (1, 2):
        raise DefinitionError(f"retry of a service has backoff 1 or 2, or is linear, got backoff {policy.backoff:g}")
    return m.WorkConfig(
        max_retries=-1 if policy.max_attempts is None else policy.max_attempts - 1,
        once=policy.max_attempts == 1,
        init_backoff=max(1, milliseconds(policy.initial_interval)),
        max_backoff=max(1, milliseconds(policy.max_interval)),
        backoff_type="linear" if policy.linear else "fixed" if policy.backoff == 1 else "exponential",
    )


def _step(
    step_id: str,
    kind: m.StepType,
    attributes: dict[str, m.Attribute],
    options: Options,
    work: m.WorkConfig = _USUAL_WORK,
    **config: Any,
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
            work_config=replace(work, parallelism=s.check_parallelism(options.get("parallelism", 1))),
            **config,
        )
    except DefinitionError as error:
        raise DefinitionError(f"step {step_id!r}: {error}") from None
