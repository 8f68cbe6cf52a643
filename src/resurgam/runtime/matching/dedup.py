"""Which signals and updates an execution has received: one that is sent twice counts once."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from resurgam.core import event as events
from resurgam.core.outcome import Forgotten

REMEMBERED_SIGNALS: Final = 100
"""Ids of forgotten signals and updates that are kept, so that one that is sent twice is still heard once."""


class ReceivedIds:
    """The signals and updates that were received, so that one that is sent twice counts once.

    A signal is the same if its name and its id are; signals of different names, or a signal and an update, may share an id.
    """

    def __init__(self, log: Sequence[events.Event]) -> None:
        self._known: dict[str, int] = {}
        self._forgotten: deque[str] = deque(maxlen=REMEMBERED_SIGNALS)
        for entry in log:
            if type(entry) is events.SignalReceived or type(entry) is events.UpdateAccepted:
                self._known[known_as(entry)] = entry.seq
            elif isinstance(entry, events.Checkpoint | events.WorkflowStarted) and entry.signals:
                self._forgotten = deque(entry.signals, maxlen=REMEMBERED_SIGNALS)

    def __contains__(self, received: events.SignalReceived | events.UpdateAccepted) -> bool:
        known = known_as(received)
        return known in self._known or known in self._forgotten

    def is_forgotten(self, received: events.SignalReceived | events.UpdateAccepted) -> bool:
        """Whether no more is known of it than that it came."""
        known = known_as(received)
        return known not in self._known and known in self._forgotten

    def add(self, signal: events.SignalReceived | events.UpdateAccepted) -> None:
        """A signal has been received, or an update accepted."""
        self._known[known_as(signal)] = signal.seq

    def heard(self, unread: Iterable[events.SignalReceived]) -> tuple[str, ...]:
        """Return the ids that the next generation is to remember; what it finds unread it is told anew."""
        anew = {known_as(signal) for signal in unread}
        known = (*self._forgotten, *(known for known in self._known if known not in anew))
        return known[-REMEMBERED_SIGNALS:]

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


def known_as(received: events.Event) -> str:
    """Return what a message is remembered by: a signal by its name and id, an update by its id alone."""
    if isinstance(received, events.SignalReceived):
        return f"signal {received.name!r} {received.id}"
    assert isinstance(received, events.UpdateAccepted | events.UpdateRejected)
    return f"update {received.id}"
