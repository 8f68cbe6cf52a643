"""Stores with archives, between which runs move: no history is lost, none is in two places, and each archive has one owner."""

from contextlib import asynccontextmanager

import pytest

from resurgam import Context, Registry
from resurgam.archive.archive import open_archive
from resurgam.archive.archiver import Archiver, Progress
from resurgam.archive.folder import ArchiveFailed
from resurgam.core.errors import NotFound, StoreError
from resurgam.store.archives import ArchiveNeeded
from resurgam.store.lock import LEASE
from resurgam.store.move import Move, Options
from resurgam.store.open import open_store
from resurgam.testing import ManualClock
from resurgam.testing.environment import Environment
from support.moves import Died

DAY = 86_400
registry = Registry()


@registry.workflow
async def brief(ctx: Context) -> str:
    return "done"


@registry.workflow
async def waiting(ctx: Context) -> str:
    return await ctx.listen("go", type=str)


@registry.workflow
async def parent(ctx: Context) -> str:
    await ctx.workflow(brief, id="child")
    return await ctx.listen("go", type=str)


class Stores:
    """Two SQLite files, *a* and *b*, with one clock; *b* is where runs move to."""

    def __init__(self, folder):
        self.clock = ManualClock()
        self.folder = folder
        self.urls = {name: f"sqlite:///{folder}/{name}.db?synchronous=off" for name in "ab"}

    @asynccontextmanager
    async def serve(self, name, **options):
        async with Environment(store=self.urls[name], registry=registry, clock=self.clock, **options) as env:
            yield env

    @asynccontextmanager
    async def open(self):
        """Open both without workers."""
        stores = [open_store(url, self.clock, name="mover", lease=10_000) for url in self.urls.values()]
        try:
            yield stores
        finally:
            for store in stores:
                await store.close()

    async def _sleep(self, seconds):
        self.clock.move_to(self.clock.now() + round(seconds * 1000))

    async def move(self, verb="run", **options):
        async with self.open() as (a, b):
            course = Move(a, b, self.clock, url=self.urls["b"], options=Options(**options), sleep=self._sleep)
            return await getattr(course, verb)()

    async def die_before_the_removal(self, **options):
        async with self.open() as (a, b):

            async def dies(_):
                raise Died

            a.transfer.remove = dies
            with pytest.raises(Died):
                await Move(a, b, self.clock, url=self.urls["b"], options=Options(**options), sleep=self._sleep).run()
        self.clock.move_to(self.clock.now() + 2 * LEASE)

    async def archive(self, name):
        """Archive what is a day old, each store to a folder of its own; what was imported stays for a week."""
        self.clock.move_to(self.clock.now() + 10 * DAY * 1000)
        store = open_store(self.urls[name], self.clock, name="keeper", lease=10_000)
        try:
            archive = open_archive(self.folder / f"archive of {name}")
            archiver, done = Archiver(store, archive, self.clock, age=DAY * 1000, name="keeper"), Progress()
            async for now in archiver.units():
                done = now
            return done
        finally:
            await store.close()

    async def found(self, entity_id):
        """Return the statuses of an entity's executions in each store, and whether they are archived."""
        async with self.open() as stores:
            return [
                [
                    (copy.instance.status.value, copy.instance.archived is not None)
                    for copy in await one.transfer.copies(entity_id)
                ]
                for one in stores
            ]


@pytest.fixture
def stores(tmp_path):
    return Stores(tmp_path)


async def test_an_older_copy_does_not_bring_an_archived_run_back_to_life(stores):
    async with stores.serve("a") as env:
        await env.start(waiting, id="w")
        await env.settle()
        before = await env.engine.export("w")
        await env.engine.handle("w").signal("go", "on")
        await env.settle()
    assert (await stores.archive("a")).executions == 1
    async with stores.serve("a") as env:
        [arrival] = await env.engine.import_(before)
        assert not arrival.new
    assert await stores.found("w") == [[("completed", True)], []]


@pytest.mark.parametrize("open_there", ["child", "p"])
async def test_a_move_that_fails_leaves_what_the_target_has_archived(stores, open_there):
    async with stores.serve("a") as env:
        await env.start(parent, id="p")
        await env.settle()
        child = await env.engine.export("child")
    async with stores.serve("b") as env:
        await env.engine.import_(child)
    assert (await stores.archive("b")).executions == 1
    async with stores.serve("b") as env:
        await env.start(waiting, id=open_there)
        await env.settle()
    moved = await stores.move()
    assert set(moved.left) == {"p"} if open_there == "p" else moved.left == {}
    [_, there] = await stores.found("child")
    assert ("completed", True) in there


