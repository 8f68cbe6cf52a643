"""JSON with holes for values that only a function in the server knows, such as the ``seq`` of a termination.

The function joins the pieces with the values; it decodes no JSON.
"""

from typing import Any, Final, TypeAlias

import msgspec

from resurgam.store.encoding import encode

Template: TypeAlias = str | list[str]
"""A text, or its pieces with the names of the holes between them."""

_NUMBER: Final = -1
_TEXT: Final = "\0"


def with_holes(value: msgspec.Struct, **holes: type[int] | type[str]) -> Template:
    """Return the JSON of a struct with some fields left out, each a number or a text, named in the order of the fields.

    A field is found by its name and a value that it never has. No text within a value looks like it, because the quotes
    around a name are escaped there; fields with JSON of users must stand behind the holes.
    """
    marked: dict[str, Any] = {name: _NUMBER if kind is int else _TEXT for name, kind in holes.items()}
    rest = encode(msgspec.structs.replace(value, **marked))
    pieces: list[str] = []
    for name, mark in marked.items():
        before, found, rest = rest.partition(f'"{name}":{encode(mark)}')
        assert found, f"{type(value).__name__} has no {name} before the last hole"
        pieces += [f'{before}"{name}":', name]
    return [*pieces, rest]
