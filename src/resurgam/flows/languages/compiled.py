"""What the languages have in common: a compiled expression is a function of named JSON values."""

from collections.abc import Mapping
from typing import Any, Final, Protocol

from msgspec import UNSET

NOTHING: Final = UNSET
"""The expression has no value, as a path that leads nowhere."""


class Compiled(Protocol):
    """An expression that is ready to be evaluated."""

    def evaluate(self, values: Mapping[str, object]) -> Any:
        """Return the value of the expression, as plain JSON, or `NOTHING`; raise `ExpressionFailed`.

        A parameter without a value is null.
        """
        ...
