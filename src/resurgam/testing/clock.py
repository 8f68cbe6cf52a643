"""A clock that stands still until it is told to go on."""

import heapq
from collections.abc import Callable

START = 1_700_000_000_000
"""Where a manual clock begins: a moment in November 2023."""


class ManualClock:
    """Time as an argument: `move_to` calls what has become due, in order."""

    def __init__(self, now: int = START) -> None:
        self._now = now
        self._count = 0
        self._calls: list[tuple[int, int]] = []
        self._callbacks: dict[int, Callable[[], None]] = {}

    def now(self) -> int:
        """Return the milliseconds since 1970."""
        return self._now

    def call_at(self, when: int, callback: Callable[[], None]) -> Callable[[], None]:
        """Call *callback* once the clock stands at *when*; return what calls it off."""
        self._count += 1
        number = self._count
        self._callbacks[number] = callback
        heapq.heappush(self._calls, (when, number))
        return lambda: self._callbacks.pop(number, None) and None

    def next_due(self) -> int | None:
        """Return the moment of the next call, if one is waiting."""
        while self._calls and self._calls[0][1] not in self._callbacks:
            heapq.heappop(self._calls)
        return self._calls[0][0] if self._calls else None

    def move_to(self, when: int) -> None:
        """Set the clock forward and make the calls that are due by then, each at its own moment."""
        while (due := self.next_due()) is not None and due <= when:
            self._now = max(self._now, due)
            _, number = heapq.heappop(self._calls)
            self._callbacks.pop(number)()
        self._now = max(self._now, when)

    def set_back(self, milliseconds: int) -> None:
        """Make the clock jump back, as machines' clocks sometimes do."""
        self._now -= milliseconds
