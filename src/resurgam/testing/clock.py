"""A clock that moves only by calls of the test."""

import heapq
from collections.abc import Callable

START = 1_700_000_000_000
"""The start of a manual clock: a moment in November 2023."""


class ManualClock:
    """A clock for tests: `move_to` makes the calls that are due, in order."""

    def __init__(self, now: int = START) -> None:
        self._now = now
        self._count = 0
        self._calls: list[tuple[int, int]] = []
        self._callbacks: dict[int, Callable[[], None]] = {}

    def now(self) -> int:
        """Return the milliseconds since 1970."""
        return self._now

    def call_at(self, when: int, callback: Callable[[], None]) -> Callable[[], None]:
        """Call *callback* when the clock reaches *when*; return a function that cancels the call."""
        self._count += 1
        number = self._count
        self._callbacks[number] = callback
        heapq.heappush(self._calls, (when, number))
        return lambda: self._callbacks.pop(number, None) and None

    def next_due(self) -> int | None:
        """Return the moment of the next call, None if there is none."""
        while self._calls and self._calls[0][1] not in self._callbacks:
            heapq.heappop(self._calls)
        return self._calls[0][0] if self._calls else None

    def move_to(self, when: int) -> None:
        """Move the clock forward and make the calls that are due by then, each at its own moment."""
        while (due := self.next_due()) is not None and due <= when:
            self._now = max(self._now, due)
            _, number = heapq.heappop(self._calls)
            self._callbacks.pop(number)()
        self._now = max(self._now, when)

    def set_back(self, milliseconds: int) -> None:
        """Move the clock back, as the clocks of machines sometimes do."""
        self._now -= milliseconds
