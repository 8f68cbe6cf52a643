"""CEL, the Common Expression Language: fast, without loops that do not end, checked when it is compiled."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from cel_expr_python import cel

from resurgam.flows.errors import ExpressionFailed
from resurgam.flows.languages.compiled import Compiled

_PLAIN: Final = (str, bool, int, float, type(None))


@lru_cache(maxsize=256)
def _environment(parameters: tuple[str, ...]) -> cel.Env:
    return cel.NewEnv(variables=dict.fromkeys(parameters, cel.Type.DYN))


class _CelExpression:
    def __init__(self, expression: cel.Expression, parameters: Sequence[str]) -> None:
        self._expression = expression
        self._parameters = parameters

    def evaluate(self, values: Mapping[str, object]) -> Any:
        data = {name: values.get(name) for name in self._parameters}
        try:
            value = self._expression.eval(data=data)
        except RuntimeError as error:
            raise ExpressionFailed(_first_line(error)) from None
        # An error of the evaluation is a value, not an exception.
        if value.type() == cel.Type.ERROR:
            raise ExpressionFailed(_first_line(value.value()))
        return _as_json(value.plain_value())


def compile_cel(script: str, parameters: Sequence[str]) -> Compiled:
    """Compile an expression that may use these names."""
    try:
        compiled = _environment(tuple(sorted(parameters))).compile(script)
    except RuntimeError as error:
        raise ExpressionFailed(
            f"{script!r} is no CEL expression over {', '.join(parameters)}: {_first_line(error)}"
        ) from None
    return _CelExpression(compiled, tuple(parameters))


def _as_json(value: Any) -> Any:
    """Return a plain value; CEL has some that JSON has not, such as durations."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, list):
        return [_as_json(one) for one in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _as_json(one) for key, one in value.items()}
    raise ExpressionFailed(f"the result has a {type(value).__name__}, which is no JSON value; convert it with string()")


def _first_line(error: object) -> str:
    return str(error).partition("\n")[0]
