"""`engine.delete`: everything about an entity goes, on every store, and what was deleted is recorded."""

import asyncio
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from resurgam.client.catalog import CatalogClient
from resurgam.core import errors
from resurgam.core import event as events
from resurgam.core import flow_event as fe
from resurgam.engine import Engine
from resurgam.flows import StepDecorator
from resurgam.runtime.context.context import Context
from resurgam.runtime.registry import Registry
from resurgam.store import records as r
from resurgam.store.protocol import Store
from resurgam.testing import Environment, ManualClock
from support.archives import MemoryFiles, archive
from support.engines import Engines

DAY = timedelta(days=1)


class Workflows:
    """Workflows that leave all kinds of traces."""

    def __init__(self) -> None:
        self.registry = registry = Registry()
        self.may_end = asyncio.Event()
        self.ran = 0

        @registry.activity
        async def slow(word: str) -> str:
            self.ran += 1
            await self.may_end.wait()
            return word

        @registry.activity
        async def quick(word: str) -> str:
            return word

        @registry.workflow
        async def leaf(ctx: Context, word: str) -> str:
            return await ctx.activity(quick, word)

        @registry.workflow
        async def waiting(ctx: Context, word: str) -> str:
            promise = ctx.promise("approval")
            await ctx.workflow(leaf, word, id=f"{word}-leaf")
            await ctx.listen("go")
            await promise
            return word

        @registry.workflow
        async def parent(ctx: Context, word: str) -> str:
            try:
                await ctx.workflow(waiting, word, id=f"{word}-child")
            except errors.ChildWorkflowFailed as error:
                return str(error)
            return "never"

        @registry.workflow
        async def working(ctx: Context, word: str) -> str:
            return await ctx.activity(slow, word)

        @registry.workflow
        async def chain(ctx: Context, number: int) -> int:
            if number < 3:
                ctx.continue_as_new(number + 1)
            await ctx.listen("go")
            return number

        @StepDecorator(registry)
        async def price(order: str) -> int:
            return len(order)

        self.leaf, self.waiting, self.parent, self.working, self.chain = leaf, waiting, parent, working, chain


async def left(store: Store, word: str) -> list[str]:
    """Return the ids of the entities that a store has of a word."""
    page = await store.inspector.list(r.Query(limit=1000))
    return sorted({one.entity_id for one in page.instances if word in one.entity_id})


async def test_an_open_run_is_deleted_with_everything_about_it(engines: Engines) -> None:
    code = Workflows()
    async with engines.open(code.registry) as env:
        store = env.engine.store
        handle = await env.start(code.waiting, "a", id="a")
        other = await env.start(code.waiting, "b", id="b")
        await env.settle()
        [promise] = [entry.promise_id for entry in await handle.history() if isinstance(entry, events.PromiseCreated)]

        assert await env.engine.delete("a", reason="request 1") == 1
        assert await store.inspector.get("a") is None
        assert not await store.transfer.copies("a")
        for call in (handle.result, handle.describe, handle.history, lambda: handle.signal("go")):
            with pytest.raises(errors.NotFound):
                await call()
        with pytest.raises(errors.NotFound):
            await env.engine.resolve(promise, 1)
        again = await env.start(code.leaf, "again", id="a")
        assert await env.finish(again.result()) == "again"
        assert (await other.describe()).status == "running"
        assert await left(store, "a-") == ["a-leaf"]


async def test_all_executions_of_an_id_go_closed_ones_too(engines: Engines) -> None:
    code = Workflows()
    async with engines.open(code.registry) as env:
        await env.start(code.chain, 1, id="c")
        await env.settle()
        assert await env.engine.delete("c") == 3
        assert not await env.engine.store.transfer.copies("c")


async def test_a_parent_that_waits_for_a_deleted_child_gets_a_failure(engines: Engines) -> None:
    code = Workflows()
    async with engines.open(code.registry) as env:
        handle = await env.start(code.parent, "x", id="x")
        await env.settle()
        assert await env.engine.delete("x-child") == 1
        assert "x-child" in await env.finish(handle.result())


