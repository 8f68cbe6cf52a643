"""Steps as clients of the original write them, made into steps of the catalog.

Whatever is empty or null counts as not given. Retries that are not given are those of the original, in numbers: a step
that is registered here is retried as it would be there.
"""

from typing import Any, Final, get_args

import msgspec

from resurgam.flows import model as m
from resurgam.flows.validate import clean_id
from resurgam.web.argyll.exchange import Refused
from resurgam.web.argyll.shapes import TYPES

RETRIES: Final = m.WorkConfig(max_retries=10, init_backoff=1000, max_backoff=60_000, backoff_type="exponential")
"""The retries of a step that says nothing about them."""

_CONFIGS: Final = ("required", "optional", "const", "meta", "output")


class ScriptBody(msgspec.Struct):
    """A script, a predicate, a match or the script of a mapping."""

    language: str = ""
    script: str = ""


class MappingBody(msgspec.Struct):
    """The mapping of an attribute."""

    name: str | None = None
    script: ScriptBody | None = None


class ConfigBody(msgspec.Struct):
    """The configuration of an attribute, in any role."""

    collect: str | None = None
    for_each: bool | None = None
    match: ScriptBody | None = None
    mapping: MappingBody | None = None
    default: str | None = None
    deadline: int | None = None
    value: str | None = None
    key: str | None = None


class AttributeBody(msgspec.Struct):
    """An attribute of a step."""

    role: str = ""
    type: str | None = None
    required: ConfigBody | None = None
    optional: ConfigBody | None = None
    const: ConfigBody | None = None
    meta: ConfigBody | None = None
    output: ConfigBody | None = None


class HttpBody(msgspec.Struct):
    """The service of a step. *deadline* is ours: how long the answer of an async step is waited for."""

    endpoint: str = ""
    method: str | None = None
    health_check: str | None = None
    compensate: str | None = None
    timeout: int | None = None
    deadline: int | None = None


class FlowBody(msgspec.Struct):
    """The goals of a step that is a flow."""

    goals: list[str] | None = None


class WorkBody(msgspec.Struct):
    """How the work items of a step run."""

    max_retries: int | None = None
    init_backoff: int | None = None
    max_backoff: int | None = None
    backoff_type: str | None = None
    parallelism: int | None = None


class StepBody(msgspec.Struct):
    """A step, as it is registered."""

    id: str = ""
    name: str = ""
    type: str = ""
    attributes: dict[str, AttributeBody] | None = None
    labels: dict[str, str] | None = None
    predicate: ScriptBody | None = None
    memoizable: bool | None = None
    http: HttpBody | None = None
    flow: FlowBody | None = None
    script: ScriptBody | None = None
    work_config: WorkBody | None = None


def step_of(body: StepBody) -> m.Step:
    """Return the step that a body describes, as it was sent; its id is cleaned, and its retries may be missing."""
    step_id = clean_id(body.id)
    if not step_id:
        raise Refused(400, f"step id must have a letter or a digit, got {body.id!r}")
    if body.type not in TYPES:
        raise Refused(400, f"step {step_id!r}: type must be one of {', '.join(TYPES)}, got {body.type!r}")
    found: dict[str, Any] = {
        "id": step_id,
        "name": body.name,
        "type": body.type,
        "attributes": {name: _attribute(name, one) for name, one in (body.attributes or {}).items()},
        "labels": body.labels or {},
        "predicate": _script("predicate", body.predicate),
        "memoizable": bool(body.memoizable),
        "http": None if body.http is None else _given(body.http),
        "flow": None if body.flow is None else {"goals": _goals(step_id, body.flow)},
        "script": _script("script", body.script),
    }
    if body.work_config is not None and (work := _given(body.work_config)):
        found["work_config"] = work
    try:
        return msgspec.convert(found, m.Step)
    except msgspec.ValidationError as error:
        raise Refused(400, f"step {step_id!r}: {error}") from None


def with_retries(step: m.Step) -> m.Step:
    """Return a step with the original's retries in place of those that it does not give."""
    work = step.work_config
    filled = msgspec.structs.replace(
        work,
        max_retries=work.max_retries or RETRIES.max_retries,
        init_backoff=work.init_backoff or RETRIES.init_backoff,
        max_backoff=work.max_backoff or max(RETRIES.max_backoff, work.init_backoff),
        backoff_type=work.backoff_type or RETRIES.backoff_type,
    )
    return msgspec.structs.replace(step, work_config=filled)


def _attribute(name: str, body: AttributeBody) -> dict[str, Any]:
    if body.role not in _CONFIGS:
        raise Refused(400, f"attribute {name!r}: role must be one of {', '.join(_CONFIGS)}, got {body.role!r}")
    for other in _CONFIGS:
        if other != body.role and getattr(body, other) is not None:
            raise Refused(400, f"attribute {name!r}: its role is {body.role!r}, so it takes no {other!r}")
    made: dict[str, Any] = {"role": body.role, "type": body.type or ""}
    config: ConfigBody | None = getattr(body, body.role)
    if config is not None:
        made[body.role] = _config(name, config)
    return made


def _config(name: str, body: ConfigBody) -> dict[str, Any]:
    made = _given(body)
    if body.match is not None:
        made["match"] = _script(f"match of {name!r}", body.match)
    if body.mapping is not None:
        script = _script(f"mapping of {name!r}", body.mapping.script)
        made["mapping"] = {"name": body.mapping.name or "", "script": script}
    return made


def _goals(step_id: str, body: FlowBody) -> list[str]:
    goals = [clean_id(goal) for goal in body.goals or ()]
    if not all(goals):
        raise Refused(400, f"step {step_id!r}: a goal must have a letter or a digit, got {body.goals}")
    return goals


def _script(place: str, body: ScriptBody | None) -> dict[str, Any] | None:
    if body is None:
        return None
    known = get_args(m.Language)
    if body.language == "ale":
        raise Refused(400, f"{place}: the language 'ale' is not supported; write it in 'lua', or in 'jpath' or 'cel'")
    if body.language not in known:
        raise Refused(400, f"{place}: language must be one of {', '.join(known)}, got {body.language!r}")
    return {"language": body.language, "script": body.script}


def _given(body: msgspec.Struct) -> dict[str, Any]:
    """Return the fields of a body that say something."""
    return {name: value for name, value in msgspec.structs.asdict(body).items() if value not in (None, "")}
