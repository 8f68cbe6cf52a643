"""Starts that are stored together with the commit of their first advance, which their engine has made before."""

import asyncio

import pytest

from resurgam import Context, Engine, Registry, errors
from resurgam.core import event as events
from resurgam.store.sqlite.store import SqliteStore
from resurgam.testing import ManualClock
from resurgam.worker import eager

LEASE = 3600


class Shop:
    """Workflows whose first advance is noted, and how often the store was asked."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.advanced: list[int] = []
        self.worked: list[int] = []

        @self.registry.activity
        async def work(number: int) -> int:
            self.worked.append(number)
            return number

        @self.registry.workflow
        async def works(ctx: Context, number: int) -> int:
            self.advanced.append(number)
            return await ctx.activity(work, number)

        @self.registry.workflow
        async def waits(ctx: Context) -> str:
            return await ctx.listen("go", type=str)

        @self.registry.workflow
        async def breaks(ctx: Context) -> None:
            self.advanced.append(0)
            raise ValueError("broken")


class Creations(SqliteStore):
    """A store that notes what it was asked to create, and may be slow to begin."""

    proceed: asyncio.Event | None = None

    def create(self, parts):
        """Create, once it may."""
        self.asked = [*getattr(self, "asked", ()), *parts]
        return super().create(parts) if self.proceed is None else self._later(parts)

    async def _later(self, parts):
        await self.proceed.wait()
        return await super().create(parts)


@pytest.fixture
async def store():
    """A store in a temporary file."""
    opened = Creations(None, ManualClock(), name="one", lease=LEASE * 1000, synchronous="OFF")
    yield opened
    await opened.close()


@pytest.fixture
def shop():
    return Shop()


def serve(store, shop, **options):
    return Engine(store, registry=shop.registry, clock=store._clock, lease=LEASE, grace=0, **options)


def starts_of(engine) -> int:
    """Return how many starts have a turn."""
    return engine._opened_client._store._starting


async def turn(turns=100):
    for _ in range(turns):
        await asyncio.sleep(0)


async def test_a_start_brings_its_first_step_and_its_activity_is_claimed(store, shop):
    async with serve(store, shop) as engine:
        handle = await engine.start("works", 7)
        assert await handle.result() == 7
        [part] = store.asked
        assert [type(entry) for entry in part.first.outcome.events] == [events.ActivityScheduled]
        assert (shop.advanced, shop.worked) == ([7], [7])
        assert engine._worker._slots.free == engine._options.max_activities


async def test_a_refused_start_discards_its_first_advance(store, shop):
    """Nothing of it is stored or run, and its slot is free again."""
    async with serve(store, shop) as engine:
        waiting = await engine.start("waits", id="x")
        with pytest.raises(errors.AlreadyExists):
            await engine.start("works", 2, id="x")
        await turn()
        assert (shop.advanced, shop.worked) == ([2], [])
        assert engine._worker._slots.free == engine._options.max_activities
        assert engine.busy == 0
        assert [entry.name for entry in await waiting.history()] == ["waits", "go"]


async def test_a_first_advance_that_fails_the_workflow_is_stored_with_the_start(store, shop):
    async with serve(store, shop) as engine:
        handle = await engine.start("breaks")
        with pytest.raises(errors.WorkflowFailed, match="broken"):
            await handle.result()
        assert shop.advanced == [0]


async def test_starts_beyond_the_limit_wait_for_their_turn(store, shop, monkeypatch):
    """The first advances of many starts are not in memory at once; all of them come to be stored."""
    monkeypatch.setattr(eager, "_STARTS", 3)
    store.proceed = asyncio.Event()
    async with serve(store, shop) as engine:
        starting = [asyncio.ensure_future(engine.start("works", number)) for number in range(20)]
        await turn()
        assert len(store.asked) == len(shop.advanced) == 3
        store.proceed.set()
        handles = await asyncio.gather(*starting)
        assert [await handle.result() for handle in handles] == list(range(20))
        assert starts_of(engine) == 0


async def test_a_start_that_is_cancelled_passes_its_turn_on(store, shop, monkeypatch):
    monkeypatch.setattr(eager, "_STARTS", 1)
    store.proceed = asyncio.Event()
    async with serve(store, shop) as engine:
        first, second, third = (asyncio.ensure_future(engine.start("works", number)) for number in range(3))
        await turn()
        second.cancel()
        await turn()
        store.proceed.set()
        assert await (await third).result() == 2
        assert await (await first).result() == 0
        assert starts_of(engine) == 0
        assert shop.worked == [0, 2]


async def test_a_start_that_the_store_fails_frees_what_it_had_reserved(store, shop):
    async with serve(store, shop) as engine:

        async def fail(parts):
            raise errors.StoreError("connection lost")

        store.create = fail
        with pytest.raises(errors.StoreError):
            await engine.start("works", 1)
        await turn()
        assert engine._worker._slots.free == engine._options.max_activities
        assert starts_of(engine) == 0
        assert shop.worked == []