async def test_a_parent_gets_a_failure_if_its_child_was_terminated_and_no_worker_has_noticed(engines: Engines) -> None:
    """The store ends a terminated run at once; its worker, which notifies the parent, comes too late."""
    code, clock = Workflows(), ManualClock()
    async with engines.open_store(clock) as store:
        async with engines.serve(store, clock, code.registry) as env:
            await env.start(code.parent, "x", id="x")
            await env.settle()
        async with Engine(store, registry=code.registry, clock=clock, worker=False) as client:
            await client.handle("x-child").terminate("no longer wanted")
            assert await client.delete("x-child") == 1
        async with engines.serve(store, clock, code.registry) as env:
            assert "x-child" in await env.finish(env.engine.handle("x").result())


async def test_a_workflow_that_waits_for_a_deleted_flow_gets_a_failure(engines: Engines) -> None:
    """As an answer of a flow: that of a workflow would not fit the call."""
    code = Workflows()

    @StepDecorator(code.registry)
    async def weigh(order: str) -> int:
        await code.may_end.wait()
        return 1

    @code.registry.workflow
    async def weighing(ctx: Context) -> str:
        try:
            await ctx.flow(goals=["weigh"], init={"order": "o"}, id="f")
        except errors.ChildWorkflowFailed as error:
            return str(error)
        return "never"

    async with engines.open(code.registry) as env:
        handle = await env.start(weighing, id="w")
        await env.settle()
        assert await env.engine.delete("f") == 1
        assert "everything about 'f' is deleted" in await env.finish(handle.result())
        assert [entry.type for entry in await handle.history() if entry.ref] == ["child_started", "flow_answered"]
        code.may_end.set()


async def test_a_tree_goes_with_its_descendants_and_with_nothing_else(engines: Engines) -> None:
    code = Workflows()
    async with engines.open(code.registry) as env:
        store = env.engine.store
        await env.start(code.leaf, "x", id="x-leaf")
        await env.advance(1)
        await env.start(code.parent, "x", id="x")
        await env.start(code.parent, "y", id="y")
        await env.settle()
        assert await env.engine.delete("x", tree=True) == 3
        assert await left(store, "x") == ["x-leaf"]
        assert len(await store.transfer.copies("x-leaf")) == 1
        assert await left(store, "y") == ["y", "y-child", "y-leaf"]


@pytest.mark.parametrize(
    ("policy", "status"), [("terminate", "terminated"), ("cancel", "cancelled"), ("abandon", "running")]
)
async def test_open_children_of_a_deleted_run_are_closed_by_their_policies(
    engines: Engines, policy: Any, status: str
) -> None:
    code = Workflows()

    @code.registry.workflow
    async def above(ctx: Context) -> None:
        await ctx.workflow(code.waiting, "x", id="x", on_parent_close=policy)

    async with engines.client(code.registry) as (store, clock, engine):
        async with engines.serve(store, clock, code.registry) as env:
            await env.start(above, id="above")
            await env.settle()
        assert await engine.delete("above") == 1
        async with engines.serve(store, clock, code.registry) as env:
            await env.settle()
            assert (await env.handle("x").describe()).status == status


async def test_a_flow_is_deleted(engines: Engines) -> None:
    code = Workflows()
    async with engines.open(code.registry) as env:
        await env.finish((await env.start_flow(["price"], {"order": "o"}, id="f")).result())
        assert await env.engine.delete("f") == 1
        assert await env.engine.store.inspector.get("f") is None
        assert len(await env.engine.steps()) == 1


async def test_a_worker_that_still_runs_an_activity_of_it_cannot_record_the_result(engines: Engines) -> None:
    code = Workflows()
    async with engines.open(code.registry) as env:
        await env.start(code.working, "a", id="a")
        await env.settle()
        assert await env.engine.delete("a") == 1
        again = await env.start(code.working, "b", id="a")
        await env.settle()
        code.may_end.set()
        assert await env.finish(again.result()) == "b"
        assert code.ran == 2


async def test_a_store_without_a_step_records_who_deleted_what_and_why(engines: Engines) -> None:
    code = Workflows()
    async with engines.client(code.registry) as (_, clock, engine):
        await engine.start("leaf", "a", id="a")
        await engine.start("leaf", "b", id="b")
        requested = clock.now()
        assert await engine.delete("a", reason="request 1", tree=True) == 1
        assert await engine.delete("b") == 1
        first, second = await engine.deletions()
    assert (first.entity_id, first.reason, first.tree, first.executions, first.archived) == (
        "a",
        "request 1",
        True,
        1,
        0,
    )
    assert (first.requested_at, first.deleted_at) == (requested, clock.now())
    assert "@" in first.by
    assert (second.entity_id, second.reason, second.tree) == ("b", "", False)


