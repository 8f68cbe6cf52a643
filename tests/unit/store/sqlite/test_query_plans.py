"""What the database reads for a verb: rows found by an index, however many others there are."""

import re
import sqlite3
from contextlib import closing

import pytest

from resurgam.core import event as events
from resurgam.core.outcome import ChildRequest, Outcome
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.sqlite.statements import migrations, queries
from resurgam.store.sqlite.store import SqliteStore
from resurgam.testing import ManualClock


@pytest.fixture
async def store(tmp_path):
    opened = SqliteStore(tmp_path / "a.db", ManualClock(), name="one", synchronous="OFF")
    yield opened
    await opened.close()


def plan(statement: str) -> list[str]:
    """Return how SQLite would run a named statement."""
    query = queries()[statement]
    with closing(sqlite3.connect(":memory:")) as connection:
        for step in migrations():
            connection.executescript(step)
        names = dict.fromkeys(re.findall(r":(\w+)", query), 1)
        return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}", names or (1,) * query.count("?"))]


@pytest.mark.parametrize(
    ("statement", "index"),
    [
        ("newest_execution", "instances USING INDEX instances_entity (entity_id=?)"),
        ("same_execution", "instances USING INDEX instances_run (entity_id=? AND run_id=?)"),
        ("shown_newest", "instances USING INDEX instances_entity (entity_id=?)"),
        ("shown_newest_of_run", "instances USING INDEX instances_run (entity_id=? AND run_id=?)"),
        ("shown_execution", "instances USING INDEX sqlite_autoindex_instances_1 (execution_id=?)"),
    ],
)
def test_an_execution_of_an_id_is_found_by_an_index(statement, index):
    first, *others = plan(statement)
    assert first == f"SEARCH {index}"
    letters = ["SEARCH activities USING PRIMARY KEY (execution_id=?)"] if statement.startswith("shown") else []
    assert [step for step in others if step.startswith("SEARCH")] == letters


@pytest.mark.parametrize("statement", ["first_of_child", "answer_of_child"])
def test_the_executions_of_a_child_are_found_by_an_index(statement):
    search = "SEARCH instances USING INDEX instances_first_run (entity_id=? AND first_run=?)"
    assert [step for step in plan(statement) if "instances" in step] == [search]


def test_whether_an_id_is_known_is_read_from_an_index_alone():
    [step] = plan("entity_known")
    assert re.fullmatch(r"SEARCH instances USING COVERING INDEX \w+ \(entity_id=\?\)", step)


@pytest.mark.parametrize("statement", ["claimable_eagerly", "newest_claimable"])
def test_an_eager_claim_reads_no_table_from_end_to_end(statement):
    steps = plan(statement)
    assert "SEARCH older USING INDEX instances_ready (queue=?)" in steps
    assert [step for step in steps if step.startswith("SCAN")] == []


def changed_indexes(statement: str) -> set[str]:
    """Return the indexes into which SQLite would insert for a named statement."""
    query = queries()[statement]
    with closing(sqlite3.connect(":memory:")) as connection:
        for step in migrations():
            connection.executescript(step)
        names = dict(connection.execute("SELECT rootpage, name FROM sqlite_master").fetchall())
        numbers = [int(number) for number in re.findall(r"\?(\d)", query)]
        parameters = (1,) * max(numbers, default=query.count("?"))
        steps = connection.execute(f"EXPLAIN {query}", parameters).fetchall()
    opened = {step[2]: names[step[3]] for step in steps if step[1] == "OpenWrite"}
    return {opened[step[2]] for step in steps if step[1] == "IdxInsert" and step[2] in opened}


@pytest.mark.parametrize(
    ("statement", "indexes"),
    [
        ("commit_awake", set()),
        ("commit_step", {"instances_waking"}),
        ("commit_and_rest", {"instances_ready", "instances_waking", "instances_leased"}),
    ],
)
def test_a_commit_that_changes_no_status_writes_no_index_of_lists(statement, indexes):
    assert changed_indexes(statement) == indexes


