"""Steps as they are registered: values that are the same in memory, in the log of the catalog and in JSON.

A step has named attributes. An attribute has one role in a step: an input (required or optional), a constant, a piece of
metadata, or an output. The same name in two steps is the same attribute of a flow.
"""

from typing import Final, Literal, TypeAlias

import msgspec

Language: TypeAlias = Literal["cel", "lua", "jpath"]
Collect: TypeAlias = Literal["first", "last", "some", "all", "none"]
ValueType: TypeAlias = Literal["", "string", "number", "boolean", "object", "array", "null", "any"]
StepType: TypeAlias = Literal["sync", "async", "script", "flow", "python", "workflow"]
BackoffType: TypeAlias = Literal["", "fixed", "linear", "exponential"]
Method: TypeAlias = Literal["GET", "POST", "PUT", "DELETE"]

MAX_WORK_ITEMS: Final = 10_000
"""Work items that one step may have in one flow."""


class _Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A part of a definition. An unknown field is an error: it would be an option that does nothing."""


class Expression(_Value, frozen=True):
    """A predicate, a match, a mapping or a script, in its language."""

    language: Language
    script: str


class Mapping(_Value, frozen=True):
    """How an attribute is passed: *name* is its name inside the step, *script* computes its value there."""

    name: str = ""
    script: Expression | None = None


class InputConfig(_Value, frozen=True):
    """How an input takes the values of its attribute.

    With *for_each* the step runs once for each element of the value.
    """

    collect: Collect = "first"
    for_each: bool = False
    mapping: Mapping | None = None


class RequiredConfig(InputConfig, frozen=True):
    """An input that the step waits for. Only values for which *match* holds count."""

    match: Expression | None = None


class OptionalConfig(InputConfig, frozen=True):
    """An input that the step waits for until *deadline*, in milliseconds after its required inputs are there.

    *default* is JSON text; without it the input is left out.
    """

    default: str = ""
    deadline: int = 0


class ConstConfig(_Value, frozen=True):
    """A constant: *value* is JSON text."""

    value: str


class MetaConfig(_Value, frozen=True):
    """A piece of metadata of the flow or of the call, by its *key*."""

    key: str


class OutputConfig(_Value, frozen=True):
    """An output, taken from the result of the step."""

    mapping: Mapping | None = None


class Required(_Value, frozen=True, tag_field="role", tag="required"):
    """A required input."""

    type: ValueType = ""
    required: RequiredConfig = RequiredConfig()


class Optional(_Value, frozen=True, tag_field="role", tag="optional"):
    """An optional input."""

    type: ValueType = ""
    optional: OptionalConfig = OptionalConfig()


class Const(_Value, frozen=True, tag_field="role", tag="const"):
    """A constant that is passed under the name of the attribute."""

    const: ConstConfig
    type: ValueType = ""


class Meta(_Value, frozen=True, tag_field="role", tag="meta"):
    """Metadata that is passed under the name of the attribute."""

    meta: MetaConfig
    type: ValueType = ""


class Output(_Value, frozen=True, tag_field="role", tag="output"):
    """An output."""

    type: ValueType = ""
    output: OutputConfig = OutputConfig()


Attribute: TypeAlias = Required | Optional | Const | Meta | Output


class HttpConfig(_Value, frozen=True):
    """A step that is a service. Parameters in braces in *endpoint* and *compensate* are replaced by arguments.

    *timeout* is that of one call and *deadline* that of the answer of an async step, from the moment at which it has
    accepted the call; in milliseconds. 0 is the default of the engine: 30 seconds, an hour.
    """

    endpoint: str
    method: Method = "POST"
    health_check: str = ""
    compensate: str = ""
    timeout: int = 0
    deadline: int = 0


class FlowConfig(_Value, frozen=True):
    """A step that is a flow of its own, with these goals."""

    goals: tuple[str, ...]


class PythonConfig(_Value, frozen=True):
    """A step that is a Python function: an activity, on its queue. *compensate* is the activity that undoes it.

    *parameters* are the names of its arguments by position; without them it gets one argument, the object of its inputs.
    *fields*: the fields of its result are outputs.
    """

    activity: str
    queue: str = ""
    compensate: str = ""
    parameters: tuple[str, ...] | None = None
    fields: bool = True


class WorkflowConfig(_Value, frozen=True):
    """A step that is a whole workflow; it gets its inputs as arguments by name. *fields*: as of a function."""

    workflow: str
    queue: str = ""
    fields: bool = True


class WorkConfig(_Value, frozen=True):
    """How work items run: retries, pauses between them in milliseconds, and how many items at the same time.

    0 or empty is the default of the engine; *max_retries* -1 is without limit. With *once* nothing is retried.
    """

    max_retries: int = 0
    once: bool = False
    init_backoff: int = 0
    max_backoff: int = 0
    backoff_type: BackoffType = ""
    parallelism: int = 0


class Step(_Value, frozen=True):
    """A registered step. Of the configurations only the one of its *type* may be there.

    *memo_ttl* is how long a memoized result counts, in milliseconds; 0 is without limit.
    """

    id: str
    name: str
    type: StepType
    attributes: dict[str, Attribute] = {}
    labels: dict[str, str] = {}
    predicate: Expression | None = None
    memoizable: bool = False
    memo_ttl: int = 0
    http: HttpConfig | None = None
    flow: FlowConfig | None = None
    script: Expression | None = None
    python: PythonConfig | None = None
    workflow: WorkflowConfig | None = None
    work_config: WorkConfig = WorkConfig()

    @property
    def inputs(self) -> dict[str, RequiredConfig | OptionalConfig]:
        """The required and optional inputs, by attribute name."""
        found: dict[str, RequiredConfig | OptionalConfig] = {}
        for name, attribute in self.attributes.items():
            if isinstance(attribute, Required):
                found[name] = attribute.required
            elif isinstance(attribute, Optional):
                found[name] = attribute.optional
        return found

    @property
    def outputs(self) -> dict[str, OutputConfig]:
        """The outputs, by attribute name."""
        return {name: one.output for name, one in self.attributes.items() if isinstance(one, Output)}


def inner_name(name: str, config: InputConfig | OutputConfig) -> str:
    """Return the name that an attribute has inside a step."""
    return name if config.mapping is None else config.mapping.name or name


CONFIGURED_BY: Final[dict[StepType, str]] = {
    "sync": "http",
    "async": "http",
    "script": "script",
    "flow": "flow",
    "python": "python",
    "workflow": "workflow",
}
"""The field that configures each type of step."""
