"""A page of a list reads rows in the order of an index, and few that it does not return, however many others there are."""

import itertools
import sqlite3
from contextlib import closing

import pytest

from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.sqlite import listing
from resurgam.store.sqlite.session import Session
from resurgam.store.sqlite.statements import migrations

LIMIT = 50

INSTANCES = """
WITH RECURSIVE numbers (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < :rows)
INSERT INTO instances (execution_id, entity_id, run_id, tree_id, generation, attempt, kind, name, queue, status, paused,
                       created_at, closed_at, deactivated, last_seq, first_run, failure, parent_id, archived)
SELECT printf('x-%08x', n), 'e-' || n, 'r', CASE n % 200 WHEN 9 THEN 'rare' ELSE 'common' END, 1, 1,
       CASE n % 500 WHEN 0 THEN 'flow' ELSE 'workflow' END, CASE n % 400 WHEN 7 THEN 'rare' ELSE 'common' END, 'q',
       CASE WHEN n % 10 = 1 THEN 'running' WHEN n % 50 = 3 THEN 'failed' WHEN n % 1000 = 4 THEN 'cancelled'
            ELSE 'completed' END,
       CASE n % 300 WHEN 11 THEN 'alone' END,
       n / 3, CASE WHEN n % 10 <> 1 THEN n / 3 + 5 END, n % 10 <> 1, 1, 'r',
       CASE WHEN n % 400 = 53 THEN 'Rare' WHEN n % 50 = 3 THEN 'Common' END, CASE WHEN n % 250 = 9 THEN 'p' END,
       CASE WHEN n % 2 THEN 'file:///archive' END
FROM numbers
"""
TAGS = """
INSERT INTO instance_tags (name, value, created_at, execution_id)
SELECT 'half', 'yes', created_at, execution_id FROM instances WHERE position % 2 = 0
UNION ALL SELECT 'few', 'yes', created_at, execution_id FROM instances WHERE position % 100 < 2
UNION ALL SELECT 'stage', 'early', created_at, execution_id FROM instances WHERE position <= :rows / 2
"""

FILTERS = {
    "status": [Status.RUNNING, Status.CANCELLED, Status.PAUSED, Status.DIVERGED],
    "kind": ["flow", "workflow", "catalog"],
    "name": ["rare", "common", "unknown"],
    "failure": ["Rare", "Common", "Unknown"],
    "parent": ["p", "unknown"],
    "tree_id": ["rare", "common"],
    "tags": [{"half": "yes"}, {"few": "yes"}, {"few": "no"}],
}
TOGETHER = [
    {"name": "common", "status": Status.CANCELLED},
    {"name": "rare", "status": Status.COMPLETED},
    {"name": "rare", "kind": "workflow"},
    {"name": "common", "kind": "flow"},
    {"tags": {"half": "yes", "few": "yes"}},
    {"tags": {"few": "yes"}, "status": Status.COMPLETED, "name": "common"},
    {"tags": {"half": "yes"}, "name": "rare"},
    {"parent": "p", "status": Status.COMPLETED, "tree_id": "common"},
    {"failure": "Rare", "name": "common", "status": Status.FAILED, "kind": "workflow", "tree_id": "common"},
    {"failure": "Common", "tags": {"half": "no"}},
]


class Counted(Session):
    """A session that counts the entries of indexes that lists visit, and keeps the plans of their statements."""

    def __init__(self, connection):
        super().__init__(connection)
        self.read = 0
        self.plans = []
        self.explained = connection
        connection.create_function("counted", 1, self.count)

    def count(self, _):
        self.read += 1
        return True

    def select(self, statement, parameters):
        plan = self.explained.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
        self.plans.append([step[3] for step in plan])
        return super().select(statement, parameters)


@pytest.fixture(autouse=True)
def _count_entries(monkeypatch):
    monkeypatch.setattr(listing, "_SPAN", f"counted({{order}}.execution_id) AND {listing._SPAN}")
    monkeypatch.setattr(listing, "_ENDED", f"counted(i.execution_id) AND {listing._ENDED}")


def filled(rows, path=":memory:"):
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA synchronous = OFF")
    connection.row_factory = sqlite3.Row
    for step in migrations():
        connection.executescript(step)
    connection.execute(INSTANCES, {"rows": rows})
    connection.execute(TAGS, {"rows": rows})
    return connection


@pytest.fixture(scope="module")
def small():
    with closing(filled(30_000)) as connection:
        yield connection


@pytest.fixture(scope="module")
def large():
    with closing(filled(60_000)) as connection:
        yield connection


def each_by_itself():
    return [{name: value} for name, values in FILTERS.items() for value in values]


