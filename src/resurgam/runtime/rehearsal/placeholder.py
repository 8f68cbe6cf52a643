"""A placeholder for a value that is not known yet: it may be passed on, but not inspected."""

from collections.abc import Callable
from typing import Any, NoReturn


class Inspected(BaseException):
    """Code inspected a value that is not known yet, so its next call cannot be predicted."""


_SPECIAL_METHODS = (
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
    """A value that is not known yet. Inspecting it raises `Inspected`."""

    __slots__ = ("_on_inspect",)

    def __init__(self, on_inspect: Callable[[], None]) -> None:
        object.__setattr__(self, "_on_inspect", on_inspect)

    def __getattribute__(self, name: str) -> Any:
        _inspect(self)

    def __setattr__(self, name: str, value: object) -> None:
        _inspect(self)


def detach(placeholder: Placeholder) -> None:
    """End the reports of a placeholder to its rehearsal; inspecting it still raises `Inspected`.

    Events hold placeholders, and the garbage collector does not look into events: a circle through them is never freed.
    """
    object.__setattr__(placeholder, "_on_inspect", _ignore)


def _ignore() -> None:
    """Do nothing: the rehearsal is over."""


def _inspect(placeholder: Placeholder, *_: object, **__: object) -> NoReturn:
    on_inspect = object.__getattribute__(placeholder, "_on_inspect")
    on_inspect()
    raise Inspected


for _name in _SPECIAL_METHODS:
    setattr(Placeholder, f"__{_name}__", _inspect)
