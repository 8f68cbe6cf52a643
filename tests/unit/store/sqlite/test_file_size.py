"""The size of a SQLite file: its log is bounded, freed pages are used again, and a vacuum gives them back."""

import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from resurgam import Context, Engine, Registry
from resurgam.errors import StoreError
from resurgam.store.open import vacuum
from resurgam.store.sqlite import log_size
from resurgam.store.sqlite.connection import Database
from resurgam.testing import Environment

registry = Registry()
LIMIT = 200_000


@registry.workflow
async def heavy(ctx: Context, text: str) -> str:
    return text


@pytest.fixture
def path(tmp_path):
    return tmp_path / "x.db"


@pytest.fixture
def small_limit(monkeypatch):
    monkeypatch.setattr(log_size, "LOG_LIMIT", LIMIT)


def write(database, times):
    """Commit entries of ten kilobytes each, over and over the same ones."""
    for number in range(times):
        row = ("x", number % 10, f"{number}" + "x" * 10_000)
        database.transact(
            lambda session, row=row: session.execute("purge_events", execution_id="x") + _append(session, row)
        )


def _append(session, row):
    session.run("append_event", row)
    return 0


def size_of_log(path):
    return log_size.log_size(log_size.log_of(path))


# The log.


@pytest.mark.usefixtures("small_limit")
def test_the_log_is_cut_when_it_has_grown_past_its_limit(path):
    database, other = Database(path, synchronous="OFF"), Database(path, synchronous="OFF")
    sizes = []
    for _ in range(20):
        write(database, log_size.CHECK_EVERY)
        sizes.append(size_of_log(path))
    assert max(sizes) <= 2 * LIMIT
    other.close()
    database.close()


@pytest.mark.usefixtures("small_limit")
def test_a_log_that_a_reader_holds_is_cut_soon_after_the_reader_is_done(path):
    database, other = Database(path, synchronous="OFF"), Database(path, synchronous="OFF")
    write(database, 1)

    def read(session):
        session.fetch("last_events", execution_id="x", last=1, forgotten=True)
        write(database, 10 * log_size.CHECK_EVERY)
        return size_of_log(path)

    assert other.read(read) > 5 * LIMIT
    write(database, 2)
    assert size_of_log(path) <= LIMIT
    other.close()
    database.close()


@pytest.fixture
def copies(monkeypatch):
    """List the copies of logs: whether it was in use, its pages, those that are copied."""
    found: list[tuple[str, bool, int, int]] = []
    copy = log_size._copy

    def note(connection, mode):
        answer = copy(connection, mode)
        found.append((mode, *answer))
        return answer

    monkeypatch.setattr(log_size, "_copy", note)
    return found


def test_several_that_write_in_turns_copy_the_log_seldom_and_overwrite_it(path, copies):
    """SQLite by itself would copy it after nearly every commit, once it is long."""
    databases = [Database(path, synchronous="OFF") for _ in range(3)]
    sizes = []
    for _ in range(90):
        for database in databases:
            write(database, 10)
        sizes.append(size_of_log(path))
    total = 90 * 10 * len(databases)
    pages = sum(pages for _, _, pages, _ in copies)
    assert {mode for mode, *_ in copies} == {"RESTART"}
    assert not any(busy for _, busy, *_ in copies)
    assert all(copied == pages for _, _, pages, copied in copies)
    assert pages > total  # all that was written went through these copies
    assert len(copies) < total / 20
    assert max(sizes) < log_size.LOG_LIMIT
    assert len(set(sizes[-20:])) == 1  # it is overwritten, neither cut nor grown
    for database in databases:
        database.close()


def test_small_commits_copy_the_log_more_seldom_than_large_ones(path, copies):
    database = Database(path, synchronous="OFF")
    for number in range(2000):
        database.transact(lambda session, number=number: _append(session, ("x", number, "{}")))
    small = len(copies)
    assert 1 < small < 2000 / log_size.CHECK_EVERY / 4
    write(database, 2000)
    assert len(copies) - small > small
    database.close()