async def test_deletions_do_not_make_the_catalog_longer_to_read(engines: Engines) -> None:
    code = Workflows()
    async with engines.client(code.registry) as (store, _, engine):
        for number in range(5):
            await engine.start("leaf", "a", id=f"o-{number}")
            await engine.delete(f"o-{number}")
        catalog = await store.inspector.get(fe.CATALOG)
        assert catalog is not None
        read = [entry.type for entry in await store.read(catalog)]
        assert len([kind for kind in read if kind.startswith("entity_")]) == 1
        assert len(await engine.steps()) == 1
        await engine.remove_step("price")
        assert not any(entry.type.startswith("entity_") for entry in await store.read(catalog))
        assert [one.entity_id for one in await engine.deletions()] == [f"o-{number}" for number in range(5)]


async def test_the_record_outlives_a_catalog_that_is_terminated_and_purged(engines: Engines) -> None:
    code = Workflows()
    async with engines.open(code.registry, retain=DAY) as env:
        await env.start(code.leaf, "a", id="a")
        await env.engine.delete("a")
        await env.handle(fe.CATALOG).terminate()
        await env.advance(5 * DAY)
        await env.start(code.leaf, "b", id="b")
        await env.engine.delete("b")
        assert [one.entity_id for one in await env.engine.deletions()] == ["a", "b"]


async def test_the_catalog_and_unknown_ids_are_refused(engines: Engines) -> None:
    code = Workflows()
    async with engines.client(code.registry) as (_, _, engine):
        with pytest.raises(errors.NotFound, match=r"^there is no workflow with id 'gone'$"):
            await engine.delete("gone")
        with pytest.raises(errors.WrongState, match=r"^the catalog of steps cannot be deleted"):
            await engine.delete("catalog")
        with pytest.raises(ValueError, match="id must be a non-empty string"):
            await engine.delete("")
        with pytest.raises(TypeError, match="reason must be a string, got 5"):
            await engine.delete("a", reason=5)  # type: ignore[arg-type]
        await engine.start("leaf", "a", id="a")
        await engine.delete("a")
        with pytest.raises(errors.NotFound):
            await engine.delete("a")
        assert len(await engine.deletions()) == 1


class Killed(Exception):
    """The process has died."""


