"""The errors of goal flows."""

from resurgam.core.errors import ResurgamError


class ExpressionFailed(ResurgamError):
    """An expression could not be evaluated: it is wrong, it does not fit the value, or it exceeded a limit."""
