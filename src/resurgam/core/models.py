"""Pydantic models as signal types: validated by the class where it is imported, by a loose schema elsewhere.

The loose schema refuses only what pydantic itself refuses in lax mode: a missing field, an unknown field of a model
that forbids extras, text outside an enum, a JSON type that is never converted. A model with validators that run before
or around pydantic's own may accept anything; its schema is empty.
"""

import functools
import warnings
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any, Final, TypeAlias, get_args

import msgspec

from resurgam.core.objects import is_pydantic
from resurgam.core.typename import find_type, type_name

Schema: TypeAlias = dict[str, Any]
Mismatch: TypeAlias = tuple[str, str]

_AFTER_MODES: Final = {"after"}
_OWN_VALIDATORS: Final = {"BeforeValidator", "WrapValidator", "PlainValidator", "ValidateAs"}
_NEVER_CONVERTED: Final = {
    "string": (int, float, dict, list, type(None)),
    "integer": (dict, list, type(None)),
    "number": (dict, list, type(None)),
    "boolean": (dict, list, type(None)),
    "null": (str, int, float, dict, list),
    "object": (str, int, float, list, type(None)),
    "array": (str, int, float, dict, type(None)),
}
"""For each JSON schema type, the Python types of JSON values that pydantic never converts to it."""
_NAMES: Final = {dict: "object", list: "array", type(None): "null"}


@functools.lru_cache(maxsize=256)
def model_schema(kind: Any) -> Schema:
    """Return the stored form of a model that a workflow listens for: its name, a digest, and its loose schema."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # defaults without a JSON form do not matter here
        whole: Schema = kind.model_json_schema()
    digest = blake2b(msgspec.json.encode(whole, order="sorted"), digest_size=8).hexdigest()
    loose = {} if _is_open(kind, set()) else _loose(whole)
    return {"model": type_name(kind), "digest": digest, "loose": loose}


def model_mismatch(schema: Schema, value: object) -> Mismatch | None:
    """Return why a value does not fit a model: by its class if the same one is imported here, else by its schema."""
    kind: Any = find_type(schema["model"])
    if kind is not None and is_pydantic(kind) and model_schema(kind)["digest"] == schema["digest"]:
        try:
            kind.model_validate(value)
        except ValueError as error:
            return reason_of(error)
        return None
    loose = schema["loose"]
    return _Loose(loose.get("$defs", {})).check(loose, value, "")


def reason_of(error: ValueError) -> Mismatch:
    """Return the path to the first field that a model refuses, and the reason."""
    details = getattr(error, "errors", None)
    if details is None:
        return "", str(error)
    first = details(include_url=False, include_context=False)[0]
    steps = (f".{step}" if isinstance(step, str) else f"[{step!r}]" for step in first["loc"])
    return "".join(steps), first["msg"]


def _is_open(kind: Any, seen: set[Any]) -> bool:
    """Whether a model, or one inside it, has validators that run before pydantic's own."""
    if kind in seen:
        return False
    seen.add(kind)
    found = kind.__pydantic_decorators__
    decorators = (*found.field_validators.values(), *found.model_validators.values(), *found.validators.values())
    if (
        any(one.info.mode not in _AFTER_MODES for one in decorators if hasattr(one.info, "mode"))
        or found.root_validators
    ):
        return True
    config = kind.model_config
    if config.get("coerce_numbers_to_str") or config.get("populate_by_name") or config.get("validate_by_name"):
        return True
    for info in kind.model_fields.values():
        own = {type(one).__name__ for part in _inside(info.annotation) for one in getattr(part, "__metadata__", ())}
        if (
            own | {type(one).__name__ for one in info.metadata}
        ) & _OWN_VALIDATORS or info.validation_alias != info.alias:
            return True
        if any(is_pydantic(part) and _is_open(part, seen) for part in _inside(info.annotation)):
            return True
    return False


def _inside(hint: Any) -> Iterator[Any]:
    yield hint
    for part in get_args(hint):
        yield from _inside(part)


def _loose(schema: Schema) -> Schema:
    """Return the constraints of a JSON schema that pydantic enforces in lax mode too."""
    kept: Schema = {word: schema[word] for word in ("type", "required", "$ref", "enum", "const") if word in schema}
    if schema.get("format") or schema.get("contentMediaType") or schema.get("contentEncoding"):
        return {}  # only pydantic knows which texts of a format it accepts
    for word in ("properties", "$defs"):
        if word in schema:
            kept[word] = {name: _loose(part) for name, part in schema[word].items()}
    for word in ("anyOf", "oneOf"):
        if word in schema:
            kept["anyOf"] = [_loose(part) for part in schema[word]]
    if isinstance(schema.get("items"), dict):
        kept["items"] = _loose(schema["items"])
    if schema.get("additionalProperties") is False:
        kept["additionalProperties"] = False
    return kept


class _Loose:
    """Checks values against a loose schema."""

    def __init__(self, defs: Mapping[str, Schema]) -> None:
        self._defs = defs

    def check(self, schema: Schema, value: object, path: str) -> Mismatch | None:
        while "$ref" in schema:
            schema = self._defs[schema["$ref"].removeprefix("#/$defs/")]
        if "anyOf" in schema:
            found = [self.check(branch, value, path) for branch in schema["anyOf"]]
            return None if None in found else max((one for one in found if one), key=lambda one: len(one[0]))
        listed = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if listed is not None and all(isinstance(one, str) for one in listed) and value not in listed:
            return path, f"Expected {' | '.join(map(repr, listed))}, got {_short_repr(value)}"
        kind = schema.get("type")
        if isinstance(kind, str) and isinstance(value, _NEVER_CONVERTED.get(kind, ())) and listed is None:
            return path, f"Expected {kind}, got {_NAMES.get(type(value), type(value).__name__)}"
        if isinstance(value, dict):
            return self._fields(schema, value, path)
        parts = enumerate(value) if isinstance(value, list) and "items" in schema else ()
        found = [self.check(schema["items"], item, f"{path}[{index}]") for index, item in parts]
        return next((one for one in found if one), None)

    def _fields(self, schema: Schema, value: dict[str, object], path: str) -> Mismatch | None:
        properties = schema.get("properties", {})
        for name in schema.get("required", ()):
            if name not in value:
                return f"{path}.{name}", "Field required"
        for name, item in value.items():
            if name in properties:
                found = self.check(properties[name], item, f"{path}.{name}")
                if found is not None:
                    return found
            elif schema.get("additionalProperties") is False:
                return f"{path}.{name}", "Extra inputs are not permitted"
        return None


def _short_repr(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else type(value).__name__