def dies(store: Store, verb: str, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a store die before the call of a verb after so many calls."""
    owner: Any = store.transfer if hasattr(store.transfer, verb) else store
    inner, seen = getattr(owner, verb), []

    async def counted(*args: Any, **options: Any) -> Any:
        seen.append(args)
        if len(seen) > calls:
            raise Killed
        return await inner(*args, **options)

    monkeypatch.setattr(owner, verb, counted, raising=False)


@pytest.mark.parametrize("calls", range(4))
async def test_a_deletion_that_was_killed_is_visible_and_finished_by_the_same_call(
    engines: Engines, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After no, one or two of the tree's executions are removed, and after all of them."""
    code = Workflows()
    async with engines.client(code.registry) as (store, clock, engine):
        async with engines.serve(store, clock, code.registry) as env:
            await env.start(code.parent, "x", id="x")
            await env.settle()
        with monkeypatch.context() as patch:
            if calls < 3:
                dies(store, "remove", calls, patch)
            else:
                dies_at_the_end(patch)
            with pytest.raises(Killed):
                await engine.delete("x", tree=True)
        [one] = await engine.deletions()
        assert (one.entity_id, one.deleted_at) == ("x", None)
        assert await engine.delete("x", tree=True) == 3 - calls
        assert await left(store, "x") == []
        assert all(one.deleted_at is not None for one in await engine.deletions())
        with pytest.raises(errors.NotFound):
            await engine.delete("x", tree=True)


def dies_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def die(*_: object, **__: object) -> None:
        raise Killed

    monkeypatch.setattr(CatalogClient, "confirm_deletion", die)


async def test_an_id_that_is_started_again_all_the_time_ends_with_an_error(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = Workflows()
    async with engines.client(code.registry) as (store, _, engine):
        await engine.start("leaf", "a", id="a")
        inner = store.transfer.remove

        async def remove(parts: Any) -> Any:
            answers = await inner(parts)
            await engine.start("leaf", "a", id="a")
            return answers

        monkeypatch.setattr(store.transfer, "remove", remove, raising=False)
        with pytest.raises(errors.StoreError, match="'a' kept changing, or was started again, in 100 attempts"):
            await engine.delete("a")


async def test_executions_in_an_archive_are_forgotten_there_first(engines: Engines) -> None:
    code = Workflows()
    forgotten: list[tuple[str, bool]] = []
    async with engines.open(code.registry) as env:
        store = env.engine.store
        await env.start(code.leaf, "a", id="a")
        await env.advance(1)
        copies = await store.transfer.copies("a")
        [answer] = await store.transfer.archive(
            [r.Archival(entity_id="a", copies=tuple(copies), archive="file:///x/1")]
        )
        assert isinstance(answer, r.Archived)

        with pytest.raises(
            errors.StoreError,
            match="'a' is in the archive file file:///x/1, which is in no archive of this store; give",
        ):
            await env.engine.delete("a")
        assert await env.engine.deletions() == []

        class Archive:
            async def listed(self, wanted: Any) -> list[Any]:
                listed = SimpleNamespace(
                    entity_id="a", execution_id="x-1", tree_id=copies[0].instance.tree_id, parent=None
                )
                assert wanted(listed)
                return [("x", listed)]

            async def remove(self, names: Any, wanted: Any) -> set[str]:
                forgotten.extend([(name, await store.inspector.get("a") is not None) for name in names])
                return {copies[0].instance.execution_id}

            async def damaged(self) -> list[str]:
                return []

            async def is_elsewhere(self, url: str, execution_id: str) -> bool:
                return False

        client = env.engine._client()
        assert await client.delete("a", "", tree=False, archives=Archive()) == 1
        assert forgotten == [("x", True)]
        [one] = await env.engine.deletions()
        assert (one.executions, one.archived) == (1, 1)


async def test_a_history_that_cannot_be_decoded_is_deleted_too(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = Workflows()
    async with engines.client(code.registry) as (store, _, engine):
        await engine.start("leaf", "a", id="a")

        async def copies(*_: object) -> None:
            raise errors.CorruptHistory("no such event")

        monkeypatch.setattr(store.transfer, "copies", copies, raising=False)
        assert await engine.delete("a") == 1
        assert await store.inspector.get("a") is None


async def test_an_interrupted_deletion_of_a_tree_is_finished_as_one(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the second call does not ask for the tree: the record says that the tree is deleted."""
    code = Workflows()
    async with engines.open(code.registry) as env:
        await env.start(code.parent, "root", id="root")
        await env.advance(60)
        before = {one.entity_id for one in (await env.engine.list()).instances}
        assert len(before) > 1

        async def dies(*_: object) -> Any:
            raise ConnectionError

        with monkeypatch.context() as patch, pytest.raises(ConnectionError):
            patch.setattr(env.engine.store.transfer, "remove", dies)
            await env.engine.delete("root", tree=True)
        await env.engine.delete("root")
        assert (await env.engine.list()).instances == ()


async def test_the_catalog_is_not_archived_and_moves_with_its_deletions(engines: Engines) -> None:
    """Its log records what was deleted, in entries that replay does not need."""
    code = Workflows()
    async with engines.open(code.registry) as env, Environment() as other:
        for number in range(2):
            await env.start(code.leaf, "a", id=f"o-{number}")
            await env.advance(1)
            await env.engine.delete(f"o-{number}", reason="asked to")
        deleted = await env.engine.deletions()
        await other.engine.import_(await env.engine.export("catalog"))
        assert await other.engine.deletions() == deleted
        await env.engine.handle("catalog").terminate()
        await env.start(code.leaf, "a", id="o-2")
        await env.advance(1)
        await env.engine.delete("o-2")  # serves the queue of the catalog, which is complete by that
        await env.advance(86_400)
        [complete] = await env.engine.store.inspector.ended(r.EndedQuery(before=2**62))
        assert complete.entity_id == "catalog"
        done = await archive(env.engine.store, MemoryFiles(), env.clock, age=1000)
        assert (done.executions, done.failed) == (0, 0)
