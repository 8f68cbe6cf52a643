"""W1 to W5 and W7, which run in the measuring process. The others are in modules of their own, see `catalog`."""

import asyncio
import gc
import itertools
import sys
import time
from collections.abc import Awaitable

from msgspec.structs import replace

from resurgam.bench import programs
from resurgam.bench.figures import PATIENCE, Figures, level_of, percentile, rounds, rss, sampled
from resurgam.bench.scene import Scene, at_rest, count_of, per_step, timed
from resurgam.engine import Engine

_AT_ONCE = 1000
"""How many sleepers are started at the same time."""


async def sequential(scene: Scene) -> list[Figures]:
    """W1: one workflow of 100 activities, one after another; several such chains in a row."""
    length = scene.size(100)
    steps: list[float] = []
    rates: list[float] = []
    async with scene.engine("w1") as engine:
        for _ in range(3):
            await engine.execute(programs.stamped_chain, length)
        for _ in rounds(20):
            programs.stamps.clear()
            rates.append(length / await timed(engine.execute(programs.stamped_chain, length)))
            steps += [after - before for before, after in itertools.pairwise(programs.stamps)]
        # The cost of a step is the difference of two lengths, without the cost of start and end.
        long, short = [await count_of(engine, engine.execute(programs.chain, n)) for n in (2 * length, length)]
        handle = await engine.start(programs.chain, length)
        await handle.result()
        history = await handle.history()
        level = level_of(engine.store)
    raw = scene.raw("one commit a step", history, times=10)
    calls = await scene.storage.calls(history, 10)
    return [
        replace(
            sampled("W1", f"1 workflow x {length} activities in a row", "step", steps or [1 / rates[0]]),
            rate=percentile(rates, 0.5),
            raw=raw and raw.per_commit(length),
            level=level,
            more={"rate_of_calls": length / percentile(calls, 0.5)} if calls else {},
            **per_step(long and short and long - short, length),
        )
    ]


async def concurrent(scene: Scene) -> list[Figures]:
    """W2: 1,000 workflows of 10 activities each, all at once."""
    number, length = scene.size(1000), 10
    latencies: list[float] = []
    rates: list[float] = []

    async def all_of(engine: Engine, many: int) -> list[float]:
        return await asyncio.gather(*[timed(engine.execute(programs.chain, length)) for _ in range(many)])

    async with scene.engine("w2") as engine:
        await all_of(engine, scene.size(100))
        for _ in rounds(3):
            begin = time.perf_counter()
            latencies += await all_of(engine, number)
            rates.append(number * length / (time.perf_counter() - begin))
        memory = rss()
        # Count at full size too, unless that would take as long as all the rounds may.
        many = number if number * length / rates[-1] < PATIENCE / 3 else scene.size(100)
        count = await count_of(engine, all_of(engine, many))
        handle = await engine.start(programs.chain, length)
        await handle.result()
        history = await handle.history()
        level = level_of(engine.store)
    raw = scene.raw(f"a commit for each step of all {number}", history, instances=number, times=3)
    return [
        replace(
            sampled("W2", f"{number:,} workflows x {length} activities at once", "workflow", latencies),
            rate=percentile(rates, 0.5),
            raw=raw and raw.whole(number * length),
            level=level,
            rss=memory,
            **per_step(count, many * length),
        )
    ]


async def single(scene: Scene) -> list[Figures]:
    """W3: start a workflow of one activity and wait for its result."""
    times: list[float] = []
    async with scene.engine("w3") as engine:
        for _ in range(scene.size(20)):
            await engine.execute(programs.chain, 1)
        for _ in rounds(scene.size(300)):
            times.append(await timed(engine.execute(programs.chain, 1)))  # noqa: PERF401 -- one after another
        count = await count_of(engine, engine.execute(programs.chain, 1))
        handle = await engine.start(programs.chain, 1)
        await handle.result()
        history = await handle.history()
        level = level_of(engine.store)
    raw = scene.raw("one commit", history, times=scene.size(100))
    return [
        replace(
            sampled("W3", "start, 1 activity, result", "workflow", times),
            rate=1 / percentile(times, 0.5),
            raw=raw and raw.per_commit(1),
            level=level,
            **per_step(count, 1),
        )
    ]


