"""Complete histories move to an archive, and stay readable there."""

import asyncio
import threading
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from resurgam.archive import document
from resurgam.archive.archive import OWNER, Archive, name_of
from resurgam.archive.archiver import Progress
from resurgam.archive.folder import ArchiveBusy, ArchiveFailed
from resurgam.core import event as events
from resurgam.core import flow_event as fe
from resurgam.core.errors import CorruptHistory, NotFound, WrongState
from resurgam.core.state import Status
from resurgam.runtime.context.context import Context
from resurgam.runtime.context.durable_loop import Break, Continue
from resurgam.runtime.registry import Registry
from resurgam.store import export
from resurgam.store import records as r
from resurgam.store.retention import LOOKED_UP
from resurgam.testing import replay
from resurgam.testing.environment import Environment
from support.archives import (
    DiesAt,
    MemoryFiles,
    all_copies,
    archive,
    archiver,
    family,
    file_in,
    readable,
    reading,
    shop,
)
from support.engines import Engines
from support.limits import HANGS
from support.moves import Death, Died

DAY = 86_400
OLD = DAY * 1000


async def populate(env: Environment) -> None:
    """Have an order with its parcels, a failed one, a flow, and a ticker that goes on."""
    await env.start("order", 100, id="o-1", tags={"customer": "c-1"})
    await env.start("order", -1, id="o-2")
    flow = await env.start_flow(["ship"], {"order_id": "o-3"}, id="f-1")
    await env.start("ticker", 6, id="t-1")
    await env.finish(flow.result())
    await env.advance(60)


async def test_whole_trees_go_into_one_file_and_their_rows_stay(engines: Engines) -> None:
    """The log ends with `workflow_archiving`, the file with `workflow_archived`."""
    files = MemoryFiles()
    async with engines.open(shop()) as env:
        await populate(env)
        await env.advance(2 * DAY)
        before = await all_copies(env.engine.store)
        done = await archive(env.engine.store, files, env.clock, age=OLD)
        assert done.failed == 0
        [order] = [copy.instance for copy in before.values() if copy.instance.entity_id == "o-1"]
        name = name_of("trees", order.tree_id)
        held = {copy.instance.entity_id: copy for copy, _ in file_in(files, name)}
        assert held.keys() == {
            copy.instance.entity_id for copy in before.values() if copy.instance.tree_id == order.tree_id
        }
        assert len(held) == 3
        lines = document.text_of(files.content[name], name).splitlines()
        assert '"type":"archive"' in lines[0]
        last = events.decode_event(lines[-1])
        assert isinstance(last, events.WorkflowArchived)
        assert isinstance(held["o-1"].log[-1], events.WorkflowArchiving)
        assert held["o-1"].log[:-1] == before[order.execution_id].log
        now = await env.engine.store.inspector.get("o-1")
        assert now is not None
        assert (now.status, now.tags) == (Status.COMPLETED, {"customer": "c-1", "stage": "paid"})
        assert now.archived == f"{files.url}{name}"
        assert await env.engine.store.read(now) == []
        found = (await env.engine.list(tags={"customer": "c-1", "stage": "paid"})).instances
        assert {one.entity_id for one in found} >= {"o-1", "p-1"}
        assert not (await env.engine.store.feed.read(r.FeedQuery(entity_id="o-1"))).entries


async def test_flows_are_archived_by_their_own_events(engines: Engines) -> None:
    """As entries of the log of the flow."""
    files = MemoryFiles()
    async with engines.open(shop()) as env:
        handle = await env.start_flow(["ship"], {"order_id": "o-3"}, id="f-1")
        await env.finish(handle.result())
        await env.advance(2 * DAY)
        assert (await archive(env.engine.store, files, env.clock, age=OLD)).files == 1
        [name] = files.content
        lines = document.text_of(files.content[name], name).splitlines()
        kinds = [type(events.decode_event(line)) for line in lines[-3:]]
        assert kinds == [fe.FlowDeactivated, fe.FlowArchiving, fe.FlowArchived]
        async with reading(env, files) as engine:
            found = engine.handle("f-1")
            assert await found.result() == {"ship": "box of o-3 shipped"}
            assert (await found.describe()).result == {"ship": "box of o-3 shipped"}
            again = await engine.start_flow(["ship"], {"order_id": "o-3"}, id="f-1")
            assert again.execution_id == found.execution_id


