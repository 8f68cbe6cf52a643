"""What an archive refuses: another store, a disk that is not mounted, files that were replaced. And how often it looks."""

import asyncio
from typing import Any

import pytest

from resurgam.archive.archive import Archive
from resurgam.archive.folder import ArchiveFailed
from resurgam.core.errors import CorruptHistory, NotFound
from resurgam.core.retry import RetryPolicy
from resurgam.runtime.context.context import Context
from resurgam.runtime.registry import Registry
from resurgam.store.archives import ArchiveNeeded
from resurgam.store.identity import identity_of
from resurgam.store.lock import archive_lock
from resurgam.testing import ManualClock
from support.archives import MemoryFiles, archive, archiver, file_in, reading, shop
from support.engines import Engines

DAY = 86_400
OLD = DAY * 1000

pytestmark = pytest.mark.engines("memory-cached", "sqlite-cached")


async def test_a_history_in_the_archive_is_never_replaced_by_another_one(engines: Engines) -> None:
    """A copy of the store goes its own way, and is archived into the same files."""
    files, clock = MemoryFiles(), ManualClock()
    async with engines.open(shop(), clock=clock) as env, engines.open(shop(), clock=clock) as copy:
        await env.start("ticker", 0, id="t-1")
        await env.settle()
        await copy.engine.import_(await env.engine.export("t-1"))
        await copy.engine.store.values.put("store-id", (await identity_of(env.engine.store.values)).encode())
        await env.engine.handle("t-1").signal("end")
        await copy.engine.handle("t-1").terminate("only a test of the backup")
        for one in (env, copy):
            await one.advance(2 * DAY)
        await archive(env.engine.store, files, clock, age=OLD)
        before = dict(files.content)
        done = await archive(copy.engine.store, files, clock, age=OLD)
        assert done.failed
        assert {name: files.content[name] for name in before} == before
        async with reading(env, files) as engine:
            assert await engine.handle("t-1").result() is None


async def test_an_archive_belongs_to_one_store(engines: Engines) -> None:
    """A deletion in another one must not reach workflows that only have the same id."""
    files, clock = MemoryFiles(), ManualClock()
    async with engines.open(shop(), clock=clock) as env, engines.open(shop(), clock=clock) as other:
        for one in (env, other):
            await one.start("order", 100, id="o-1")
            await one.advance(2 * DAY)
        await archive(env.engine.store, files, clock, age=OLD)
        before = dict(files.content)
        with pytest.raises(ArchiveFailed, match="belongs to another store; give each store an archive of its own"):
            await archive(other.engine.store, files, clock, age=OLD)
        async with reading(other, files) as engine:
            with pytest.raises(ArchiveFailed, match="belongs to another store"):
                await engine.delete("o-1", tree=True)
        assert files.content == before
        assert (await other.engine.handle("o-1").describe()).archived is None


async def test_an_archive_that_is_not_there_is_neither_made_again_nor_taken_for_empty(engines: Engines) -> None:
    """Its disk is not mounted: an empty folder is in its place."""
    files, mount_point = MemoryFiles(), MemoryFiles()
    async with engines.open(shop()) as env:
        for number in (1, 2):
            await env.start("parcel", number, id=f"p-{number}")
            await env.advance(2 * DAY)
            if number == 1:
                await archive(env.engine.store, files, env.clock, age=OLD)
        with pytest.raises(ArchiveFailed, match="but there is no archive any more; mount its disk"):
            await archive(env.engine.store, mount_point, env.clock, age=OLD)
        async with reading(env, mount_point) as engine:
            with pytest.raises(
                ArchiveNeeded, match=r"are in the archive memory:///archive/, which is not there; mount its disk"
            ):
                await engine.delete("p-1")
            assert await engine.deletions() == []
        with pytest.raises(NotFound, match="there is no archive at memory:///archive/"):
            await Archive(mount_point).find("p-1")
        assert not mount_point.content
        assert (await archive(env.engine.store, files, env.clock, age=OLD)).executions == 1


async def test_a_pass_that_is_cut_off_goes_on_soon(engines: Engines) -> None:
    """Another process has the lock for a moment, and the passes are an hour apart."""
    files, slept = MemoryFiles(), list[float]()
    async with engines.open(shop()) as env:
        await env.start("parcel", 1, id="p-1")
        await env.advance(2 * DAY)
        keeper = archiver(env.engine.store, files, env.clock, age=OLD)
        other = archive_lock(env.engine.store.values, env.clock)
        assert await other.try_take()

        async def sleep(seconds: float) -> None:
            slept.append(seconds)
            await other.release()
            if len(slept) == 3:
                raise asyncio.CancelledError

        with pytest.raises(asyncio.CancelledError):
            await keeper.run(sleep)
        assert (slept[0], slept[-1]) == (10, 3600)
        assert len(files.content) == 1


async def test_the_attempts_of_a_run_are_read_together(engines: Engines) -> None:
    """As often for many as for one; the store returns all executions of a run at a time."""
    files, registry, reads = MemoryFiles(), Registry(), list[str]()

    @registry.workflow(retry=RetryPolicy(max_attempts=12, initial_interval=1, backoff=1))
    async def failing(ctx: Context) -> None:
        raise ValueError("no")

    async with engines.open(registry) as env:
        await env.start(failing, id="f-1")
        await env.advance(2 * DAY)
        store = env.engine.store
        copies = store.transfer.copies

        async def counted(entity_id: str, run_id: str | None = None) -> Any:
            reads.append(entity_id)
            return await copies(entity_id, run_id)

        store.transfer.copies = counted  # type: ignore[method-assign]
        assert (await archive(store, files, env.clock, age=OLD)).executions == 12
        assert reads == ["f-1"] * 3
        [name] = files.content
        assert len(list(file_in(files, name))) == 12


@pytest.mark.parametrize("damage", ["replaced", "empty"])
async def test_a_file_without_the_wanted_workflow_is_not_imported(engines: Engines, damage: str) -> None:
    files = MemoryFiles()
    async with engines.open(shop()) as env:
        for number in (1, 2):
            await env.start("parcel", number, id=f"p-{number}")
        await env.advance(2 * DAY)
        await archive(env.engine.store, files, env.clock, age=OLD)
        first, second = files.content
        files.content[first] = files.content[second] if damage == "replaced" else b""
        with pytest.raises(CorruptHistory, match=f"the archive file {files.url}{first} (is|has the header of)"):
            await Archive(files).lines(f"{files.url}{first}", "p-1")
        with pytest.raises(CorruptHistory, match="has no readable execution of 'p-9'; restore it from a backup"):
            await Archive(files).lines(f"{files.url}{second}", "p-9")
