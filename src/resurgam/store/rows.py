"""What the memory store keeps of an instance and of an activity."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from resurgam.core import event as events
from resurgam.core.location import Location
from resurgam.core.outcome import ActivityRequest, Entry, Forgotten, Outcome, Span
from resurgam.store import records as r


@dataclass(slots=True)
class ActivityRow:
    """An activity that somebody wants, until it is answered."""

    execution_id: str
    request: ActivityRequest
    visible_at: int
    attempt: int = 1
    epoch: int = 0
    leased_until: int | None = None
    deliveries: int = 0
    dead: str | None = None


@dataclass(slots=True)
class Row:
    """An instance with all that belongs to it. Entries are found by ``seq``: *log* has the active ones in order."""

    instance: r.Instance
    log: dict[int, events.Event]
    forgotten: dict[int, tuple[Location, events.Event]] = field(default_factory=dict)
    inbox: dict[int, tuple[int, Entry]] = field(default_factory=dict)
    activities: dict[int, ActivityRow] = field(default_factory=dict)
    ready: bool = True
    wake: int = 0
    epoch: int = 0
    leased_until: int | None = None
    deliveries: int = 0
    last_failure: str = ""
    reminded: int | None = None
    tried_by: set[str] = field(default_factory=set)

    def seen(self) -> r.Instance:
        """Return the instance as it is shown, with what is wrong with its activities."""
        troubles = tuple(activity.dead for activity in self.activities.values() if activity.dead is not None)
        return msgspec.structs.replace(self.instance, troubles=troubles) if troubles else self.instance

    def append(self, entries: Iterable[events.Event]) -> None:
        """Put entries at the end of the log."""
        self.log.update((entry.seq, entry) for entry in entries)

    def forget(self, marks: Iterable[Forgotten]) -> None:
        """Keep entries under a place, where only tools look; those that are there already move."""
        for mark in marks:
            _, known = self.forgotten.get(mark.seq, (None, None))
            entry = self.log.pop(mark.seq, known)
            if entry is not None:
                self.forgotten[mark.seq] = (mark.place, entry)

    def drop(self, spans: Iterable[Span]) -> None:
        """Give up what is forgotten under these places."""
        for span in spans:
            for seq in [seq for seq, (place, _) in self.forgotten.items() if span.start <= place < span.end]:
                del self.forgotten[seq]

    def kept(self) -> list[events.Event]:
        """Return all entries that are still there, forgotten or not, in order."""
        forgotten = (entry for _, entry in self.forgotten.values())
        return sorted((*self.log.values(), *forgotten), key=lambda entry: entry.seq)

    def copy(self) -> r.Copy:
        """Return everything but the leases."""
        return r.Copy(
            instance=self.instance,
            log=tuple(self.kept()),
            forgotten=tuple(Forgotten(seq, place) for seq, (place, _) in sorted(self.forgotten.items())),
            inbox=tuple(entry.event for _, entry in self.inbox.values()),
            activities=tuple(
                r.Pending(**{name: getattr(activity, name) for name in r.Pending.__struct_fields__})
                for activity in self.activities.values()
            ),
        )

    def news(self, since: int) -> tuple[Entry, ...]:
        """Return what has come into the inbox after the wake counter was *since*."""
        return tuple(entry for wake, entry in self.inbox.values() if wake > since)

    def settle(self, outcome: Outcome, now: int) -> None:
        """Take over what a commit says of the instance."""
        self.instance = msgspec.structs.replace(
            self.instance,
            status=outcome.status,
            closed_at=self.instance.closed_at or (now if outcome.status.terminal else None),
            deactivated=outcome.deactivated,
            last_seq=self.instance.last_seq + len(outcome.events),
            wake_at=outcome.wake_at,
            parked=outcome.diagnosis,
        )
