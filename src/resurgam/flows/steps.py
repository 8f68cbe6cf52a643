"""Define steps: ``@step`` for Python functions, and steps that are scripts, flows or whole workflows.

A function says by its signature what it needs and what it provides: parameters are inputs, those with a default are
optional, and the fields of the result are outputs. A result without fields is one output, named after the step.
"""

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import (
    Annotated,
    Any,
    Final,
    TypeAlias,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
    overload,
)

import msgspec
from msgspec import UNSET

from resurgam.core.codec import codec_for
from resurgam.core.errors import DefinitionError
from resurgam.core.retry import Duration, RetryPolicy, is_whole, milliseconds
from resurgam.flows import model as m
from resurgam.flows.validate import check_id
from resurgam.runtime.definitions.definition import STEP_MARK
from resurgam.runtime.definitions.signature import defined_at
from resurgam.runtime.registry import Registry, default_registry

F = TypeVar("F", bound=Callable[..., Any])

_TYPES: Final[Mapping[object, m.ValueType]] = {
    str: "string",
    int: "number",
    float: "number",
    bool: "boolean",
    list: "array",
    tuple: "array",
    set: "array",
    frozenset: "array",
    dict: "object",
    type(None): "null",
}


class Input(msgspec.Struct, frozen=True):
    """How a parameter takes the values of its attribute, in ``Annotated``.

    *collect* says which values: the first, the last, those that there are in the end (``some``), those of every provider
    (``all``), or only that there is ``none``. With *for_each* the step runs once for each element. *deadline* is how long an
    optional input is waited for once the required ones are there. Only values for which *match*, an expression in CEL,
    holds count. *mapping* is an expression that computes the argument.
    """

    collect: m.Collect = "first"
    for_each: bool = False
    deadline: Duration | None = None
    match: str | None = None
    mapping: str | None = None


class Const(msgspec.Struct, frozen=True):
    """A parameter that always has this value, in ``Annotated``."""

    value: Any


class Meta(msgspec.Struct, frozen=True):
    """A parameter that is metadata of the flow or of the call, such as ``flow_id``, in ``Annotated``."""

    key: str


class StepOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of ``@step``."""

    name: str | None = None
    predicate: str | None = None
    memoize: Duration | bool | None = None
    parallelism: int = 1
    retry: RetryPolicy | None = None
    compensate: Callable[..., Any] | None = None
    queue: str | None = None
    labels: Mapping[str, str] = {}


class StepDecorator:
    """The decorator ``@step``, bare or with options."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.defined: dict[str, m.Step] = {}
        """The steps that were defined, by id."""

    @overload
    def __call__(self, function: F, /) -> F: ...
    @overload
    def __call__(
        self,
        /,
        *,
        name: str | None = None,
        predicate: str | None = None,
        memoize: Duration | bool | None = None,
        parallelism: int = 1,
        retry: RetryPolicy | None = None,
        compensate: Callable[..., Any] | None = None,
        queue: str | None = None,
        labels: Mapping[str, str] = ...,
    ) -> Callable[[F], F]: ...
    def __call__(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Define a step that calls a function; it stays a plain function."""
        settings = StepOptions(**options)

        def define(function: F) -> F:
            self._define(function, settings)
            return function

        return define if function is None else define(function)

    def _define(self, function: Any, options: StepOptions) -> None:
        step_id = options.name or function.__name__
        try:
            check_id("step", step_id)
            made = _described(step_id, function, options, self._compensation(step_id, options))
        except DefinitionError as error:
            raise DefinitionError(f"{defined_at(function)}: {error}") from None
        # Before the activity is made, which takes over the attributes of its function: the step is found in both.
        setattr(function, STEP_MARK, made)
        self.defined[made.id] = made
        given: dict[str, Any] = {} if options.retry is None else {"retry": options.retry}
        self._registry.activity(name=step_id, queue=options.queue, **given)(function)

    def _compensation(self, step_id: str, options: StepOptions) -> str:
        if options.compensate is None:
            return ""
        name = f"{step_id}.compensate"
        self._registry.activity(name=name)(options.compensate)
        return name


class Described(msgspec.Struct, frozen=True):
    """What the signature of a function says about a step. *fields*: the fields of the result are outputs."""

    attributes: dict[str, m.Attribute]
    parameters: tuple[str, ...]
    fields: bool


def describe_function(step_id: str, function: Callable[..., Any], *, skip: int = 0) -> Described:
    """Return the attributes of a step that calls a function, without its first *skip* parameters."""
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise DefinitionError(f"its annotations cannot be read here: {error}; define the type in the module") from None
    parameters = list(inspect.signature(function).parameters.values())[skip:]
    inputs: dict[str, m.Attribute] = {}
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise DefinitionError(
                f"parameter {parameter.name!r}: the inputs of a step have names, so no *args or **kwargs"
            )
        default = UNSET if parameter.default is parameter.empty else parameter.default
        inputs[parameter.name] = input_of(parameter.name, hints.get(parameter.name, Any), default)
    result = hints.get("return", Any)
    outputs = _outputs_of(result)
    attributes = attributes_of(inputs, outputs or {step_id: type_name(result)})
    return Described(attributes, tuple(parameter.name for parameter in parameters), outputs is not None)


def attributes_of(inputs: Mapping[str, m.Attribute], outputs: Mapping[str, m.ValueType]) -> dict[str, m.Attribute]:
    """Return the attributes of a step. If it runs for each element of an input, its outputs are lists."""
    many = any(isinstance(one, m.Required) and one.required.for_each for one in inputs.values()) or any(
        isinstance(one, m.Optional) and one.optional.for_each for one in inputs.values()
    )
    for name in outputs:
        if name in inputs:
            raise DefinitionError(f"{name!r} is an input and an output; a step cannot provide what it takes")
    return {**inputs, **{name: m.Output(type="array" if many else kind) for name, kind in outputs.items()}}


def _described(step_id: str, function: Callable[..., Any], options: StepOptions, compensate: str) -> m.Step:
    found = describe_function(step_id, function)
    return m.Step(
        id=step_id,
        name=(inspect.getdoc(function) or step_id).partition("\n")[0],
        type="python",
        attributes=found.attributes,
        labels=check_labels(options.labels),
        predicate=cel(options.predicate),
        **memo_of(options.memoize),
        python=m.PythonConfig(
            activity=step_id,
            queue=options.queue or "",
            compensate=compensate,
            parameters=found.parameters,
            fields=found.fields,
        ),
        work_config=m.WorkConfig(parallelism=check_parallelism(options.parallelism)),
    )


Memoize: TypeAlias = Duration | bool | None
"""Whether results are kept: true, or for how long they count."""


def memo_of(memoize: Memoize) -> dict[str, Any]:
    """Return the fields of a step that say how its results are kept."""
    if memoize is None or isinstance(memoize, bool):
        return {"memoizable": bool(memoize)}
    length = milliseconds(memoize)
    if length <= 0:
        raise DefinitionError(f"memoize must be True, or how long results count, got {memoize!r}")
    return {"memoizable": True, "memo_ttl": length}


def check_parallelism(parallelism: int) -> int:
    """Return how many work items may run at the same time; refuse less than one."""
    if not is_whole(parallelism, 1):
        raise DefinitionError(f"parallelism must be a whole number, at least 1, got {parallelism!r}")
    return parallelism


def check_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return labels; refuse any that are not strings."""
    if not isinstance(labels, Mapping) or not all(
        isinstance(key, str) and isinstance(value, str) for key, value in labels.items()
    ):
        raise DefinitionError(f"labels must be strings by strings, got {labels!r}")
    return dict(labels)


def input_of(name: str, hint: Any, default: Any = UNSET) -> m.Attribute:
    """Return the role of a parameter: what its annotation says; with a *default* it is optional."""
    notes = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    note = next((one for one in notes if isinstance(one, Input | Const | Meta)), Input())
    if isinstance(note, Const):
        return m.Const(const=m.ConstConfig(value=_json(hint, note.value, f"constant {name!r}")), type=type_name(hint))
    if isinstance(note, Meta):
        return m.Meta(meta=m.MetaConfig(key=note.key), type=type_name(hint))
    script = cel(note.mapping)
    mapping = None if script is None else m.Mapping(script=script)
    # An input that collects a list, or runs for each element, has another type than its attribute.
    shown: m.ValueType = "any" if note.for_each or note.collect in ("some", "all") else type_name(hint)
    if default is UNSET:
        if note.deadline is not None:
            raise DefinitionError(f"parameter {name!r}: a deadline needs a default, which counts after it")
        return m.Required(
            type=shown,
            required=m.RequiredConfig(
                collect=note.collect, for_each=note.for_each, mapping=mapping, match=cel(note.match)
            ),
        )
    if note.match is not None:
        raise DefinitionError(f"parameter {name!r}: match is for required inputs, so it must have no default")
    return m.Optional(
        type=shown,
        optional=m.OptionalConfig(
            collect=note.collect,
            for_each=note.for_each,
            mapping=mapping,
            default=_json(hint, default, f"default of {name!r}"),
            deadline=0 if note.deadline is None else milliseconds(note.deadline),
        ),
    )


def _json(hint: Any, value: Any, where: str) -> str:
    return bytes(codec_for(hint).encode(value, where)).decode()


def cel(script: str | None) -> m.Expression | None:
    """Return an expression in CEL, if there is one."""
    return None if script is None else m.Expression(language="cel", script=script)


def _outputs_of(hint: Any) -> dict[str, m.ValueType] | None:
    """Return the fields of a result, which are outputs; None if it has none, so that it is one output as a whole."""
    kind = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    fields: Sequence[str]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = [field.encode_name for field in msgspec.structs.fields(kind)]
    elif isinstance(kind, type) and dataclasses.is_dataclass(kind):
        fields = [field.name for field in dataclasses.fields(kind)]
    elif is_typeddict(kind):
        fields = list(get_type_hints(kind))
    elif isinstance(kind, type) and hasattr(kind, "model_fields"):
        fields = list(kind.model_fields)
    else:
        return None
    hints = get_type_hints(kind, include_extras=True)
    return {name: type_name(hints.get(name, Any)) for name in fields}


def type_name(hint: Any) -> m.ValueType:
    """Return the type of an attribute for an annotation; one that may be several is ``any``."""
    if get_origin(hint) is Annotated:
        return type_name(get_args(hint)[0])
    kind = get_origin(hint) or hint
    if kind in _TYPES:
        return _TYPES[kind]
    structured = isinstance(kind, type) and (
        issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind) or hasattr(kind, "model_fields")
    )
    return "object" if structured or is_typeddict(kind) else "any"


step: Final = StepDecorator(default_registry)


def steps_in(registry: Registry) -> Iterator[m.Step]:
    """Return the functions of a registry that are steps."""
    for activity in registry.activities:
        found = getattr(activity, STEP_MARK, None)
        if found is not None:
            yield found


Goal: TypeAlias = str | m.Step | Callable[..., Any]
"""A step whose result is wanted: its id, its function, or its definition."""


def goal_ids(goals: Iterable[Goal]) -> list[str]:
    """Return the ids of the steps that goals name."""
    return [goal if isinstance(goal, str) else step_of(goal).id for goal in goals]


def step_of(definition: object) -> m.Step:
    """Return the step that a decorated function, or a definition, stands for."""
    found = definition if isinstance(definition, m.Step) else getattr(definition, STEP_MARK, None)
    if not isinstance(found, m.Step):
        raise DefinitionError(
            f"a step must be a function with @step, or a definition such as ScriptStep(...), got {definition!r}"
        )
    return found
