"""The brain of the catalog: the one instance of kind ``catalog``, whose log holds the registered steps."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Raw
from msgspec.structs import replace

from resurgam.core import flow_event as fe
from resurgam.core import lifecycle
from resurgam.core.entry import NULL, Event
from resurgam.core.errors import AlreadyExists, CorruptHistory, DefinitionError, NotFound
from resurgam.core.lifecycle import Started
from resurgam.core.location import Location
from resurgam.core.operation import Operation
from resurgam.core.outcome import Entry, Forgotten, Outcome, Publication
from resurgam.core.state import Status
from resurgam.flows.catalog import Catalog
from resurgam.flows.registration import decide, fold

CATALOG_TOPIC: Final = "resurgam.catalog"
"""Where the catalog says that it has taken in requests: a refused one leaves no entry that a client could wait for."""

_REFUSALS: Final = (AlreadyExists, NotFound, DefinitionError)
_PAUSES: Final = (lifecycle.WorkflowPaused, lifecycle.WorkflowResumed)
_HEALTH: Final = Location((1,))
"""Where outdated entries about health are kept. A service that comes and goes would otherwise make every look at the
catalog longer."""
_DELETIONS: Final = Location((2,))
"""Where entries about deleted entities are kept, for the same reason. They are never dropped."""
_AUDIT: Final = (fe.EntityDeletionRequested, fe.EntityDeleted)


class LiveCatalog:
    """The catalog in memory. It records the requests that it accepts; refused ones leave no entry."""

    def __init__(self, log: Sequence[Event]) -> None:
        first, last = log[0], log[-1]
        if not isinstance(first, fe.CatalogStarted):
            raise CorruptHistory(f"the first entry of the catalog is catalog_started, got {first.type}")
        self.started: Started = first
        self.last_seq, self._last_at = last.seq, last.at
        self.catalog = fold(Catalog(), log)
        self.brought: Sequence[Entry] = ()
        self.closed = self.paused = False
        self._health = {entry.step_id: entry.seq for entry in log if isinstance(entry, fe.StepHealthChanged)}
        self._audit = [entry.seq for entry in log if isinstance(entry, _AUDIT)]
        self._ended = any(isinstance(entry, lifecycle.WorkflowTerminated) for entry in log)
        for entry in log:
            if isinstance(entry, _PAUSES):
                self.paused = isinstance(entry, lifecycle.WorkflowPaused)

    @property
    def delivered_seq(self) -> int:
        """The same as `last_seq`: every entry is taken in at once."""
        return self.last_seq

    @property
    def wants_more(self) -> bool:
        """Nothing: an advance brings the catalog to rest."""
        return False

    def holds(self, entry: Entry) -> bool:
        """Nothing: every entry is consumed."""
        return False

    def take_operations(self) -> Sequence[Operation]:
        """None: no code runs."""
        return ()

    def begin(self, refs: Collection[int]) -> Sequence[Event]:
        """None: the catalog has no activities."""
        return ()

    def is_open(self, ref: int) -> bool:
        """Nothing: the catalog starts no work."""
        return False

    def log_failure(self) -> None:
        """Nothing: the catalog cannot fail."""

    def close(self) -> None:
        """Do not advance it any more."""
        self.closed = True

    def advance(self, inbox: Sequence[Entry], clock: int, worker: str = "") -> Outcome:
        """Record the requests that fit the catalog, in the order in which they came."""
        self.brought = [entry for entry in inbox if entry.id is None]
        recorded = (
            [] if self._ended else [one for entry in inbox if (one := self._take(entry.event, clock)) is not None]
        )
        if self._ended:
            recorded.append(self._stamp(lifecycle.WorkflowDeactivated(), clock))
        return Outcome(
            events=tuple(recorded),
            forgotten=(*self._outdated(recorded), *self._audited(recorded)),
            consumed=tuple(entry.id for entry in inbox if entry.id is not None),
            status=Status.TERMINATED if self._ended else Status.RUNNING,
            publications=(Publication(CATALOG_TOPIC, NULL),) if inbox else (),
            deactivated=self._ended,
        )

    def _take(self, event: Event, clock: int) -> Event | None:
        if isinstance(event, _PAUSES):
            self.paused = isinstance(event, lifecycle.WorkflowPaused)
            return self._stamp(event, clock)
        try:
            changed = decide(self.catalog, event)
        except _REFUSALS:
            return None  # the client that sent it sees that it is not in the log, and why
        if changed is None:
            return None
        self.catalog = changed
        return self._stamp(event, clock)

    def _outdated(self, recorded: Sequence[Event]) -> Iterator[Forgotten]:
        """Yield the entries about health that newer ones replace."""
        for entry in recorded:
            if isinstance(entry, fe.StepHealthChanged):
                before = self._health.get(entry.step_id)
                if before is not None:
                    yield Forgotten(before, _HEALTH)
                self._health[entry.step_id] = entry.seq

    def _audited(self, recorded: Sequence[Event]) -> Iterator[Forgotten]:
        """Yield the entries about deletions, apart from the last entry of the log: its ``seq`` is read from there."""
        self._audit += [entry.seq for entry in recorded if isinstance(entry, _AUDIT)]
        for seq in self._audit:
            if seq != self.last_seq:
                yield Forgotten(seq, _DELETIONS)
        self._audit = [seq for seq in self._audit if seq == self.last_seq]

    def _stamp(self, event: Event, clock: int) -> Event:
        self.last_seq += 1
        self._last_at = max(clock, self._last_at)
        return replace(event, seq=self.last_seq, at=self._last_at)


class CatalogBrain:
    """Instances of kind ``catalog``."""

    def load(
        self,
        name: str,
        log: Sequence[Event],
        *,
        signal_schemas: Mapping[str, Raw],
        paused: bool = False,
        running: Collection[int] = (),
    ) -> LiveCatalog:
        """Fold a log."""
        return LiveCatalog(log)

    def record_late(self, log: Sequence[Event], inbox: Sequence[Entry], clock: int) -> Outcome:
        """Complete the log of a catalog that was terminated."""
        return LiveCatalog(log).advance(inbox, clock)

    def answer(self, log: Sequence[Event], query: str, input: Raw) -> Raw:
        """The catalog has no queries; its log says everything."""
        raise NotFound(f"the catalog answers no query, got {query!r}; `resurgam step list` shows its steps")
