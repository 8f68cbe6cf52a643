"""The curves: time per step against the history, the open instances, the worker processes and the payload."""

import asyncio
import sqlite3
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from typing import Any

from results import HERE, print_progress
from resurgam import Engine
from resurgam.bench import programs
from resurgam.bench.figures import level_of, percentile
from resurgam.bench.scene import Scene, at_rest, timed

PATIENCE = 600.0
"""Seconds after which a curve is cut off and marked so."""

Curve = dict[str, Any]


def sizes(scene: Scene, *full: int) -> list[int]:
    """Return the points of a curve at the scale of the scene."""
    return sorted({scene.size(size) for size in full})


async def history(scene: Scene) -> Curve:
    """Measure the time per step against the length of the history, in one chain that is never evicted."""
    marks = sizes(scene, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000)
    programs.stamps.clear()
    async with scene.engine("history") as engine:
        handle = await engine.start(programs.stamped_chain, marks[-1] // 2)
        watching = asyncio.create_task(print_steps(marks[-1] // 2))
        try:
            await handle.result(PATIENCE)
        except TimeoutError:
            await handle.terminate("the measurement takes too long")
        watching.cancel()
        level = level_of(engine.store)
    steps = [after - before for before, after in pairwise(programs.stamps)]
    points = []
    for events in marks:
        # Two events a step; the last tenth of what leads to this length.
        upto = events // 2 - 1
        window = steps[upto - max(1, upto // 10) : upto]
        if len(steps) >= upto and window:
            points.append({"x": events, "p50": percentile(window, 0.5), "p95": percentile(window, 0.95)})
    cut = len(points) < len(marks)
    return {"x": "events in the history", "y": "seconds per step", "points": points, "cut": cut, "level": level}


async def print_steps(of: int) -> None:
    """Print the progress of the chain from time to time."""
    while True:
        await asyncio.sleep(10)
        print_progress(f"  {len(programs.stamps):,} of {of:,} steps")


async def instances(scene: Scene) -> Curve:
    """Measure the time per step, and of a small workflow, against the number of other open instances.

    The others are created by SQL: the engine starts one workflow that sleeps, then its rows are copied with new ids.
    """
    points: list[dict[str, float]] = []
    name, level = "instances", None
    async with scene.engine(name) as engine:
        await engine.start(programs.sleeper, id="pattern")
        await at_rest(engine)
    there = 1
    for open_instances in sizes(scene, 1, 1_000, 10_000, 100_000, 1_000_000):
        begin = time.perf_counter()
        multiply(scene, name, there, open_instances)
        there = max(there, open_instances)
        filled = time.perf_counter() - begin
        async with scene.engine(name) as engine:
            await engine.execute(programs.stamped_chain, 50)
            programs.stamps.clear()
            await engine.execute(programs.stamped_chain, scene.size(500))
            steps = [after - before for before, after in pairwise(programs.stamps)] or [0.0]
            wholes = [await timed(engine.execute(programs.chain, 1)) for _ in range(scene.size(50))]
            level = level_of(engine.store)
        points.append(
            {
                "x": open_instances,
                "p50": percentile(steps, 0.5),
                "p95": percentile(steps, 0.95),
                "whole": percentile(wholes, 0.5),
                "seconds_to_fill": filled,
            }
        )
        print_progress(f"  {open_instances:,} open: {points[-1]['p50'] * 1000:.2f} ms a step; filled in {filled:.0f} s")
    return {"x": "open instances", "y": "seconds per step", "points": points, "level": level}


NUMBERS = "WITH RECURSIVE n(number) AS (SELECT :first UNION ALL SELECT number + 1 FROM n WHERE number + 1 < :end)"
COPY_INSTANCES = f"""
INSERT INTO instances ({{columns}}) {NUMBERS}
SELECT {{values}} FROM instances AS pattern, n WHERE pattern.entity_id = 'pattern'
"""
COPY_EVENTS = f"""
INSERT INTO events (execution_id, seq, body) {NUMBERS}
SELECT 'execution_id-' || n.number, e.seq, e.body
FROM n, events AS e WHERE e.execution_id = (SELECT execution_id FROM instances WHERE entity_id = 'pattern')
"""


def copied(column: str) -> str:
    """Return the value of a column in a copy: its own ids and position, the rest from the pattern."""
    if column in {"execution_id", "entity_id", "run_id", "tree_id", "first_run"}:
        return f"'{column}-' || n.number"
    return ":position + n.number" if column == "position" else f"pattern.{column}"


def multiply(scene: Scene, name: str, there: int, wanted: int) -> None:
    """Copy the rows of the sleeper until there are *wanted* instances."""
    file = scene.storage.file(name)
    assert file is not None
    connection = sqlite3.connect(file)
    columns = [row[1] for row in connection.execute("PRAGMA table_info(instances)")]
    if wanted > there:
        # Behind all existing rows: the chains that were measured meanwhile have positions, too.
        [last] = connection.execute("SELECT max(position) FROM instances").fetchone()
        span = {"first": there, "end": wanted, "position": last}
        values = ", ".join(map(copied, columns))
        connection.execute(COPY_INSTANCES.format(columns=", ".join(columns), values=values), span)
        connection.execute(COPY_EVENTS, {"first": there, "end": wanted})
    connection.commit()
    connection.close()


async def workers(scene: Scene) -> Curve:
    """Measure the steps per second of 1,000 chains of 10, started beforehand, against the number of worker processes."""
    points = []
    number, length, level = scene.size(1000), 10, None
    for processes in (1, 2, 4):
        url = scene.storage.url(f"workers-{processes}")
        async with Engine(url, registry=programs.registry, worker=False) as engine:
            await asyncio.gather(*[engine.start(programs.chain, length) for _ in range(number)])
            level = level_of(engine.store)
            command = [sys.executable, str(HERE / "growth.py"), "--serve", url]
            children = [subprocess.Popen(command) for _ in range(processes)]
            try:
                begin = time.perf_counter()
                finished, seconds = 0, 0.0
                while finished < number and seconds < PATIENCE:
                    await asyncio.sleep(0.02)
                    finished = (await engine.store.inspector.stats()).instances.get("completed", 0)
                    seconds = time.perf_counter() - begin
            finally:
                for child in children:
                    child.terminate()
                for child in children:
                    child.wait()
        points.append({"x": processes, "rate": finished * length / seconds, "done": finished, "of": number})
        print_progress(f"  {processes} processes: {points[-1]['rate']:,.0f} steps/s")
    cut = any(point["done"] < number for point in points)
    return {"x": "worker processes", "y": "steps per second", "points": points, "cut": cut, "level": level}


async def payload(scene: Scene) -> Curve:
    """Measure the time per step against the size of the payload of an activity."""
    points: list[dict[str, float]] = []
    level = None
    for size in (100, 1_000, 10_000, 100_000, 1_048_576):
        steps = scene.size(100 if size < 1_000_000 else 20)
        async with scene.engine(f"payload-{size}") as engine:
            await engine.execute(programs.payloads, 2, "x" * size)
            times = [await timed(engine.execute(programs.payloads, steps, "x" * size)) / steps for _ in range(5)]
            level = level_of(engine.store)
        points.append({"x": size, "p50": statistics.median(times), "p95": max(times)})
        print_progress(f"  {size:,} bytes: {points[-1]['p50'] * 1000:.2f} ms a step")
    return {"x": "bytes of the payload", "y": "seconds per step", "points": points, "level": level}
