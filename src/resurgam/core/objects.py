"""The parts of a value: fields of objects and items of containers, with their names in JSON."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import msgspec


def is_pydantic(kind: type) -> bool:
    """Whether *kind* is a pydantic model; does not import pydantic."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)


def is_root_model(kind: type) -> bool:
    """Whether *kind* is a pydantic root model, which is written as its only value."""
    return is_pydantic(kind) and bool(getattr(kind, "__pydantic_root_model__", False))


def field_names(value: object) -> Iterable[tuple[str, str]]:
    """Return the fields of an object as (attribute, JSON key); empty for a value without fields."""
    if isinstance(value, msgspec.Struct):
        return zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
    kind: Any = type(value)
    if is_dataclass(kind):
        return [(field.name, field.name) for field in fields(kind)]
    if is_pydantic(kind):
        return _model_names(value)
    return [(field.name, field.name) for field in getattr(kind, "__attrs_attrs__", ())]


def _model_names(model: Any) -> list[tuple[str, str]]:
    declared = type(model).model_fields
    named = [(name, info.serialization_alias or name) for name, info in declared.items()]
    return [*named, *((name, name) for name in model.__pydantic_extra__ or ())]


def parts_of(value: object) -> Iterator[tuple[str, object]]:
    """Yield the direct parts of a value, each with its path step: ``[0]``, ``['key']``, ``.field``."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield f"[{key!r}]", item
    elif isinstance(value, list | tuple | set | frozenset):
        for index, item in enumerate(value):
            yield f"[{index}]", item
    else:
        for name, _ in field_names(value):
            if hasattr(value, name):
                yield f".{name}", getattr(value, name)
