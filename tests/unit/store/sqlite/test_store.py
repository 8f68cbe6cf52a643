"""The SQLite file: what is in it, how writes are grouped, and what is said when something is wrong with it."""

import asyncio
import os
import re
import shutil
import sqlite3
import subprocess
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from msgspec import Raw

from resurgam import Context, Engine, Registry
from resurgam.core import event as events
from resurgam.core.outcome import ActivityRequest, Outcome
from resurgam.errors import CorruptHistory, StoreError
from resurgam.runtime.system import SystemClock
from resurgam.store import records as r
from resurgam.store.open import open_store
from resurgam.store.records import ExecutionRef
from resurgam.store.sqlite.connection import Database
from resurgam.store.sqlite.owner_lock import Owner
from resurgam.store.sqlite.statements import migrations, queries
from resurgam.store.sqlite.store import SqliteStore
from resurgam.store.sqlite.writer import Writer
from resurgam.testing import Environment, ManualClock
from support.limits import HANGS

registry = Registry()

EXECUTION = ExecutionRef(entity_id="x", execution_id="x")


@registry.activity
async def double(value: int) -> int:
    return 2 * value


@registry.workflow
async def four(ctx: Context, value: int) -> int:
    return await ctx.activity(double, await ctx.activity(double, value))


def opened(path: Path | None, name: str = "one") -> SqliteStore:
    """Open a store as an engine does."""
    return SqliteStore(path, ManualClock(), name=name, synchronous="FULL")


async def run_one(url: str) -> None:
    """Run one workflow to its end."""
    async with Engine(url, registry=registry) as engine:
        assert await engine.execute(four, 3, id="f") == 12


async def test_a_history_survives_the_engine_and_can_be_read_with_the_shell(tmp_path):
    file = tmp_path / "shop.db"
    await run_one(f"sqlite:///{file}")

    async with Engine(f"sqlite:///{file}", registry=registry) as later:
        types = [event.type for event in await later.handle("f").history()]
        result = await later.handle("f").result()

    rows = sqlite3.connect(file).execute("SELECT seq, body ->> 'type', body ->> 'location' FROM events").fetchall()
    assert result == 12
    assert [row[1] for row in rows] == types
    assert rows[1] == (2, "activity_scheduled", "{1}")


async def test_a_result_that_the_store_itself_has_written_is_not_read_from_the_log(tmp_path):
    async with Engine(f"sqlite:///{tmp_path}/shop.db", registry=registry) as engine:
        store = engine.store
        assert isinstance(store, SqliteStore)
        reads: list[str] = []
        store.database.trace(None, reads.append)
        assert await engine.execute(four, 3, id="f") == 12
        assert [read for read in reads if "FROM events" in read] == []
        assert await engine.handle("f").result() == 12
        assert [read for read in reads if "FROM events" in read] != []
        store.database.trace(None, None)


async def test_nothing_is_left_beside_the_file_when_all_is_closed(tmp_path):
    await run_one(f"sqlite:///{tmp_path}/shop.db")

    assert [path.name for path in tmp_path.iterdir()] == ["shop.db"]


async def test_a_temporary_store_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    await run_one("sqlite://")

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("option", "level"), [("", 2), ("?synchronous=normal", 1), ("?synchronous=off", 0)])
async def test_a_commit_is_synced_unless_the_url_says_otherwise(tmp_path, option, level):
    store = open_store(f"sqlite:///{tmp_path}/a.db{option}", SystemClock(), name="n", lease=1000)

    try:
        assert isinstance(store, SqliteStore)
        assert store._database._writing.execute("PRAGMA synchronous").fetchone()[0] == level
        assert store._database._writing.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    finally:
        await store.close()


@pytest.mark.parametrize("url", ["sqlite:///a.db?sync=1", "sqlite:///a.db?synchronous=maybe"])
def test_an_unknown_option_is_refused(url):
    with pytest.raises(StoreError, match="the only option is synchronous"):
        open_store(url, SystemClock(), name="n", lease=1000)


def test_every_query_has_a_name_and_one_statement():
    for name, sql in queries().items():
        assert sql.count(";") == 1, name
        assert sqlite3.complete_statement(sql), name


def test_every_query_is_used_and_every_used_query_exists():
    source = "".join(path.read_text() for path in Path("src/resurgam/store/sqlite").glob("*.py"))

    assert [name for name in queries() if f'"{name}"' not in source] == []


