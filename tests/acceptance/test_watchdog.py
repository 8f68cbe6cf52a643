"""A coroutine that never yields: it is reported and interrupted, and its neighbours keep what they hold."""

import asyncio
import threading
import time

from resurgam import Context, Engine, Registry

LEASE = 1.0
"""Seconds; the loop of the first worker stands still for three times as long."""


async def test_a_coroutine_that_never_yields_costs_its_neighbours_nothing(tmp_path, caplog) -> None:
    url = f"sqlite:///{tmp_path}/stuck.db"
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
    async with Engine(url, registry=registry, lease=LEASE, tick_limit=3 * LEASE, name="first") as engine:
        first = await engine.start("neighbour", id="n-1")
        while not runs:
            await asyncio.sleep(0.01)
        # From now on somebody stands ready to take whatever the first worker does not keep.
        thread.start()
        await asyncio.to_thread(ready.wait)
        began = time.monotonic()
        second = await engine.start("greedy", id="g-1")
        assert await second.result(timeout=30) == "yielded"  # the second time it is handed out
        assert time.monotonic() - began > 2 * LEASE
        assert await first.result(timeout=30) == "done"
    over.set()
    thread.join()
    assert runs == ["slow"]
    assert "workflow 'greedy' (g-1) has not yielded" in caplog.text
    assert "in greedy" in caplog.text
    assert "ran 3 s without yielding and was interrupted" in caplog.text
    assert "is lost" not in caplog.text
