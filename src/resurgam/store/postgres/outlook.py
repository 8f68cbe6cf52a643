"""What a store knows about the work in some queues without asking for it.

A store that listens hears of everything that becomes claimable, and knows the next moment at which something becomes so by
itself. Queues that were found empty are therefore not asked again before one of the two. Claims and looks share this
knowledge: a worker that frees a slot with every step does not ask the server each time.

A kind of work is *stale* if something may be there. A claim or a look takes it off before it asks, so that what is announced
meanwhile is kept, and puts it back if there is more. An outlook is *undated* if its next moment is not known.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from resurgam.core.clock import Clock, is_system
from resurgam.store.postgres.pool import Pool

INSTANCES: Final = "claim"
ACTIVITIES: Final = "claim_activities"
QUERIES: Final = "claim_queries"
KINDS: Final = (INSTANCES, ACTIVITIES, QUERIES)
"""The kinds of work, by the verbs that claim them."""

_FIRST_PAUSE: Final = 0.002
"""Seconds until work is asked for again that other calls held; each time in vain doubles it."""

_LONGEST_PAUSE: Final = 0.25

_TURN: Final = 0.01
"""Seconds that other workers have to take their share; they are woken at the same moment."""


class Outlook:
    """The work that a worker may find in some queues. *changed* is called when there may be more."""

    def __init__(
        self, pool: Pool, clock: Clock, worker: str, queues: Sequence[str], changed: Callable[["Outlook"], None]
    ) -> None:
        self.worker = worker
        self.queues = tuple(queues)
        self._pool = pool
        self._clock = clock
        self._changed = changed
        self._stale = set(KINDS)
        self._undated = True
        self._looking = False
        self._due: int | None = None
        self._ahead = 0
        """By how many milliseconds the server's clock is ahead of this one."""

        self._alarm: tuple[int, Callable[[], None]] | None = None
        self._held: set[str] = set()
        """The kinds of which other calls hold all that there is: they are not asked for until a pause is over."""

        self._pause = _FIRST_PAUSE
        self._again: asyncio.TimerHandle | None = None

    @property
    def asks_again(self) -> bool:
        """Whether work was left that is asked for again after a pause."""
        return self._again is not None

    # What is to be asked.

    def take(self, kind: str) -> bool:
        """Return whether a claim must ask; what it leaves must be given back."""
        asks = self._undated or kind in self._stale
        self._stale.discard(kind)
        if self._undated and not self._looking:
            self._looking = True
            self._pool.call("look", self._part(()), self._dated)
        return asks

    def give_back(self, kind: str) -> None:
        """Note that there is more."""
        self._stale.add(kind)
        self._pause = _FIRST_PAUSE

    def put_off(self, kind: str, seconds: float | None = None) -> None:
        """Note that there is more, which other calls hold at this moment: it is theirs, or will be free soon."""
        self._held.add(kind)
        if self._again is None:
            self._again = asyncio.get_running_loop().call_later(seconds or self._pause, self._ask_again)
            self._pause = _FIRST_PAUSE if seconds else min(2 * self._pause, _LONGEST_PAUSE)

    def leave(self, kind: str) -> None:
        """Note that there is more, which is the share of other workers, if they take it soon."""
        self.put_off(kind, _TURN)

    def _ask_again(self) -> None:
        self._again = None
        self._stale |= self._held
        self._held.clear()
        self._changed(self)

    def look(self, kinds: Sequence[str], done: Callable[[Any], None], *, listens: bool) -> None:
        """Call back with whether there is work of these kinds, or with the error of the store.

        It is known only as long as the store *listens*.
        """
        unknown = self._undated or not listens
        asked = [kind for kind in kinds if (unknown or kind in self._stale) and kind not in self._held]
        if not asked and not self._undated:
            done(False)  # noqa: FBT003 -- the answer
            return

        def seen(answer: Any) -> None:
            self._dated(answer)
            if isinstance(answer, Exception):
                self._stale.update(asked)
                done(answer)
                return
            found = [kind for kind, is_there in zip(KINDS, answer[0], strict=True) if is_there]
            self._stale.update(found)
            done(bool(found))

        self._stale.difference_update(asked)
        self._pool.call("look", self._part(asked), seen)

    def _part(self, kinds: Sequence[str]) -> list[object]:
        return [self.worker, self.queues, *(kind in kinds for kind in KINDS)]

    def _dated(self, answer: Any) -> None:
        """Take the next moment, which is the server's, from a look.

        An earlier one that is known stays: it may have been announced after the server looked.
        """
        self._looking = False
        if isinstance(answer, Exception):
            return
        _, due, now = answer
        self._ahead = now - self._clock.now() if is_system(self._clock) else 0
        self._undated = False
        if due is not None:
            self._expect(max(due, now + 1) - self._ahead)

    def _expect(self, when: int) -> None:
        """Look again at a moment, unless an earlier one is expected."""
        if self._due is None or self._due > when:
            self._due = when
            self._set_alarm()

    # What is heard.

    def note_work(self) -> None:
        """Note that something has become claimable."""
        self._held.clear()
        self._stale.update(KINDS)
        self._changed(self)

    def note_due(self, moment: int) -> None:
        """Note that something becomes claimable at a moment of the server."""
        when = moment - self._ahead
        if when <= self._clock.now():
            self.note_work()
        else:
            self._expect(when)

    def forget(self) -> None:
        """Know nothing: notices may have been missed."""
        self._undated = True
        self.note_work()

    def close(self) -> None:
        """Call off the alarm."""
        if self._alarm is not None:
            self._alarm[1]()
            self._alarm = None
        if self._again is not None:
            self._again.cancel()
            self._again = None

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            if self._alarm[0] == self._due:
                return
            self._alarm[1]()
            self._alarm = None
        if self._due is not None and not self._pool.lifetime.over:
            self._alarm = self._due, self._clock.call_at(self._due, self._ring)

    def _ring(self) -> None:
        """Note that the moment has come, and that the next one is not known."""
        self._alarm = self._due = None
        self.forget()
