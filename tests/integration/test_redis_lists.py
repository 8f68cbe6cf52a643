"""What a page of a list costs on a Redis server, in counts of what functions read, among few executions and among many.

The crowd has skewed distributions: names, statuses, regions and kinds that two or five of a thousand have, or most.
"""

import asyncio
from contextlib import asynccontextmanager
from time import perf_counter

import pytest
from msgspec.structs import replace

from resurgam.core.state import Status
from resurgam.dev.redis import Server
from resurgam.store import records as r
from resurgam.store.redis.store import RedisStore
from resurgam.testing import ManualClock
from resurgam.testing.contract.bench import LEASE
from support.redis import fresh_url, shared_server, temporary_folder
from support.redis_crowd import Crowd, instance_of, reads_of

PARTITIONS = 16
FEW, MANY = 4_000, 8_000

PER_ROW = 10
"""Members of indexes that a page reads at most for each row that it returns."""

SMALL = 2 * PARTITIONS
"""Members that it reads beyond that, for its beginning in each partition: where the cursor stands, how dense an index is."""

BY_ONE = {
    "all": r.Query(),
    "status": r.Query(status=Status.FAILED),
    "status of most": r.Query(status=Status.COMPLETED),
    "kind": r.Query(kind="flow"),
    "kind of most": r.Query(kind="workflow"),
    "name": r.Query(name="rare"),
    "failure": r.Query(failure="ValueError"),
    "parent": r.Query(parent="p7"),
    "tree": r.Query(tree_id="t9"),
    "tag": r.Query(tags={"region": "aq"}),
    "tag of most": r.Query(tags={"region": "eu"}),
    "tag with many values": r.Query(tags={"customer": "c77"}),
    "name and status": r.Query(name="rare", status=Status.RUNNING),
    "name of most and status": r.Query(name="most", status=Status.FAILED),
    "name and status of most": r.Query(name="rare", status=Status.COMPLETED),
}
"""Lists that one index answers: what they read does not depend on how many executions fit."""

BY_SEVERAL = {
    "tag, and another of most": r.Query(tags={"customer": "c77", "region": "eu"}),
    "tags that a fifth of each other have": r.Query(tags={"vip": "yes", "large": "yes"}),
    "tag, and status of most": r.Query(tags={"region": "aq"}, status=Status.COMPLETED),
    "tag and name": r.Query(tags={"region": "us"}, name="some"),
    "parent, and status of most": r.Query(parent="p7", status=Status.COMPLETED),
    "failure and name": r.Query(failure="ValueError", name="some"),
    "kind, and tag of most": r.Query(kind="flow", tags={"region": "eu"}),
    "tag, name and status of most": r.Query(tags={"vip": "yes"}, name="most", status=Status.COMPLETED),
}
"""Lists that are looked up in the most selective index, of which at least a fifth fits, or which has few members."""

QUERIES = BY_ONE | BY_SEVERAL
NAMES, STATUSES = (None, "some", "most"), (None, Status.FAILED, Status.COMPLETED)


