"""`engine.delete` reaches the archive, whatever the rows of the store say about it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from resurgam.archive.archive import Archive, ArchiveSet, open_archive
from resurgam.archive.archiver import Archiver
from resurgam.core.errors import NotFound
from resurgam.engine import Engine
from resurgam.runtime.context.context import Context
from resurgam.runtime.registry import Registry
from resurgam.store.archives import ArchiveNeeded
from resurgam.testing.environment import Environment
from support.archives import (
    DiesAt,
    MemoryFiles,
    archive,
    family,
    file_in,
    reading,
    shop,
)
from support.engines import Engines
from support.moves import Died

DAY = 86_400
OLD = DAY * 1000


async def test_a_deleted_entity_leaves_the_archive_too(engines: Engines) -> None:
    """Others of its tree stay in the file; the file goes with the last of them."""
    files = MemoryFiles()
    async with engines.open(shop()) as env:
        await env.start("order", 100, id="o-1")
        await env.advance(2 * DAY)
        await archive(env.engine.store, files, env.clock, age=OLD)
        [name] = files.content
        async with reading(env, files) as engine:
            assert await engine.delete("p-1", reason="asked to") == 1
            assert {copy.instance.entity_id for copy, _ in file_in(files, name)} >= {"o-1"}
            assert len(list(file_in(files, name))) == 2
            with pytest.raises(NotFound):
                await engine.handle("p-1").describe()
            assert await engine.delete("o-1", tree=True) == 2
            assert not files.content


async def archive_families(env: Environment, files: MemoryFiles, purged: tuple[str, ...]) -> None:
    """Have two archived trees, and let retention remove the rows of some workflows."""
    await env.start("root", id="root")
    await env.start("root", "other-", id="other-root")
    await env.advance(2 * DAY)
    await archive(env.engine.store, files, env.clock, age=OLD)
    for name in purged:
        assert await env.engine.purge(before=env.now(), name=name) == 2


async def left_of(env: Environment, files: MemoryFiles) -> set[str]:
    """Return the entities that the archive holds, and those that have rows."""
    held = {copy.instance.entity_id for name in files.content for copy, _ in file_in(files, name)}
    return held | {one.entity_id for one in (await env.engine.list()).instances}


OTHERS = {"other-root", "other-mid", "other-leaf"}


@pytest.mark.parametrize("purged", ["", "leaf", "mid", "root", "mid leaf", "root mid", "root leaf", "root mid leaf"])
async def test_a_tree_leaves_the_archive_whichever_rows_are_left_of_it(engines: Engines, purged: str) -> None:
    """Retention has removed the rows of some of its workflows; their histories are in the archive."""
    files = MemoryFiles()
    async with engines.open(family()) as env:
        await archive_families(env, files, tuple(purged.split()))
        async with reading(env, files) as engine:
            assert await engine.delete("root", tree=True) == 3
            assert await left_of(env, files) == OTHERS
            [deletion] = await engine.deletions()
            assert (deletion.executions, deletion.archived) == (3, 3)


@pytest.mark.parametrize("purged", ["", "mid", "mid leaf", "root mid leaf"])
async def test_what_is_above_a_deleted_entity_stays_in_the_archive(engines: Engines, purged: str) -> None:
    """The tree of the entity is that of its parent too."""
    files = MemoryFiles()
    async with engines.open(family()) as env:
        await archive_families(env, files, tuple(purged.split()))
        async with reading(env, files) as engine:
            await engine.delete("mid", tree=True)
            assert await left_of(env, files) == {"root"} | OTHERS


@pytest.mark.engines("memory-cached", "sqlite-cached")
@pytest.mark.parametrize("before", [True, False], ids=["before", "behind"])
@pytest.mark.parametrize(("call", "times"), [("write", 1), ("write", 2), ("delete", 1)])
async def test_a_deletion_that_was_killed_finds_the_rest_of_its_tree_again(
    engines: Engines, call: str, times: int, *, before: bool
) -> None:
    """The archive alone leads to the rows of some: those go first."""
    files = MemoryFiles()
    async with engines.open(family()) as env:
        await archive_families(env, files, ("mid",))
        async with reading(env, files.opened_by(DiesAt(call, times, before=before))) as engine:
            with pytest.raises(Died):
                await engine.delete("root", tree=True)
        async with reading(env, files) as engine:
            await engine.delete("root", tree=True)
            assert await left_of(env, files) == OTHERS
            assert all(one.deleted_at is not None for one in await engine.deletions())


@pytest.mark.engines("memory-cached", "sqlite-cached")
async def test_a_deletion_reads_the_headers_of_all_files_and_no_other_history(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With rows that name the file and without; a header may be longer than its first bytes."""
    files = MemoryFiles()
    async with engines.open(shop()) as env:
        for number in range(6):
            await env.start("order", -1, id=f"o-{number}")
        await env.advance(2 * DAY)
        await archive(env.engine.store, files, env.clock, age=OLD)
        file_of = {file_in(files, name).header.executions[0].entity_id: name for name in files.content}
        async with reading(env, files) as engine:
            for entity_id, first, tree in (("o-0", 4096, False), ("o-1", 16, True)):
                monkeypatch.setattr("resurgam.archive.archive._FIRST", first)
                files.read_whole.clear()
                assert await engine.delete(entity_id, tree=tree) == 1
                assert set(files.read_whole) == {file_of[entity_id]}
            await env.engine.purge(before=env.now())
            files.read_whole.clear()
            assert await Archive(files).find("o-2") == [f"{files.url}{file_of['o-2']}"]
            assert not files.read_whole
            await engine.delete("o-3")
            assert files.read_whole == [file_of["o-3"]]
        assert len(files.content) == 3


