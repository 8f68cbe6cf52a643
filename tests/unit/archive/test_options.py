"""The options of an engine about its archive, and what it says without one."""

import asyncio
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta

import pytest

from resurgam import Context, Engine, Registry, Retain, errors
from resurgam.archive import archive as archive_module
from resurgam.archive.folder import ArchiveBusy, Folder
from resurgam.store import lock
from resurgam.store.lock import archive_lock
from resurgam.store.retention_rules import rules_of
from resurgam.worker.retention import Retention

registry = Registry()


@registry.workflow
async def brief(ctx: Context) -> str:
    return "done"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (
            {"archive": "s3://bucket"},
            "archive must be the URL of a folder, such as file:///srv/archive, got 's3://bucket'",
        ),
        ({"archive_after": 5}, "archive_after needs archive= and a worker"),
        ({"archive": "x", "archive_after": 5, "worker": False}, "archive_after needs archive= and a worker"),
        (
            {"archive": "x", "archive_after": 60, "retain": 60},
            "retain must be longer than archive_after, got 0:01:00 and 0:01:00",
        ),
        ({"archive": "x", "archive_after": 60, "retain": [Retain(30)]}, "would be removed before they are archived"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, error):
    with pytest.raises(ValueError, match=error):
        Engine("memory://", **options)


def test_short_retention_of_some_runs_is_allowed(tmp_path):
    rules = [Retain(120), Retain(5, name="ping"), Retain(5, status="completed"), Retain(5, dead_letters=True)]
    Engine("memory://", archive=tmp_path, archive_after=60, retain=rules)


async def test_an_engine_without_an_archive_says_so():
    async with Engine("memory://", registry=registry, worker=False) as engine:
        with pytest.raises(errors.StoreError, match="there is no archive; open the engine with archive="):
            engine.archiver(0)


async def test_the_worker_of_an_engine_archives_what_is_old(tmp_path):
    options = {"registry": registry, "archive": tmp_path / "archive", "archive_after": timedelta(milliseconds=1)}
    async with Engine("memory://", **options) as engine:
        handle = await engine.start(brief, id="b")
        await handle.result()
        async with asyncio.timeout(60):
            while (await handle.describe()).archived is None:
                await asyncio.sleep(0)
        assert await handle.result() == "done"
        assert (await handle.describe()).result == "done"
        assert len([*(tmp_path / "archive").glob("trees/*/*")]) == 1


async def test_only_one_archiver_works_at_a_time(tmp_path):
    async with Engine("memory://", registry=registry, archive=tmp_path) as engine:
        await engine.execute(brief, id="b")
        other = archive_lock(engine.store.values, engine.clock)
        assert await other.try_take()
        assert [done async for done in engine.archiver(-1000).units()] == []
        await other.release()
        assert [done.executions async for done in engine.archiver(-1000).units()] == [1]


async def test_an_archiver_that_has_lost_its_lock_writes_nothing(tmp_path, monkeypatch, caplog):
    """It was stopped before it wrote; another process has archived, or deleted, meanwhile."""
    async with Engine("memory://", registry=registry, archive=tmp_path / "archive") as engine:
        handle = await engine.start(brief, id="b")
        await handle.result()
        archiver = engine.archiver(-1000)
        exclusive = archiver._archive.exclusive

        def lose():
            engine.store.values._values.pop("archive-lock")
            return exclusive()

        monkeypatch.setattr(archiver._archive, "exclusive", lose)
        assert [(done.executions, done.failed) async for done in archiver.units()] == [(0, 1)]
        assert "b is not archived: this process stood still for more than 10 s" in caplog.text
        assert not [*(tmp_path / "archive").glob("trees/*/*")]
        assert (await handle.describe()).archived is None