def test_a_file_that_is_not_a_database_is_named(tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("this is not a database, though it is long enough to look at " * 20)

    with pytest.raises(StoreError, match=r"notes.txt: file is not a database: .*give the path of another one"):
        opened(file)


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (999, "schema version 999, this Resurgam knows 104; use a newer one"),
        (1, "the file is of a version before 0.2, which cannot be read; use a new file"),
    ],
)
def test_a_file_of_a_schema_that_is_not_known_is_left_alone(tmp_path, version, message):
    file = tmp_path / "other.db"
    connection = sqlite3.connect(file)
    connection.execute(f"PRAGMA user_version = {version}")
    connection.close()

    with pytest.raises(StoreError, match=message):
        opened(file)

    assert sqlite3.connect(file).execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)


def test_the_database_of_another_program_is_left_alone(tmp_path):
    file = tmp_path / "django.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE events (id INTEGER)")

    with pytest.raises(StoreError, match=r"django.db: this is the database of another program"):
        opened(file)

    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("events",)]
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)


def test_a_folder_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(StoreError, match="does its folder exist"):
        opened(tmp_path / "nowhere" / "a.db")


async def test_a_damaged_entry_is_named_and_the_others_go_on(tmp_path, caplog):
    """One row that cannot be read puts its own run aside, with the reason."""
    file = tmp_path / "shop.db"
    clock = ManualClock()
    async with Engine(f"sqlite:///{file}", registry=registry, clock=clock, worker=False) as client:
        await client.start(four, 1, id="broken")
        await client.start(four, 2, id="fine")
    damaged = sqlite3.connect(file)
    damaged.execute(
        "UPDATE events SET body = '{\"type\": \"nonsense\"}' WHERE execution_id = (SELECT execution_id FROM instances WHERE entity_id = 'broken')"
    )
    damaged.commit()
    damaged.close()

    async with Environment(
        store=SqliteStore(file, clock, name="w", synchronous="OFF"), clock=clock, registry=registry
    ) as env:
        assert await env.finish(env.engine.handle("fine").result()) == 8
        found = await env.engine.store.inspector.get("broken")
        with pytest.raises(CorruptHistory, match=r"entry 1 of execution \w+ cannot be read"):
            await env.engine.handle("broken").history()
        await env.engine.store.close()

    assert found is not None
    assert found.dead_letter is not None
    assert "handed out 20 times without a commit; the last error: CorruptHistory" in found.dead_letter


async def test_a_locked_database_is_an_error_that_passes(tmp_path, monkeypatch):
    monkeypatch.setattr("resurgam.store.sqlite.writer.BUSY_TIMEOUT", 0.0)
    store = opened(tmp_path / "a.db")
    other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    with pytest.raises(StoreError, match=r"a.db: database is locked: another program holds the database; end its"):
        await asyncio.wait_for(store.purge([EXECUTION]), HANGS)
    other.execute("ROLLBACK")

    assert len(await store.purge([EXECUTION])) == 1
    other.close()
    await store.close()


def test_a_file_of_this_schema_is_opened_while_another_process_writes(tmp_path, monkeypatch):
    monkeypatch.setattr("resurgam.store.sqlite.connection.BUSY_TIMEOUT", 0.0)
    Database(tmp_path / "a.db").close()
    with closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")

        Database(tmp_path / "a.db").close()


async def test_a_locked_database_does_not_block_the_loop(tmp_path):
    """Were it held, the other's transaction, which this loop ends, would outlast the writer's patience."""
    store = opened(tmp_path / "a.db")
    other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    writing = asyncio.ensure_future(store.purge([EXECUTION]))
    while store._writer._turn is None:
        await asyncio.sleep(0)
    seen = await store.inspector.stats(), store._database.version()
    assert not writing.done()
    other.execute("ROLLBACK")

    assert len(await writing) == 1
    assert (await store.inspector.stats(), store._database.version()) == seen
    other.close()
    await store.close()


async def test_a_store_closes_when_what_waits_is_written_and_does_not_hold_the_loop(tmp_path):
    store = opened(tmp_path / "a.db")
    other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    early = asyncio.ensure_future(store.purge([EXECUTION]))
    while store._writer._turn is None:
        await asyncio.sleep(0)
    late = [asyncio.ensure_future(store.purge([EXECUTION])) for _ in range(3)]
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(store.close())
    await asyncio.sleep(0)
    other.execute("ROLLBACK")

    await closing
    assert [len(answers) for answers in await asyncio.gather(early, *late)] == [1] * 4
    other.close()