@pytest.mark.parametrize("purged", ["mid", "root", "root mid"])
async def test_a_tree_is_deleted_whichever_rows_retention_has_removed(engines: Engines, purged: str) -> None:
    """Nothing is archived: what no row leads to is found by its tree."""
    async with engines.open(family()) as env:
        await env.start("root", id="root")
        await env.start("root", "other-", id="other-root")
        await env.advance(2 * DAY)
        for name in purged.split():
            await env.engine.purge(before=env.now(), name=name)
        left = {one.entity_id for one in (await env.engine.list()).instances}
        if purged == "root mid":  # nothing says any more that it belongs to the entity
            with pytest.raises(NotFound):
                await env.engine.delete("root", tree=True)
            return
        assert await env.engine.delete("root", tree=True) == len(left) // 2
        assert {one.entity_id for one in (await env.engine.list()).instances} == left & OTHERS


async def test_a_child_that_another_branch_has_started_again_stays(engines: Engines) -> None:
    """Its parent waits for it."""
    registry = Registry()

    @registry.workflow
    async def shared(ctx: Context, wait: bool) -> str:
        return await ctx.listen("go", type=str) if wait else "at once"

    @registry.workflow
    async def branch(ctx: Context, wait: bool) -> str:
        return await ctx.workflow(shared, wait, id="shared")

    @registry.workflow
    async def root(ctx: Context) -> str:
        await ctx.workflow(branch, False, id="first")
        return await ctx.workflow(branch, True, id="second")

    async with engines.open(registry) as env:
        handle = await env.start(root, id="root")
        await env.settle()
        assert await env.engine.delete("first", tree=True) == 2
        await env.settle()
        await env.engine.handle("shared").signal("go", "on")
        assert await handle.result() == "on"


@pytest.mark.engines("memory-cached", "sqlite-cached")
@pytest.mark.parametrize("state", ["in the store", "archived", "purged"])
async def test_a_detached_child_stays_when_the_tree_of_its_parent_is_deleted(engines: Engines, state: str) -> None:
    """It has a tree of its own, wherever its history is."""
    registry, files = Registry(), MemoryFiles()

    @registry.workflow
    async def child(ctx: Context) -> None: ...

    @registry.workflow
    async def parent(ctx: Context) -> None:
        await ctx.workflow(child, id="detached", detach=True)
        await ctx.workflow(child, id="attached")

    async with engines.open(registry) as env:
        await env.start(parent, id="parent")
        await env.advance(2 * DAY)
        if state != "in the store":
            await archive(env.engine.store, files, env.clock, age=OLD)
        if state == "purged":
            await env.engine.purge(before=env.now())
        async with reading(env, files) as engine:
            assert await engine.delete("parent", tree=True) == 2
            assert await left_of(env, files) == {"detached"}


