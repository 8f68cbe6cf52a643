"""One reader of the store's feed for all event streams of a process.

The newest events stand in a window of bounded size, and each stream goes through it at its own pace. A stream that the
window has left behind, or that begins in the past, reads the store itself, exactly up to the position of the reader,
and goes on in the window from there. So it gets every event once, and keeps nothing but its position.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from resurgam.core.clock import Clock
from resurgam.core.errors import BadCursor, StoreError
from resurgam.runtime.system import SystemClock
from resurgam.store import records as r
from resurgam.store.protocol import Store
from resurgam.web.drain import Drain
from resurgam.web.problems import Problem
from resurgam.web.window import CHUNK, Batch, Filter, Item, Window

logger = logging.getLogger("resurgam.web")

BEAT: Final = 15_000
"""Milliseconds after which a stream without events is told that it is alive."""

STOPPING: Final = "the server is about to stop; reconnect"
"""Why streams end when the server does."""

_PAGE: Final = 256
_PAGE_BYTES: Final = 1024 * 1024
"""Events that are read at once, and their bytes, about; the window has room for several pages."""

_FIRST_PAGE: Final = 16
"""Events that are read at first, before it is known how large they are."""


class Hub:
    """Opens event streams over one store; the first one starts the reader, and the last one stops it.

    *store* is called for the store, which may be opened later.
    """

    def __init__(self, store: Callable[[], Store], drain: Drain, clock: Clock | None = None) -> None:
        self._store, self._drain = store, drain
        self._clock = SystemClock() if clock is None else clock
        self._reader: Reader | None = None
        self._streams: set[Stream] = set()

    @property
    def streams(self) -> int:
        """The number of open streams."""
        return len(self._streams)

    async def open(self, wanted: Filter, after: str | None = None, *, follow: bool = True) -> "Stream":
        """Open a stream after a cursor, or from now on; without *follow* it ends where the feed ends now.

        `BadCursor` is raised for a cursor that this store has not returned. Close the stream.
        """
        if self._drain.begun:
            raise Problem(503, "stopping", STOPPING, {"Retry-After": "1"})
        if self._reader is None or self._reader.ended.done():
            self._reader = Reader(self._store(), self._clock, self._drain)
        stream = Stream(self, self._reader, wanted)
        self._streams.add(stream)
        try:
            await stream.begin(after, follow=follow)
        except BaseException:
            stream.close()
            raise
        return stream

    def leave(self, stream: "Stream") -> None:
        """Forget a stream that is closed."""
        self._streams.discard(stream)
        if not self._streams and self._reader is not None:
            self._reader.stop("no streams are left")
            self._reader = None


class Reader:
    """Reads the feed from now on; `ended` has the reason once it has stopped."""

    def __init__(self, store: Store, clock: Clock, drain: Drain) -> None:
        self.store, self._clock, self._drain = store, clock, drain
        self.window: Window | None = None
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.beats, self._limit = 0, _FIRST_PAGE
        self._moved = asyncio.Event()
        self._call_off = self._schedule_beat()
        self._tasks = [asyncio.ensure_future(self._read()), asyncio.ensure_future(self._end_with_the_server())]

    async def started(self) -> Window:
        """Return the window, once it has a position."""
        while self.window is None:
            if self.ended.done():
                raise StoreError(self.ended.result())
            await self.moved()
        return self.window

    async def moved(self) -> None:
        """Wait until the window has moved, a beat is due, or the reader has ended."""
        if not self.ended.done():
            await self._moved.wait()

    def stop(self, reason: str) -> None:
        """End all streams, and the reading."""
        self._call_off()
        if not self.ended.done():
            self.ended.set_result(reason)
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self._move()

    async def _read(self) -> None:
        try:
            self.window = Window(await self.store.feed.now())
            self._move()
            while True:
                await self.store.wait(r.FeedGrown(after=self.window.cursor))
                await self._read_all(self.window)
        except Exception as error:
            # Whatever it is: streams must not wait for a reader that has died.
            known = isinstance(error, StoreError)
            logger.warning("event streams end: the feed cannot be read: %s", error, exc_info=not known)
            self.stop("the store does not answer; reconnect later")

    async def _read_all(self, window: Window) -> None:
        more = True
        while more:
            page = await self.store.feed.read(r.FeedQuery(after=window.cursor, limit=self._limit))
            self._limit = _next_limit(self._limit, page, _PAGE_BYTES)
            window.add(page)
            more = page.more
            self._move()
            # A store may answer without a pause: the streams take this page before others push it out of the window.
            await asyncio.sleep(0)

    async def _end_with_the_server(self) -> None:
        await self._drain.wait()
        self.stop(STOPPING)

    def _move(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

    def _schedule_beat(self) -> Callable[[], None]:
        return self._clock.call_at(self._clock.now() + BEAT, self._beat)

    def _beat(self) -> None:
        self.beats += 1
        self._call_off = self._schedule_beat()
        self._move()


class Stream:
    """The events that fit a filter after a cursor: from the window if they are there, else from the store."""

    def __init__(self, hub: Hub, reader: Reader, wanted: Filter) -> None:
        self._hub, self._reader, self._store = hub, reader, reader.store
        self._wanted = wanted
        self.start = self._cursor = self._until = ""
        self._first: list[Item] = []
        self._next: int | None = None
        self._ahead_of: str | None = None
        self._limit, self._beats = _FIRST_PAGE, reader.beats
        self._is_complete = False

    @property
    def cursor(self) -> str:
        """The cursor after the events that were returned, and those that do not fit."""
        return self._cursor

    @property
    def ended(self) -> "asyncio.Future[str]":
        """Set with the reason once all streams end; it is shared by them."""
        return self._reader.ended

    @property
    def beats(self) -> int:
        """How many beats there have been."""
        return self._reader.beats

    async def begin(self, after: str | None, *, follow: bool) -> None:
        """Find the position, and read the first events: a bad cursor is refused before anything is answered."""
        window = await self._reader.started()
        now = await self._store.feed.now() if after is None or not follow else ""
        self._until = "" if follow else now
        self.start = self._cursor = now if after is None else after
        if after is None:
            return
        self._first = await self._read_store(window)
        if not self._first and self._ahead_of is not None:
            await self._refuse_future(after)

    def close(self) -> None:
        """Free what the stream holds."""
        self._hub.leave(self)

    async def next(self) -> Batch | None:
        """Return the next events, or at every beat a batch without events; None if there will be no more."""
        while not self.ended.done():
            items, self._first = self._first, []
            if not items:
                if self._is_complete:
                    return None
                items = await self._advance(await self._reader.started())
            if items or self._beats != self._reader.beats:
                self._beats = self._reader.beats
                return Batch(items, self._cursor)
        return None

    async def _advance(self, window: Window) -> list[Item]:
        """Return events if there are any, else wait until there may be more."""
        if self._next is not None and self._next < window.begin:
            self._next = None
        if self._next is None and self._ahead_of != window.cursor:
            return await self._read_store(window)
        if self._next is not None and self._next < window.end:
            self._next, (items, self._cursor) = window.take(self._next, self._wanted)
            return items
        await self._reader.moved()
        return []

    async def _read_store(self, window: Window) -> list[Item]:
        """Read a page up to the position of the window, or to the end of the stream; go on in the window from there."""
        until, number = self._until or window.cursor, window.end
        page = await self._store.feed.read(self._wanted.query(self._cursor, until, self._limit))
        self._limit = _next_limit(self._limit, page, CHUNK)
        read = [Item(*one) for one in zip(page.entries, page.cursors, strict=True)]
        held = _first_chunk(read)
        items = [one for one in held if self._wanted.fits(one.entry)]
        has_all = len(held) == len(read)
        self._cursor = page.cursor if has_all else held[-1].cursor
        if page.more or not has_all:
            await asyncio.sleep(0)  # a store may answer without a pause
            return items
        # A cursor from another process may be ahead of the reader of this one, which comes there soon.
        self._ahead_of = None if page.cursor == until else until
        self._is_complete = bool(self._until)
        self._next = number if page.cursor == until and not self._until else None
        return items

    async def _refuse_future(self, cursor: str) -> None:
        """Refuse a cursor that is ahead of the whole store: nothing would come, without a word."""
        now = await self._store.feed.now()
        page = await self._store.feed.read(r.FeedQuery(after=cursor, until=now, limit=1))
        if not page.entries and not page.more and page.cursor != now:
            raise BadCursor(
                f"the cursor {cursor!r} is ahead of this store, which is another one or has lost its last events; "
                "begin anew without a cursor"
            )


def _first_chunk(items: list[Item]) -> list[Item]:
    """Return as many events as a stream may hold while its client is slow; they may be larger than was expected."""
    size = 0
    for number, item in enumerate(items, 1):
        size += item.size
        if size >= CHUNK:
            return items[:number]
    return items


def _next_limit(limit: int, page: r.FeedPage, room: int) -> int:
    """Return how many events fit into *room* bytes, if they are as large as those of the last page."""
    if not page.entries:
        return limit
    size = sum(len(memoryview(entry.body)) for entry in page.entries)
    return max(1, min(_PAGE, room * len(page.entries) // max(1, size)))
