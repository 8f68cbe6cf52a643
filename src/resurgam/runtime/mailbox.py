"""The signals that have come and that nobody has taken yet, by their names, each name's in order."""

from collections import deque

from resurgam.core import event as events
from resurgam.core.errors import CorruptHistory


class Mailbox:
    """Signals wait here until a listener takes them."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[events.SignalReceived]] = {}
        # Taken out for a listener that the code has not come to yet.
        self._taken: dict[int, list[events.SignalReceived]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, signal: events.SignalReceived) -> None:
        """Put a signal behind those of its name."""
        self._waiting.setdefault(signal.name, deque()).append(signal)

    def oldest(self, names: tuple[str, ...]) -> events.SignalReceived | None:
        """Return the signal of these names that came first."""
        heads = [waiting[0] for name in names if (waiting := self._waiting.get(name))]
        return min(heads, key=lambda signal: signal.seq) if heads else None

    def take(self, consumed: events.SignalsConsumed) -> None:
        """Take signals out for a listener; even if there is nobody to hear them, they are gone."""
        if consumed.ref not in self._taken:
            self._taken[consumed.ref] = [self._take(seq) for seq in consumed.signals]

    def hand_over(self, ref: int) -> list[events.SignalReceived]:
        """Return what was taken out for a listener."""
        return self._taken.pop(ref, [])

    def _take(self, seq: int) -> events.SignalReceived:
        for waiting in self._waiting.values():
            for signal in waiting:
                if signal.seq == seq:
                    waiting.remove(signal)
                    return signal
        raise CorruptHistory(f"signal {seq} was consumed, but is not in the mailbox")
