"""A SQLite file that is only looked at: it answers what the store answers, and takes nothing."""

import sqlite3
from contextlib import closing

import pytest

from resurgam import Context, Registry
from resurgam.errors import StoreError
from resurgam.runtime.system import SystemClock
from resurgam.store.open import open_inspector
from resurgam.store.records import Query
from resurgam.testing import Environment

registry = Registry()


@registry.workflow
async def waiting(ctx: Context) -> None:
    await ctx.listen("go")


@pytest.fixture
def url(tmp_path) -> str:
    return f"sqlite:///{tmp_path}/a file #1?.db".replace("#", "%23").replace("?", "%3F")


async def test_it_answers_as_the_store_does_while_that_is_open(url):
    async with Environment(store=url, registry=registry) as env:
        handle = await env.start(waiting, id="w")
        store, inspector = env.engine.store, open_inspector(url, SystemClock())
        try:
            [found] = (await inspector.list(Query())).instances
            assert await inspector.get("w") == await store.inspector.get("w") == found
            assert await inspector.list(Query(limit=1)) == await store.inspector.list(Query(limit=1))
            for last in (None, 1):
                history = await inspector.history(found, last)
                assert history == await store.inspector.history(found, last)
            ours = await inspector.open_work(found)
            assert ours == await store.inspector.open_work(found)
            work = await inspector.open_work(found)
            assert work is not None
            assert work == await store.inspector.open_work(found)
            assert (await inspector.stats()).instances == (await store.inspector.stats()).instances
            await handle.signal("go")
            await env.settle()
            assert len(await inspector.history(found)) > 2
        finally:
            await inspector.close()


async def test_nothing_can_be_written_through_it_and_nothing_is_left_beside_the_file(url, tmp_path):
    async with Environment(store=url, registry=registry) as env:
        await env.start(waiting, id="w")
    inspector = open_inspector(url, SystemClock())

    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        inspector._file._connection.execute("DELETE FROM events")
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith("-owners")] == []
    await inspector.close()


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (999, "schema version 999, this Resurgam knows 104; use a newer one"),
        (0, "schema version 0, this Resurgam knows 104; open it with a worker of this version first"),
        (1, "the file is of a version before 0.2, which cannot be read; use a new file"),
    ],
)
async def test_a_file_of_another_version_is_left_alone(url, tmp_path, version, message):
    async with Environment(store=url, registry=registry):
        pass
    [file] = tmp_path.glob("*.db")
    connection = sqlite3.connect(file)
    connection.execute(f"PRAGMA user_version = {version}")
    connection.close()

    with pytest.raises(StoreError, match=message):
        open_inspector(url, SystemClock())


@pytest.mark.parametrize("url", ["memory://", "sqlite://", "sqlite:///x.db#y", "mysql://x", "sqlite:///x.db?a=b"])
def test_what_cannot_be_looked_at_is_refused(url):
    with pytest.raises(StoreError):
        open_inspector(url, SystemClock())


def test_a_file_that_is_not_there_is_not_made(tmp_path):
    with pytest.raises(StoreError, match="unable to open"):
        open_inspector(f"sqlite:///{tmp_path}/x.db", SystemClock())
    assert list(tmp_path.iterdir()) == []


async def test_an_inbox_entry_that_cannot_be_decoded_does_not_hide_the_others(url, tmp_path):
    async with Environment(store=url, registry=registry, worker=False) as env:
        handle = await env.engine.start("waiting", id="w")
        await handle.signal("go")
        [file] = tmp_path.glob("*.db")
        with closing(sqlite3.connect(file)) as connection, connection:
            connection.execute(
                "INSERT INTO inbox (execution_id, wake, body) VALUES (?, 2, ?)",
                (handle.execution_id, '{"type":"from_the_future"}'),
            )
        await handle.signal("again")
        work = await env.engine.store.inspector.open_work(handle)
        assert [entry.name for entry in work.inbox] == ["go", "again"]