async def test_a_full_disk_is_named_and_work_goes_on_when_there_is_room(tmp_path):
    """The size limit of SQLite itself stands for the disk."""
    store = opened(tmp_path / "a.db")
    writing = store._database._writing
    pages = writing.execute("PRAGMA page_count").fetchone()[0]
    writing.execute(f"PRAGMA max_page_count = {pages}")
    clock = ManualClock()

    async with Engine(store, registry=registry, clock=clock, worker=False) as client:
        with pytest.raises(StoreError, match=r"full: the disk is full; make room"):
            await asyncio.gather(
                *(client.start(four, 1, tags={f"t {n}": "x" * 1000 for n in range(5)}) for _ in range(20))
            )
        writing.execute("PRAGMA max_page_count = 1000000")
        assert (await client.start(four, 1, id="later")).entity_id == "later"
    await store.close()


async def test_pieces_of_work_that_wait_together_share_a_transaction(tmp_path):
    database = Database(tmp_path / "a.db")
    told: list[object] = []
    writer = Writer(database, lambda session: session, told.append)
    begun: list[str] = []
    database._writing.set_trace_callback(begun.append)

    await asyncio.gather(*(writer.write(lambda session: session.fetch("count_dead_letters")) for _ in range(10)))

    # The first could not know that it would have company; from then on it is waited for.
    assert begun.count("BEGIN IMMEDIATE") == 2
    assert begun.count("COMMIT") == 2
    assert len(told) == 2
    await asyncio.gather(*(writer.write(lambda session: session.fetch("count_dead_letters")) for _ in range(10)))
    assert begun.count("BEGIN IMMEDIATE") == 3
    await writer.close()
    database.close()


async def test_a_piece_of_work_that_fails_does_not_take_the_others_with_it(tmp_path):
    database = Database(tmp_path / "a.db")
    told: list[object] = []
    writer = Writer(database, lambda session: session, told.append)

    def bad(session: object) -> None:
        raise ZeroDivisionError

    answers = await asyncio.gather(
        writer.write(lambda session: 1), writer.write(bad), writer.write(lambda session: 2), return_exceptions=True
    )

    assert (answers[0], answers[2]) == (1, 2)
    assert isinstance(answers[1], ZeroDivisionError)
    assert len(told) == 2
    await writer.close()
    database.close()


async def test_a_group_that_is_split_while_another_process_writes_does_not_block_the_loop(tmp_path):
    """The other begins at the very moment at which the group has failed."""
    database = Database(tmp_path / "a.db")
    other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    writer = Writer(database, lambda session: session, lambda session: None)

    tries: list[object] = []

    def bad(session: object) -> None:
        tries.append(session)
        if len(tries) == 1:
            asyncio.get_running_loop().call_soon(other.execute, "ROLLBACK")
            database._writing.execute("ROLLBACK")
            other.execute("BEGIN IMMEDIATE")
        raise ZeroDivisionError

    [good, failed] = await asyncio.gather(writer.write(lambda session: 1), writer.write(bad), return_exceptions=True)

    assert good == 1
    assert isinstance(failed, ZeroDivisionError)
    other.close()
    await writer.close()
    database.close()


def test_no_thread_uses_the_connection_in_which_another_writes(tmp_path):
    """It would hide the other's errors: SQLite keeps the last one by connection."""
    database = Database(tmp_path / "a.db")
    with ThreadPoolExecutor(1) as thread:

        def work(session: object) -> "Future[int]":
            asked = thread.submit(database.version)
            with pytest.raises(TimeoutError):
                asked.result(0.02)
            return asked

        assert database.transact(work).result(HANGS) == database.version()
    database.close()


def test_an_owner_is_alive_while_its_lock_is_held(tmp_path):
    one, two = Owner(tmp_path / "a.db", "one"), Owner(tmp_path / "a.db", "two")

    assert not one.is_dead("one")
    assert not one.is_dead("two")
    two.close()
    assert one.is_dead("two")
    assert one.is_dead("never was")
    one.close()