@pytest.mark.engines("memory-cached", "sqlite-cached")
async def test_an_archive_that_was_moved_is_deleted_from(engines: Engines) -> None:
    """The rows name the files where they were."""
    files = MemoryFiles()
    async with engines.open(shop()) as env:
        await env.start("order", 100, id="o-1")
        await env.advance(2 * DAY)
        await archive(env.engine.store, files, env.clock, age=OLD)
        files.url = "memory:///elsewhere/"
        async with reading(env, files) as engine:
            assert await engine.delete("o-1", tree=True) == 3
            assert not files.content


@pytest.mark.parametrize("state", ["written and not switched", "restored", "purged"])
async def test_a_deleted_entity_leaves_the_archive_whatever_its_row_says(engines: Engines, state: str) -> None:
    """An archiver has died before the switch, the tree was imported again, or retention has removed the rows."""
    files = MemoryFiles()
    async with engines.open(shop()) as env:
        store = env.engine.store
        await env.start("order", 100, id="o-1")
        await env.advance(2 * DAY)
        if state == "written and not switched":
            with pytest.raises(Died):
                await archive(store, files, env.clock, age=OLD, death=DiesAt("archive", before=True))
            env.clock.move_to(env.clock.now() + 20_000)  # the lock of the dead process expires
        else:
            await archive(store, files, env.clock, age=OLD)
            row = await store.inspector.get("o-1")
            assert row is not None
            if state == "restored":
                await env.engine.import_(await Archive(files).lines(row.archived or "", "o-1"))
            else:
                await env.engine.purge(before=env.now())
        async with reading(env, files) as engine:
            await engine.delete("o-1", tree=True)
            assert "o-1" not in {copy.instance.entity_id for name in files.content for copy, _ in file_in(files, name)}
            [deletion] = await engine.deletions()
            assert deletion.deleted_at is not None
            assert deletion.archived >= 1


NOT_THERE = "histories of this store are in the archive memory:///archive/, which is not there; mount its disk, or give"


@pytest.mark.engines("memory-cached", "sqlite-cached")
@pytest.mark.parametrize("state", ["archived", "purged", "never archived", "written and not switched"])
@pytest.mark.parametrize("given", ["none", "a new one", "another one of the store"])
async def test_a_deletion_is_refused_where_an_archive_of_the_store_is_not_there(
    engines: Engines, state: str, given: str
) -> None:
    """Whatever the rows say about the entity: the archive may hold executions of it that have none any more."""
    files, other = MemoryFiles(), MemoryFiles()
    other.url = "memory:///other/"
    async with engines.open(shop()) as env:
        store = env.engine.store
        if given == "another one of the store":
            await env.start("parcel", 1, id="p-8")
            await env.advance(2 * DAY)
            await archive(store, other, env.clock, age=OLD)
        await env.start("parcel", 1, id="p-9")
        await env.advance(2 * DAY)
        if state == "written and not switched":
            with pytest.raises(Died):
                await archive(store, files, env.clock, age=OLD, death=DiesAt("archive", before=True))
            env.clock.move_to(env.clock.now() + 20_000)
        else:
            await archive(store, files, env.clock, age=OLD)
        if state == "purged":
            await env.engine.purge(before=env.now(), name="parcel")
            await env.start("order", -1, id="p-9")
        if state == "never archived":
            await env.start("order", -1, id="o-1")
        entity_id = "o-1" if state == "never archived" else "p-9"
        async with nullcontext(env.engine) if given == "none" else reading(env, other) as engine:
            with pytest.raises(ArchiveNeeded, match=NOT_THERE):
                await engine.delete(entity_id)
            assert await engine.deletions() == []
        assert len(files.content) == 1


