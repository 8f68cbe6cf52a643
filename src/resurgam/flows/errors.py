"""The errors of goal flows."""

from resurgam.core.errors import NotFound, ResurgamError


class ExpressionFailed(ResurgamError):
    """An expression could not be evaluated: it is wrong, it does not fit the value, or it exceeded a limit."""


class LanguageMissing(NotFound):
    """The package that an expression needs is not installed here. The expression is not wrong: another worker may have it."""