async def test_archived_histories_are_read_as_if_the_store_had_them(engines: Engines) -> None:
    """Results, descriptions, trees and histories; an engine without the archive says where they are."""
    files = MemoryFiles()
    async with engines.open(shop()) as env:
        await populate(env)
        tree = await env.engine.handle("o-1").tree()
        described = await env.engine.handle("o-2").describe()
        await env.advance(2 * DAY)
        await archive(env.engine.store, files, env.clock, age=OLD)
        async with reading(env, files) as engine:
            handle = engine.handle("o-1")
            assert await handle.result() == "1 kg, 2 kg"
            assert (await handle.tree()).entity_id == tree.entity_id
            assert len(await handle.history()) == (await handle.describe()).history_length
            assert [entry.seq for entry in await handle.history(after=2, limit=2)] == [3, 4]
            failed = await engine.handle("o-2").describe()
            assert (str(failed.error), failed.input) == (str(described.error), described.input)
            assert failed.archived is not None
        row = await env.engine.handle("o-1").describe()
        assert (row.status, row.result, row.archived is not None) == (Status.COMPLETED, None, True)
        for ask in (env.engine.handle("o-1").history(), env.engine.handle("o-1").result()):
            with pytest.raises(NotFound, match="is archived in memory:///archive/trees/"):
                await ask


async def test_closed_generations_of_an_open_chain_are_archived_by_themselves(engines: Engines) -> None:
    """With what they started; the last ones stay, in which an update may be looked up."""
    files = MemoryFiles()
    async with engines.open(shop()) as env:
        handle = await env.start("ticker", 6, id="t-1")
        await env.advance(2 * DAY)
        await archive(env.engine.store, files, env.clock, age=OLD)
        copies = await all_copies(env.engine.store)
        generations = {c.instance.generation: c.instance for c in copies.values() if c.instance.entity_id == "t-1"}
        archived = {number for number, one in generations.items() if one.archived is not None}
        assert archived == set(range(1, 7 - LOOKED_UP + 1))
        parcels = [copy.instance for copy in copies.values() if copy.instance.name == "parcel"]
        gone = {one.parent.run_id for one in parcels if one.archived is not None and one.parent is not None}
        assert gone == {generations[number].run_id for number in (*archived, 7)}  # that of the open one by itself
        assert all(name.startswith("runs/") for name in files.content)
        assert len(files.content) == len(archived) + 1
        await handle.signal("end")
        await env.finish(handle.result())
        await env.advance(2 * DAY)
        await archive(env.engine.store, files, env.clock, age=OLD)
        rows = [copy.instance for copy in (await all_copies(env.engine.store)).values()]
        assert [one.entity_id for one in rows if one.archived is None] == ["catalog"]
        assert sum(name.startswith("trees/") for name in files.content) == 1


async def test_what_is_young_or_not_complete_stays(engines: Engines) -> None:
    """And nothing is written about it."""
    files, registry = MemoryFiles(), shop()

    @registry.workflow
    async def waiting(ctx: Context) -> None:
        await ctx.listen("end")

    async with engines.open(registry) as env:
        await env.start(waiting, id="w-1")
        await env.advance(2 * DAY)
        done = await env.start("order", -1, id="o-1")
        await env.settle()
        before = await all_copies(env.engine.store)
        assert await archive(env.engine.store, files, env.clock, age=OLD) == Progress()
        assert not files.content
        assert await all_copies(env.engine.store) == before
        assert (await done.describe()).archived is None


