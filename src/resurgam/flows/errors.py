"""The errors of goal flows."""

from collections.abc import Iterator
from contextlib import contextmanager

from resurgam.core.errors import NotFound, ResurgamError


class ExpressionFailed(ResurgamError):
    """An expression could not be evaluated: it is wrong, it does not fit the value, or it exceeded a limit."""


class LanguageMissing(NotFound):
    """The package that an expression needs is not installed here. The expression is not wrong: another worker may have it."""


class ClientMissing(NotFound):
    """The package that sends HTTP requests is not installed here. The step is not wrong: another worker may have it."""


@contextmanager
def located(place: str) -> Iterator[None]:
    """Say in an `ExpressionFailed` which expression of a step has failed."""
    try:
        yield
    except ExpressionFailed as error:
        raise ExpressionFailed(f"{place}: {error}") from None
