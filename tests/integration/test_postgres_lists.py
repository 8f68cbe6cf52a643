"""Lists on Postgres: the rows that a page reads, counted by the server, in stores whose rows are unevenly spread.

A page may read ten rows for each one that it returns, and a few more, however many there are. The plans are those that a store
uses: made once, for any values, perhaps while the tables are empty.
"""

import json
import time
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from resurgam.core import event as events
from resurgam.core.location import Location
from resurgam.core.state import Status
from resurgam.runtime.system import SystemClock
from resurgam.store import records as r
from resurgam.store.encoding import encode
from resurgam.store.postgres.connection import connect
from resurgam.store.postgres.functions import literal
from resurgam.store.postgres.inspector import OpenPostgresInspector, PostgresInspector
from resurgam.store.postgres.pool import Pool
from resurgam.store.postgres.statements import statement
from resurgam.store.postgres.store import PostgresStore
from resurgam.store.postgres.url import parse
from resurgam.testing import ManualClock
from resurgam.testing.contract.bench import LEASE, Bench, OpensStores
from support.postgres import fresh_url, own_server, run_script

LIMIT = 50
CONSTANT = 20
"""Rows that a page may read besides: one for each range of a merge, and those that looks need at least."""

# Row n of many was created at n. Some values are rare, some are found among the oldest rows only.
FILL = """
INSERT INTO {schema}.instances (
    execution_id, entity_id, run_id, tree_id, generation, attempt, kind, name, queue, status, created_at, closed_at, deactivated,
    tags, parent, parent_id, first_run, failure, archived)
SELECT 'x' || n, 'e' || n, 'r' || n, CASE WHEN n % 250 = 3 THEN 't-rare' WHEN n < {size} / 5 THEN 't-old' ELSE 'r' || n END,
       1, 1, CASE WHEN n % 300 = 2 THEN 'flow' WHEN n = 7 THEN 'catalog' ELSE 'workflow' END,
       CASE WHEN n < {size} / 3 THEN 'old' WHEN n % 500 = 4 THEN 'rare' ELSE 'common' END, 'default', s.status, n,
       CASE WHEN s.status <> 'running' THEN n + 1 END, s.status <> 'running',
       format('{"region":"%s"%s%s}', CASE WHEN n % 2 = 0 THEN 'eu' ELSE 'us' END,
              CASE WHEN n % 100 < 2 THEN ',"case":"x"' ELSE '' END,
              CASE WHEN n < {size} / 10 THEN ',"age":"old"' WHEN n > {size} - 100 THEN ',"age":"new"' ELSE '' END),
       CASE WHEN p.id IS NOT NULL THEN format('{parent}', p.id) END, p.id, 'r' || n,
       CASE WHEN s.status = 'failed' THEN CASE WHEN n % 1000 = 0 THEN 'KeyError' ELSE 'ValueError' END END,
       CASE WHEN n % 10 = 8 AND s.status <> 'running' THEN 'file:///' || n END
FROM generate_series(1, {size}) AS n CROSS JOIN LATERAL (
    SELECT CASE WHEN n % 400 IN (1, 2) THEN 'running' WHEN n % 500 IN (0, 1) OR n % 10 = 6 OR (n > {size} - 100 AND n % 5 = 0) THEN 'failed'
                WHEN n < {size} / 8 THEN 'cancelled' ELSE 'completed' END AS status) AS s
CROSS JOIN LATERAL (SELECT CASE WHEN n % 250 = 3 THEN 'p-rare' WHEN n < {size} / 4 THEN 'p-old' END AS id) AS p;
INSERT INTO {schema}.states (execution_id, entity_id, queue, status, last_seq)
SELECT i.execution_id, i.entity_id, i.queue, i.status, 1 FROM {schema}.instances AS i;
INSERT INTO {schema}.instance_tags (name, value, created_at, execution_id)
SELECT t.key, t.value, i.created_at, i.execution_id
FROM {schema}.instances AS i CROSS JOIN LATERAL jsonb_each_text(i.tags::jsonb) AS t;
"""

