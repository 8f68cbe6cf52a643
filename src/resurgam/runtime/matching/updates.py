"""The updates that have come to an execution: which are known already, and which wait for their handler.

An update whose handler is not registered when the code comes to rest waits, and stays in the inbox, as long as something
the workflow has asked for is under way: an activity, a child, an operation, a timer, a wait with a timeout. The code goes
on then without a further message, and may register the handler. The update is refused once the workflow waits for nothing
but messages, and `PATIENCE` after it was sent at the latest.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Final

from resurgam.core import event as events
from resurgam.core.commands import COMMANDS
from resurgam.core.outcome import Entry

PATIENCE: Final = 60_000
"""Milliseconds for which an update waits for its handler, at most."""


def goes_on(open: Mapping[int, events.Command]) -> bool:
    """Whether the code of a workflow with these open commands goes on without a further message from outside."""
    return any(
        kind.answered_by == "work" or (kind.answered_by == "message" and getattr(command, "deadline", None) is not None)
        for command in open.values()
        for kind in (COMMANDS[type(command)],)
    )


class Updates:
    """Each update counts once, by its id; one whose handler is not registered yet waits, and stays in the inbox."""

    def __init__(self, log: Sequence[events.Event]) -> None:
        self._known = {entry.id for entry in log if isinstance(entry, events.UpdateAccepted | events.UpdateRejected)}
        # Those that wait for their handlers; a plain attribute, since every step asks.
        self.waiting: dict[str, Entry] = {}

    def take(self, entry: Entry) -> bool:
        """Let an update wait for its handler; False if it is known already, and of no effect."""
        assert isinstance(entry.event, events.UpdateAccepted)
        waiting = self.waiting.setdefault(entry.event.id, entry)
        return entry.event.id not in self._known and waiting.id == entry.id

    def holds(self, entry: Entry) -> bool:
        """Whether an entry of the inbox waits here."""
        if not isinstance(entry.event, events.UpdateAccepted):
            return False
        waiting = self.waiting.get(entry.event.id)
        return waiting is not None and waiting.id == entry.id

    def deadline(self, begun: int) -> int | None:
        """Return when the first update that waits is to be refused; none waits before the code has *begun*."""
        waiting = (entry.event.at for entry in self.waiting.values())
        return min((max(at, begun) + PATIENCE for at in waiting), default=None)

    def refuse(self, until: int | None, begun: int) -> Iterator[Entry]:
        """Return the updates whose time is over at *until*, None for all that wait, and let them wait no longer."""
        for update_id, entry in list(self.waiting.items()):
            if until is None or max(entry.event.at, begun) + PATIENCE <= until:
                del self.waiting[update_id]
                if update_id not in self._known:
                    self._known.add(update_id)
                    yield entry

    def ready(self, handlers: Container[str]) -> Iterator[Entry]:
        """Return the updates that there are handlers for, and let them wait no longer."""
        for update_id, entry in list(self.waiting.items()):
            assert isinstance(entry.event, events.UpdateAccepted)
            if update_id in self._known:
                del self.waiting[update_id]
            elif entry.event.name in handlers:
                del self.waiting[update_id]
                self._known.add(update_id)
                yield entry
