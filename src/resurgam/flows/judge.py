"""The protocol of expressions: what predicates, matches and mappings say about values."""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from msgspec import UNSET

from resurgam.flows.model import Expression

NOTHING: Final = UNSET
"""A mapping has found no value."""


class Judge(Protocol):
    """Evaluate expressions over plain JSON values. Each method raises `ExpressionFailed`."""

    def check(self, expression: Expression, parameters: Sequence[str]) -> None:
        """Raise `ExpressionFailed` if an expression cannot be compiled. *parameters* are the names it may use."""
        ...

    def matches(self, expression: Expression, value: object) -> bool:
        """Whether a value of an attribute counts for an input."""
        ...

    def holds(self, expression: Expression, inputs: Mapping[str, object], parameters: Sequence[str]) -> bool:
        """Whether the predicate of a step holds for its inputs. *parameters* are the names of all that it may have."""
        ...

    def map_input(self, expression: Expression, value: object) -> object:
        """Return the value of an input inside the step, or `NOTHING`."""
        ...

    def map_output(self, expression: Expression, result: Mapping[str, object]) -> object:
        """Return the value of an output from the result of a step, or `NOTHING`."""
        ...
