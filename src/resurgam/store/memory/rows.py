"""The rows of the memory store: instances and their activities."""

from collections.abc import Iterable

import msgspec
from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.location import Location
from resurgam.core.outcome import ActivityRequest, Entry, Forgotten, Outcome, Span
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.rules import kept_answer, status_after


class ActivityRow(msgspec.Struct):
    """An activity, until it is answered. With *covered* the lease on its instance is its lease too."""

    execution_id: str
    request: ActivityRequest
    visible_at: int
    attempt: int = 1
    epoch: int = 0
    leased_until: int | None = None
    deliveries: int = 0
    dead_letter: str | None = None
    details: Raw | None = None
    heartbeat_at: int | None = None
    worker: str = ""
    covered: bool = False

    @property
    def begun(self) -> bool:
        """Whether an attempt has ever started."""
        return self.leased_until is not None or self.deliveries > 0 or self.attempt > 1

    def pending(self) -> r.Pending:
        """Return everything but the lease."""
        return r.Pending(**{name: getattr(self, name) for name in r.Pending.__struct_fields__})

    def opened(self) -> r.OpenActivity:
        """Return the activity with its lease."""
        held = self.leased_until is not None
        return r.OpenActivity(
            **msgspec.structs.asdict(self.pending()),
            worker=self.worker if held else None,
            leased_until=self.leased_until,
        )


class Row(msgspec.Struct):
    """An instance with all that belongs to it. *log* has the active entries by ``seq``, in order."""

    instance: r.Instance
    log: dict[int, events.Event]
    forgotten: dict[int, tuple[Location, events.Event]] = msgspec.field(default_factory=dict)
    inbox: dict[int, tuple[int, Entry]] = msgspec.field(default_factory=dict)
    activities: dict[int, ActivityRow] = msgspec.field(default_factory=dict)
    promises: dict[str, r.Promise] = msgspec.field(default_factory=dict)
    answer: events.Event | None = None
    paused: r.Pause | None = None
    ready: bool = True
    wake: int = 0
    epoch: int = 0
    leased_until: int | None = None
    deliveries: int = 0
    last_failure: str = ""
    worker: str = ""
    reminded: int | None = None
    tried_by: set[str] = msgspec.field(default_factory=set)

    def shown(self) -> r.Instance:
        """Return the instance as others see it: a pause hides its status."""
        return self.instance if self.paused is None else msgspec.structs.replace(self.instance, status=Status.PAUSED)

    def seen(self) -> r.Instance:
        """Return the instance as it is shown, with the dead letters among its activities."""
        activity_dead_letters = tuple(
            activity.dead_letter for _, activity in sorted(self.activities.items()) if activity.dead_letter is not None
        )
        return (
            msgspec.structs.replace(self.shown(), activity_dead_letters=activity_dead_letters)
            if activity_dead_letters
            else self.shown()
        )

    def begins(self, now: int) -> bool:
        """Whether its code may run: that of a scheduled instance, from its moment on."""
        wake_at = self.instance.wake_at
        return self.instance.status is not Status.SCHEDULED or (wake_at is not None and wake_at <= now)

    def append(self, entries: Iterable[events.Event]) -> None:
        """Append entries to the log."""
        self.log.update((entry.seq, entry) for entry in entries)

    def forget(self, marks: Iterable[Forgotten]) -> None:
        """Keep entries under a location, where only tools look; those that are there already move."""
        for mark in marks:
            _, known = self.forgotten.get(mark.seq, (None, None))
            entry = self.log.pop(mark.seq, known)
            if entry is not None:
                self.forgotten[mark.seq] = (mark.location, entry)

    def drop(self, spans: Iterable[Span]) -> None:
        """Give up what is forgotten under these locations."""
        for span in spans:
            for seq in [seq for seq, (location, _) in self.forgotten.items() if span.start <= location < span.end]:
                del self.forgotten[seq]

    def entry(self, seq: int) -> events.Event | None:
        """Return an entry that is still there, forgotten or not."""
        _, forgotten = self.forgotten.get(seq, (None, None))
        return self.log.get(seq, forgotten)

    def kept(self) -> list[events.Event]:
        """Return all entries that are kept, forgotten or not, in order."""
        forgotten = (entry for _, entry in self.forgotten.values())
        return sorted((*self.log.values(), *forgotten), key=lambda entry: entry.seq)

    def copy(self) -> r.Copy:
        """Return everything but the leases."""
        return r.Copy(
            instance=self.instance,
            log=tuple(self.kept()),
            forgotten=tuple(Forgotten(seq, location) for seq, (location, _) in sorted(self.forgotten.items())),
            inbox=tuple(entry.event for _, entry in self.inbox.values()),
            activities=tuple(activity.pending() for _, activity in sorted(self.activities.items())),
            promises=tuple(self.promises.values()),
            answer=self.answer,
            paused=self.paused,
        )

    def open_work(self) -> r.OpenWork:
        """Return the open activities, the inbox and the lease."""
        return r.OpenWork(
            activities=tuple(activity.opened() for _, activity in sorted(self.activities.items())),
            inbox=tuple(entry.event for _, entry in self.inbox.values()),
            worker=None if self.leased_until is None else self.worker,
            leased_until=self.leased_until,
            deliveries=self.deliveries,
        )

    def entries_since(self, since: int) -> tuple[Entry, ...]:
        """Return the inbox entries since the wake counter was *since*; none if it has not moved."""
        if self.wake <= since:
            return ()
        return tuple(entry for wake, entry in self.inbox.values() if wake > since)

    def update(self, outcome: Outcome, now: int) -> None:
        """Update the instance by the outcome of a commit."""
        self.answer = kept_answer(outcome) or self.answer
        self.instance = msgspec.structs.replace(
            self.instance,
            status=status_after(self.instance.status, outcome),
            closed_at=self.instance.closed_at or (now if outcome.status.terminal else None),
            deactivated=outcome.deactivated,
            last_seq=self.instance.last_seq + len(outcome.events),
            wake_at=outcome.wake_at,
            parked=outcome.diagnosis,
            signal_schemas=self.instance.signal_schemas if outcome.signal_schemas is None else outcome.signal_schemas,
            tags=self.instance.tags if outcome.tags is None else outcome.tags,
            failure=outcome.failure or self.instance.failure,
        )
        if outcome.status.terminal:
            self.paused = None
