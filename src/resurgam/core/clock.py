"""The `Clock` that everything asks for the time, so that a test can be the one who answers."""

from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Milliseconds since 1970, and a call when a moment has come."""

    def now(self) -> int:
        """Return the present moment."""
        ...

    def call_at(self, when: int, callback: Callable[[], None]) -> Callable[[], None]:
        """Call *callback* once, at *when* or soon after; return what calls it off."""
        ...
