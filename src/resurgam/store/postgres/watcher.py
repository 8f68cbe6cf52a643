"""Wake the calls of `Store.wait`.

A waiter looks whether what it waits for is there. It looks again when it is *touched*: by a notice of another process, by the
notices of a call of this store, by time (the alarm at the next moment at which something becomes claimable by itself), or
because notices may have been missed. While the store cannot listen, all waiters look from time to time.

A waiter for the end of an execution that this store leases is *near*: the end comes from a commit of this store, or by a notice.
It does not look until the lease is gone.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, assert_never

from resurgam.core.clock import Clock
from resurgam.core.errors import StoreError
from resurgam.store import records as r
from resurgam.store.postgres.feed import position_of
from resurgam.store.postgres.notify import Listener
from resurgam.store.postgres.outlook import KINDS, Outlook
from resurgam.store.postgres.pool import Pool
from resurgam.store.postgres.rows import status_of
from resurgam.store.postgres.topics import number_of
from resurgam.store.waiter import Waiter, WaiterTable, has_progressed, look_at
from resurgam.store.watches import FEED, key_of, log_key, query_key, topic_key

_ASSURANCE: Final = 10.0
"""Seconds between two looks that nothing asks for."""

_FIRST_POLL: Final = 0.02
"""Seconds until a store that cannot listen looks by itself; each look in vain doubles it."""

_LONGEST_POLL: Final = 0.5

_MORE: Final = 1
"""The answer of a claim: there may be more."""

_HELD: Final = 2
"""Other calls hold what is left."""

_SHARED: Final = 3
"""What is left is the share of other workers."""

_OUTLOOKS: Final = 100
"""The most pairs of a worker and its queues that a store remembers."""


class _InstanceWaiter(Waiter):
    """Waits for the progress of one execution."""

    watch: r.Closed | r.InboxChanged | r.LogGrown

    def __init__(self, watch: r.Closed | r.InboxChanged | r.LogGrown, pool: Pool) -> None:
        super().__init__(watch)
        self._pool = pool

    def _look(self) -> None:
        self._pool.call("progress", self.watch.execution_id, self._answered)

    def _answered(self, answer: Any) -> None:
        if answer is None or isinstance(answer, Exception):
            self._looked(True if answer is None else answer)  # a purged one ends every wait
            return
        last_seq, wake, status = answer
        self._looked(has_progressed(self.watch, last_seq=last_seq, wake=wake, closed=status_of(status).terminal))


class _GrowthWaiter(Waiter):
    """Waits for more in the feed, a message on a topic, or the result of a query."""

    def __init__(self, watch: r.FeedGrown | r.Published | r.QueryAnswered, pool: Pool) -> None:
        super().__init__(watch)
        self._pool = pool
        self._part = _growth_part(watch)

    def _look(self) -> None:
        self._pool.call("grown", self._part, self._looked)


class _WorkWaiter(Waiter):
    """Waits for work in some queues."""

    watch: r.Work

    def __init__(self, watch: r.Work, outlook: Outlook, listener: Listener) -> None:
        super().__init__(watch)
        self._listener = listener
        wanted = (watch.instances, watch.activities, watch.queries)
        self._kinds = [kind for kind, is_wanted in zip(KINDS, wanted, strict=True) if is_wanted]
        self.outlook = outlook

    def _look(self) -> None:
        self.outlook.look(self._kinds, self._looked, listens=self._listener.listens)


class Watcher:
    """The waiters of one open store. *leases* says whether it leases an execution that is open, as far as it knows."""

    def __init__(self, pool: Pool, clock: Clock, leases: Callable[[str], bool] = lambda _: False) -> None:
        self._pool = pool
        self._clock = clock
        self._leases = leases
        self.waiters = WaiterTable()
        self._listener = Listener(pool, heard=self._heard, missed=self.look_at_all, grown=self._logs_grown)
        self._outlooks: dict[tuple[str, tuple[str, ...]], Outlook] = {}
        self._followers = 0
        """The number of waiters that follow a log, or the feed."""

        self._assurance: asyncio.TimerHandle | None = None
        self._interval = _FIRST_POLL
        self._changes: dict[str, Callable[[str], None]] = {
            "*": lambda _: self.look_at_all(),
            "work": self._work_in,
            "due": self._due_in,
            "closed": self._closed_soon,
            "inbox": self.waiters.touch,
            "log": self.note_log,
            "topic": lambda topic: self.waiters.touch(topic_key(topic)),
            "query": lambda query_id: self.waiters.touch(query_key(query_id)),
        }

    @property
    def busy(self) -> bool:
        """Whether the store begins to listen, or looks again soon without being told to."""
        return self._listener.begins or any(outlook.asks_again for outlook in self._outlooks.values())

    async def claim(self, kind: str, worker: str, queues: Sequence[str], part: object) -> list[Any]:
        """Return what a verb claims; nothing, without a call, if it is known that there is nothing."""
        outlook = self._outlooks.get((worker, tuple(queues)))
        if outlook is None:  # this worker does not wait for work
            answer: list[Any] = await self._pool.ask(kind, part)
            return answer[1:]
        if not outlook.take(kind) and self._listener.listens:
            return []
        try:
            answer = await self._pool.ask(kind, part)
        except BaseException:
            outlook.give_back(kind)
            raise
        more, found = answer[0], answer[1:]
        if more == _MORE:
            outlook.give_back(kind)
        elif more == _HELD:
            outlook.put_off(kind)
        elif more == _SHARED:
            outlook.leave(kind)
        return found

    async def wait(self, watch: r.Watch, until: int | None) -> bool:
        """Return True once the watch is fulfilled, False if the moment *until* comes first."""
        self._pool.lifetime.check()
        waiter, key = self._waiter(watch), key_of(watch)
        waiter.only_once = until is not None and until <= self._clock.now()
        self.waiters.add(key, waiter)
        follows = isinstance(watch, r.LogGrown | r.FeedGrown) and not waiter.only_once
        self._followers += follows
        call_off = self._clock.call_at(until, waiter.end) if until is not None and not waiter.only_once else None
        self._interval = _FIRST_POLL
        try:
            if not waiter.only_once:
                await self._hear(waiter)
                if waiter.near:
                    if (there := await waiter.ended) is not None:
                        return there
                    waiter.near, waiter.ended = False, asyncio.get_running_loop().create_future()
            waiter.only_once = until is not None and until <= self._clock.now()
            waiter.start()
            return bool(await waiter.ended)
        finally:
            waiter.close()
            self._followers -= follows
            if follows:
                self._listener.unfollow()
            self.waiters.remove(key, waiter)
            if call_off is not None:
                call_off()
            self._interval = _FIRST_POLL

    async def _hear(self, waiter: Waiter) -> None:
        """Hear of changes from now on."""
        if isinstance(waiter.watch, r.LogGrown | r.FeedGrown):
            await self._listener.follow()
        elif not self._listener.listens:
            await self._listener.start()
        self._assure()
        waiter.near = self._is_near(waiter.watch)

    def note(self, notices: Sequence[str]) -> None:
        """Touch the waiters that the notices of a call of this store concern."""
        if self.waiters or self._outlooks:
            self._heard(notices)

    def note_log(self, execution_id: str) -> None:
        """Touch those who follow a log that a commit of this store has made longer."""
        if self._followers:
            self.waiters.touch(log_key(execution_id), FEED)

    def look_at_all(self) -> None:
        """Have every waiter look: notices may have been missed."""
        for outlook in self._outlooks.values():
            outlook.forget()
        look_at([waiter for waiter in self.waiters.all if not isinstance(waiter, _WorkWaiter)])

    def close(self) -> None:
        """Fail the waiters, and end the connection."""
        self._listener.close()
        if self._assurance is not None:
            self._assurance.cancel()
        for outlook in self._outlooks.values():
            outlook.close()
        error = StoreError("the store was closed while this waited")
        for waiter in self.waiters.all:
            waiter.fail(error)

    # Waiters.

    def _waiter(self, watch: r.Watch) -> Waiter:
        match watch:
            case r.Work():
                return _WorkWaiter(watch, self._outlook(watch.worker, watch.queues), self._listener)
            case r.Closed() | r.InboxChanged() | r.LogGrown():
                return _InstanceWaiter(watch, self._pool)
            case r.QueryAnswered() | r.Published() | r.FeedGrown():
                return _GrowthWaiter(watch, self._pool)
            case _:
                assert_never(watch)

    def _outlook(self, worker: str, queues: Sequence[str]) -> Outlook:
        """Return what is known about the work for a worker in some queues."""
        key = worker, tuple(queues)
        outlook = self._outlooks.get(key)
        if outlook is None:
            if len(self._outlooks) >= _OUTLOOKS:  # a store serves one worker, or a few
                self._outlooks.pop(next(iter(self._outlooks))).close()
            outlook = self._outlooks[key] = Outlook(self._pool, self._clock, worker, queues, self._more_work)
        return outlook

    def _more_work(self, outlook: Outlook) -> None:
        for waiter in self.waiters.under(None):
            if isinstance(waiter, _WorkWaiter) and waiter.outlook is outlook:
                waiter.touch()

    def _is_near(self, watch: r.Watch) -> bool:
        """Whether an end comes from a commit of this store, or is heard of."""
        return isinstance(watch, r.Closed) and self._listener.listens and self._leases(watch.execution_id)

    def _assure(self) -> None:
        """Look at everything from time to time: seldom while the store listens, otherwise soon."""
        soon = not self._listener.listens
        if self._assurance is not None:
            if not soon or self._assurance.when() <= asyncio.get_running_loop().time() + self._interval:
                return
            self._assurance.cancel()
        seconds = self._interval if soon else _ASSURANCE
        self._assurance = asyncio.get_running_loop().call_later(seconds, self._look_again)

    def _look_again(self) -> None:
        self._assurance = None
        if self.waiters:
            self._interval = min(2 * self._interval, _LONGEST_POLL)
            self.look_at_all()
            self._assure()

    # What has changed.

    def _heard(self, notices: Sequence[str]) -> None:
        """Take notices, kind and value in turn; those of a newer version may be of other kinds."""
        for kind, value in zip(notices[::2], notices[1::2], strict=True):
            change = self._changes.get(kind)
            if change is not None:
                change(value)

    def _work_in(self, queue: str) -> None:
        for outlook in self._outlooks.values():
            if queue in outlook.queues:
                outlook.note_work()

    def _due_in(self, queue_and_moment: str) -> None:
        queue, _, moment = queue_and_moment.rpartition(" ")
        for outlook in self._outlooks.values():
            if queue in outlook.queues:
                outlook.note_due(int(moment))

    def _closed_soon(self, execution_id: str) -> None:
        """End the waits for an end soon: the answer to a commit, which has the closing entry, comes at the same moment."""
        asyncio.get_running_loop().call_soon(self.waiters.note_end, execution_id)

    def _logs_grown(self) -> None:
        for waiter in self.waiters.all:
            if isinstance(waiter.watch, r.LogGrown | r.FeedGrown):
                waiter.touch()


def _growth_part(watch: r.FeedGrown | r.Published | r.QueryAnswered) -> list[object]:
    match watch:
        case r.FeedGrown():
            return ["feed", *position_of(watch.after)]
        case r.Published():
            return ["topic", watch.topic, number_of(watch.after)]
        case r.QueryAnswered():
            return ["query", watch.query_id]
        case _:
            assert_never(watch)
