"""The parts of a value: the fields of objects, the items of containers, and what each is called in JSON."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import msgspec


def is_pydantic(kind: type) -> bool:
    """Whether *kind* is a pydantic model; the answer needs no import of pydantic."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)


def is_root_model(kind: type) -> bool:
    """Whether *kind* is a pydantic model that is written as the one value it holds."""
    return is_pydantic(kind) and bool(getattr(kind, "__pydantic_root_model__", False))


def field_names(value: object) -> Iterable[tuple[str, str]]:
    """Return each field of an object as (attribute, key in its JSON); nothing for a value without fields."""
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


def children(value: object) -> Iterator[tuple[str, object]]:
    """Yield the parts of a value, each with the step that leads to it: ``[0]``, ``['key']``, ``.field``."""
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