async def test_an_archiver_that_has_lost_its_lock_deletes_nothing(tmp_path, monkeypatch, caplog):
    """It was stopped after it wrote; another process may have deleted the file meanwhile."""
    async with Engine("memory://", registry=registry, archive=tmp_path / "archive") as engine:
        handle = await engine.start(brief, id="b")
        await handle.result()
        archiver = engine.archiver(-1000)
        add = archiver._archive.add

        async def lose(*args):
            held = await add(*args)
            engine.store.values._values.pop("archive-lock")
            for file in (tmp_path / "archive").glob("trees/*/*"):
                file.unlink()
            return held

        monkeypatch.setattr(archiver._archive, "add", lose)
        assert [(done.executions, done.failed) async for done in archiver.units()] == [(0, 1)]
        assert "b is not archived: this process stood still for more than 10 s" in caplog.text
        assert (await handle.describe()).archived is None
        assert await handle.result() == "done"


@pytest.mark.parametrize("moment", ["before it writes", "as it writes", "as it writes, without its lock"])
async def test_a_deletion_waits_for_an_archiver_that_has_the_history(tmp_path, monkeypatch, moment):
    """By the lock of the store; by that of the folder if the archiver was stopped and has lost the other one."""
    waits = asyncio.Event()
    async with Engine("memory://", registry=registry, archive=tmp_path / "archive") as engine:
        await engine.execute(brief, id="b")
        archiver = engine.archiver(-1000)
        exclusive, add, deletions = archiver._archive.exclusive, archiver._archive.add, []

        async def delete():
            if "without its lock" in moment:
                engine.store.values._values.pop("archive-lock")
            deletions.append(asyncio.create_task(engine.delete("b")))
            waiting = asyncio.create_task(waits.wait())
            await asyncio.wait({*deletions, waiting}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()

        @asynccontextmanager
        async def deleted_before():
            if moment == "before it writes" and not deletions:
                await delete()
            async with exclusive():
                yield

        async def deleted_meanwhile(*args):
            if not deletions:
                await delete()
            return await add(*args)

        note_waits(monkeypatch, waits)
        monkeypatch.setattr(archiver._archive, "exclusive", deleted_before)
        monkeypatch.setattr(archiver._archive, "add", deleted_meanwhile)
        failed = [done.failed async for done in archiver.units()]
        assert failed == [int("without its lock" in moment)]
        assert await deletions[0] == 1
        assert not [*(tmp_path / "archive").glob("trees/*/*")]
        with pytest.raises(errors.NotFound):
            await engine.handle("b").describe()


def note_waits(monkeypatch, waits):
    """Set an event once a process asks for a lock that another one has; it asks again without a pause."""
    is_dead, exclusive = lock._is_dead, Folder.exclusive

    def asked(holder):
        waits.set()
        return is_dead(holder)

    @contextmanager
    def refused(folder):
        try:
            with exclusive(folder):
                yield
        except ArchiveBusy:
            waits.set()
            raise

    monkeypatch.setattr(lock, "_is_dead", asked)
    monkeypatch.setattr(Folder, "exclusive", refused)
    monkeypatch.setattr(lock, "_POLL", 0)
    monkeypatch.setattr(archive_module, "_POLL", 0)


async def test_retention_waits_for_the_archive(tmp_path):
    """However far behind the archiver is: its folder cannot be written."""
    (tmp_path / "file").write_text("in the way")
    options = {"archive": tmp_path / "file", "archive_after": 0.001, "retain": 0.002}
    async with Engine("memory://", registry=registry, **options) as engine:
        handle = await engine.start(brief, id="b")
        await handle.result()
        tasks = Retention(engine.store, engine.clock, rules_of(0.002), 1)._tasks()
        await asyncio.sleep(0.01)
        for task in tasks:
            await task.run()
        assert await handle.result() == "done"
        for task in Retention(engine.store, engine.clock, rules_of(0.002))._tasks():
            await task.run()
        with pytest.raises(errors.NotFound):
            await handle.describe()


async def test_an_archive_that_cannot_be_written_loses_nothing(tmp_path):
    (tmp_path / "file").write_text("in the way")
    async with Engine("memory://", registry=registry, archive=tmp_path / "file") as engine:
        handle = await engine.start(brief, id="b")
        await handle.result()
        with pytest.raises(errors.StoreError, match="cannot be"):
            [done async for done in engine.archiver(-1000).units()]  # not even its lock
        assert await handle.result() == "done"
        assert (await handle.describe()).archived is None