def test_an_owner_that_was_killed_is_dead(tmp_path):
    code = (
        "import sys; from pathlib import Path; from resurgam.store.sqlite.owner_lock import Owner; "
        "o = Owner(Path(sys.argv[1]), 'other'); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        ["python3", "-c", code, str(tmp_path / "a.db")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=_env()
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        one = Owner(tmp_path / "a.db", "one")
        alive = one.is_dead("other")
        other.kill()
        other.wait()

        assert not alive
        assert one.is_dead("other")
        one.close()


def _env() -> dict[str, str]:
    import sys

    return {**os.environ, "PYTHONPATH": os.pathsep.join(["src", *sys.path])}


def test_what_a_dead_owner_left_behind_is_found_by_the_others_and_buried(tmp_path):
    alive = Owner(tmp_path / "a.db", "alive/one")
    (tmp_path / "a.db-owners" / "killed").touch()

    next_one = Owner(tmp_path / "a.db", "next")
    assert next_one.dead() == ["killed"]
    next_one.remove("killed")

    assert sorted(path.name for path in (tmp_path / "a.db-owners").iterdir()) == ["alive%2Fone", "next"]
    next_one.close()
    alive.close()
    assert not (tmp_path / "a.db-owners").exists()


async def test_a_folder_in_which_no_lock_can_be_made_is_named(tmp_path):
    (tmp_path / "a.db-owners").write_text("a file where the folder should be")

    with pytest.raises(StoreError, match="no lock can be made beside it"):
        opened(tmp_path / "a.db")


def make_old(path, version):
    """Make a file of an earlier version; return its connection."""
    file = sqlite3.connect(path, isolation_level=None)
    for step in migrations()[:version]:
        position = r"(TABLE (?:instances|events) \(\s+position +INTEGER PRIMARY KEY),"
        file.executescript(re.sub(position, r"\1 AUTOINCREMENT,", step))
    file.execute(f"PRAGMA application_id = {int.from_bytes(b'resu', 'big')}")
    file.execute(f"PRAGMA user_version = {100 + version}")
    return file


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_a_file_of_a_version_before_goes_on(tmp_path, version):
    with closing(make_old(tmp_path / "a.db", version)) as file:
        file.execute(
            "INSERT INTO instances (execution_id, entity_id, run_id, tree_id, generation, attempt, kind, name, queue, status,"
            " created_at, last_seq, first_run) VALUES ('e-1', 'e', 'r', 'r', 1, 1, 'workflow', 'n', 'q', 'running', 1, 1, 'r')"
        )
    store = opened(tmp_path / "a.db")

    [claim] = await store.claim("w", ("q",), 10)
    wanted = ActivityRequest(ref=2, name="n", queue="q", input=Raw(b"1"), entity_id="i")
    outcome = Outcome(events=(events.WorkflowBegun(seq=2),), activities=(wanted,))
    part = {"entity_id": "e", "execution_id": "e-1", "epoch": claim.epoch, "base_seq": 1, "wake": 0, "outcome": outcome}
    [done] = await store.commit([r.Commit(**part, eager=frozenset((2,)), covers=True)])
    assert [task.epoch for task in done.tasks] == [0]
    await store.close()


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_a_file_of_a_version_before_keeps_its_rows_and_has_the_schema_of_a_new_one(tmp_path, version):
    rows = [(n, "e-1", n, None if n % 2 else b"x", f'{{"n": {n}}}') for n in range(1, 9)]
    with closing(make_old(tmp_path / "a.db", version)) as file:
        file.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?)", rows)
        file.execute("DELETE FROM events WHERE position > 5")
    old, new = opened(tmp_path / "a.db"), opened(tmp_path / "b.db")
    found = [tuple(row) for row in old.database._reading.execute("SELECT * FROM events WHERE execution_id <> ''")]
    assert found == rows[:5]
    assert await old.feed.now() == "8"  # events that were deleted count
    parts = "SELECT type, name, sql FROM sqlite_master ORDER BY 1, 2"
    schemas = [[tuple(row) for row in store.database._reading.execute(parts)] for store in (old, new)]
    # Except that positions are counted by SQLite itself.
    bare = [[(*name, (sql or "").replace(" AUTOINCREMENT", "")) for *name, sql in schema] for schema in schemas]
    assert bare[0] == bare[1]
    assert schemas[0] != schemas[1]
    await old.close()
    await new.close()


def test_the_schema_is_made_in_one_step_that_can_be_repeated(tmp_path):
    Database(tmp_path / "a.db").close()
    shutil.copy(tmp_path / "a.db", tmp_path / "b.db")
    Database(tmp_path / "b.db").close()

    assert len(migrations()) == 4
    assert sqlite3.connect(tmp_path / "b.db").execute("PRAGMA user_version").fetchone() == (104,)
