"""Where two values differ, as a path into them."""

from typing import Any

import msgspec


def assert_same(ours: Any, theirs: Any, label: object) -> None:
    """Assert that the memory store (*ours*) and the other (*theirs*) say the same."""
    if ours != theirs:
        raise AssertionError(f"{label}: {difference(ours, theirs) or f'{ours!r} != {theirs!r}'}")


def difference(ours: Any, theirs: Any) -> str:
    """Return the first place at which two values differ, with what stands there in each."""
    if type(ours) is type(theirs):
        for name, one, other in _parts(ours, theirs):
            if one != other:
                return f"{name}{difference(one, other)}"
    return f": {ours!r} in memory, {theirs!r} in the other"


def _parts(ours: Any, theirs: Any) -> list[tuple[str, Any, Any]]:
    if isinstance(ours, msgspec.Struct):
        return [(f".{name}", getattr(ours, name), getattr(theirs, name)) for name in ours.__struct_fields__]
    if isinstance(ours, dict):
        keys = {**ours, **theirs}
        return [(f"[{key!r}]", ours.get(key, "nothing"), theirs.get(key, "nothing")) for key in keys]
    if isinstance(ours, list | tuple) and len(ours) == len(theirs):
        return [(f"[{number}]", *both) for number, both in enumerate(zip(ours, theirs, strict=True))]
    return []
