"""Updates on their way to their handlers: each counts once, by its id.

An update whose handler is not registered when the code comes to rest waits, and stays in the inbox, as long as an open
call of the workflow is settled without a further message: an activity, a child, an operation, a timer, a wait with a
timeout. The code goes on then, and may register the handler. The update is refused once the workflow waits for nothing
but messages, and `PATIENCE` after it was sent at the latest.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from resurgam.core import event as events
from resurgam.core.commands import COMMANDS
from resurgam.core.errors import NotFound
from resurgam.core.failure import capture
from resurgam.core.outcome import Entry
from resurgam.core.state import is_delayed
from resurgam.runtime.matching.dedup import ReceivedIds
from resurgam.runtime.replay.driver import Driver

PATIENCE: Final = 60_000
"""Milliseconds for which an update waits for its handler, at most."""
_UPDATES: Final = frozenset({events.UpdateAccepted, events.UpdateRejected})


def goes_on(open_commands: Mapping[int, events.Command]) -> bool:
    """Whether a workflow with these open commands goes on without a further message from outside."""
    return any(_settles_itself(command) for command in open_commands.values())


def _settles_itself(command: events.Command) -> bool:
    answered_by = COMMANDS[type(command)].answered_by
    return answered_by == "work" or (answered_by == "message" and getattr(command, "deadline", None) is not None)


class Consumed:
    """The entries of the inbox that the next commit removes from the store, by their ids."""

    __slots__ = ("ids",)

    def __init__(self) -> None:
        self.ids: list[int] = []

    def add(self, entry: Entry) -> None:
        """Remove an entry from the store's inbox with the next commit."""
        if entry.id is not None:
            self.ids.append(entry.id)


class UpdateQueue:
    """Updates that wait for their handlers, and the outcomes of handlers that have ended."""

    def __init__(self, driver: Driver, log: Sequence[events.Event], received: ReceivedIds, consumed: Consumed) -> None:
        self._driver = driver
        self._handlers = driver.handlers
        self._log = driver.recorder.log
        self._received = received
        self._consumed = consumed
        self._known = {entry.id for entry in log if type(entry) in _UPDATES}  # type: ignore[attr-defined]
        # Updates that wait for their handlers; a plain attribute, since every step reads it.
        self.waiting: dict[str, Entry] = {}
        # The moment of the first entry after the start, which the first advance wrote.
        self.first_ran_at = log[1].at if len(log) > 1 else None

    def holds(self, entry: Entry) -> bool:
        """Whether an entry of the inbox waits here."""
        if not isinstance(entry.event, events.UpdateAccepted):
            return False
        waiting = self.waiting.get(entry.event.id)
        return waiting is not None and waiting.id == entry.id

    def receive(self, entry: Entry, update: events.UpdateAccepted) -> events.Event | None:
        """Let an update meet its handler; one that came before has no effect."""
        if self._received.is_forgotten(update):
            gone = NotFound(f"an update with id {update.id!r} came before, and what became of it is not kept any more")
            self._reject(entry, update, capture(gone))
            return None
        if update in self._received or not self._wait(entry, update):
            self._consumed.add(entry)
        return self.next_entry() if self._handlers.any else None

    def _wait(self, entry: Entry, update: events.UpdateAccepted) -> bool:
        """Let an update wait for its handler; False if it is known already."""
        waiting = self.waiting.setdefault(update.id, entry)
        return update.id not in self._known and waiting.id == entry.id

    def next_entry(self) -> events.Event | None:
        """Record the outcome of a handler that has ended, or start the handler of an update that waits for it."""
        finished = self.finished_entry() if self._handlers.finished else None
        if finished is not None:
            return finished
        for update_id, entry in list(self.waiting.items()):
            update = entry.event
            assert isinstance(update, events.UpdateAccepted)
            if update_id in self._known:
                del self.waiting[update_id]
            elif update.name in self._handlers.updates:
                del self.waiting[update_id]
                self._known.add(update_id)
                accepted = self._accept(entry, update)
                if accepted is not None:
                    return accepted
        return None

    def _accept(self, entry: Entry, update: events.UpdateAccepted) -> events.Event | None:
        """Record that an update is accepted, unless its validator refuses it, which is recorded too."""
        refused = self._handlers.refuses(update)
        if refused is not None:
            self._reject(entry, update, refused)
            return None
        self._consumed.add(entry)
        accepted = self._log.take_in(msgspec.structs.replace(update, scope=self._log.state.handlers + 1))
        assert isinstance(accepted, events.UpdateAccepted)
        self._received.add(accepted)
        return accepted

    def _reject(self, entry: Entry, update: events.UpdateAccepted, failure: events.Failure) -> None:
        self._consumed.add(entry)
        self._log.add(events.UpdateRejected, name=update.name, id=update.id, failure=failure)

    def finished_entry(self) -> events.Event | None:
        """Record the outcome of a handler that has ended, unless it is on record already."""
        while self._handlers.finished:
            finished, *later = self._handlers.finished
            self._handlers.finished = tuple(later)
            update = finished.update
            about: dict[str, Any] = {"ref": update.seq, "id": update.id}
            if update.seq not in self._log.state.updates:
                continue
            if finished.result is not None:
                return self._log.add(events.UpdateCompleted, result=finished.result, **about)
            return self._log.add(events.UpdateRejected, name=update.name, failure=finished.failure, **about)
        return None

    def refuse(self, clock: int) -> None:
        """Refuse the updates that wait in vain: the code is at rest, and their time is over or it waits for messages."""
        until, since = clock if goes_on(self._log.state.open) else None, self._runs_since
        for update_id, entry in list(self.waiting.items()):
            update = entry.event
            assert isinstance(update, events.UpdateAccepted)
            if until is None or max(update.at, since) + PATIENCE <= until:
                del self.waiting[update_id]
                if update_id not in self._known:
                    self._known.add(update_id)
                    self._reject(entry, update, capture(self._handlers.unknown_update(update.name)))

    def deadline(self) -> int | None:
        """Return when the first update that waits is to be refused."""
        since = self._runs_since
        sent = (entry.event.at for entry in self.waiting.values())
        return min((max(at, since) + PATIENCE for at in sent), default=None)

    @property
    def _runs_since(self) -> int:
        """When a worker first ran the code: an update that was sent before could not meet a handler.

        A later attempt or generation does not count anew.
        """
        started = self._driver.started
        begun = (self._driver.began_at or 0) if is_delayed(started) else 0
        if (started.generation, started.attempt) != (1, 1):
            return begun
        return max(begun, self._log.stamp() if self.first_ran_at is None else self.first_ran_at)