def test_an_entity_has_one_open_execution_by_a_unique_index():
    with closing(sqlite3.connect(":memory:")) as connection:
        for step in migrations():
            connection.executescript(step)
        columns = "entity_id, execution_id, run_id, first_run, tree_id, generation, attempt, kind, name, queue, status, created_at, last_seq, closed_at"
        insert = f"INSERT INTO instances ({columns}) VALUES (?, ?, '', '', '', 1, 1, '', '', '', '', 0, 1, ?)"
        connection.execute(insert, ("e", "closed", 5))
        connection.execute(insert, ("e", "open", None))
        with pytest.raises(sqlite3.IntegrityError, match=r"instances\.entity_id"):
            connection.execute(insert, ("e", "another", None))


def test_the_feed_is_read_in_its_order_from_the_table_and_that_of_an_entity_by_its_executions():
    steps = plan("feed")
    assert steps[0] == "SEARCH e USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"
    assert not any("TEMP B-TREE" in step for step in steps)
    steps = plan("feed_of_entity")
    assert "(entity_id=?)" in steps[0]
    assert steps[1] == "SEARCH e USING INDEX events_log (execution_id=?)"


def test_ready_and_due_instances_are_read_in_their_order_from_an_index():
    steps = plan("claimable_instances")
    assert any("USING INDEX instances_ready (queue=?" in step for step in steps)
    assert any("USING INDEX instances_waking (queue=? AND wake_at<?)" in step for step in steps)


def started(entity_id: str, number: int, **fields) -> events.WorkflowStarted:
    ids = {"execution_id": f"{entity_id}-{number}", "run_id": f"run-{entity_id}-{number}", "tree_id": "t"}
    return events.WorkflowStarted(
        seq=1, at=1, name="w", queue="default", python="3.11", entity_id=entity_id, **ids, **fields
    )


async def end(store, **outcome) -> None:
    [claim] = await store.claim("w", ["default"], 1)
    done = Outcome(
        status=Status.COMPLETED,
        deactivated=True,
        events=(events.WorkflowCompleted(seq=2), events.WorkflowDeactivated(seq=3)),
        **outcome,
    )
    part = r.Commit(
        execution_id=claim.instance.execution_id,
        entity_id=claim.instance.entity_id,
        epoch=claim.epoch,
        base_seq=1,
        wake=claim.wake,
        outcome=done,
    )
    assert isinstance((await store.commit([part]))[0], r.Committed)


async def test_a_start_of_a_used_id_reads_two_rows_and_no_list_of_its_executions(store):
    for number in range(5):
        await store.create([r.Creation(started=started("nightly", number))])
        await end(store)
    statements: list[str] = []
    store.database.trace(statements.append, None)
    await store.create([r.Creation(started=started("nightly", 5))])
    store.database.trace(None, None)
    reads = [statement for statement in statements if statement.startswith("SELECT")]
    # Whether there is one, the newest, and the one that this start would repeat.
    assert [statement.split()[1] for statement in reads] == ["1", "*", "*"]
    assert all(statement.endswith("LIMIT 1;") for statement in reads)


async def test_a_child_with_a_used_id_reads_two_rows_and_no_list_of_its_executions(store):
    for number in range(5):
        await store.create([r.Creation(started=started("child", number))])
        await end(store)
    await store.create([r.Creation(started=started("parent", 0))])
    statements: list[str] = []
    store.database.trace(statements.append, None)
    child = events.ChildStarted(ref=1, execution_id="")
    await end(store, children=(ChildRequest(started=started("child", 5), created=child, refused=child),))
    store.database.trace(None, None)
    reads = [one for one in statements if one.startswith("SELECT") and "entity_id = 'child'" in one]
    assert [statement.split()[1] for statement in reads] == ["1", "*", "*"]
    assert not any("ORDER BY position;" in statement for statement in statements)
