"""Limits that all languages share: the length of a script, and the size of what goes into one and comes out."""

import math
from collections.abc import Iterable
from typing import Any, Final

from resurgam.flows.errors import ExpressionFailed

MAX_SCRIPT: Final = 50_000
"""Characters of a script."""
MAX_DEPTH: Final = 100
"""Levels of nesting of a value; one that contains itself has more."""
MAX_VALUES: Final = 200_000
"""Values that a result has, counted as JSON has them: one that occurs twice counts twice."""
MAX_TEXT: Final = 16 * 1024 * 1024
"""Characters of all texts of a result."""
_MAX_MESSAGE: Final = 300


class Measure:
    """The size of one result; `ExpressionFailed` is raised when it becomes too large."""

    def __init__(self) -> None:
        self._values = 0
        self._text = 0

    def add(self, value: object, depth: int) -> None:
        """Count a value, without those that it contains."""
        self._values += 1
        if self._values > MAX_VALUES:
            raise ExpressionFailed(f"the result has more than {MAX_VALUES:,} values")
        if depth > MAX_DEPTH:
            raise ExpressionFailed(f"the result is nested more than {MAX_DEPTH} levels deep")
        if isinstance(value, str):
            self._text += len(value)
            if self._text > MAX_TEXT:
                raise ExpressionFailed(f"the result has more than {MAX_TEXT:,} characters of text")
        elif isinstance(value, float) and not math.isfinite(value):
            raise ExpressionFailed(f"the result has {value}, which is no JSON number")


def check_script(script: str) -> None:
    """Raise `ExpressionFailed` for a script that is too long to be compiled."""
    if len(script) > MAX_SCRIPT:
        raise ExpressionFailed(f"a script has at most {MAX_SCRIPT:,} characters, got {len(script):,}")


def check_size(result: Any) -> Any:
    """Return a plain JSON value unless it is too large; raise `ExpressionFailed`."""
    measure = Measure()
    pending = [(result, 0)]
    while pending:
        value, depth = pending.pop()
        measure.add(value, depth)
        inner: Iterable[Any] = ()
        if isinstance(value, list):
            inner = value
        elif isinstance(value, dict):
            inner = value.values()
            for key in value:
                measure.add(key, depth)
        pending.extend((one, depth + 1) for one in inner)
    return result


def first_line(error: object, otherwise: str = "") -> str:
    """Return the text of an error as part of a message: short, and on one line."""
    line = str(error).partition("\n")[0].strip() or otherwise
    return line if len(line) <= _MAX_MESSAGE else f"{line[:_MAX_MESSAGE]}…"
