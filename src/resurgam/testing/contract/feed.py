"""The feed: every event once, in the order of commits, after a cursor."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable

from resurgam.core import event as events
from resurgam.core.event import decode_event
from resurgam.core.location import Location
from resurgam.core.outcome import Forgotten, Span
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.testing.contract.bench import Bench, OpensStores, request, scheduled

_SCHEDULED = r.FeedQuery(types=("activity_scheduled",))


class FeedCases(OpensStores):
    """`Feed`."""

    async def test_the_feed_has_each_event_of_an_execution_in_its_order(self) -> None:
        """The start, the committed events and a termination, with the ids of the execution."""
        async with self.bench() as b:
            instance = await b.create()
            await b.committed(await b.claim_one(), entry(2), entry(3))
            await b.deliver(events.WorkflowTerminated(reason="enough"))
            entries = await read_all(b)
            assert [decode_event(bytes(entry.body)) for entry in entries] == await b.store.read(instance)
            assert [entry.seq for entry in entries] == [1, 2, 3, 4]
            assert [entry.type for entry in entries][0::3] == ["workflow_started", "workflow_terminated"]
            ids = {(entry.entity_id, entry.execution_id, entry.kind) for entry in entries}
            assert ids == {("order", instance.execution_id, instance.kind)}

    async def test_the_feed_of_many_executions_has_every_event_once(self) -> None:
        """With any limit, and each entity's in one order, which is that of their seq within an execution."""
        async with self.bench() as b:
            await asyncio.gather(*(b.create(f"order-{number}") for number in range(5)))
            for claim in await b.claim():
                await b.committed(claim, entry(2), entry(3))
            whole = await read_all(b)
            assert len({(entry.execution_id, entry.seq) for entry in whole}) == len(whole) == 15
            for number in range(5):
                assert [entry.seq for entry in whole if entry.entity_id == f"order-{number}"] == [1, 2, 3]
            for limit in (1, 2, 7, 15):
                assert by_entity(await read_all(b, limit=limit)) == by_entity(whole)

    async def test_a_reader_that_continues_misses_and_repeats_nothing(self) -> None:
        """Its cursor stays behind what is committed later, also if the page was empty."""
        async with self.bench() as b:
            cursor = (await b.store.feed.read(r.FeedQuery())).cursor
            seen = []
            for number in range(4):
                await b.create(f"order-{number}")
                found, cursor = await read_on(b, cursor)
                seen += [entry.entity_id for entry in found]
                found, cursor = await read_on(b, cursor)
                assert found == []
            assert seen == [f"order-{number}" for number in range(4)]

    async def test_a_reader_that_begins_now_gets_what_is_committed_from_now_on(self) -> None:
        """And nothing older, of whichever execution."""
        async with self.bench() as b:
            await b.create("old")
            now = await b.store.feed.now()
            assert await read_all(b, after=now) == []
            await b.create("new")
            assert [entry.entity_id for entry in await read_all(b, after=now)] == ["new"]

    async def test_the_feed_of_one_entity_or_type_has_only_its_events(self) -> None:
        """Each entity's in the same order, over all its executions; the cursor passes over the others."""
        async with self.bench() as b:
            for entity_id in ("one", "two", "one"):
                await b.create(entity_id)
                await b.committed(await b.claim_one(), entry(2))
                await b.deliver(events.WorkflowTerminated(), entity_id)
                await b.committed(await b.claim_one(), status=Status.TERMINATED, deactivated=True)
            whole = await read_all(b)
            for query in (
                r.FeedQuery(entity_id="one"),
                r.FeedQuery(types=("activity_scheduled", "workflow_started")),
                r.FeedQuery(entity_id="one", types=("workflow_terminated",)),
            ):
                wanted = [entry for entry in whole if query.fits(entry)]
                assert 0 < len(wanted) < len(whole)
                for limit in (1, 100):
                    found = await read_all(b, limit=limit, entity_id=query.entity_id, types=query.types)
                    assert by_entity(found) == by_entity(wanted)
            found, cursor = await read_on(b, entity_id="unknown")
            assert found == []
            assert await read_all(b, after=cursor) == []

    async def test_a_reader_that_goes_on_after_any_event_of_a_page_misses_and_repeats_nothing(self) -> None:
        """With a filter or without, and with any limit."""
        async with self.bench() as b:
            for number in range(4):
                await b.create(f"order-{number}")
            for claim in await b.claim():
                await b.committed(claim, entry(2), entry(3))
            whole = await read_all(b)
            for query in (r.FeedQuery(), r.FeedQuery(limit=5), r.FeedQuery(entity_id="order-1"), _SCHEDULED):
                wanted = [one for one in whole if query.fits(one)]
                page = await b.store.feed.read(query)
                assert len(page.cursors) == len(page.entries) > 0
                for number, cursor in enumerate(page.cursors, 1):
                    rest = await read_all(b, cursor, entity_id=query.entity_id, types=query.types)
                    assert by_entity([*page.entries[:number], *rest]) == by_entity(wanted)

    async def test_a_reader_up_to_a_cursor_gets_what_is_not_after_it(self) -> None:
        """And then has this cursor, with any limit and filter; one that is ahead stays where it is."""
        async with self.bench() as b:
            begin = await b.store.feed.now()
            await asyncio.gather(*(b.create(f"order-{number}") for number in range(5)))
            middle = await b.store.feed.now()
            wanted = by_entity(await read_all(b))
            for claim in await b.claim():
                await b.committed(claim, entry(2))
            end = await b.store.feed.now()
            for limit in (1, 3, 100):
                found, cursor = await read_on(b, begin, limit, until=middle)
                assert by_entity(found) == wanted
                assert cursor == middle
                found, cursor = await read_on(b, cursor, limit, until=end)
                assert sorted(one.seq for one in found) == [2] * 5
                assert cursor == end
            found, cursor = await read_on(b, until=middle, entity_id="order-3")
            assert found == wanted["order-3"]
            assert cursor == middle
            found, cursor = await read_on(b, end, until=middle)
            assert found == await read_all(b, cursor) == []

    async def test_a_refused_commit_is_not_in_the_feed(self) -> None:
        """What is there is what was committed."""
        async with self.bench() as b:
            await b.create()
            claim = await b.claim_one()
            await b.committed(claim, entry(2))
            assert isinstance(await b.commit(claim, entry(3)), r.Refused)
            assert [entry.seq for entry in await read_all(b)] == [1, 2]

    async def test_forgotten_events_stay_in_the_feed_and_dropped_ones_leave_it(self) -> None:
        """The others stand where they stood."""
        async with self.bench() as b:
            await b.create()
            location = Location((1,))
            claim = await b.claim_one()
            kept = await b.committed(claim, entry(2), entry(3), forgotten=(Forgotten(2, location),), release=False)
            assert [entry.seq for entry in await read_all(b)] == [1, 2, 3]
            span = Span(location, Location((2,)))
            await b.committed(claim, entry(4), base_seq=3, wake=kept.wake, dropped=(span,))
            assert [entry.seq for entry in await read_all(b)] == [1, 3, 4]

    async def test_a_purge_takes_events_out_of_the_feed_and_leaves_cursors_valid(self) -> None:
        """Also if the newest event of all is purged: what comes next is after every cursor."""
        async with self.bench() as b:
            await b.create("kept")
            await b.committed(await b.claim_one())
            before = await b.store.feed.now()
            instance = await b.ended("gone")
            after = await b.store.feed.now()
            await b.store.purge([instance])
            assert [entry.entity_id for entry in await read_all(b)] == ["kept"]
            await b.create("next")
            for cursor in (before, after):
                assert [entry.entity_id for entry in await read_all(b, after=cursor)] == ["next"]

    async def test_an_adopted_execution_enters_the_feed_with_its_events(self) -> None:
        """After everything that is there."""
        async with self.bench() as a, self.bench() as b:
            await a.create("moved")
            await a.committed(await a.claim_one(), entry(2))
            await b.create("here", execution_id="here", run_id="here")
            now = await b.store.feed.now()
            await b.store.transfer.adopt(
                [r.Adoption(entity_id="moved", copies=tuple(await a.store.transfer.copies("moved")))]
            )
            assert [(entry.entity_id, entry.seq) for entry in await read_all(b, after=now)] == [
                ("moved", 1),
                ("moved", 2),
            ]

    async def test_adopted_executions_of_an_entity_enter_the_feed_oldest_first(self) -> None:
        """Those that have ended come before the one that is open."""
        async with self.bench() as a, self.bench(a.clock) as b:
            for name in ("first", "second"):
                await a.create(execution_id=name, run_id=name)
                await a.end(await a.claim_one())
                await a.pass_time(1)
            await a.create(execution_id="open", run_id="open")
            copies = tuple(await a.store.transfer.copies("order"))
            await b.store.transfer.adopt([r.Adoption(entity_id="order", copies=copies)])
            found = [entry.execution_id for entry in await read_all(b)]
            assert list(dict.fromkeys(found)) == ["first", "second", "open"]

    async def test_a_wait_for_the_feed_ends_with_the_next_event(self) -> None:
        """Of any execution; one for a cursor that is behind ends at once."""
        async with self.bench() as b:
            beginning = (await b.store.feed.read(r.FeedQuery())).cursor
            waiting = asyncio.ensure_future(b.store.wait(r.FeedGrown(after=beginning)))
            await b.quiet()
            assert not waiting.done()
            await b.create()
            assert await b.soon(waiting)
            assert await b.is_there(r.FeedGrown(after=beginning))
            now = await b.store.feed.now()
            assert not await b.is_there(r.FeedGrown(after=now))
            waiting = asyncio.ensure_future(b.store.wait(r.FeedGrown(after=now)))
            await b.committed(await b.claim_one(), entry(2), release=False)
            assert await b.soon(waiting)


async def read_all(b: Bench, after: str = "", limit: int = 100, **fields: object) -> list[r.FeedEntry]:
    """Return the events of all pages after a cursor."""
    found, _ = await read_on(b, after, limit, **fields)
    return found


async def read_on(b: Bench, after: str = "", limit: int = 100, **fields: object) -> tuple[list[r.FeedEntry], str]:
    """Return the events of all pages after a cursor, and the cursor of the last page."""
    found: list[r.FeedEntry] = []
    more = True
    while more:
        page = await b.store.feed.read(r.FeedQuery(after=after, limit=limit, **fields))  # type: ignore[arg-type]
        assert len(page.entries) <= limit
        found += page.entries
        after, more = page.cursor, page.more
    return found, after


def by_entity(entries: Iterable[r.FeedEntry]) -> dict[str, list[r.FeedEntry]]:
    """Return the events of each entity in their order; that of several entities may differ with every reading."""
    found: defaultdict[str, list[r.FeedEntry]] = defaultdict(list)
    for one in entries:
        found[one.entity_id].append(one)
    return found


def entry(seq: int) -> events.ActivityScheduled:
    """Return an entry of a log."""
    return scheduled(request(seq))
