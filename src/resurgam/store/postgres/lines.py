"""The order of what is sent for one execution.

The verbs that commit are under way at the same time, each on a connection of its own: a commit could overtake the step before it.
What was called for an execution by another verb is therefore answered before the next is sent. Calls of one verb keep their order
by themselves, and may share a flight.
"""

from collections import deque
from collections.abc import Callable


class _Line:
    __slots__ = ("held", "under_way", "verb")

    def __init__(self, verb: str) -> None:
        self.verb = verb
        self.under_way = 0
        self.held: deque[tuple[str, Callable[[], None]]] = deque()


class Lines:
    """The calls that are under way for each execution, and those that are held until they are answered."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}

    def call(self, execution_id: str, verb: str, send: Callable[[], None]) -> None:
        """Send a call of a verb, now or when those before it have been answered; then `answered` must be called once."""
        line = self._lines.get(execution_id)
        if line is None:
            line = self._lines[execution_id] = _Line(verb)
        elif line.held or line.verb != verb:
            line.held.append((verb, send))
            return
        line.under_way += 1
        send()

    def answered(self, execution_id: str) -> None:
        """Note that a call was answered, and send those that were held until now."""
        line = self._lines[execution_id]
        line.under_way -= 1
        if line.under_way:
            return
        del self._lines[execution_id]
        held = line.held
        while held:
            self.call(execution_id, *held.popleft())