def spans(rows):
    """Return where a page may begin and end: anywhere, or within the middle of all rows."""
    middle = {"since": rows // 12, "until": rows // 4}
    return {}, middle, {"cursor": f"{rows // 5:015d}-x"}, {**middle, "cursor": f"{rows // 5:015d}-x"}


def faults(session):
    """Return the steps of plans that sort rows, or read a table from end to end."""
    steps = [step for plan in session.plans for step in plan]
    scans = [step for step in steps if step.startswith("SCAN") and "INDEX" not in step and step != "SCAN found"]
    return [*scans, *(step for step in steps if "TEMP B-TREE" in step)]


def reads(connection, fields):
    """Return how many entries a page reads, and how many rows it has."""
    session = Counted(connection)
    page = listing.listed(session, r.Query(limit=LIMIT, **fields), LIMIT)
    assert not faults(session)
    return session.read, len(page)


@pytest.mark.parametrize("fields", [{}, *each_by_itself(), *TOGETHER], ids=str)
def test_a_page_reads_at_most_ten_entries_for_each_row(fields, small, large):
    for here, there in zip(spans(30_000), spans(60_000), strict=True):
        found, rows = reads(small, {**fields, **here})
        assert found <= 10 * rows + 16
        twice, more = reads(large, {**fields, **there})
        assert twice <= 10 * more + 16
        if rows == more == LIMIT:
            assert abs(twice - found) <= LIMIT


def test_the_walk_is_that_of_the_filter_with_the_fewest_rows(small):
    def walked(fields):
        session = Counted(small)
        listing.listed(session, r.Query(limit=LIMIT, **fields), LIMIT)
        return " ".join(session.plans[-1])

    assert "instances_named" in walked({"name": "rare", "tags": {"half": "yes"}})
    assert "SEARCH t" in walked({"name": "common", "tags": {"few": "yes"}})
    assert "instances_kind" in walked({"kind": "flow", "tags": {"half": "yes"}})
    assert "instances_failed" in walked({"failure": "Rare", "parent": "p"})


def test_a_filter_without_rows_ends_a_list_at_once(small):
    assert reads(small, {"tags": {"half": "yes", "few": "no"}, "name": "common"})[0] <= 24
    assert reads(small, {"name": "unknown"}) == (0, 0)


@pytest.mark.parametrize("archived", [False, True])
@pytest.mark.parametrize("status", [None, Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.CONTINUED])
@pytest.mark.parametrize("name", [None, "rare", "common", "unknown"])
def test_a_page_of_complete_executions_reads_only_its_rows(archived, status, name, small, large):
    for connection in (small, large):
        for after in (None, (3_000, "x")):
            session = Counted(connection)
            query = r.EndedQuery(before=9_000, status=status, name=name, limit=LIMIT, archived=archived, after=after)
            page = listing.ended(session, query)
            assert session.read <= len(page) + len(Status)
            assert not faults(session)
            assert [row["closed_at"] for row in page] == sorted(row["closed_at"] for row in page)


def test_lists_are_those_of_all_rows_that_fit(small):
    everything = [
        dict(row) for row in small.execute("SELECT * FROM instances ORDER BY created_at DESC, execution_id DESC")
    ]
    tags = {row["execution_id"]: set() for row in everything}
    for row in small.execute("SELECT * FROM instance_tags"):
        tags[row["execution_id"]].add((row["name"], row["value"]))

    def fits(row, query):
        shown = row["status"] if row["paused"] is None else "paused"
        return (
            (query.status in (None, shown) and query.kind in (None, row["kind"]))
            and (query.name in (None, row["name"]) and query.failure in (None, row["failure"]))
            and (query.parent in (None, row["parent_id"]) and query.tree_id in (None, row["tree_id"]))
            and set(query.tags.items()) <= tags[row["execution_id"]]
            and (query.since is None or query.since <= row["created_at"] < query.until)
        )

    for fields, span in itertools.product([{}, *each_by_itself(), *TOGETHER], spans(30_000)[:2]):
        query = r.Query(limit=LIMIT, **fields, **span)
        expected = [row["execution_id"] for row in everything if fits(row, query)]
        found = [row["execution_id"] for row in listing.listed(Session(small), query, LIMIT)]
        assert found == expected[:LIMIT]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_page_out_of_a_million_instances_reads_at_most_ten_entries_for_each_row(tmp_path):
    with closing(filled(1_000_000, tmp_path / "large.db")) as connection:
        for fields, span in itertools.product([{}, *each_by_itself(), *TOGETHER], spans(1_000_000)):
            found, rows = reads(connection, {**fields, **span})
            assert found <= 10 * rows + 16, (fields, span)
        for name, status, archived in itertools.product((None, "rare"), (None, Status.CANCELLED), (False, True)):
            session = Counted(connection)
            query = r.EndedQuery(before=900_000, status=status, name=name, limit=LIMIT, archived=archived)
            page = listing.ended(session, query)
            assert session.read <= len(page) + len(Status)
