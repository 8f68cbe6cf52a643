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

_LATE: Final = 200
"""Milliseconds after which claims and looks no longer wait for partitions that have not answered."""

_RETRY: Final = 1000
"""Milliseconds until partitions are asked again that could not be asked."""


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
        self._asked: dict[str, set[int]] = {kind: set() for kind in KINDS}
        """The partitions whose answer to a claim is late."""

        self._late: dict[str, list[Any]] = {kind: [] for kind in KINDS}
        """What late answers have brought."""

        self._unseen: set[int] = set()
        """The partitions whose answer to a look is late."""

        self._retrying = False
        self._due: dict[int, int] = {}
        self._ahead = 0
        """By how many milliseconds the server's clock is ahead of this one."""

        self._alarm: tuple[int, Callable[[], None]] | None = None

    # What is to be asked.

    def take(self, kind: str) -> set[int]:
        """Return the partitions that a claim must ask; what it leaves there must be given back."""
        asked = self._to_ask([kind]) - self._asked[kind]
        self._stale[kind].clear()
        for partition in self._undated - self._looking:
            self._looking.add(partition)
            self._link.call(partition, "look", self._part(()), partial(self._dated, partition))
        return asked

    def expect_late(self, kind: str, partitions: Iterable[int]) -> None:
        """Note that the answers of some partitions to a claim are late: they are not asked again before."""
        self._asked[kind].update(partitions)

    def keep_late(self, kind: str, partition: int, answer: Any) -> None:
        """Keep a late answer to a claim for the next one."""
        self._asked[kind].discard(partition)
        self._stale[kind].add(partition)
        if isinstance(answer, Exception):
            self._retry()
        else:
            self._late[kind] += answer[1:]
            self._changed(self)

    def take_late(self, kind: str, limit: int | None = None) -> list[Any]:
        """Return what late answers have brought, up to a limit."""
        late = self._late[kind]
        taken, self._late[kind] = late[:limit], late[len(late[:limit]) :]
        return taken

    def call_if_late(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back when answers that are still missing are late; return what calls that off."""
        return self._clock.call_at(self._clock.now() + _LATE, callback)

    def _retry(self) -> None:
        """Look again soon."""
        if not self._retrying and not self._link.lifetime.over:
            self._retrying = True
            self._clock.call_at(self._clock.now() + _RETRY, self._look_again)

    def _look_again(self) -> None:
        self._retrying = False
        if not self._link.lifetime.over:
            self._changed(self)

    def give_back(self, kind: str, partitions: Iterable[int]) -> None:
        """Note that there is more."""
        self._stale[kind].update(partitions)

    def look(self, kinds: Sequence[str], done: Callable[[Any], None]) -> None:
        """Call back with whether there is work of these kinds, or with the error of a server if there is no other answer.

        A partition that does not answer is waited for no longer than a moment; what it answers later is noted.
        """
        asked = self._to_ask(kinds) - self._unseen
        has_late = any(self._late[kind] for kind in kinds)
        if has_late or not asked:
            done(has_late)
            return
        look = _Look(asked, done, self._unseen)

        def seen(partition: int, answered: Any) -> None:
            self._dated(partition, answered)
            failed = isinstance(answered, Exception)
            if failed or answered[0]:
                for kind in kinds:
                    self._stale[kind].add(partition)
            if failed:
                self._retry()
            elif partition in self._unseen:
                self._unseen.discard(partition)
                self._changed(self)
            self._unseen.discard(partition)
            look.take(partition, answered)

        for kind in kinds:
            self._stale[kind] -= asked
        for partition in asked:
            self._link.call(partition, "look", self._part(kinds), partial(seen, partition))
        if not look.over:
            look.call_off = self.call_if_late(look.end)

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


class _Look:
    """A look at some partitions. It ends with the last answer, or when those that are missing are *late*."""

    def __init__(self, partitions: Iterable[int], done: Callable[[Any], None], late: set[int]) -> None:
        self.over = False
        self.call_off: Callable[[], None] = lambda: None
        self._missing = set(partitions)
        self._late = late
        self._done = done
        self._found = False
        self._answered = False
        self._error: Exception | None = None

    def take(self, partition: int, answer: Any) -> None:
        """Take the answer of a partition."""
        self._missing.discard(partition)
        if isinstance(answer, Exception):
            self._error = self._error or answer
        else:
            self._answered = True
            self._found = self._found or bool(answer[0])
        if not self._missing and not self.over:
            self.call_off()
            self.end()

    def end(self) -> None:
        """Call back with whether there is work; with an error if there is no other answer."""
        self.over = True
        self._late |= self._missing
        is_error = self._error is not None and not self._answered and not self._missing
        self._done(self._error if is_error else self._found)