SINGLE = [
    r.Query(),
    *(r.Query(status=status) for status in (Status.COMPLETED, Status.RUNNING, Status.CANCELLED, Status.DIVERGED)),
    *(r.Query(name=name) for name in ("common", "rare", "old", "missing")),
    *(r.Query(kind=kind) for kind in ("workflow", "flow", "catalog")),
    *(r.Query(failure=failure) for failure in ("ValueError", "KeyError")),
    *(r.Query(parent=parent) for parent in ("p-rare", "p-old")),
    *(r.Query(tree_id=tree_id) for tree_id in ("t-rare", "t-old")),
    *(r.Query(tags={name: value}) for name, value in (("region", "eu"), ("case", "x"), ("age", "old"))),
    r.Query(name="old", status=Status.COMPLETED),
    r.Query(name="common", status=Status.RUNNING),
]

SEVERAL = [
    r.Query(tags={"region": "eu", "case": "x"}),
    r.Query(tags={"case": "x"}, status=Status.FAILED),  # a fifth of those with the tag
    r.Query(tags={"region": "eu"}, status=Status.RUNNING),
    r.Query(tags={"region": "eu"}, name="rare"),
    r.Query(tags={"region": "us", "age": "old"}, name="old", kind="workflow"),
    r.Query(tags={"case": "x"}, name="common"),
    r.Query(parent="p-old", status=Status.CANCELLED),
    r.Query(parent="p-rare", status=Status.COMPLETED),
    r.Query(failure="ValueError", name="common"),
    r.Query(failure="KeyError", tags={"region": "eu"}),
    r.Query(tree_id="t-old", name="old"),
    r.Query(kind="flow", status=Status.COMPLETED),
    r.Query(kind="flow", name="common", tags={"region": "eu"}),
    r.Query(tags={"age": "new"}, status=Status.FAILED),  # they are dense among the newest, then there are no more
]

ENDED = [
    r.EndedQuery(before=10**15, name=name, status=status, archived=archived)
    for archived in (False, True)
    for name in (None, "common", "rare", "old")
    for status in (None, Status.COMPLETED, Status.CANCELLED)
]


class Counting:
    """Run statements as a store does, by plans for any values, and count what they read."""

    def __init__(self, connection, schema):
        self.rows = 0
        self.nodes = set()
        self._connection = connection
        self._schema = schema
        self._names = {}

    async def select(self, name, *arguments, **parts):
        text = statement(name, self._schema, **parts)
        if text not in self._names:
            self._names[text] = f"list{len(self._names)}"
            await self._connection.execute(f"PREPARE {self._names[text]} AS {text}")
        call = f"EXECUTE {self._names[text]}({', '.join(map(_literal, arguments))})"
        explained = await self._connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON, TIMING OFF) {call}")
        self._count(json.loads(explained)[0]["Plan"])
        return await self._connection.fetch(call)

    def _count(self, node):
        self.nodes.add(node["Node Type"])
        if node.get("Index Name") not in (
            None,
            "instances_pkey",
        ):  # with the tag that led to it, an instance is one row
            removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
            self.rows += (node["Actual Rows"] + removed) * node["Actual Loops"]
        for inner in node.get("Plans", ()):
            self._count(inner)


def _literal(value):
    return "NULL" if value is None else literal(value) if isinstance(value, str) else str(value)


@asynccontextmanager
async def counting(url):
    """Yield a counter of what lists of a store read; make its tables if there are none."""
    pool = Pool(parse(url), SystemClock(), name="test", lease=10_000)
    await pool._opened()
    await pool.close()
    connection = await connect(parse(url), name="test")
    try:
        yield Counting(connection, parse(url).schema)
    finally:
        await connection.close()


async def page_of(counter, query):
    """Return the instances of a page, and how many rows it read."""
    inspector, before = PostgresInspector(counter, SystemClock()), counter.rows
    page = (await inspector.list(query)).instances if isinstance(query, r.Query) else await inspector.ended(query)
    return page, counter.rows - before


