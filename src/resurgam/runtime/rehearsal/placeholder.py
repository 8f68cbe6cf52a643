"""Stands in for a value that is not known yet: it may be passed on, but not looked at."""

from collections.abc import Callable
from typing import Any, NoReturn


class Inspected(BaseException):
    """Code looked at a value that nobody knows yet, so what it would do next cannot be told."""


_LOOKS = (
    *("bool", "str", "repr", "format", "bytes", "hash", "int", "float", "complex", "index", "len", "length_hint"),
    *("iter", "next", "reversed", "contains", "getitem", "setitem", "delitem", "call", "enter", "exit", "await"),
    *("aiter", "anext", "aenter", "aexit", "eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "abs", "invert"),
    *("round", "trunc", "floor", "ceil", "fspath", "dir", "copy", "deepcopy", "reduce_ex", "reduce"),
    *(
        f"{side}{name}"
        for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow", "matmul", "and", "or", "xor")
        for side in ("", "r")
    ),
    *("lshift", "rlshift", "rshift", "rrshift"),
)


class Placeholder:
    """A value that is not known yet. Whoever looks at it is told so by `Inspected`."""

    __slots__ = ("_on_look",)

    def __init__(self, on_look: Callable[[], None]) -> None:
        object.__setattr__(self, "_on_look", on_look)

    def __getattribute__(self, name: str) -> Any:
        _looked_at(self)

    def __setattr__(self, name: str, value: object) -> None:
        _looked_at(self)


def _looked_at(placeholder: Placeholder, *_: object, **__: object) -> NoReturn:
    on_look = object.__getattribute__(placeholder, "_on_look")
    on_look()
    raise Inspected


for _name in _LOOKS:
    setattr(Placeholder, f"__{_name}__", _looked_at)
