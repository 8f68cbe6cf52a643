"""Event streams over one store: every event once, in order, at any pace, with one reader."""

import asyncio
import gc
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from resurgam.core.errors import BadCursor, StoreError
from resurgam.store import records as r
from resurgam.store.memory.store import MemoryStore
from resurgam.testing import ManualClock
from resurgam.testing.contract.bench import Bench, OpensStores, request, scheduled
from resurgam.web import hub as hubs
from resurgam.web import window as windows
from resurgam.web.drain import Drain
from resurgam.web.hub import BEAT, Hub, Stream
from resurgam.web.problems import Problem
from resurgam.web.window import Filter, Item
from support.partitioned_feed import PartitionedFeedStore

EVERYTHING = Filter()


@pytest.fixture(params=[MemoryStore, PartitionedFeedStore], ids=["memory", "partitioned"])
def b(request: pytest.FixtureRequest) -> Bench:
    clock = ManualClock()
    return Bench(request.param(clock), clock, OpensStores())


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make everything small, so that few events pass all bounds."""
    monkeypatch.setattr(windows, "_EVENTS", 8)
    monkeypatch.setattr(hubs, "_PAGE", 4)
    monkeypatch.setattr(hubs, "_FIRST_PAGE", 3)


def hub_of(b: Bench, store: Any = None) -> Hub:
    return Hub(lambda: store or b.store, Drain(), b.clock)


@asynccontextmanager
async def opened(
    hub: Hub, wanted: Filter = EVERYTHING, after: str | None = None, **options: Any
) -> AsyncIterator[Stream]:
    stream = await hub.open(wanted, after, **options)
    try:
        yield stream
    finally:
        stream.close()


async def take(stream: Stream, count: int) -> list[Item]:
    """Return this many events, or all that there are if the stream ends before."""
    found: list[Item] = []
    async with asyncio.timeout(20):
        while len(found) < count and (batch := await stream.next()) is not None:
            found += batch.items
    return found


def names(items: Iterable[Item]) -> list[tuple[str, int]]:
    return [(item.entry.entity_id, item.entry.seq) for item in items]


def by_entity(keys: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    found: defaultdict[str, list[int]] = defaultdict(list)
    for entity_id, seq in keys:
        found[entity_id].append(seq)
    return found


async def write(b: Bench, entity_id: str, entries: int = 2) -> None:
    """Create an execution, and commit some entries."""
    await b.create(entity_id, queue=entity_id)
    claim = await b.claim_one(queues=[entity_id])
    await b.committed(claim, *(scheduled(request(seq)) for seq in range(2, 2 + entries)))


async def test_a_stream_has_what_is_committed_from_now_on(b: Bench) -> None:
    await write(b, "before")
    async with opened(hub_of(b)) as stream:
        await write(b, "after")
        assert names(await take(stream, 3)) == [("after", 1), ("after", 2), ("after", 3)]


async def test_a_stream_after_a_cursor_begins_in_the_past_and_goes_on_live(b: Bench) -> None:
    hub = hub_of(b)
    await write(b, "past")
    async with opened(hub, after="") as whole:
        first = (await take(whole, 3))[0]
        async with opened(hub, after=first.cursor) as rest:
            await write(b, "present")
            assert by_entity(names(await take(rest, 5))) == {"past": [2, 3], "present": [1, 2, 3]}


async def test_a_stream_has_only_the_instances_and_types_that_it_wants(b: Bench) -> None:
    hub = hub_of(b)
    wanted = {
        Filter(frozenset({"one"})): {"one": [1, 2, 3]},
        Filter(frozenset({"one", "two"})): {"one": [1, 2, 3], "two": [1, 2, 3]},
        Filter(types=frozenset({"workflow_started"})): {"one": [1], "two": [1], "three": [1]},
        Filter(frozenset({"two"}), frozenset({"activity_scheduled", "workflow_failed"})): {"two": [2, 3]},
    }
    live = [(await hub.open(filter_), expected) for filter_, expected in wanted.items()]
    for name in ("one", "two", "three"):
        await write(b, name)
    for stream, expected in live:
        assert by_entity(names(await take(stream, sum(map(len, expected.values()))))) == expected
        stream.close()
    for filter_, expected in wanted.items():
        async with opened(hub, filter_, "", follow=False) as stream:
            assert by_entity(names(await take(stream, 100))) == expected


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", range(25))
async def test_a_client_that_reconnects_anywhere_misses_and_repeats_nothing(b: Bench, seed: int) -> None:
    """Several writers; after any event, at the reader of the same process or of another one; in the past or live."""
    chance = random.Random(seed)
    processes = [hub_of(b, Distant(b.store, chance)) for _ in range(2)]
    wanted = chance.choice([EVERYTHING, EVERYTHING, Filter(frozenset({"w1-2"})), Filter(frozenset({"w0-1", "w2-3"}))])

    async def writer(name: str) -> None:
        for number in range(8):
            await write(b, f"{name}-{number}", chance.randint(0, 5))
            for _ in range(chance.choice([0, 0, 1, 5])):
                await asyncio.sleep(0)

    async def client(cursor: str) -> list[tuple[str, int]]:
        seen: list[tuple[str, int]] = []
        while not (writing.done() and await is_at_the_end(b, cursor, wanted)):
            async with opened(chance.choice(processes), wanted, cursor) as stream:
                for _ in range(chance.randint(0, 4)):
                    batch = await anext_of(stream, writing)
                    received = batch[: chance.randint(0, len(batch))]
                    seen += names(received)
                    cursor = received[-1].cursor if received else cursor
                    if len(received) < len(batch):
                        break
        return seen

    start = await b.store.feed.now()
    writing = asyncio.gather(*(writer(f"w{number}") for number in range(4)))
    keeper = await processes[0].open(EVERYTHING)  # the reader goes on while the clients are away
    found = await asyncio.wait_for(asyncio.gather(*(client(start) for _ in range(3))), 20)
    keeper.close()
    expected = by_entity(names([item async for item in everything(b, wanted)]))
    assert expected
    for seen in found:
        assert by_entity(seen) == expected


class Distant:
    """A store whose feed is read over a network: before and after each read others go on."""

    def __init__(self, store: Any, chance: random.Random) -> None:
        self._store, self._chance = store, chance
        self.feed = self

    async def read(self, query: r.FeedQuery) -> r.FeedPage:
        await self._travel()
        page: r.FeedPage = await self._store.feed.read(query)
        await self._travel()
        return page

    async def now(self) -> str:
        await self._travel()
        cursor: str = await self._store.feed.now()
        await self._travel()
        return cursor

    async def _travel(self) -> None:
        for _ in range(self._chance.choice([0, 0, 1, 10])):
            await asyncio.sleep(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def everything(b: Bench, wanted: Filter) -> AsyncIterator[Item]:
    cursor, more = "", True
    while more:
        page = await b.store.feed.read(r.FeedQuery(after=cursor))
        cursor, more = page.cursor, page.more
        for entry in filter(wanted.fits, page.entries):
            yield Item(entry, cursor)


async def is_at_the_end(b: Bench, cursor: str, wanted: Filter) -> bool:
    page = await b.store.feed.read(r.FeedQuery(after=cursor, limit=1000))
    return not any(map(wanted.fits, page.entries))


async def anext_of(stream: Stream, writing: "asyncio.Future[Any]") -> list[Item]:
    """Return the next events; none if the writers have stopped and nothing comes any more."""
    coming = asyncio.ensure_future(stream.next())
    for _ in range(50):
        await asyncio.sleep(0)
        if coming.done():
            break
    if not coming.done() and not writing.done():
        await asyncio.wait({coming, writing}, return_when=asyncio.FIRST_COMPLETED)
    if not coming.done():
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
        return []
    batch = coming.result()
    return batch.items if batch is not None else []


@pytest.mark.usefixtures("small")
async def test_a_slow_stream_holds_no_events_and_misses_none(b: Bench) -> None:
    """The window goes on without it; it reads the store until it is level again."""
    hub = hub_of(b)
    async with opened(hub) as slow, opened(hub) as quick:
        await write(b, "at first")
        await take(slow, 3)
        await take(quick, 3)
        for number in range(10):
            await write(b, f"order-{number}")
            await take(quick, 3)
        gc.collect()
        assert sum(isinstance(one, Item) for one in gc.get_objects()) <= 8
        assert len(await take(slow, 30)) == 30
        await write(b, "live")
        assert {name for name, _ in names(await take(slow, 3))} == {"live"}


async def test_large_events_are_read_in_small_pages(b: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow client holds a page while it takes it: pages are as large as a chunk, or have one event, the first one too."""
    monkeypatch.setattr(hubs, "CHUNK", 200)
    await write(b, "order", 40)
    taken: list[Item] = []
    async with opened(hub_of(b), after="") as stream:
        while len(taken) < 41:
            batch = await stream.next()
            assert batch is not None
            assert sum(item.size for item in batch.items[:-1]) < 200
            taken += batch.items
    assert [item.entry.seq for item in taken] == list(range(1, 42))