def test_a_store_that_closes_leaves_no_log_to_those_that_have_the_file_open(path):
    database, other = Database(path, synchronous="OFF"), Database(path, synchronous="OFF")
    write(database, 10)
    assert size_of_log(path) > 0
    database.close()
    assert size_of_log(path) == 0
    assert len(other.fetch("last_events", execution_id="x", last=-1, forgotten=True)) == 1
    other.close()


# The pages.


async def fill_and_purge(env, runs=60):
    for _ in range(runs):
        await env.start(heavy, "x" * 5000)
    await env.advance(1)
    assert await env.engine.purge(before=env.now()) == runs


def pages(path):
    connection = sqlite3.connect(path)
    try:
        return [connection.execute(f"PRAGMA {what}").fetchone()[0] for what in ("page_count", "freelist_count")]
    finally:
        connection.close()


@pytest.mark.parametrize("existing", [None, 4096])
def test_a_new_file_has_small_pages_and_an_existing_one_keeps_its_own(path, existing, copies):
    if existing is not None:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f"PRAGMA page_size = {existing}")
            connection.execute("VACUUM")
    database = Database(path, synchronous="OFF")
    [page] = database._reading.execute("PRAGMA page_size").fetchone()
    assert page == (existing or 2048)
    write(database, 2000)
    assert 3_500_000 < copies[-1][2] * page < 5_000_000  # the log is copied at the same size
    database.close()


async def test_the_pages_of_purged_runs_are_used_again(path):
    async with Environment(store=f"sqlite:///{path}?synchronous=off", registry=registry) as env:
        await fill_and_purge(env)
        first, free = pages(path)
        assert free > first / 2
        for _ in range(4):
            await fill_and_purge(env)
        assert pages(path)[0] <= first + 4
        kept = {name: rows for name, rows in everything(path).items() if rows}
        assert set(kept) == {"events", "stored_values", "workers"}
        assert kept["events"] == 1  # an empty one, which keeps the position of the newest


def everything(path):
    """Return how many rows each table has."""
    connection = sqlite3.connect(path)
    try:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in sorted(tables)}
    finally:
        connection.close()


async def test_a_vacuum_gives_pages_back_while_an_engine_has_the_file_open(path):
    url = f"sqlite:///{path}?synchronous=off"
    async with Environment(store=url, registry=registry) as env:
        await fill_and_purge(env)
        before = path.stat().st_size + size_of_log(path)
        done = vacuum(url)
        assert (done.before, done.after) == (before, path.stat().st_size)
        assert done.after < done.before / 2
        assert pages(path)[1] == 0
        handle = await env.start(heavy, "still here")
        assert await env.finish(handle.result()) == "still here"


@pytest.mark.parametrize(
    ("hold", "text"),
    [
        ("BEGIN IMMEDIATE", "another process writes to it all the time; try again when the workers are idle"),
        ("BEGIN; SELECT * FROM instances", "another process keeps reading it, so the file could not be shortened yet"),
    ],
)
async def test_a_vacuum_that_another_process_holds_up_says_so(hold, text, path, monkeypatch):
    monkeypatch.setattr("resurgam.store.sqlite.vacuum.BUSY_TIMEOUT", 0.01)
    async with Engine(f"sqlite:///{path}", worker=False):
        pass
    code = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "[c.execute(part).fetchall() for part in sys.argv[2].split(';')]; print(flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(path), hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout.readline()
        with pytest.raises(StoreError, match=text):
            vacuum(f"sqlite:///{path}")
    finally:
        holder.communicate()
    assert vacuum(f"sqlite:///{path}").after > 0


def test_only_a_file_of_ours_can_be_vacuumed(path):
    with pytest.raises(StoreError, match="the file cannot be opened"):
        vacuum(f"sqlite:///{path}")
    assert not path.exists()
    with pytest.raises(StoreError, match="has no file to be shortened; only sqlite:///file"):
        vacuum("memory://")
    foreign = sqlite3.connect(path)
    foreign.execute("CREATE TABLE mine (x)")
    foreign.close()
    with pytest.raises(StoreError, match="the database of another program"):
        vacuum(f"sqlite:///{path}")