def variants(query, size):
    """Return a query with and without bounds and a cursor in the middle."""
    middle = f"{size // 2:015d}-x"
    return [
        query,
        replace(query, cursor=middle),
        replace(query, since=size // 4, until=size // 2),
        replace(query, since=size // 20, cursor=middle),
    ]


async def fill(url, size):
    """Put instances into the tables of a store."""
    parent = events.Parent(entity_id="%s", run_id="r", execution_id="x", location=Location((1,)), key="k")
    text = FILL.replace("{schema}", parse(url).schema).replace("{size}", str(size))
    await run_script(text.replace("{parent}", encode(parent)), url=url)


def asked(size):
    """Return all queries of a store of some size, with the most rows that each may read."""
    found = [one for query in (*SINGLE, *SEVERAL) for one in variants(replace(query, limit=LIMIT), size)]
    for query in ENDED:
        found += [replace(query, limit=LIMIT), replace(query, limit=LIMIT, after=(size // 2, "x"))]
    return found


async def checked(counter, size):
    """Check what each page reads; return the numbers of rows that were returned and read."""
    counts = []
    for query in asked(size):
        found, read = await page_of(counter, query)
        assert read <= 10 * len(found) + CONSTANT, (query, len(found), read)
        counts.append((len(found), read))
    assert not counter.nodes & {"Seq Scan", "Bitmap Heap Scan", "Sort", "Incremental Sort"}, counter.nodes
    return counts


async def test_pages_read_few_rows_by_plans_that_were_made_for_empty_tables():
    url = fresh_url()
    async with counting(url) as counter:
        assert {read for _, read in await checked(counter, 4000)} == {0}
        await fill(url, 4000)
        await checked(counter, 4000)


async def test_pages_read_as_many_rows_in_a_store_of_twice_the_size():
    counts = []
    for size in (8000, 16000):
        url = fresh_url()
        async with counting(url) as counter:
            await fill(url, size)
            await run_script("ANALYZE", url=url)
            counts.append(await checked(counter, size))
    full = [reads for reads in zip(*counts, strict=True) if {found for found, _ in reads} == {LIMIT}]
    assert len(full) > 80
    assert [few for (_, few), (_, many) in full if many > few + CONSTANT] == []


async def test_pages_hold_what_fits():
    """Each page, and those that follow it, compared with the whole store."""
    url, size = fresh_url(), 3000
    async with counting(url):
        await fill(url, size)
    inspector = OpenPostgresInspector(url, SystemClock())
    try:
        everything = (await inspector.list(r.Query(limit=size))).instances
        assert len(everything) == size
        for query in asked(size):
            wanted = [one for one in everything if query.fits(one)]
            if isinstance(query, r.EndedQuery):
                wanted.sort(key=lambda one: (one.closed_at, one.execution_id))
                assert await inspector.ended(query) == wanted[:LIMIT], query
            else:
                assert await all_pages(inspector, query) == wanted, query
    finally:
        await inspector.close()


async def all_pages(inspector, query):
    """Return the instances of a page and of those that follow it."""
    page = await inspector.list(query)
    found = [*page.instances]
    while page.cursor is not None:
        page = await inspector.list(replace(query, cursor=page.cursor))
        found += page.instances
    return found


async def test_long_names_are_kept_apart_by_their_ends():
    """Only their beginnings are in an index."""
    clock, names = ManualClock(), ["ä" * 3000 + end for end in ("one", "two")]
    store = PostgresStore(fresh_url(), clock, name="test", lease=LEASE)
    try:
        b = Bench(store, clock, OpensStores())
        for name in names:
            await b.create(name[-3:], name=name)
        for name in names:
            for query in (r.Query(name=name), r.Query(name=name, status=Status.RUNNING)):
                assert [one.entity_id for one in (await store.inspector.list(query)).instances] == [name[-3:]]
        for claim in await b.claim():
            await b.end(claim)
        ended = await store.inspector.ended(r.EndedQuery(before=clock.now() + 1, name=names[1]))
        assert [one.entity_id for one in ended] == ["two"]
    finally:
        await store.close()


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_pages_read_few_rows_in_a_store_of_a_million_instances():
    server, size = own_server("shared_buffers=512MB", "maintenance_work_mem=512MB"), 1_000_000
    try:
        async with counting(server.url) as counter:
            begin = time.perf_counter()
            await fill(server.url, size)
            print(f"filled in {time.perf_counter() - begin:.0f} s")
            begin = time.perf_counter()
            counts = await checked(counter, size)
            taken = (time.perf_counter() - begin) / len(counts) / 2  # each is explained first
            print(f"{len(counts)} pages, {taken * 1000:.1f} ms each")
            print(
                f"rows read for one returned: {max(read / found for found, read in counts if found == LIMIT):.2f} at most"
            )
    finally:
        server.kill()