def parts_of(query, size):
    """Return a query, and the same from a cursor on, and for a span of time."""
    return {
        "": query,
        " from a cursor on": replace(query, cursor=instance_of(size // 2).cursor),
        " in a span of time": replace(
            query, since=instance_of(size // 4).created_at, until=instance_of(3 * size // 4).created_at
        ),
    }


@asynccontextmanager
async def crowd_of(size, server=None):
    url = fresh_url() if server is None else server.url
    store = RedisStore(url, ManualClock(), name="lists", lease=LEASE)
    try:
        crowd = Crowd(store, server or shared_server(), size)
        await crowd.fill()
        yield crowd
    finally:
        await store.close()


async def page_and_reads(crowd, query):
    with reads_of(crowd.server) as reads:
        page = await crowd.store.inspector.list(query)
    return page.instances, reads


def is_within(reads, rows):
    return reads.members <= PER_ROW * rows + SMALL and reads.executions <= 2 * rows + SMALL


async def test_a_page_reads_at_most_ten_members_for_each_row() -> None:
    faults = []
    async with crowd_of(FEW) as crowd:
        for name, whole in QUERIES.items():
            for part, query in parts_of(whole, FEW).items():
                found, reads = await page_and_reads(crowd, query)
                assert [one.execution_id for one in found] == crowd.expected(query), name + part
                if not is_within(reads, len(found)):
                    faults.append(f"{name}{part}: {reads} for {len(found)} rows")
    assert not faults, "\n".join(faults)


async def test_what_a_page_reads_does_not_grow_with_the_store() -> None:
    full = (
        "all",
        "status of most",
        "tag of most",
        "kind of most",
        "tags that a fifth of each other have",
        "tag and name",
    )
    async with crowd_of(FEW) as small, crowd_of(MANY) as large:
        for name in full:
            # A page from the middle: how the executions of a few hundred entities fall on partitions is chance.
            query = replace(QUERIES[name], cursor=instance_of(FEW).cursor, limit=50)
            (found, reads), (again, more) = [await page_and_reads(crowd, query) for crowd in (small, large)]
            assert [one.execution_id for one in found] == [one.execution_id for one in again]
            assert more.members <= reads.members + SMALL, name


async def test_a_page_of_one_reads_a_few_members_of_each_partition() -> None:
    async with crowd_of(FEW) as crowd:
        for name, whole in QUERIES.items():
            for part, query in parts_of(replace(whole, limit=1), FEW).items():
                found, reads = await page_and_reads(crowd, query)
                assert [one.execution_id for one in found] == crowd.expected(query), name + part
                assert reads.executions <= 2 * PARTITIONS, name + part
                assert reads.members <= (20 if name in BY_SEVERAL else 4) * PARTITIONS, name + part


async def test_the_index_to_walk_is_the_most_selective_one_where_the_list_begins() -> None:
    """Customer c77 has fewer executions than there are failed ones in all, and more than in the span that is asked for."""
    async with crowd_of(FEW) as crowd:
        since = instance_of(FEW - 100).created_at
        query = r.Query(since=since, status=Status.COMPLETED, tags={"customer": "c77"})
        found, reads = await page_and_reads(crowd, query)
        assert [one.execution_id for one in found] == crowd.expected(query)
        assert reads.members <= SMALL


@pytest.mark.parametrize("name", [None, "rare", "most"])
@pytest.mark.parametrize("status", [None, Status.FAILED, Status.COMPLETED, Status.RUNNING])
async def test_complete_executions_are_listed_without_a_look_at_others(name, status) -> None:
    async with crowd_of(FEW) as crowd:
        whole = r.EndedQuery(before=2**50, name=name, status=status)
        ends = crowd.expected_ends(replace(whole, limit=FEW))
        middle = instance_of(int(ends[len(ends) // 2])) if ends else instance_of(1)
        later = replace(whole, after=(middle.closed_at or 0, middle.execution_id))
        for query in (whole, later, replace(whole, before=middle.closed_at or 0)):
            with reads_of(crowd.server) as reads:
                found = await crowd.store.inspector.ended(query)
            assert [one.execution_id for one in found] == crowd.expected_ends(query)
            # Lists of up to five statuses are merged, and each of them is read a few members ahead.
            assert reads.members <= PER_ROW * len(found) + 5 * SMALL
            assert reads.executions <= 2 * len(found) + SMALL


@pytest.mark.long
async def test_a_page_among_a_million_executions_reads_as_few_members(capsys) -> None:
    server = await asyncio.to_thread(Server(temporary_folder()).start)
    try:
        await check_a_million(server, capsys)
    finally:
        server.kill()


async def check_a_million(server, capsys):
    million, faults = 1_000_000, []

    def note(line, reads, found, small):
        if reads.members > PER_ROW * len(found) + small or reads.executions > 2 * len(found) + SMALL:
            faults.append(line)
        with capsys.disabled():
            print(line)

    async with crowd_of(million, server) as crowd:
        for name, whole in QUERIES.items():
            for part, query in parts_of(whole, million).items():
                begun = perf_counter()
                await crowd.store.inspector.list(query)
                spent = perf_counter() - begun
                found, reads = await page_and_reads(crowd, query)
                assert all(query.fits(one) for one in found)
                note(f"{name}{part}: {len(found)} rows, {reads}, {spent * 1000:.1f} ms", reads, found, SMALL)
        for ended in (r.EndedQuery(before=2**50, name=name, status=status) for name in NAMES for status in STATUSES):
            with reads_of(server) as reads:
                complete = await crowd.store.inspector.ended(ended)
            assert len(complete) == ended.limit
            assert all(ended.fits(one) for one in complete)
            note(f"ended, {ended.name}, {ended.status}: {len(complete)} rows, {reads}", reads, complete, 5 * SMALL)
    assert not faults, "\n".join(faults)
