"""The updates that have come to an execution: which are known already, and which wait for their handler."""

from collections.abc import Container, Iterator, Sequence

from resurgam.core import event as events
from resurgam.core.outcome import Entry


class Updates:
    """Each update counts once, by its id; one whose handler is not registered yet waits, and stays in the inbox."""

    def __init__(self, log: Sequence[events.Event]) -> None:
        self._known = {entry.id for entry in log if isinstance(entry, events.UpdateAccepted | events.UpdateRejected)}
        self._waiting: dict[str, Entry] = {}

    def take(self, entry: Entry) -> bool:
        """Let an update wait for its handler; False if it is known already, and of no effect."""
        assert isinstance(entry.event, events.UpdateAccepted)
        waiting = self._waiting.setdefault(entry.event.id, entry)
        return entry.event.id not in self._known and waiting.id == entry.id

    def holds(self, entry: Entry) -> bool:
        """Whether an entry of the inbox waits here."""
        if not isinstance(entry.event, events.UpdateAccepted):
            return False
        waiting = self._waiting.get(entry.event.id)
        return waiting is not None and waiting.id == entry.id

    @property
    def waiting(self) -> list[Entry]:
        """The updates that wait for their handlers."""
        return list(self._waiting.values())

    def ready(self, handlers: Container[str]) -> Iterator[Entry]:
        """Return the updates that there are handlers for, and let them wait no longer."""
        for update_id, entry in list(self._waiting.items()):
            assert isinstance(entry.event, events.UpdateAccepted)
            if update_id in self._known:
                del self._waiting[update_id]
            elif entry.event.name in handlers:
                del self._waiting[update_id]
                self._known.add(update_id)
                yield entry
