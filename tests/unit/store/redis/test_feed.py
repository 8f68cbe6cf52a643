import pytest

from resurgam.core.errors import StoreError
from resurgam.store import records as r
from resurgam.store.redis import feed as feeds
from resurgam.testing.contract.bench import request, scheduled


async def entries_of(b, query):
    """Return the entries of all pages, and the cursor of the last one."""
    found, more = [], True
    while more:
        page = await b.store.feed.read(query)
        found += page.entries
        query, more = r.FeedQuery(**{**fields_of(query), "after": page.cursor}), page.more
    return found, query.after


def fields_of(query):
    return {name: getattr(query, name) for name in query.__struct_fields__}


async def test_a_busy_partition_does_not_hold_up_the_others(b):
    await b.create("quiet-one")
    await b.create("quiet-two")
    instance = await b.create()
    claim = next(claim for claim in await b.claim() if claim.instance.execution_id == instance.execution_id)
    await b.committed(claim, *(scheduled(request(seq)) for seq in range(2, 40)))
    found, cursor = set(), ""
    for _ in range(b.store._link.partitions):
        page = await b.store.feed.read(r.FeedQuery(after=cursor, limit=1))
        found |= {entry.entity_id for entry in page.entries}
        cursor = page.cursor
    assert found == {"order", "quiet-one", "quiet-two"}


async def test_a_page_that_is_cut_within_a_partition_goes_on_there(b):
    for number in range(40):
        await b.create(f"order-{number}")
    for limit in (1, 3, 33):
        found, _ = await entries_of(b, r.FeedQuery(limit=limit))
        assert sorted(entry.entity_id for entry in found) == sorted(f"order-{number}" for number in range(40))


async def test_a_reader_of_one_entity_passes_over_the_other_partitions(b):
    for number in range(20):
        await b.create(f"order-{number}")
    found, cursor = await entries_of(b, r.FeedQuery(entity_id="order-3"))
    assert [entry.entity_id for entry in found] == ["order-3"]
    assert not await feeds.has_grown(b.store._link, r.FeedGrown(after=cursor))
    await b.create("another")
    assert await feeds.has_grown(b.store._link, r.FeedGrown(after=cursor))


async def test_a_filter_with_rare_matches_is_read_in_several_short_calls(b, monkeypatch):
    monkeypatch.setattr(feeds, "_WINDOW", 5)
    await b.create()
    await b.committed(await b.claim_one(), *(scheduled(request(seq)) for seq in range(2, 30)))
    page = await b.store.feed.read(r.FeedQuery(types=("workflow_completed",), limit=3))
    assert page.entries == ()
    assert page.more
    found, _ = await entries_of(b, r.FeedQuery(types=("workflow_started",), limit=3))
    assert len(found) == 1


@pytest.mark.parametrize(
    "cursor", ["x", "12", "0.1.2", "99" + ".0" * 16, "0" + ".0" * 17, "0" + ".-1" * 16, "0" + ".0" * 15 + ".G"]
)
async def test_a_cursor_of_another_store_is_refused(b, cursor):
    with pytest.raises(StoreError, match="cursor must be one that a feed of this store returned"):
        await b.store.feed.read(r.FeedQuery(after=cursor))


def test_a_cursor_is_read_as_it_was_written():
    cursor = feeds.Cursor(2, (0, 17, 2**50))
    assert feeds.Cursor.parse(str(cursor), 3) == cursor
    assert feeds.Cursor.parse("", 2) == feeds.Cursor(0, (0, 0))


async def test_a_cursor_that_is_ahead_of_a_server_which_lost_events_moves_back(b):
    await b.create()
    now = feeds.Cursor.parse(await b.store.feed.now(), 16)
    ahead = str(feeds.Cursor(0, tuple(position + 5 for position in now.positions)))
    assert await feeds.has_grown(b.store._link, r.FeedGrown(after=ahead))
    for query in (r.FeedQuery(after=ahead), r.FeedQuery(after=ahead, entity_id="order")):
        page = await b.store.feed.read(query)
        assert page.entries == ()
        assert not page.more
        assert feeds.Cursor.parse(page.cursor, 16).positions == now.positions
    await b.create("next")
    found, _ = await entries_of(b, r.FeedQuery(after=page.cursor))
    assert [entry.entity_id for entry in found] == ["next"]