@pytest.mark.parametrize("verb", ["run", "abort"])
@pytest.mark.parametrize("archiving", ["a", "b"])
async def test_an_interrupted_move_is_ended_after_one_of_the_stores_has_archived(stores, verb, archiving):
    async with stores.serve("a") as env:
        await env.start(brief, id="w")
        await env.settle()
        await env.start(waiting, id="w")
        await env.settle()
    await stores.die_before_the_removal()
    assert (await stores.archive(archiving)).executions == 1
    moved = await stores.move(verb)
    assert moved.left == {}
    here, there = await stores.found("w")
    assert [status for status, _ in here + there].count("running") == 1
    assert ("completed", True) in here + there
    assert (await stores.archive(archiving)).failed == 0


async def test_what_an_interrupted_move_has_copied_is_taken_back_if_the_run_was_terminated(stores):
    async with stores.serve("a") as env:
        await env.start(waiting, id="w")
        await env.settle()
    await stores.die_before_the_removal()
    async with stores.serve("a") as env:
        await env.engine.handle("w").terminate("no longer wanted")
        await env.settle()
    assert (await stores.move()).left == {}
    assert await stores.found("w") == [[("terminated", False)], []]


async def test_an_aborted_move_takes_back_the_closed_runs_that_it_had_moved(stores):
    """Though it is not asked to move closed ones itself."""
    async with stores.serve("a") as env:
        await env.start(brief, id="w")
        await env.settle()
    await stores.die_before_the_removal(closed=True)
    assert (await stores.move("abort")).left == {}
    assert await stores.found("w") == [[("completed", False)], []]


async def test_an_aborted_move_leaves_what_it_was_not_asked_to_move(stores):
    """Both stores have a closed run that was imported: it is no leftover of the move."""
    async with stores.serve("a") as env:
        for name in ("moves", "stays"):
            await env.start(brief, id=name)
            await env.settle()
            await env.start(waiting, id=name)
            await env.settle()
        closed = await env.engine.export("stays", (await env.engine.store.transfer.copies("stays"))[0].instance.run_id)
    async with stores.serve("b") as env:
        await env.engine.import_(closed)
    await stores.die_before_the_removal(entity_ids=frozenset({"moves"}))
    assert (await stores.move("abort")).left == {}
    assert await stores.found("moves") == [[("completed", False), ("running", False)], []]
    assert await stores.found("stays") == [[("completed", False), ("running", False)], [("completed", False)]]


async def test_nothing_is_deleted_while_a_move_is_unfinished(stores):
    """It could have copied the entity to the target, where it would go on."""
    async with stores.serve("a") as env:
        await env.start(waiting, id="w")
        await env.settle()
    await stores.die_before_the_removal()
    async with stores.serve("a") as env:
        with pytest.raises(StoreError, match=r"a move of runs to sqlite:.* is not finished, and may have copied 'w'"):
            await env.engine.delete("w")
    await stores.move("abort")
    async with stores.serve("a") as env:
        assert await env.engine.delete("w") == 1
    assert await stores.found("w") == [[], []]


async def test_the_archive_of_the_source_does_not_become_that_of_the_target(stores):
    """Though both have the same secret: a deletion in one would reach histories of the other."""
    async with stores.serve("a") as env:
        await env.start(brief, id="same")
        await env.start(waiting, id="w")
        await env.settle()
    await stores.archive("a")
    assert (await stores.move()).same_secret
    async with stores.serve("b", archive=stores.folder / "archive of a") as env:
        await env.start(brief, id="same")
        await env.settle()
        with pytest.raises(ArchiveFailed, match="belongs to another store"):
            await env.engine.delete("same")
    async with stores.serve("a", archive=stores.folder / "archive of a") as env:
        assert await env.engine.handle("same").result() == "done"


async def test_a_moved_row_is_deleted_once_the_owner_of_its_archive_has_deleted_the_history(stores):
    async with stores.serve("a") as env:
        await env.start(brief, id="w")
        await env.settle()
    await stores.archive("a")
    await stores.move(closed=True)
    async with stores.serve("b") as env:
        with pytest.raises(ArchiveNeeded, match="or delete it first in the store that the archive belongs to"):
            await env.engine.delete("w")
    async with stores.serve("a") as env:
        assert await env.engine.delete("w") == 1
    async with stores.serve("b") as env:
        assert await env.engine.delete("w") == 1
        with pytest.raises(NotFound):
            await env.engine.handle("w").describe()
