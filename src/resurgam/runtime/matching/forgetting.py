"""Which entries of a log belong to which iteration of a loop, so that they are forgotten together.

A checkpoint forgets the commands of finished iterations with everything below them, their answers, the signals consumed
there, and the loop's own earlier checkpoint; and with them the entries of handlers that have returned. Entries of other
scopes, and unread signals, stay.
"""

from collections.abc import Container, Iterable
from typing import Final

from resurgam.core import event as events
from resurgam.core.location import Location
from resurgam.core.outcome import Forgotten, Span

HANDLERS: Final = (0,)
"""The coordinate below which the steps of handlers have their locations, each under its number."""


class Footprint:
    """The entries below loops that forget, and those of handlers."""

    def __init__(self, log: Iterable[events.Event]) -> None:
        self._loops: dict[int, events.LoopStarted] = {}
        self._locations: dict[int, Location] = {}
        self._checkpoints: dict[int, events.Checkpoint] = {}
        # The entries of handlers, by their number.
        self._handled: dict[int, int] = {}
        # Whether there is a loop or a handler that an entry may belong to. A plain attribute: every entry asks.
        self.watches = False
        for entry in log:
            if self.watches or type(entry) in BEGINNINGS:
                self.add(entry)

    def add(self, entry: events.Event) -> None:
        """Note to which iteration or handler an entry belongs."""
        if type(entry) is events.LoopStarted:
            self._command(entry)
            if entry.forget_every is not None:
                self.watches = True
                self._loops[entry.seq] = entry
        elif type(entry) in _HANDLED:
            self.watches = True
            self._begin(entry)
        elif not self._loops and not self._handled:
            return
        elif type(entry) in _UPDATED:
            # A refused update had no handler of its own; its entry goes with the last handler.
            self._handled[entry.seq] = self._handled.get(entry.ref or 0, max(self._handled.values(), default=1))
        elif isinstance(entry, events.Command):
            self._command(entry)
        elif isinstance(entry, events.Answer):
            self._answer(entry)

    def _begin(self, entry: events.Event) -> None:
        """Note the entry that starts a handler."""
        assert isinstance(entry, events.SignalHandled | events.UpdateAccepted)
        self._handled[entry.seq] = entry.scope
        if isinstance(entry, events.SignalHandled):
            self._handled[entry.signal] = entry.scope

    def _command(self, entry: events.Command) -> None:
        if self._handled and entry.location.coordinates[0] == HANDLERS:
            self._handled[entry.seq] = entry.location.coordinates[1][0]
        if any(loop.location.contains(entry.location) for loop in self._loops.values()):
            self._locations[entry.seq] = entry.location

    def _answer(self, entry: events.Answer) -> None:
        if entry.ref in self._handled:
            self._handled[entry.seq] = self._handled[entry.ref]
            if isinstance(entry, events.SignalsConsumed):
                self._handled.update(dict.fromkeys(entry.signals, self._handled[entry.ref]))
        location = self._locations.get(entry.ref)
        if location is not None:
            self._locations[entry.seq] = location
            if isinstance(entry, events.SignalsConsumed):
                self._locations.update(dict.fromkeys(entry.signals, location))
        if isinstance(entry, events.LoopCompleted):
            self._loops.pop(entry.ref, None)
            self.watches = bool(self._loops or self._handled)
        elif isinstance(entry, events.Checkpoint):
            self._checkpoints[entry.ref] = entry

    def through(self, loop: events.LoopStarted, iteration: int, busy: Container[int] = ()) -> list[Forgotten]:
        """Return what to forget once this many iterations of a loop are done, and all handlers that are not *busy*."""
        depth = len(loop.location.coordinates)
        done = [
            Forgotten(seq, location)
            for seq, location in self._locations.items()
            if len(location.coordinates) > depth
            and loop.location.contains(location)
            and location.coordinates[depth][0] <= iteration
        ]
        earlier = self._checkpoints.get(loop.seq)
        if earlier is not None:
            done.append(Forgotten(earlier.seq, loop.location.child((max(1, earlier.iteration),))))
        known = {entry.seq for entry in done}
        done += (
            Forgotten(seq, Location(HANDLERS, (number,)))
            for seq, number in self._handled.items()
            if number not in busy and seq not in known
        )
        return sorted(done, key=_seq)

    def forget(self, forgotten: Iterable[Forgotten]) -> None:
        """Drop entries that are forgotten."""
        for entry in forgotten:
            self._locations.pop(entry.seq, None)
            self._handled.pop(entry.seq, None)
            self._loops.pop(entry.seq, None)
            self._checkpoints.pop(entry.seq, None)
        self.watches = bool(self._loops or self._handled)


def dropped(loop: events.LoopStarted, iteration: int, handlers: int = 0) -> tuple[Span, ...]:
    """Return the locations of loop iterations and handlers whose forgotten entries are dropped, even for tools."""
    spans = ((loop.location, iteration - loop.keep_forgotten), (Location(HANDLERS), handlers - loop.keep_forgotten))
    return tuple(Span(location.child((1,)), location.child((last + 1,))) for location, last in spans if last >= 1)


def _seq(entry: Forgotten) -> int:
    return entry.seq


_HANDLED: Final = frozenset({events.SignalHandled, events.UpdateAccepted})
BEGINNINGS: Final = frozenset({events.LoopStarted, *_HANDLED})
"""The entries with which a loop or a handler begins."""
_UPDATED: Final = frozenset({events.UpdateCompleted, events.UpdateRejected})
