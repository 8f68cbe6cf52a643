"""Which entries of a log belong to which iteration of a loop, so that they can be forgotten together.

Forgotten are the commands of the iterations that are done, with everything below them, their answers, the signals that
were consumed there, and the loop's own earlier checkpoint. What other strands did, and signals that nobody has taken
yet, stay.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from resurgam.core import event as events
from resurgam.core.location import Location
from resurgam.core.outcome import Forgotten, Span

REMEMBERED_SIGNALS: Final = 100
"""Ids of forgotten signals that are kept, so that one that is sent twice is still heard once."""


class Footprint:
    """The entries that stand below loops which forget."""

    def __init__(self, log: Iterable[events.Event]) -> None:
        self._loops: dict[int, events.LoopStarted] = {}
        self._places: dict[int, Location] = {}
        self._checkpoints: dict[int, events.Checkpoint] = {}
        for entry in log:
            if self._loops or type(entry) is events.LoopStarted:
                self.add(entry)

    def add(self, entry: events.Event) -> None:
        """Note where an entry belongs."""
        if type(entry) is events.LoopStarted:
            self._command(entry)
            if entry.forget_every is not None:
                self._loops[entry.seq] = entry
        elif not self._loops:
            return
        elif isinstance(entry, events.Command):
            self._command(entry)
        elif isinstance(entry, events.Answer):
            self._answer(entry)

    def _command(self, entry: events.Command) -> None:
        if any(loop.location.contains(entry.location) for loop in self._loops.values()):
            self._places[entry.seq] = entry.location

    def _answer(self, entry: events.Answer) -> None:
        place = self._places.get(entry.ref)
        if place is not None:
            self._places[entry.seq] = place
            if isinstance(entry, events.SignalsConsumed):
                self._places.update(dict.fromkeys(entry.signals, place))
        if isinstance(entry, events.LoopCompleted):
            self._loops.pop(entry.ref, None)
        elif isinstance(entry, events.Checkpoint):
            self._checkpoints[entry.ref] = entry

    def through(self, loop: events.LoopStarted, iteration: int) -> list[Forgotten]:
        """Return what can be forgotten once this many iterations of a loop are done."""
        depth = len(loop.location.coordinates)
        done = [
            Forgotten(seq, place)
            for seq, place in self._places.items()
            if len(place.coordinates) > depth
            and loop.location.contains(place)
            and place.coordinates[depth][0] <= iteration
        ]
        earlier = self._checkpoints.get(loop.seq)
        if earlier is not None:
            done.append(Forgotten(earlier.seq, loop.location.child((max(1, earlier.iteration),))))
        return sorted(done, key=_seq)

    def forget(self, forgotten: Iterable[Forgotten]) -> None:
        """What has been forgotten belongs nowhere any more."""
        for entry in forgotten:
            self._places.pop(entry.seq, None)
            self._loops.pop(entry.seq, None)
            self._checkpoints.pop(entry.seq, None)


def dropped(loop: events.LoopStarted, iteration: int) -> tuple[Span, ...]:
    """Return the places of the iterations of a loop that are not kept any longer, not even for tools."""
    last = iteration - loop.keep_forgotten
    if last < 1:
        return ()
    return (Span(loop.location.child((1,)), loop.location.child((last + 1,))),)


class SignalIds:
    """The ids of the signals that were received, so that one that is sent twice is heard once."""

    def __init__(self, log: Sequence[events.Event]) -> None:
        self._known: dict[str, int] = {}
        self._forgotten: deque[str] = deque(maxlen=REMEMBERED_SIGNALS)
        for entry in log:
            if type(entry) is events.SignalReceived:
                self._known[entry.id] = entry.seq
            elif isinstance(entry, events.Checkpoint) and entry.signals:
                self._forgotten = deque(entry.signals, maxlen=REMEMBERED_SIGNALS)

    def __contains__(self, signal_id: str) -> bool:
        return signal_id in self._known or signal_id in self._forgotten

    def add(self, signal: events.SignalReceived) -> None:
        """A signal has been received."""
        self._known[signal.id] = signal.seq

    def after(self, forgotten: Iterable[Forgotten]) -> Iterator[str]:
        """Return the ids to be remembered once these entries are forgotten, the oldest first."""
        gone = {entry.seq for entry in forgotten}
        ids = (*self._forgotten, *(known for known, seq in self._known.items() if seq in gone))
        return iter(ids[-REMEMBERED_SIGNALS:])

    def forget(self, forgotten: Iterable[Forgotten]) -> None:
        """Keep of the signals that are forgotten no more than the last ids."""
        gone = {entry.seq for entry in forgotten}
        self._forgotten.extend(known for known, seq in self._known.items() if seq in gone)
        self._known = {known: seq for known, seq in self._known.items() if seq not in gone}


def _seq(entry: Forgotten) -> int:
    return entry.seq
