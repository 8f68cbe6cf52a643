"""Runs that move between two stores again and again while workers of both stores serve them."""

import asyncio
from collections import Counter

import pytest

from resurgam import Context, Engine, Registry
from resurgam.core.state import Status
from resurgam.runtime.system import SystemClock
from resurgam.store import records as r
from resurgam.store.move import Move, Options
from support import postgres, redis
from support.limits import HANGS

ROOTS = 6
GENERATIONS = 4
CHILDREN = 2
STEPS = 5

PAIRS = {
    "memory-sqlite": lambda folder: ("memory://", f"sqlite:///{folder}/b.db?synchronous=off"),
    "redis-postgres": lambda _: (redis.fresh_url(), postgres.fresh_url()),
    "postgres-sqlite": lambda folder: (postgres.fresh_url(), f"sqlite:///{folder}/b.db?synchronous=off"),
}


class Shop:
    """Workflows that continue as new, with children that signal their parents; every activity is counted."""

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()
        self.registry = Registry()
        self._ran = asyncio.Event()
        activity, workflow = self.registry.activity, self.registry.workflow

        @activity
        async def step(name: str) -> int:
            self.runs[name] += 1
            self._ran.set()
            await asyncio.sleep(0)
            return 1

        @workflow
        async def child(ctx: Context, parent: str, name: str) -> int:
            total = sum([await ctx.activity(step, f"{name} {number}") for number in range(STEPS)])
            await ctx.signal(parent, "hello", name)
            return total

        @workflow
        async def root(ctx: Context, name: str, generation: int = 1, total: int = 0) -> int:
            for number in range(STEPS):
                total += await ctx.activity(step, f"{name} {generation} {number}")
            await ctx.sleep(0.01)
            names = [f"{name}-{generation}-{number}" for number in range(CHILDREN)]
            children = [ctx.workflow(child, name, one, id=one) for one in names]
            for _ in names:
                await ctx.listen("hello", type=str)
            total += sum(await asyncio.gather(*children))
            if generation < GENERATIONS:
                ctx.continue_as_new(name, generation + 1, total)
            return total

        self.root = root

    async def progress(self, count: int) -> None:
        """Wait until so many activities have run."""
        while sum(self.runs.values()) < count:
            self._ran.clear()
            await asyncio.wait_for(self._ran.wait(), HANGS)


@pytest.mark.parametrize("kind", PAIRS)
async def test_live_runs_that_move_back_and_forth_lose_nothing_and_repeat_nothing(kind, tmp_path):
    shop = Shop()
    here, there = PAIRS[kind](tmp_path)
    each = GENERATIONS * STEPS * (1 + CHILDREN)
    async with Engine(here, registry=shop.registry) as a, Engine(there, registry=shop.registry) as b:
        for number in range(ROOTS):
            await a.start(shop.root, f"root-{number}", id=f"root-{number}")
        source, target = a, b
        for part in range(1, 6):
            await shop.progress(part * ROOTS * each // 6)
            course = Move(
                source.store,
                target.store,
                SystemClock(),
                url="other://store",
                options=Options(closed=True, patience=round(HANGS * 1000)),
            )
            assert (await course.run()).left == {}
            assert (await source.store.inspector.list(r.Query())).instances == ()
            source, target = target, source
        for number in range(ROOTS):
            assert await source.handle(f"root-{number}").result(timeout=HANGS) == each
        page = await source.store.inspector.list(r.Query(limit=1000))
        assert Counter(one.status for one in page.instances) == {
            Status.COMPLETED: ROOTS * (1 + GENERATIONS * CHILDREN),
            Status.CONTINUED: ROOTS * (GENERATIONS - 1),
        }
    assert set(shop.runs.values()) == {1}
    assert len(shop.runs) == ROOTS * each
