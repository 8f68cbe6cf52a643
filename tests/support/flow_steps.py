"""Steps in a short notation: ``id: inputs > outputs``."""

from typing import Any

import msgspec

from resurgam.flows import model as m


def step(text: str) -> m.Step:
    """Return a step: ``?x`` is optional, ``x/last`` collects last, ``x=postal`` must match."""
    step_id, _, rest = text.partition(":")
    inputs, _, outputs = rest.partition(">")
    attributes: dict[str, m.Attribute] = {}
    for word in inputs.split():
        name, _, match = word.partition("=")
        name, _, collect = name.partition("/")
        if name.startswith("?"):
            attributes[name[1:]] = m.Optional(optional=m.OptionalConfig(collect=collect or "first"))  # type: ignore[arg-type]
        else:
            rule = m.Expression(language="cel", script=match) if match else None
            attributes[name] = m.Required(required=m.RequiredConfig(collect=collect or "first", match=rule))  # type: ignore[arg-type]
    attributes |= {name: m.Output() for name in outputs.split()}
    return m.Step(
        id=step_id, name=step_id, type="python", python=m.PythonConfig(activity=step_id), attributes=attributes
    )


def changed(one: m.Step, **fields: Any) -> m.Step:
    """Return a step with other values of some fields."""
    return msgspec.structs.replace(one, **fields)


def with_input(one: m.Step, name: str, attribute: m.Attribute) -> m.Step:
    """Return a step with one more attribute, or with another in its place."""
    return changed(one, attributes={**one.attributes, name: attribute})