@pytest.mark.engines("memory-cached", "sqlite-cached")
async def test_a_deletion_reaches_every_archive_that_the_store_has_had(engines: Engines, tmp_path: Path) -> None:
    """Also one that the engine is not given, and one that was moved and is found again by its id."""
    folders = [tmp_path / "first", tmp_path / "second"]
    async with engines.open(shop()) as env:
        for folder in folders:
            await env.start("parcel", 1, id="p-9")
            await env.advance(2 * DAY)
            opened = Archiver(env.engine.store, open_archive(folder), env.clock, age=OLD, name="keeper")
            assert [done.executions async for done in opened.units()] == [1]
        await env.engine.purge(before=env.now(), name="parcel")
        moved = folders[1].rename(tmp_path / "moved")
        with pytest.raises(ArchiveNeeded, match="second/, which is not there"):
            await env.engine.delete("p-9")
        async with Engine(env.engine.store, registry=shop(), clock=env.clock, worker=False, archive=moved) as engine:
            assert await engine.delete("p-9") == 2
        assert [path for folder in (folders[0], moved) for path in folder.rglob("*.zst")] == []
        with pytest.raises(NotFound):
            await env.engine.delete("p-9")
        assert not folders[1].exists()


async def test_a_deletion_that_was_killed_is_finished_though_the_archive_was_moved(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is gone and the row still names its old place: the request says that it was checked before."""
    files = MemoryFiles()
    async with engines.open(shop()) as env:
        await env.start("parcel", 1, id="p-9")
        await env.advance(2 * DAY)
        await archive(env.engine.store, files, env.clock, age=OLD)
        files.url = "memory:///elsewhere/"
        async with reading(env, files) as engine:

            async def dies(*_: object) -> Any:
                raise Died

            with monkeypatch.context() as patch, pytest.raises(Died):
                patch.setattr(env.engine.store, "purge", dies)
                await engine.delete("p-9")
            assert not files.content
            assert await engine.delete("p-9") == 1
        assert (await env.engine.list()).instances == ()


async def test_a_tree_that_is_started_again_meanwhile_is_deleted_too(engines: Engines) -> None:
    """The id is started under another tree after the descendants were looked for."""
    async with engines.open(family()) as env:
        await env.start("root", id="root")
        await env.advance(60)
        store = env.engine.store
        remove, started = store.transfer.remove, []

        async def starts_again(parts: Any) -> Any:
            if parts[0].entity_id == "root" and not started:
                answer = await remove(parts)
                started.append(await env.engine.start("root", id="root"))
                await env.settle()
                return answer
            return await remove(parts)

        store.transfer.remove = starts_again  # type: ignore[method-assign]
        await env.engine.delete("root", tree=True)
        assert started
        assert (await env.engine.list()).instances == ()


@pytest.mark.engines("memory-cached", "sqlite-cached", "redis-cached", "postgres-cached")
async def test_a_history_that_was_deleted_meanwhile_is_not_written_by_an_archiver(engines: Engines) -> None:
    """The archiver has read it already: the process that deletes it stood still and has lost its lock."""
    files = MemoryFiles()
    async with engines.open(family()) as env:
        await env.start("root", id="root")
        await env.start("root", "other-", id="other-root")
        await env.advance(2 * DAY)
        client = env.engine._client()

        class Overtaken(Archive):
            """An archive whose files the other process changes first."""

            @asynccontextmanager
            async def exclusive(self) -> AsyncIterator[None]:
                if not await client.deletions():
                    assert await client.delete("root", "", tree=True, archives=ArchiveSet([Archive(files)])) == 3
                async with super().exclusive():
                    yield

        archiver = Archiver(env.engine.store, Overtaken(files), env.clock, age=OLD, name="keeper")
        assert [done.executions async for done in archiver.units()][-1] == 3
        assert await left_of(env, files) == OTHERS
