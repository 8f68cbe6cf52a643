"""The calls of `Store.wait` in this process, and the alarm for the next moment at which something is due."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias, assert_never

from resurgam.core.clock import Clock
from resurgam.core.errors import StoreError
from resurgam.core.event import Event
from resurgam.store import records as r
from resurgam.store.records import Watch

WatchKey: TypeAlias = str | tuple[str, str] | None
"""What a change is noted under: an execution, None for work, or a key made by the functions below."""

GROWTH: Final = "growth"
"""The kind of the key of a log."""

FEED: Final = ("feed", "")
"""The key of the events of all executions."""

_Waiter = tuple[Watch, "asyncio.Future[bool]"]


def log_key(execution_id: str) -> WatchKey:
    """Return the key of a log. It is not that of its execution: a log changes with every step, and few wait for it."""
    return GROWTH, execution_id


def query_key(query_id: str) -> WatchKey:
    """Return the key of the result of a query."""
    return "reply", query_id


def topic_key(topic: str) -> WatchKey:
    """Return the key of the messages on a topic."""
    return "topic", topic


class Waiters:
    """Waiters by the key of their watch: those for work are checked after every change, others when their key changed."""

    def __init__(self, clock: Clock, are_there: Callable[[Sequence[Watch]], Iterable[bool]]) -> None:
        self._clock = clock
        self._are_there = are_there
        self._waiters: defaultdict[WatchKey, list[_Waiter]] = defaultdict(list)
        self._alarm: tuple[int, Callable[[], None]] | None = None
        self.followers = 0
        """The number of waiters that follow a log, or the feed."""

    async def wait(self, watch: Watch, until: int | None) -> bool:
        """Return True once the watch is fulfilled, False if the moment *until* comes first."""
        if any(self._are_there([watch])):
            return True
        if until is not None and until <= self._clock.now():
            return False
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        key = key_of(watch)
        waiters = self._waiters[key]
        waiters.append((watch, waiter))
        follows = isinstance(watch, r.LogGrown | r.FeedGrown)
        self.followers += follows
        call_off = self._clock.call_at(until, lambda: _settle(waiter, there=False)) if until is not None else None
        try:
            return await waiter
        finally:
            self.followers -= follows
            waiters.remove((watch, waiter))
            if not waiters:
                self._waiters.pop(key, None)
            if call_off is not None:
                call_off()

    def look(
        self,
        touched: Collection[WatchKey],
        grown: Collection[str] = (),
        *,
        closed: Mapping[str, Event | None] = MappingProxyType({}),
        work: bool = True,
    ) -> None:
        """Settle those whose moment it is: where something was *touched*, a log has *grown*, or *work* may be there.

        Watches for the end of an execution need no check if it is among the *closed*, which come with the entries that have
        closed them, as far as these are known.
        """
        keys = [key for key in touched if key in self._waiters]
        for execution_id, entry in closed.items():
            for watch, waiter in self._waiters.get(execution_id, ()):
                if type(watch) is r.Closed and not waiter.done():
                    if entry is not None and watch.tell is not None:
                        watch.tell(entry)
                    waiter.set_result(True)
        keys += [(GROWTH, execution_id) for execution_id in grown if (GROWTH, execution_id) in self._waiters]
        if grown and FEED in self._waiters:
            keys.append(FEED)
        if keys:
            self._look_at(keys)
        if work:
            self._look_at([None])

    def _look_at(self, keys: Iterable[WatchKey]) -> None:
        waiters = [one for key in keys for one in self._waiters.get(key, ()) if not one[1].done()]
        if waiters:
            for (_, waiter), there in zip(waiters, self._are_there([watch for watch, _ in waiters]), strict=True):
                if there:
                    _settle(waiter, there=True)

    def look_at_all(self) -> None:
        """Settle all waiters whose watch is fulfilled."""
        self._look_at(self._waiters)

    def set_alarm(self, when: int | None, ring: Callable[[], None]) -> None:
        """Have *ring* called at *when*, instead of whatever was set before."""
        if self._alarm is not None and self._alarm[0] == when:
            return
        self.call_off()
        if when is not None:
            self._alarm = when, self._clock.call_at(when, ring)

    def set_alarm_by(self, when: int, ring: Callable[[], None]) -> None:
        """Have *ring* called at *when* at the latest."""
        if self._alarm is None or when < self._alarm[0]:
            self.set_alarm(when, ring)

    def rang(self) -> None:
        """Note that the alarm has rung."""
        self._alarm = None

    def call_off(self) -> None:
        """Set no alarm."""
        if self._alarm is not None:
            self._alarm[1]()
            self._alarm = None

    def close(self) -> None:
        """Raise `StoreError` in all waiters: the store is closed."""
        self.call_off()
        self.fail(StoreError("the store was closed while this waited"))

    def fail(self, error: StoreError) -> None:
        """Raise *error* in all waiters."""
        for waiters in self._waiters.values():
            for _, waiter in waiters:
                if not waiter.done():
                    waiter.set_exception(error)


def key_of(watch: Watch) -> WatchKey:
    """Return what the changes are noted under that a watch waits for."""
    match watch:
        case r.Work():
            return None
        case r.Closed() | r.InboxChanged():
            return watch.execution_id
        case r.LogGrown():
            return log_key(watch.execution_id)
        case r.QueryAnswered():
            return query_key(watch.query_id)
        case r.FeedGrown():
            return FEED
        case r.Published():
            return topic_key(watch.topic)
        case _:
            assert_never(watch)


def _settle(waiter: asyncio.Future[bool], *, there: bool) -> None:
    if not waiter.done():
        waiter.set_result(there)
