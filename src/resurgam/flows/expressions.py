"""Evaluate expressions in any of their languages. The compiled ones are kept."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final

from resurgam.flows.errors import ExpressionFailed, LanguageMissing
from resurgam.flows.judge import NOTHING
from resurgam.flows.languages.compiled import Compiled
from resurgam.flows.model import Expression, Language

_VALUE: Final = ("value",)
_RESULT: Final = ("result",)


def _compile_cel(script: str, parameters: Sequence[str]) -> Compiled:
    with _needed("cel-expr-python", "cel_expr_python"):
        from resurgam.flows.languages.cel import compile_cel  # noqa: PLC0415 -- only who uses the language needs its package

    return compile_cel(script, parameters)


def _compile_lua(script: str, parameters: Sequence[str]) -> Compiled:
    with _needed("lupa", "lupa"):
        from resurgam.flows.languages.lua import compile_lua  # noqa: PLC0415 -- as above

    return compile_lua(script, parameters)


def _compile_jsonpath(script: str, parameters: Sequence[str]) -> Compiled:
    from resurgam.flows.languages.jsonpath import compile_jsonpath  # noqa: PLC0415 -- as above

    return compile_jsonpath(script, parameters)


@contextmanager
def _needed(package: str, module: str) -> Iterator[None]:
    """Say which package a language needs, if it is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != module:
            raise
        raise LanguageMissing(f"this expression needs the package {package}: pip install 'resurgam[flows]'") from None


_LANGUAGES: Final[dict[Language, Callable[[str, Sequence[str]], Compiled]]] = {
    "cel": _compile_cel,
    "lua": _compile_lua,
    "jpath": _compile_jsonpath,
}


@lru_cache(maxsize=4096)
def compiled(expression: Expression, parameters: tuple[str, ...]) -> Compiled:
    """Return an expression, compiled; raise `ExpressionFailed` if it is wrong."""
    return _LANGUAGES[expression.language](expression.script, parameters)


class Expressions:
    """The judge of flows: CEL, Lua and paths."""

    def check(self, expression: Expression, parameters: Sequence[str]) -> None:
        """Raise `ExpressionFailed` if an expression cannot be compiled."""
        compiled(expression, tuple(parameters))

    def matches(self, expression: Expression, value: object) -> bool:
        """Whether a value of an attribute counts for an input."""
        return _truth(expression, compiled(expression, _VALUE).evaluate({"value": value}))

    def holds(self, expression: Expression, inputs: Mapping[str, object], parameters: Sequence[str]) -> bool:
        """Whether the predicate of a step holds for its inputs; one that it has no value for is null."""
        # The document of a path is the object of the inputs, also if it has only one.
        names = () if expression.language == "jpath" else tuple(parameters)
        return _truth(expression, compiled(expression, names).evaluate(inputs))

    def map_input(self, expression: Expression, value: object) -> object:
        """Return the value of an input inside the step, or `NOTHING`."""
        return _unwrapped(expression, compiled(expression, _VALUE).evaluate({"value": value}))

    def map_output(self, expression: Expression, result: Mapping[str, object]) -> object:
        """Return the value of an output from the result of a step, or `NOTHING`."""
        return _unwrapped(expression, compiled(expression, _RESULT).evaluate({"result": result}))


def _truth(expression: Expression, value: object) -> bool:
    """A path holds if it leads to something, Lua has a truth of its own, and CEL must say true or false."""
    match expression.language:
        case "jpath":
            return value is not NOTHING
        case "lua":
            return value is not None and value is not False
        case _ if isinstance(value, bool):
            return value
        case _:
            raise ExpressionFailed(f"{expression.script!r} must be true or false, got {type(value).__name__}")


def _unwrapped(expression: Expression, value: Any) -> object:
    """Return what a mapping maps to. A table of Lua is taken apart: its field ``value``, or its only one."""
    if expression.language != "lua" or not isinstance(value, dict):
        return value
    if "value" in value:
        return value["value"]
    return next(iter(value.values())) if len(value) == 1 else (value or None)
