"""The reason why the code of an execution must stop."""

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from resurgam.core.errors import NotDeterministic

T = TypeVar("T")

PATIENCE: Final = 1000
"""Refused calls after which `Verdict.exhausted` is set: the code catches the refusals in a loop."""


class Verdict(msgspec.Struct, eq=False):
    """Stop the code of one execution: once there is a *reason*, every further durable call raises it.

    So no ``except BaseException`` of the user can swallow a divergence. Code that continues after *patience* refusals
    is *exhausted*: it gets futures that never settle, so that it yields the thread.

    Calls are *routine* as long as the history alone decides about them. That ends for good where something else comes
    up which a call has to be checked against: this verdict, an answer that is there before its call, a version that
    applies to all calls of a block, the edits of a rehearsal, a check of inputs.
    """

    patience: int = PATIENCE
    # Plain attributes: every durable call and every callback of the loop reads them.
    reason: BaseException | None = None
    exhausted: bool = False
    routine: bool = True
    # The function of the user that is running and may not make durable calls, as errors name it.
    _forbidden_in: str = ""
    _refusals: int = 0

    def decide(self, reason: BaseException) -> BaseException:
        """Stop the code for this reason, which replaces an earlier one, and return it."""
        self.reason = reason
        self.routine = False
        return reason

    def end_routine(self) -> None:
        """Let every further call be checked against more than the history."""
        self.routine = False

    def refuse(self, reason: BaseException) -> BaseException:
        """Count one more call that is refused for this reason, and return it."""
        self._refusals += 1
        self.exhausted = self._refusals > self.patience
        return reason

    def check_allowed(self, what: str) -> None:
        """Refuse a call once there is a reason, and inside functions that may not make durable calls."""
        if self.reason is not None:
            raise self.refuse(self.reason)
        if self._forbidden_in:
            raise NotDeterministic(
                f"a durable call ({what}) inside {self._forbidden_in}; make it before, and pass on its result"
            )

    def without_calls(self, what: str, function: Callable[[], T]) -> T:
        """Call a function of the user that must not make durable calls."""
        self._forbidden_in, before = what, self._forbidden_in
        self.routine, routine = False, self.routine
        try:
            return function()
        finally:
            self._forbidden_in = before
            self.routine = routine and self.reason is None
