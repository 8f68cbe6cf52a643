"""Signals that were received and not consumed yet, by name, each name's in order."""

from collections import deque
from heapq import merge
from itertools import islice

import msgspec

from resurgam.core import event as events
from resurgam.core.errors import CorruptHistory


class Mailbox(msgspec.Struct, gc=False, eq=False):
    """Hold signals until a listener or a handler consumes them."""

    _waiting: dict[str, deque[events.SignalReceived]] = {}
    _names: dict[int, str] = {}
    # Consumed by a listener that the code has not reached yet.
    _taken: dict[int, list[events.SignalReceived]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, signal: events.SignalReceived) -> None:
        """Add a signal behind those of its name."""
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
        """Return the signals of these names that came first, at most *limit*."""
        waiting = merge(*(self._waiting.get(name, ()) for name in dict.fromkeys(names)), key=lambda signal: signal.seq)
        return list(islice(waiting, limit))

    def take_one(self, seq: int) -> events.SignalReceived:
        """Remove a signal for its handler."""
        return self._take(seq)

    def take(self, consumed: events.SignalsConsumed) -> None:
        """Remove the signals that a listener consumed, even if the code no longer has that listener."""
        if consumed.ref not in self._taken:
            self._taken[consumed.ref] = [self._take(seq) for seq in consumed.signals]

    def hand_over(self, ref: int) -> list[events.SignalReceived]:
        """Return the signals that were removed for a listener."""
        return self._taken.pop(ref, [])

    def _take(self, seq: int) -> events.SignalReceived:
        name = self._names.pop(seq, None)
        if name is None:
            raise CorruptHistory(f"signal {seq} was consumed, but is not in the mailbox")
        waiting = self._waiting[name]
        # The first of its name, unless listeners of the code were edited.
        signal = waiting[0] if waiting[0].seq == seq else next(one for one in waiting if one.seq == seq)
        waiting.remove(signal)
        if not waiting:
            del self._waiting[name]
        return signal