def test_the_window_is_bounded_in_events_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "_EVENTS", 10)
    monkeypatch.setattr(windows, "_BYTES", 100)
    for body, kept in ((b"1", 10), (b'"%b"' % (b"x" * 30), 3)):
        window = windows.Window("0")
        for number in range(50):
            entry = r.FeedEntry(
                entity_id="a", execution_id="a", kind="", seq=number, type="t", body=windows.msgspec.Raw(body)
            )
            window.add(r.FeedPage(entries=(entry,), cursors=(str(number),), cursor=str(number), more=False))
        assert window.end - window.begin == len(window._items) == kept
        _, batch = window.take(window.begin, EVERYTHING)
        assert [item.entry.seq for item in batch.items] == list(range(50 - kept, 50))


class CountedStore:
    """A store that counts the reads of its feed."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.reads = 0

    @property
    def feed(self) -> Any:
        self.reads += 1
        return self._store.feed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def test_the_last_stream_frees_everything(b: Bench) -> None:
    """Tasks, waits at the store and timers; and the next stream begins anew."""
    hub = hub_of(b)
    tasks = asyncio.all_tasks()
    for _ in range(2):
        streams = [await hub.open(EVERYTHING) for _ in range(3)]
        following = [asyncio.ensure_future(stream.next()) for stream in streams]
        await b.quiet()
        for task in following:
            task.cancel()
        for stream in streams:
            assert asyncio.all_tasks() > tasks
            stream.close()
        await asyncio.gather(*following, return_exceptions=True)
        await b.quiet()
        assert asyncio.all_tasks() == tasks
        assert b.store._waiting.followers == 0  # type: ignore[attr-defined]
        assert b.clock.next_due() is None
        assert hub.streams == 0


async def test_a_stream_without_events_is_told_where_it_is_at_every_beat(b: Bench) -> None:
    """So a client that wants rare events does not begin far in the past when it reconnects."""
    hub = hub_of(b)
    async with opened(hub, Filter(frozenset({"rare"}))) as stream:
        start = stream.cursor
        await write(b, "frequent")
        coming = asyncio.ensure_future(stream.next())
        await b.quiet()
        assert not coming.done()
        await b.pass_time(BEAT)
        batch = await coming
        assert batch is not None
        assert batch.items == []
        assert batch.cursor == await b.store.feed.now() != start


async def test_a_stream_up_to_now_ends_there(b: Bench) -> None:
    await write(b, "past")
    async with opened(hub_of(b), after="", follow=False) as stream:
        await write(b, "later")
        assert by_entity(names(await take(stream, 100))) == {"past": [1, 2, 3]}
        assert await stream.next() is None


async def test_a_cursor_of_another_reader_that_is_ahead_is_followed(b: Bench) -> None:
    """The reader of this process has not come so far yet."""
    told = asyncio.Event()

    class Late(CountedStore):
        async def wait(self, watch: r.Watch, until: int | None = None) -> bool:
            await told.wait()
            return bool(await b.store.wait(watch, until))

    hub = hub_of(b, Late(b.store))
    async with opened(hub):
        await write(b, "known")
        async with opened(hub, after=await b.store.feed.now()) as stream:
            coming = asyncio.ensure_future(take(stream, 3))
            await b.quiet()
            assert not coming.done()
            await write(b, "new")
            told.set()
            assert by_entity(names(await coming)) == {"new": [1, 2, 3]}


async def test_a_stream_comes_level_though_events_come_while_it_reads(b: Bench) -> None:
    """It reads up to where the reader of the process is, and the rest is in the window."""
    await write(b, "past")

    class Busy(CountedStore):
        @property
        def feed(self) -> Any:
            return self

        async def now(self) -> str:
            return str(await b.store.feed.now())

        async def read(self, query: r.FeedQuery) -> r.FeedPage:
            self.reads += 1
            if self.reads == 1:
                await write(b, "meanwhile")
            return await b.store.feed.read(query)

    async with opened(hub_of(b, Busy(b.store)), after="") as stream:
        assert stream._next is not None
        assert by_entity(names(await take(stream, 6))) == {"past": [1, 2, 3], "meanwhile": [1, 2, 3]}


async def test_a_cursor_that_no_feed_of_the_store_has_returned_is_refused() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    hub = Hub(lambda: store, Drain(), clock)
    for cursor in ("x", "-1", "7", "99999999999999999"):
        for follow in (True, False):
            with pytest.raises(
                BadCursor, match=r"is ahead of this store|must be one that a feed of this store returned"
            ):
                await hub.open(EVERYTHING, cursor, follow=follow)
    assert hub.streams == 0


async def test_streams_end_when_the_server_is_about_to_stop(b: Bench) -> None:
    """Those that are open, and those that come then."""
    drain = Drain()
    hub = Hub(lambda: b.store, drain, b.clock)
    async with opened(hub) as stream:
        coming = asyncio.ensure_future(stream.next())
        await b.quiet()
        drain.begin()
        assert await asyncio.wait_for(coming, 5) is None
        assert stream.ended.result() == "the server is about to stop; reconnect"
        with pytest.raises(Problem, match="about to stop"):
            await hub.open(EVERYTHING)


async def test_streams_end_when_the_store_fails_and_later_ones_begin_anew(
    b: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(CountedStore):
        async def wait(self, watch: r.Watch, until: int | None = None) -> bool:
            if self.reads < 3:
                raise StoreError("the disk is full")
            return bool(await b.store.wait(watch, until))

    hub = hub_of(b, Failing(b.store))
    async with opened(hub) as stream:
        assert await asyncio.wait_for(stream.next(), 5) is None
    assert "the disk is full" in caplog.text
    async with opened(hub) as stream:
        await write(b, "order")
        assert len(await take(stream, 3)) == 3