async def test_archiving_again_changes_nothing(engines: Engines) -> None:
    """Neither the files nor the rows."""
    files = MemoryFiles()
    async with engines.open(shop()) as env:
        await populate(env)
        await env.advance(2 * DAY)
        first = await archive(env.engine.store, files, env.clock, age=OLD)
        assert first.executions > 5
        content, rows = dict(files.content), await all_copies(env.engine.store)
        assert (await archive(env.engine.store, files, env.clock, age=OLD)).executions == 0
        assert (files.content, await all_copies(env.engine.store)) == (content, rows)


async def test_an_archiver_that_dies_at_any_call_leaves_each_history_in_one_place(engines: Engines) -> None:
    """And another one finishes its work, with the same files in the end."""
    async with engines.open(shop()) as env:
        store, clock = env.engine.store, env.clock
        await env.start("order", 100, id="o-1")
        await env.start_flow(["ship"], {"order_id": "o-3"}, id="f-1")
        await env.start("ticker", 5, id="t-1")
        await env.advance(2 * DAY)
        before = await all_copies(store)
        logs = {name: list(copy.log) for name, copy in before.items()}
        counted = Death(None)
        files = MemoryFiles()
        await archive(store, files, clock, age=OLD, death=counted)
        whole = {name: _executions(files, name) for name in files.content}
        await _restore(store, before)
        for call, done in _deaths(counted.calls, engines):
            files = MemoryFiles()
            with pytest.raises(Died):
                await archive(store, files, clock, age=OLD, death=Death(call, done=done))
            found = await readable(store, files)
            assert {name: log for name, (_, log) in found.items()} == logs
            clock.move_to(clock.now() + 20_000)  # the lock of the dead process expires
            done_now = await archive(store, files, clock, age=OLD)
            assert done_now.failed == 0
            assert {name: _executions(files, name) for name in files.content} == whole
            found = await readable(store, files)
            assert {name: log for name, (_, log) in found.items()} == logs
            assert sum(place == "store" for place, _ in found.values()) < len(found)
            await _restore(store, before)


@pytest.mark.engines("memory-cached", "sqlite-cached", "redis-cached", "postgres-cached")
@pytest.mark.parametrize("before", ["archived and imported", "written and not switched"])
async def test_a_run_that_is_retried_after_it_was_written_is_archived_with_its_next_attempt(
    engines: Engines, before: str
) -> None:
    """Its promise belongs to the next attempt by then, and the file says otherwise."""
    registry, files = Registry(), MemoryFiles()

    @registry.workflow
    async def order(ctx: Context) -> None:
        await ctx.promise("approval")
        raise ValueError("refused")

    async with engines.open(registry) as env:
        store, handle = env.engine.store, await env.start(order, id="o-1")
        await env.settle()
        await handle.resolve("approval", True)
        await env.advance(2 * DAY)
        if before == "archived and imported":
            await archive(store, files, env.clock, age=OLD)
            row = await store.inspector.get("o-1")
            assert row is not None
            await env.engine.import_(await Archive(files).lines(row.archived or "", "o-1"))
        else:
            with pytest.raises(Died):
                await archive(store, files, env.clock, age=OLD, death=DiesAt("archive", before=True))
        await env.engine.handle("o-1").retry()
        await env.advance(30 * DAY)
        assert [len(copy.promises) for copy in await store.transfer.copies("o-1")] == [0, 1]
        done = await archive(store, files, env.clock, age=OLD)
        assert (done.executions, done.failed) == (2, 0)


