"""The interface between a worker and the brain that advances an instance.

The worker finds the `Brain` by the instance's kind and knows nothing else about it: a workflow's coroutine and a fold
over events are served alike. Both are synchronous and do no I/O, except that `Brain.answer` and `LiveInstance.advance`
may run user code; a `PreparedBrain` does its I/O in `prepare`. The worker watches these calls, and interrupts one that
does not return.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol, runtime_checkable

from msgspec import Raw

from resurgam.core.errors import NotFound
from resurgam.core.event import Event, Started
from resurgam.core.operation import Operation
from resurgam.core.outcome import Entry, Outcome


class LiveInstance(Protocol):
    """One instance in memory, between two advances."""

    @property
    def started(self) -> Started:
        """The first entry of its log."""
        ...

    @property
    def last_seq(self) -> int:
        """The ``seq`` of the newest entry, committed or not. It is reused only if the store's log ends there too."""
        ...

    @property
    def delivered_seq(self) -> int:
        """The ``seq`` of the entry delivered last; an advance during which it grows makes progress."""
        ...

    @property
    def closed(self) -> bool:
        """Whether it can no longer be advanced."""
        ...

    @property
    def paused(self) -> bool:
        """Whether it is paused: nothing new may be started for it."""
        ...

    @property
    def brought(self) -> Sequence[Entry]:
        """The entries without an id that the last advance was given or had kept: they are in no store yet."""
        ...

    def advance(self, inbox: Sequence[Entry], clock: int, worker: str = "") -> Outcome:
        """Deliver *inbox* and the timers due at *clock*; return the outcome to commit."""
        ...

    def begin(self, refs: Collection[int]) -> Sequence[Event]:
        """Record that attempts begin with the commit of the last outcome, which claims these activities of it.

        Called only if one of them has a prepared entry (`ActivityRequest.starts`). The entries are appended to those of the
        outcome. The store may leave an activity to others nevertheless, if older work waits in its queue.
        """
        ...

    def holds(self, entry: Entry) -> bool:
        """Whether an entry that was neither consumed nor recorded is kept in memory, and need not be given again."""
        ...

    @property
    def wants_more(self) -> bool:
        """Whether, once the last outcome is committed, there are operations to start or entries left to deliver."""
        ...

    def take_operations(self) -> Sequence[Operation]:
        """Return the operations to start now that their commands are committed, in call order; each only once."""
        ...

    def is_open(self, ref: int) -> bool:
        """Whether the command with this ``seq`` still waits for its answer."""
        ...

    def log_failure(self) -> None:
        """Log how the instance failed; called after the commit that closed it as failed."""
        ...

    def close(self) -> None:
        """Free its resources. Calls made meanwhile are not recorded."""
        ...


class Brain(Protocol):
    """One kind of instances."""

    def load(
        self,
        name: str,
        log: Sequence[Event],
        *,
        signal_schemas: Mapping[str, Raw],
        paused: bool = False,
        running: Collection[int] = (),
    ) -> LiveInstance:
        """Build an instance from its log; raise `NotFound` if the definition *name* is not known here.

        *signal_schemas* are the stored schemas of the signals it accepts. After a refused commit the worker builds the
        instance again, with the same *paused*, while its *running* operations continue.
        """
        ...

    def record_late(self, log: Sequence[Event], inbox: Sequence[Entry], clock: int) -> Outcome:
        """Return the commit that records entries which arrived after an instance's end; no user code runs."""
        ...

    def answer(self, log: Sequence[Event], query: str, input: Raw) -> Raw:
        """Return the result of a query from the log alone; exceptions of its handler propagate."""
        ...


@runtime_checkable
class PreparedBrain(Protocol):
    """A brain that must look something up before it can build some of its instances."""

    def wants_preparation(self, log: Sequence[Event]) -> bool:
        """Whether `prepare` must be called, after its claim, before the instance with this log is loaded."""
        ...

    async def prepare(self) -> None:
        """Look up what the brain needs. A failure counts against the instance for which it is called."""
        ...


def find_brain(brains: Mapping[str, Brain], kind: str) -> Brain:
    """Return the brain of a kind; raise `NotFound` if there is none."""
    try:
        return brains[kind]
    except KeyError:
        raise NotFound(
            f"kind must be one of {', '.join(sorted(brains))}, got {kind!r}; start a worker that has its brain on the same "
            "queue"
        ) from None
