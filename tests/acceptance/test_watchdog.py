"""A coroutine that never yields: it is reported and interrupted, and its neighbours keep what they hold."""

import asyncio
import threading
import time

import pytest

from resurgam import Context, Engine, Registry
from support.cluster import options_of
from support.limits import HANGS

LEASE = 4.0
"""Seconds; long enough for a busy machine to renew it in time."""

STILL = 1.5 * LEASE
"""Seconds for which the loop of the first worker stands still."""


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def url(request, tmp_path) -> str:
    return options_of(request.param).get("url", f"sqlite:///{tmp_path}/stuck.db")


async def test_a_coroutine_that_never_yields_costs_its_neighbours_nothing(url, caplog) -> None:
    runs = []
    stuck = threading.Event()

    registry = Registry()

    @registry.activity
    async def slow() -> str:
        runs.append("slow")
        await asyncio.to_thread(stuck.wait)  # begun before the other gets stuck, and ends after
        await asyncio.sleep(0)
        return "done"

    @registry.workflow
    async def neighbour(ctx: Context) -> str:
        return await ctx.activity(slow)

    @registry.workflow
    async def greedy(ctx: Context) -> str:
        if not stuck.is_set():
            stuck.set()
            while True:
                pass
        return "yielded"

    def second_worker(ready: threading.Event, over: threading.Event) -> None:
        async def serve() -> None:
            async with Engine(url, registry=registry, lease=LEASE, name="second"):
                ready.set()
                await asyncio.to_thread(over.wait)

        asyncio.run(serve())

    ready, over = threading.Event(), threading.Event()
    thread = threading.Thread(target=second_worker, args=(ready, over), daemon=True)
    async with Engine(url, registry=registry, lease=LEASE, tick_limit=STILL, name="first") as engine:
        first = await engine.start("neighbour", id="n-1")
        while not runs:
            await asyncio.sleep(0.01)
        # From now on a second worker is ready to take whatever the first does not keep.
        thread.start()
        await asyncio.to_thread(ready.wait)
        began = time.monotonic()
        second = await engine.start("greedy", id="g-1")
        assert await second.result(timeout=HANGS) == "yielded"  # the second time it is handed out
        assert time.monotonic() - began > LEASE
        assert await first.result(timeout=HANGS) == "done"
    over.set()
    thread.join()
    assert runs == ["slow"]
    assert "workflow 'greedy' (g-1) has not yielded" in caplog.text
    assert "in greedy" in caplog.text
    assert f"ran {STILL:g} s without yielding and was interrupted" in caplog.text
    assert "is lost" not in caplog.text


async def test_what_was_claimed_beside_a_tick_that_does_not_yield_is_kept_before_it_has_begun(url, caplog) -> None:
    """Claimed together, and the greedy one comes first: the others' leases must not run out meanwhile."""
    registry = Registry()
    runs = []
    first_time = [True]

    @registry.activity
    async def step(number: int) -> int:
        runs.append(number)
        return number

    @registry.workflow
    async def chain(ctx: Context, number: int) -> int:
        return await ctx.activity(step, number)

    @registry.workflow
    async def greedy(ctx: Context) -> str:
        while first_time.pop() if first_time else False:
            stop = time.monotonic() + STILL
            while time.monotonic() < stop:
                pass
        return "yielded"

    async with Engine(url, registry=registry, worker=False) as client:
        handles = [await client.start(greedy), *[await client.start(chain, number) for number in range(5)]]
    async with Engine(url, registry=registry, lease=LEASE) as engine:
        results = [await engine.handle(handle.entity_id).result(timeout=HANGS) for handle in handles]
    assert results == ["yielded", 0, 1, 2, 3, 4]
    assert sorted(runs) == [0, 1, 2, 3, 4]
    assert "is lost" not in caplog.text
    assert "refused" not in caplog.text
