"""The `Clock` protocol: the only source of time, so that tests can control it."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Tells the time in milliseconds since 1970, and schedules callbacks."""

    def now(self) -> int:
        """Return the current time."""
        ...

    def call_at(self, when: int, callback: Callable[[], None]) -> Callable[[], None]:
        """Call *callback* once, at *when* or soon after; return a function that cancels the call."""
        ...


def is_system(clock: Clock) -> bool:
    """Whether a clock tells the machine's own time; a server may then use its own instead."""
    return getattr(clock, "is_system", False)


def iso_time(at: int) -> str:
    """Format a time for log lines."""
    return datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds")
