"""Check a step by itself, before it enters the catalog. `Catalog.put` checks that it fits the others."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from resurgam.core.errors import DefinitionError
from resurgam.flows import model as m
from resurgam.flows.errors import ExpressionFailed, LanguageMissing, located
from resurgam.flows.http.call import url_problem
from resurgam.flows.judge import Judge

YEAR: Final = 365 * 24 * 3600 * 1000
"""Milliseconds; the longest deadline of an input."""

_ID_CHARACTERS: Final = re.compile(r"[^a-z0-9_.+\- ]")
_PARAMETER: Final = re.compile(r"\{([^{}]*)\}")
_PYTHON_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "string": (str,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "null": (type(None),),
}


def clean_id(text: str) -> str:
    """Return an id with lower-case letters, digits and ``_.+-`` only: others are left out, spaces become hyphens."""
    return _ID_CHARACTERS.sub("", text.lower()).replace(" ", "-").strip("-")


def check_id(kind: str, text: str) -> None:
    """Raise `DefinitionError` for an id that is empty or has other characters than ids have."""
    clean = clean_id(text)
    if clean != text or not text:
        remedy = f"; use {clean!r}" if clean else ""
        raise DefinitionError(
            f"the id of a {kind} has lower-case letters, digits, '_', '.', '+' and '-' only, got {text!r}{remedy}"
        )


def validate(step: m.Step, judge: Judge) -> None:
    """Raise `DefinitionError` if a step can never run as it is defined; the message says where and what to do."""
    check_id("step", step.id)
    try:
        for check in (_check_config, _check_names, _check_attributes, _check_addresses, _check_parameters, _check_work):
            check(step)
        _check_expressions(step, judge)
    except (ValueError, ExpressionFailed) as error:
        raise DefinitionError(f"step {step.id!r}: {error}") from None


def _check_config(step: m.Step) -> None:
    wanted = m.CONFIGURED_BY[step.type]
    for field in sorted(set(m.CONFIGURED_BY.values())):
        present = getattr(step, field) is not None
        if present and field != wanted:
            raise ValueError(f"a step of type {step.type!r} has no {field!r}")
        if not present and field == wanted:
            raise ValueError(f"a step of type {step.type!r} needs {wanted!r}")
    if step.flow is not None and not step.flow.goals:
        raise ValueError("a flow step needs goals")
    if step.script is not None and step.script.language == "jpath":
        raise ValueError("a script is written in 'lua'; 'jpath' is for predicates, matches and mappings")
    if step.memoizable and step.http is not None and step.http.compensate:
        raise ValueError("a memoizable step cannot be compensated: its result may be that of another flow")
    if step.memoizable and step.python is not None and step.python.compensate:
        raise ValueError("a memoizable step cannot be compensated: its result may be that of another flow")
    if step.memoizable and step.type in ("flow", "workflow"):
        raise ValueError(f"a step of type {step.type!r} cannot be memoized; memoize the steps or activities inside it")
    if step.memo_ttl and not step.memoizable:
        raise ValueError("memo_ttl is for memoizable steps")


def _check_names(step: m.Step) -> None:
    if not step.name:
        raise ValueError("the name is empty")
    for what, names in (("inputs", inner_inputs(step)), ("outputs", inner_outputs(step))):
        doubled = sorted({name for name in names if list(names).count(name) > 1})
        if doubled:
            raise ValueError(f"two {what} have the name {doubled[0]!r} inside the step")


def _check_attributes(step: m.Step) -> None:
    for name, attribute in step.attributes.items():
        if not name:
            raise ValueError("an attribute has no name")
        match attribute:
            case m.Const():
                _check_json(name, attribute.const.value, attribute.type)
            case m.Optional():
                if attribute.optional.default:
                    _check_json(name, attribute.optional.default, attribute.type)
                if not 0 <= attribute.optional.deadline <= YEAR:
                    raise ValueError(f"attribute {name!r}: a deadline has 0 to {YEAR} milliseconds (a year)")
            case m.Meta() if not attribute.meta.key:
                raise ValueError(f"attribute {name!r}: the key of the metadata is empty")
            case _:
                pass
    for name, config in step.inputs.items():
        lists = config.collect in ("some", "all")
        if config.for_each and not lists and step.attributes[name].type not in ("", "any", "array"):
            raise ValueError(f"attribute {name!r}: for_each needs type 'array', got {step.attributes[name].type!r}")


def _check_json(name: str, text: str, declared: m.ValueType) -> None:
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ValueError(f"attribute {name!r}: {text!r} is not JSON ({error}); text needs double quotes") from None
    expected = _PYTHON_TYPES.get(declared)
    if expected is None:
        return
    if not isinstance(value, expected) or (isinstance(value, bool) and declared == "number"):
        raise ValueError(f"attribute {name!r}: {text} is not of type {declared!r}")


def _check_addresses(step: m.Step) -> None:
    http = step.http
    if http is None:
        return
    for field in ("endpoint", "health_check", "compensate"):
        url: str = getattr(http, field)
        problem = url_problem(url) if url or field == "endpoint" else None
        if problem is not None:
            raise ValueError(f"{field} {problem}")
    for field in ("timeout", "deadline"):
        if not 0 <= getattr(http, field) <= YEAR:
            raise ValueError(f"{field} has 0 to {YEAR} milliseconds (a year), got {getattr(http, field)}")
    if http.deadline and step.type != "async":
        raise ValueError("a deadline is for steps of type 'async', which answer later; use timeout")


def _check_parameters(step: m.Step) -> None:
    """Parameters of a URL must be arguments that are sure to be there."""
    if step.http is None:
        return
    if _PARAMETER.search(step.http.health_check):
        raise ValueError("health_check has no parameters: it belongs to no call")
    required = {m.inner_name(name, one) for name, one in step.inputs.items() if isinstance(one, m.RequiredConfig)}
    every = {*inner_inputs(step), *inner_outputs(step)}
    for field, url, known in (("endpoint", step.http.endpoint, required), ("compensate", step.http.compensate, every)):
        for name in _PARAMETER.findall(url):
            if name not in known:
                what = "required input" if field == "endpoint" else "input or output"
                raise ValueError(f"{field}: {{{name}}} is no {what} of this step")


def _check_work(step: m.Step) -> None:
    work = step.work_config
    if work.max_retries < -1:
        raise ValueError("work_config: max_retries is -1 (no limit), 0 (the default) or more")
    if work.once and work.max_retries:
        raise ValueError("work_config: once is without retries, so that max_retries must be 0")
    if work.parallelism < 0 or work.init_backoff < 0 or work.max_backoff < 0:
        raise ValueError("work_config: parallelism and backoffs are 0 or more")
    if work.max_backoff and work.max_backoff < work.init_backoff:
        raise ValueError("work_config: max_backoff is less than init_backoff")


def _check_expressions(step: m.Step, judge: Judge) -> None:
    for place, expression, parameters in _expressions(step):
        with located(place):
            try:
                judge.check(expression, parameters)
            except LanguageMissing as error:
                raise ExpressionFailed(str(error)) from None


def _expressions(step: m.Step) -> Iterator[tuple[str, m.Expression, Sequence[str]]]:
    """Yield every expression of a step, with its place and the names that it may use."""
    arguments = sorted(inner_inputs(step))
    if step.predicate is not None:
        yield "predicate", step.predicate, arguments
    if step.script is not None:
        yield "script", step.script, arguments
    for name, config in step.inputs.items():
        if isinstance(config, m.RequiredConfig) and config.match is not None:
            yield f"match of {name!r}", config.match, ("value",)
        if config.mapping is not None and config.mapping.script is not None:
            yield f"mapping of {name!r}", config.mapping.script, ("value",)
    for name, output in step.outputs.items():
        if output.mapping is not None and output.mapping.script is not None:
            yield f"mapping of {name!r}", output.mapping.script, ("result",)


def inner_inputs(step: m.Step) -> Sequence[str]:
    """Return the names of all arguments, inside the step."""
    fixed = [name for name, one in step.attributes.items() if isinstance(one, m.Const | m.Meta)]
    return [*(m.inner_name(name, config) for name, config in step.inputs.items()), *fixed]


def inner_outputs(step: m.Step) -> Sequence[str]:
    """Return the names of all outputs, inside the step."""
    return [m.inner_name(name, config) for name, config in step.outputs.items()]
