"""CEL, the Common Expression Language: fast, without loops that do not end, checked when it is compiled."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
from cel_expr_python import cel

from resurgam.flows.errors import ExpressionFailed
from resurgam.flows.languages.cel_cost import Uses
from resurgam.flows.languages.compiled import Compiled
from resurgam.flows.languages.limits import Measure, check_script, first_line

_PLAIN: Final = (str, bool, int, float, type(None))


@lru_cache(maxsize=256)
def _environment(parameters: tuple[str, ...]) -> cel.Env:
    return cel.NewEnv(variables=dict.fromkeys(parameters, cel.Type.DYN))


class _CelExpression:
    def __init__(self, expression: cel.Expression, parameters: Sequence[str]) -> None:
        self._expression = expression
        self._parameters = parameters
        self._uses = Uses(expression.serialize())

    def evaluate(self, values: Mapping[str, object]) -> Any:
        data = {name: values.get(name) for name in self._parameters}
        try:
            _check_texts(data)
            self._uses.check(data)
            value = self._expression.eval(data=data)
        except (RuntimeError, OverflowError) as error:
            raise ExpressionFailed(first_line(error)) from None
        # An error of the evaluation is a value, not an exception.
        if value.type() == cel.Type.ERROR:
            raise ExpressionFailed(first_line(value.value()))
        return _as_json(value, 0, Measure())


def compile_cel(script: str, parameters: Sequence[str]) -> Compiled:
    """Compile an expression that may use these names."""
    check_script(script)
    try:
        compiled = _environment(tuple(sorted(parameters))).compile(script)
    except RuntimeError as error:
        raise ExpressionFailed(
            f"{script[:80]!r} is no CEL expression over {', '.join(parameters)}: {first_line(error)}"
        ) from None
    return _CelExpression(compiled, tuple(parameters))


def _check_texts(data: Mapping[str, object]) -> None:
    """Refuse texts with a NUL character, which CEL would cut off there."""
    written = msgspec.json.encode(data)
    if b"\\u0000" in written and b"\\u0000" in written.replace(b"\\\\", b""):
        raise ExpressionFailed("a value has a text with the character NUL, which CEL cannot read")


def _as_json(value: Any, depth: int, measure: Measure) -> Any:
    """Return a value as JSON has it; CEL has some that JSON has not, such as durations."""
    plain = value.value()
    measure.add(plain, depth)
    if isinstance(plain, _PLAIN):
        return plain
    if isinstance(plain, list):
        return [_as_json(one, depth + 1, measure) for one in plain]
    if isinstance(plain, dict) and all(isinstance(key, str) for key in plain):
        for key in plain:
            measure.add(key, depth)
        return {key: _as_json(one, depth + 1, measure) for key, one in plain.items()}
    raise ExpressionFailed(f"the result has a {type(plain).__name__}, which is no JSON value; convert it with string()")
