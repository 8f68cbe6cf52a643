"""The signals that have come and that nobody has taken yet, by their names, each name's in order."""

from collections import deque
from heapq import merge
from itertools import islice

from resurgam.core import event as events
from resurgam.core.errors import CorruptHistory


class Mailbox:
    """Signals wait here until a listener takes them."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[events.SignalReceived]] = {}
        self._names: dict[int, str] = {}
        # Taken out for a listener that the code has not come to yet.
        self._taken: dict[int, list[events.SignalReceived]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, signal: events.SignalReceived) -> None:
        """Put a signal behind those of its name."""
        self._waiting.setdefault(signal.name, deque()).append(signal)
        self._names[signal.seq] = signal.name

    def oldest(self, names: tuple[str, ...]) -> events.SignalReceived | None:
        """Return the signal of these names that came first."""
        heads = [waiting[0] for name in names if (waiting := self._waiting.get(name))]
        return min(heads, key=lambda signal: signal.seq) if heads else None

    def count(self, names: tuple[str, ...]) -> int:
        """Return how many signals of these names wait."""
        return sum(len(self._waiting.get(name, ())) for name in dict.fromkeys(names))

    def several(self, names: tuple[str, ...], limit: int) -> list[events.SignalReceived]:
        """Return the signals of these names that came first, at most so many."""
        waiting = merge(*(self._waiting.get(name, ()) for name in dict.fromkeys(names)), key=lambda signal: signal.seq)
        return list(islice(waiting, limit))

    def take_one(self, seq: int) -> events.SignalReceived:
        """Take out a signal for a handler."""
        return self._take(seq)

    def take(self, consumed: events.SignalsConsumed) -> None:
        """Take signals out for a listener; even if there is nobody to hear them, they are gone."""
        if consumed.ref not in self._taken:
            self._taken[consumed.ref] = [self._take(seq) for seq in consumed.signals]

    def hand_over(self, ref: int) -> list[events.SignalReceived]:
        """Return what was taken out for a listener."""
        return self._taken.pop(ref, [])

    def _take(self, seq: int) -> events.SignalReceived:
        name = self._names.pop(seq, None)
        if name is None:
            raise CorruptHistory(f"signal {seq} was consumed, but is not in the mailbox")
        waiting = self._waiting[name]
        # The first of its name, but for edits of code that listens.
        signal = waiting[0] if waiting[0].seq == seq else next(one for one in waiting if one.seq == seq)
        waiting.remove(signal)
        if not waiting:
            del self._waiting[name]
        return signal
