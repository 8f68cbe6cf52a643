"""What a store knows about the work in some queues without asking for it.

A store that listens to the channels of its queues hears of everything that becomes claimable, and knows the next moment at
which something becomes so by itself. A partition that was found empty is therefore not asked again before one of the two,
unless the store cannot hear just now. What another store has done a moment ago may still be under way to this one.
Claims and looks share this knowledge: a worker that frees a slot with every step does not ask the server each time.

A partition is *stale* for a kind of work if something may be there. A claim or a look takes it off before it asks, so that
what is announced meanwhile is kept, and puts it back if there is more. A partition is *undated* if its next moment is not
known.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

from resurgam.core.clock import Clock
from resurgam.store.redis.link import Link

INSTANCES: Final = "claim"
ACTIVITIES: Final = "claim_activities"
QUERIES: Final = "claim_queries"
KINDS: Final = (INSTANCES, ACTIVITIES, QUERIES)
"""The kinds of work, by the verbs that claim them."""


class Outlook:
    """The work that a worker may find in some queues.

    *changed* is called when there may be more; *hears* says whether messages arrive.
    """

    def __init__(
        self,
        link: Link,
        clock: Clock,
        worker: str,
        queues: Sequence[str],
        changed: Callable[["Outlook"], None],
        hears: Callable[[], bool] = lambda: True,
    ) -> None:
        self.worker = worker
        self.queues = tuple(queues)
        self._link = link
        self._clock = clock
        self._changed = changed
        self._hears = hears
        self._stale: dict[str, set[int]] = {kind: set(range(link.partitions)) for kind in KINDS}
        self._undated = set(range(link.partitions))
        self._looking: set[int] = set()
        self._due: dict[int, int] = {}
        self._ahead = 0
        """By how many milliseconds the server's clock is ahead of this one."""

        self._alarm: tuple[int, Callable[[], None]] | None = None

    # What is to be asked.

    def take(self, kind: str) -> set[int]:
        """Return the partitions that a claim must ask; what it leaves there must be given back."""
        asked = self._to_ask([kind])
        self._stale[kind].clear()
        for partition in self._undated - self._looking:
            self._looking.add(partition)
            self._link.call(partition, "look", self._part(()), partial(self._dated, partition))
        return asked

    def give_back(self, kind: str, partitions: Iterable[int]) -> None:
        """Note that there is more."""
        self._stale[kind].update(partitions)

    def look(self, kinds: Sequence[str], done: Callable[[Any], None]) -> None:
        """Call back with whether there is work of these kinds, or with the error of a server."""
        asked = self._to_ask(kinds)
        open_ = len(asked)
        answer: Any = False
        if not asked:
            done(answer)

        def seen(partition: int, answered: Any) -> None:
            nonlocal open_, answer
            open_ -= 1
            self._dated(partition, answered)
            if isinstance(answered, Exception):
                answer = answer or answered
            elif answered[0]:
                answer = True
            if isinstance(answered, Exception) or answered[0]:
                for kind in kinds:
                    self._stale[kind].add(partition)
            if open_ == 0:
                done(answer)

        for kind in kinds:
            self._stale[kind] -= asked
        for partition in asked:
            self._link.call(partition, "look", self._part(kinds), partial(seen, partition))

    def _to_ask(self, kinds: Sequence[str]) -> set[int]:
        """Return the partitions in which work of some kinds may be."""
        if not self._hears():
            return set(range(self._link.partitions))
        return self._undated.union(*(self._stale[kind] for kind in kinds))

    def _part(self, kinds: Sequence[str]) -> list[object]:
        return [self.worker, self.queues, *(kind in kinds for kind in KINDS)]

    def _dated(self, partition: int, answer: Any) -> None:
        """Take the next moment of a partition, which is the server's, from a look.

        An earlier one that is known stays: it may have been announced after the server looked.
        """
        self._looking.discard(partition)
        if isinstance(answer, Exception):
            return
        _, due, now = answer
        self._ahead = now - self._clock.now()
        self._undated.discard(partition)
        if due >= 0:
            self._expect(partition, max(due, now + 1) - self._ahead)

    def _expect(self, partition: int, when: int) -> None:
        """Look again at a moment, unless an earlier one is expected."""
        if self._due.get(partition, when) >= when:
            self._due[partition] = when
            self._set_alarm()

    # What is heard.

    def note_work(self, partition: int) -> None:
        """Note that something has become claimable."""
        for stale in self._stale.values():
            stale.add(partition)
        self._changed(self)

    def note_due(self, partition: int, moment: int) -> None:
        """Note that something becomes claimable at a moment of the server."""
        when = moment - self._ahead
        if when <= self._clock.now():
            self.note_work(partition)
        else:
            self._expect(partition, when)

    def forget(self) -> None:
        """Know nothing: messages may have been missed."""
        everything = range(self._link.partitions)
        for unknown in (self._undated, *self._stale.values()):
            unknown.update(everything)
        self._changed(self)

    def close(self) -> None:
        """Call off the alarm."""
        if self._alarm is not None:
            self._alarm[1]()
            self._alarm = None

    def _set_alarm(self) -> None:
        when = min(self._due.values(), default=None)
        if self._alarm is not None and self._alarm[0] == when:
            return
        self.close()
        if when is not None and not self._link.lifetime.over:
            self._alarm = when, self._clock.call_at(when, self._ring)

    def _ring(self) -> None:
        """Note that the moment of some partitions has come, and that the next one is not known."""
        self._alarm = None
        now = self._clock.now()
        for partition in [partition for partition, moment in self._due.items() if moment <= now]:
            del self._due[partition]
            self._undated.add(partition)
            for stale in self._stale.values():
                stale.add(partition)
        self._set_alarm()
        self._changed(self)
