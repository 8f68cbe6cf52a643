"""Which signals and updates an execution has received: one that is sent twice counts once."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from resurgam.core import event as events
from resurgam.core.outcome import Forgotten

REMEMBERED_SIGNALS: Final = 100
"""Ids of forgotten signals and updates that are kept for deduplication."""


class ReceivedIds:
    """The ids of the signals and updates that were received.

    A signal is the same if its name and its id are; signals of different names, or a signal and an update, may share an
    id.
    """

    def __init__(self, log: Sequence[events.Event]) -> None:
        self._known: dict[str, int] = {}
        self._forgotten: deque[str] = deque(maxlen=REMEMBERED_SIGNALS)
        for entry in log:
            # By type, not isinstance: every entry of every history that is read passes here.
            kind = type(entry)
            if kind is events.SignalReceived or kind is events.UpdateAccepted:
                self._known[known_as(entry)] = entry.seq
            elif kind in _REMEMBERING and (remembered := _signals(entry)):
                self._forgotten = deque(remembered, maxlen=REMEMBERED_SIGNALS)

    def __contains__(self, received: events.SignalReceived | events.UpdateAccepted) -> bool:
        known = known_as(received)
        return known in self._known or known in self._forgotten

    def is_forgotten(self, received: events.SignalReceived | events.UpdateAccepted) -> bool:
        """Whether its entry is forgotten, and only its id is known."""
        known = known_as(received)
        return known not in self._known and known in self._forgotten

    def add(self, signal: events.SignalReceived | events.UpdateAccepted) -> None:
        """Note that a signal was received, or an update accepted."""
        self._known[known_as(signal)] = signal.seq

    def to_remember(self, unread: Iterable[events.SignalReceived]) -> tuple[str, ...]:
        """Return the ids that the next generation remembers; unread signals are delivered to it anew."""
        anew = {known_as(signal) for signal in unread}
        known = (*self._forgotten, *(known for known in self._known if known not in anew))
        return known[-REMEMBERED_SIGNALS:]

    def after(self, forgotten: Iterable[Forgotten]) -> Iterator[str]:
        """Return the ids to remember once these entries are forgotten, the oldest first."""
        gone = {entry.seq for entry in forgotten}
        ids = (*self._forgotten, *(known for known, seq in self._known.items() if seq in gone))
        return iter(ids[-REMEMBERED_SIGNALS:])

    def forget(self, forgotten: Iterable[Forgotten]) -> None:
        """Keep only the last ids of messages whose entries are forgotten."""
        gone = {entry.seq for entry in forgotten}
        self._forgotten.extend(known for known, seq in self._known.items() if seq in gone)
        self._known = {known: seq for known, seq in self._known.items() if seq not in gone}


_REMEMBERING: Final = frozenset({events.LoopCheckpointed, events.LoopCompleted, events.WorkflowStarted})


def _signals(entry: events.Event) -> tuple[str, ...]:
    assert isinstance(entry, events.Checkpoint | events.WorkflowStarted)
    return entry.signals


def known_as(received: events.Event) -> str:
    """Return the key of a message: a signal has its name and id, an update its id alone."""
    if isinstance(received, events.SignalReceived):
        return f"signal {received.name!r} {received.id}"
    assert isinstance(received, events.UpdateAccepted | events.UpdateRejected)
    return f"update {received.id}"