def _deaths(calls: int, engines: Engines) -> list[tuple[int, bool]]:
    """Return the moments at which to die: all in memory, every third on SQLite, some where each takes long."""
    every = [(call, done) for call in range(1, calls + 1) for done in (False, True)]
    steps = {"open_memory": 1, "open_sqlite": 3}
    step = steps.get(engines.open_store.__name__)
    return every[3 :: len(every) // 8] if step is None else every[::step]


async def _restore(store: Any, before: dict[str, r.Copy]) -> None:
    """Bring back all executions as they were, in a store that has never had an archive."""
    await store.values.delete("archives")
    for entity_id in {copy.instance.entity_id for copy in before.values()}:
        there = tuple(await store.transfer.copies(entity_id))
        [removed] = await store.transfer.remove([r.Removal(entity_id=entity_id, copies=there)])
        assert removed == r.Removed()
        mine = tuple(copy for copy in before.values() if copy.instance.entity_id == entity_id)
        await store.transfer.adopt([r.Adoption(entity_id=entity_id, copies=mine)])


def _executions(files: MemoryFiles, name: str) -> set[str]:
    return {copy.instance.execution_id for copy, _ in file_in(files, name)}


@pytest.mark.engines("memory-cached", "sqlite-cached")
async def test_a_history_leaves_the_store_only_once_its_file_is_durable(engines: Engines) -> None:
    """An archiver dies behind the rename; the next one finds the whole file, and writes none."""
    files = MemoryFiles()
    async with engines.open(shop()) as env:
        await env.start("order", 100, id="o-1")
        await env.advance(2 * DAY)
        with pytest.raises(Died):
            await archive(env.engine.store, files, env.clock, age=OLD, death=DiesAt("write"))
        assert len(files.content) == 1
        assert not files.durable
        env.clock.move_to(env.clock.now() + 20_000)  # the lock of the dead process expires
        assert (await archive(env.engine.store, files, env.clock, age=OLD)).executions == 3
        assert files.durable == files.content
        assert {place for place, _ in (await readable(env.engine.store, files)).values()} == {"store", "archive"}


async def test_a_file_keeps_what_is_in_it_as_others_of_the_tree_are_added(engines: Engines) -> None:
    """The root was imported without its children, and retried: the store has nothing but their rows."""
    files, registry = MemoryFiles(), family()
    async with engines.open(registry) as env:
        await env.start("failing", id="root")
        await env.advance(2 * DAY)
        await archive(env.engine.store, files, env.clock, age=OLD)
        [name] = files.content
        [root] = [copy for copy, _ in file_in(files, name) if copy.instance.entity_id == "root"]
        await env.engine.import_(export.write([root]))
        await env.engine.handle("root").retry()
        await env.advance(9 * DAY)
        assert (await archive(env.engine.store, files, env.clock, age=OLD)).executions == 2
        assert sorted((copy.instance.entity_id, copy.instance.attempt) for copy, _ in file_in(files, name)) == [
            *(("leaf", 1), ("mid", 1)),
            *(("root", 1), ("root", 2)),
        ]
        async with reading(env, files) as engine:
            assert await engine.handle("leaf").result() == "secret"


@pytest.mark.engines("memory-cached", "sqlite-cached", "redis-cached", "postgres-cached")
async def test_nothing_is_deleted_that_the_file_does_not_hold(engines: Engines) -> None:
    """A file that comes back damaged, or with other content, keeps the history in the store."""

    class Damaged(MemoryFiles):
        def read(self, name: str, first: int | None = None) -> bytes | None:
            found = super().read(name, first)
            return None if found is None else found[:-9] + b"123456789"

    async with engines.open(shop()) as env:
        await env.start("order", -1, id="o-1")
        await env.advance(2 * DAY)
        files = Damaged()
        keeper = archiver(env.engine.store, files, env.clock, age=OLD)
        keeper._archive = Archive(files)
        assert [done.failed async for done in keeper.units()] == [1]
        assert all(copy.log for copy in (await all_copies(env.engine.store)).values())
        with pytest.raises(CorruptHistory, match="is damaged"):
            [*document.File(files.read(next(iter(files.content))) or b"", "x")]


async def test_an_archived_tree_comes_back_by_import_and_can_be_retried(engines: Engines) -> None:
    """It stays in the store for a while, though it is old."""
    files = MemoryFiles()
    async with engines.open(shop()) as env:
        await env.start("order", -1, id="o-2")
        await env.advance(2 * DAY)
        await archive(env.engine.store, files, env.clock, age=OLD)
        row = await env.engine.store.inspector.get("o-2")
        assert row is not None
        assert row.archived is not None
        arrivals = await env.engine.import_(await Archive(files).lines(row.archived, "o-2"))
        assert [arrival.new for arrival in arrivals] == [True]
        assert (await archive(env.engine.store, files, env.clock, age=OLD)).executions == 0
        handle = env.engine.handle("o-2")
        assert (await handle.describe()).archived is None
        await handle.retry()
        await env.settle()
        assert (await handle.describe()).attempt == 2
        await env.advance(9 * DAY)
        assert (await archive(env.engine.store, files, env.clock, age=OLD)).executions == 2
        assert len(files.content) == 1


async def test_archived_histories_replay(engines: Engines) -> None:
    """From the lines of the file, and from the entries that are read back."""
    files, registry = MemoryFiles(), shop()
    order: Any = registry.workflows.find("order")
    async with engines.open(registry) as env:
        await env.start("order", 100, id="o-1")
        await env.advance(2 * DAY)
        await archive(env.engine.store, files, env.clock, age=OLD)
        [name] = files.content
        report = await replay(order, document.text_of(files.content[name], name).splitlines())
        assert (report.diverged, report.result) == (None, "1 kg, 2 kg")
        async with reading(env, files) as engine:
            report = await replay(order, await engine.handle("o-1").history())
            assert (report.diverged, report.result) == (None, "1 kg, 2 kg")


async def test_archived_lines_that_were_changed_are_not_imported(engines: Engines) -> None:
    """The digest of each execution is compared."""
    files = MemoryFiles()
    async with engines.open(shop()) as env:
        await env.start("order", -1, id="o-2")
        await env.advance(2 * DAY)
        await archive(env.engine.store, files, env.clock, age=OLD)
        [name] = files.content
        text = document.text_of(files.content[name], name)
        assert len(export.read(text)) == 1
        with pytest.raises(Exception, match="the digest does not fit"):
            export.read(text.replace('"negative"', '"positive"'))


async def test_an_archived_run_is_exported_with_its_history(engines: Engines, caplog: pytest.LogCaptureFixture) -> None:
    """Without the archive the row is exported, and a warning says where the history is."""
    files = MemoryFiles()
    async with engines.open(shop()) as env:
        await env.start("order", 100, id="o-1")
        await env.start("ticker", 6, id="t-1")
        await env.advance(2 * DAY)
        before = (await env.engine.store.transfer.copies("o-1"))[0].log
        await archive(env.engine.store, files, env.clock, age=OLD)
        rows = await env.engine.store.transfer.copies("o-1")
        assert await env.engine.export("o-1") == export.write(rows)
        [warning] = [one.getMessage() for one in caplog.records if "is not exported" in one.getMessage()]
        assert f"it is archived in {rows[0].instance.archived}; open the engine with archive=" in warning
        caplog.clear()
        async with reading(env, files) as engine:
            [copy] = export.read(await engine.export("o-1"))
            assert copy.log[:-1] == before
            assert copy.instance.archived is None
            generations = export.read(await engine.export("t-1"))
            assert [bool(one.log) for one in generations] == [True] * 7
            run = generations[0].instance.run_id
            assert export.read(await engine.export("t-1", run)) == generations[:1]
            assert not caplog.records
        async with engines.open(shop()) as other:
            await other.engine.import_(export.write([copy]))
            assert await other.engine.handle("o-1").result() == "1 kg, 2 kg"


async def test_children_of_an_open_workflow_are_archived_by_themselves(engines: Engines) -> None:
    """With their own, once it has recorded their ends: it may run for ever."""
    files, registry = MemoryFiles(), shop()

    @registry.workflow
    async def hourly(ctx: Context) -> None:
        while True:
            await ctx.workflow("order", 100, id="latest")
            await ctx.sleep(3600)

    async with engines.open(registry) as env:
        await env.start(hourly, id="hourly")
        await env.advance(timedelta(hours=2, minutes=30))
        done = await archive(env.engine.store, files, env.clock, age=3_600_000)
        assert (done.executions, done.files) == (6, 2)  # an order and two parcels, each time
        await env.engine.handle("hourly").pause()
        await env.advance(2 * DAY)
        rows = (await env.engine.list(name="order")).instances
        assert [one.archived is not None for one in rows] == [False, True, True]
        assert all(name.startswith("runs/") for name in files.content)


@pytest.mark.engines("memory-cached", "sqlite-cached")
async def test_a_workflow_that_starts_children_for_ever_does_not_fill_the_store(
    engines: Engines, tmp_path: Path
) -> None:
    """With an archive and retention: each child goes to the archive, and later its row goes."""
    registry = shop()

    @registry.workflow
    async def hourly(ctx: Context) -> None:
        while True:
            await ctx.workflow("parcel", 1)
            await ctx.sleep(3600)

    options: dict[str, Any] = {"archive": tmp_path, "archive_after": DAY, "retain": 3 * DAY}
    async with engines.open(registry, **options) as env:
        await env.start(hourly, id="hourly")
        await env.advance(timedelta(days=8))
        rows = (await env.engine.list(name="parcel", limit=1000)).instances
        assert 24 <= sum(one.archived is None for one in rows) <= 30
        assert 3 * 24 <= len(rows) <= 3 * 24 + 6


async def test_a_tree_stays_while_a_part_of_it_is_open(engines: Engines) -> None:
    """Its closed members too: what belongs together stays together."""
    files, registry = MemoryFiles(), shop()

    @registry.workflow
    async def waiting(ctx: Context) -> None:
        await ctx.listen("end")

    @registry.workflow
    async def leaving(ctx: Context) -> None:
        await ctx.workflow("parcel", 1, id="closed")
        await ctx.workflow(waiting, id="open", on_parent_close="abandon").started

    async with engines.open(registry) as env:
        await env.start("leaving", id="root")
        await env.advance(2 * DAY)
        assert await archive(env.engine.store, files, env.clock, age=OLD) == Progress()
        await env.engine.handle("open").signal("end")
        await env.settle()
        assert await archive(env.engine.store, files, env.clock, age=OLD) == Progress()
        await env.advance(2 * DAY)
        assert (await archive(env.engine.store, files, env.clock, age=OLD)).executions == 3
        assert len(files.content) == 1


@pytest.mark.engines("memory-cached", "sqlite-cached", "redis-cached", "postgres-cached")
async def test_nothing_is_deleted_if_the_file_holds_another_history(engines: Engines) -> None:
    """One that can be read, and is of the same execution."""

    class Forgetful(MemoryFiles):
        other = b""

        def read(self, name: str, first: int | None = None) -> bytes | None:
            return self.other if name in self.content else None

    files = Forgetful()
    async with engines.open(shop()) as env:
        handle = await env.start("order", -1, id="o-1")
        await env.advance(2 * DAY)
        [copy] = await env.engine.store.transfer.copies("o-1")
        changed = replace(copy, instance=replace(copy.instance, tags={"other": "history"}))
        frame = document.frame_of(changed, env.clock.now())
        files.other = b"".join(document.content_of(name_of("trees", copy.instance.tree_id), [frame.part]))
        keeper = archiver(env.engine.store, files, env.clock, age=OLD)
        keeper._archive = Archive(files)
        assert [done.failed async for done in keeper.units()] == [1]
        assert (await handle.describe()).archived is None
        assert str((await handle.describe()).error) != ""


async def test_an_archived_run_must_come_back_before_it_is_retried(engines: Engines) -> None:
    """The answers that its children have sent are in the archive."""
    files = MemoryFiles()
    async with engines.open(shop()) as env:
        await env.start("order", -1, id="o-2")
        await env.advance(2 * DAY)
        await archive(env.engine.store, files, env.clock, age=OLD)
        async with reading(env, files) as engine:
            with pytest.raises(WrongState, match="bring it back first, by `resurgam import --archived o-2`"):
                await engine.handle("o-2").retry()


async def test_a_failed_parent_is_retried_though_its_child_is_archived(engines: Engines) -> None:
    """An archiver may die between the two: the child keeps the answer that it has sent."""
    files, registry, tries = MemoryFiles(), Registry(), list[int]()

    @registry.workflow
    async def child(ctx: Context) -> str:
        return "done"

    @registry.workflow
    async def parent(ctx: Context) -> str:
        answer = ctx.workflow(child, id="kid")
        tries.append(1)
        if ctx.info.attempt == 1:
            await ctx.sleep(1)
            raise ValueError("no")
        return await answer

    async with engines.open(registry) as env:
        handle = await env.start("parent", id="p")
        await env.advance(2 * DAY)
        store = env.engine.store
        copies = tuple(await store.transfer.copies("kid"))
        [switched] = await store.transfer.archive([r.Archival(entity_id="kid", copies=copies, archive=f"{files.url}x")])
        assert switched == r.Archived()
        await handle.retry()
        assert await env.finish(env.engine.handle("p").result()) == "done"


@pytest.mark.engines("memory-cached", "sqlite-cached")
async def test_a_file_that_cannot_be_read_does_not_end_the_pass(engines: Engines) -> None:
    """Nor is a deletion of others held up by it; but it is not finished, as long as the file may hold something."""

    class Unreadable(MemoryFiles):
        broken = ""

        def read(self, name: str, first: int | None = None) -> bytes | None:
            if name == self.broken:
                raise ArchiveFailed("no", everywhere=False)
            return super().read(name, first)

    files = Unreadable()
    async with engines.open(shop()) as env:
        for number in range(3):
            await env.start("order", -1, id=f"o-{number}")
        await env.advance(2 * DAY)
        rows = {one.entity_id: one for one in (await env.engine.list(name="order")).instances}
        files.broken = name_of("trees", rows["o-1"].tree_id)
        keeper = archiver(env.engine.store, files, env.clock, age=OLD)
        keeper._archive = Archive(files)
        done = [now async for now in keeper.units()][-1]
        assert (done.executions, done.failed) == (2, 1)
        files.content["trees/00/rubbish.jsonl.zst"] = b"rubbish"
        async with reading(env, files) as engine:
            with pytest.raises(CorruptHistory, match=r"rubbish\.jsonl\.zst is damaged and may hold 'o-0'"):
                await engine.delete("o-0")
            assert not [name for name in files.content if rows["o-0"].tree_id in name]
            assert [one.deleted_at is None for one in await engine.deletions()] == [True]
            del files.content["trees/00/rubbish.jsonl.zst"]
            assert await engine.delete("o-0") == 0
            assert [one.deleted_at is None for one in await engine.deletions()] == [False]


@pytest.mark.engines("memory-cached")
async def test_a_file_is_read_again_once_another_process_has_changed_it(engines: Engines) -> None:
    """What was added is found, and what was deleted is not."""
    files = MemoryFiles()
    async with engines.open(shop()) as env:
        await env.start("order", 100, id="o-1")
        await env.advance(2 * DAY)
        await archive(env.engine.store, files, env.clock, age=OLD)
        async with reading(env, files) as engine:
            assert await engine.handle("p-1").result() == "1 kg"
            [name] = files.content
            assert await Archive(files.opened_by(None)).remove([name], lambda one: one.entity_id == "p-1")
            with pytest.raises(NotFound, match="is not in the archive file"):
                await engine.handle("p-1").history()
            files.content["trees/00/other.jsonl.zst"] = files.content[name]
            with pytest.raises(CorruptHistory, match="has the header of trees/"):
                Archive(files)._file("trees/00/other.jsonl.zst")


async def test_a_loop_that_forgets_is_archived_and_brought_back(engines: Engines) -> None:
    """With the forgotten entries that were kept, and without those that were not."""
    registry = shop()

    @registry.workflow
    async def rounds(ctx: Context) -> int:
        async def body(ctx: Context, number: int) -> Continue[int] | Break[int]:
            await ctx.activity("charge", number)
            return Continue(number + 1) if number < 9 else Break(number)

        return await ctx.loop(body, 0, forget_every=2, keep_forgotten=3)

    files = MemoryFiles()
    async with engines.open(registry) as env:
        handle = await env.start(rounds, id="r-1")
        await env.advance(2 * DAY)
        before = await handle.history(forgotten=True)
        done = await archive(env.engine.store, files, env.clock, age=OLD)
        assert (done.executions, done.failed) == (1, 0)
        async with reading(env, files) as engine:
            assert await engine.handle("r-1").result() == 9
            kept = await engine.handle("r-1").history(forgotten=True)
            assert [entry for entry in kept if not isinstance(entry, events.Archiving)] == list(before)


@pytest.mark.engines("memory-cached")
@pytest.mark.parametrize("damage", ["cut", "cut at a frame", "flipped"])
async def test_a_damaged_file_is_not_imported_and_the_rest_of_it_can_be_read(engines: Engines, damage: str) -> None:
    files = MemoryFiles()
    async with engines.open(shop()) as env:
        await env.start("order", 100, id="o-1")
        await env.advance(2 * DAY)
        await archive(env.engine.store, files, env.clock, age=OLD)
        [name] = files.content
        whole = files.content[name]
        last = document.File(whole, name).header.executions[-1].size
        first = len(whole) - sum(one.size for one in document.File(whole, name).header.executions)
        files.content[name] = {
            "cut": whole[:-20],
            "cut at a frame": whole[:-last],
            "flipped": whole[: first + 4] + bytes([whole[first + 4] ^ 128]) + whole[first + 5 :],
        }[damage]
        held = Archive(files)
        with pytest.raises(CorruptHistory, match="is damaged"):
            await held.lines(f"{files.url}{name}", "o-1")
        if damage == "flipped":
            lines = await held.lines(f"{files.url}{name}", "o-1", readable_only=True)
            assert [copy.instance.entity_id for copy in export.read(lines)][-1] == "o-1"


@pytest.mark.engines("memory-cached")
async def test_files_stay_locked_until_a_thread_that_writes_has_ended(engines: Engines) -> None:
    """A task that is cancelled cannot stop its thread; a deletion in between would find nothing, and the file appear later."""
    writes, may_go_on = threading.Event(), threading.Event()

    class Slow(MemoryFiles):
        def write(self, name: str, content: Iterable[bytes]) -> None:
            if name != OWNER:
                writes.set()
                may_go_on.wait(HANGS)
            super().write(name, content)

    files = Slow()
    async with engines.open(shop()) as env:
        await env.start("order", 100, id="o-1")
        await env.advance(2 * DAY)
        keeper = archiver(env.engine.store, files, env.clock, age=OLD)
        keeper._archive = Archive(files)
        running = asyncio.create_task(anext(keeper.units()))
        assert await asyncio.to_thread(writes.wait, HANGS)
        running.cancel()
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.sleep(0)
        try:
            with pytest.raises(ArchiveBusy), files.exclusive():
                pass
        finally:
            may_go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert len(files.content) == 1
        with files.exclusive():
            pass