async def fan_out(scene: Scene) -> list[Figures]:
    """W4: one workflow that gathers 1,000 activities."""
    width = scene.size(1000)
    times: list[float] = []
    async with scene.engine("w4") as engine:
        await engine.execute(programs.fan, width)
        for _ in rounds(10):
            times.append(await timed(engine.execute(programs.fan, width)))  # noqa: PERF401 -- one after another
        memory = rss()
        count = await count_of(engine, engine.execute(programs.fan, width))
        handle = await engine.start(programs.fan, width)
        await handle.result()
        history = await handle.history()
        level = level_of(engine.store)
    raw = scene.raw("one commit for all commands, one for all answers", history, times=3)
    return [
        replace(
            sampled("W4", f"1 workflow, {width:,} activities gathered", "fan-out", times),
            rate=width / percentile(times, 0.5),
            raw=raw and raw.whole(width),
            level=level,
            rss=memory,
            **per_step(count, width),
        )
    ]


async def reaction(scene: Scene) -> list[Figures]:
    """W5: from a signal to the result of the workflow at the client."""
    times: list[float] = []

    async def once(engine: Engine, note: list[float]) -> None:
        handle = await engine.start(programs.answering)
        await at_rest(engine)
        begin = time.perf_counter()
        await handle.signal("go", 1)
        await handle.result()
        note.append(time.perf_counter() - begin)

    async with scene.engine("w5") as engine:
        for _ in range(scene.size(20)):
            await once(engine, [])
        for _ in rounds(scene.size(300)):
            await once(engine, times)
        handle = await engine.start(programs.answering)
        await at_rest(engine)
        count = await count_of(engine, _await_both(handle.signal("go", 1), handle.result()))
        history = await handle.history()
        level = level_of(engine.store)
    raw = scene.raw("one commit", history, times=scene.size(100))
    return [
        replace(
            sampled("W5", "signal, reaction, seen by the client", "signal", times),
            rate=1 / percentile(times, 0.5),
            raw=raw and raw.per_commit(1),
            level=level,
            **per_step(count, 1),
        )
    ]


async def _await_both(signal: Awaitable[object], result: Awaitable[object]) -> None:
    await signal
    await result


async def sleepers(scene: Scene) -> list[Figures]:
    """W7: 10,000 workflows that sleep. The cache is full after the first half; only the second half is measured."""
    half = scene.size(5000)
    memory, objects = [rss()], [sys.getallocatedblocks()]
    seconds = 0.0
    async with scene.engine("w7") as engine:
        await _start(engine, 1)  # what a server keeps for all of them is there from now on
        held = await scene.storage.memory()
        for _ in range(2):
            begin = time.perf_counter()
            await _start(engine, half)
            seconds += time.perf_counter() - begin
            gc.collect()
            memory.append(rss())
            objects.append(sys.getallocatedblocks())
        grown = None if held is None else (await scene.storage.memory() or 0) - held
        few = scene.size(1000)
        count = await count_of(engine, _start(engine, few))
        handle = await engine.start(programs.sleeper)
        await at_rest(engine)
        history = await handle.history()
        level = level_of(engine.store)
    raw = scene.raw(f"all {half:,} in one commit, and again asleep; twice", history, instances=half, times=2)
    return [
        replace(
            sampled("W7", f"{2 * half:,} sleepers", "start of all", [seconds]),
            rate=2 * half / seconds,
            raw=raw and replace(raw.whole(half), p50=2 * raw.whole().p50),
            level=level,
            rss=memory[-1],
            more={
                "bytes_per_cold_sleeper": (memory[2] - memory[1]) / half,
                "objects_per_cold_sleeper": (objects[2] - objects[1]) / half,
            }
            | ({} if grown is None else {"server_bytes_per_sleeper": grown / (2 * half)}),
            **per_step(count, few),
        )
    ]


async def _start(engine: Engine, number: int) -> None:
    """Start sleepers in batches, and wait until all are asleep."""
    for first in range(0, number, _AT_ONCE):
        batch = range(min(_AT_ONCE, number - first))
        await asyncio.gather(*[engine.start(programs.sleeper) for _ in batch])
    await at_rest(engine)
