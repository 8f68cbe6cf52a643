"""What grows with what: ``growth.py [--only history,instances,workers,payload,memory] [--scale 1]``.

Time per step against the length of the history, the number of open instances, the number of worker processes and the
size of payloads; and memory per instance. Each curve is measured in a process of its own; see docs/performance.md.
"""

import argparse
import asyncio
import json
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from itertools import pairwise
from pathlib import Path
from typing import Any

from resurgam import Engine
from resurgam.bench import programs
from resurgam.bench.figures import peak, percentile, rss
from resurgam.bench.place import Place, file_system
from resurgam.bench.scene import Scene, at_rest, timed

RESULTS = Path(__file__).parent / "results"
PATIENCE = 600.0
"""Seconds after which a curve is cut off where it is, and says so."""

Curve = dict[str, Any]


def sizes(scene: Scene, *full: int) -> list[int]:
    """Return the points of a curve at the scale of the scene."""
    return sorted({scene.size(size) for size in full})


async def history(scene: Scene) -> Curve:
    """Time per step against the length of the history, in one chain that is never evicted."""
    marks = sizes(scene, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000)
    programs.stamps.clear()
    async with scene.engine("history") as engine:
        handle = await engine.start(programs.stamped_chain, marks[-1] // 2)
        try:
            await handle.result(PATIENCE)
        except TimeoutError:
            await handle.terminate("the measurement takes too long")
    steps = [after - before for before, after in pairwise(programs.stamps)]
    points = []
    for events in marks:
        # Two events a step; the last tenth of what leads to this length.
        upto = events // 2 - 1
        window = steps[upto - max(1, upto // 10) : upto]
        if len(steps) >= upto and window:
            points.append({"x": events, "p50": percentile(window, 0.5), "p95": percentile(window, 0.95)})
    return {"x": "events in the history", "y": "seconds per step", "points": points, "cut": len(points) < len(marks)}


async def instances(scene: Scene) -> Curve:
    """Time per step, and of a whole small workflow, with so many others open.

    The others are made by SQL: one workflow is started and put to sleep by the engine, then its rows are copied with
    new ids. To the store they are a million sleepers like any other.
    """
    points = []
    name = "instances"
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
        points.append(
            {
                "x": open_instances,
                "p50": percentile(steps, 0.5),
                "p95": percentile(steps, 0.95),
                "whole": percentile(wholes, 0.5),
                "seconds_to_fill": filled,
            }
        )
    return {"x": "open instances", "y": "seconds per step", "points": points}


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
    """Return what a copy has in a column: ids and its place are its own, the rest is the pattern's."""
    if column in {"execution_id", "entity_id", "run_id", "tree_id"}:
        return f"'{column}-' || n.number"
    return "n.number + 1" if column == "place" else f"pattern.{column}"


def multiply(scene: Scene, name: str, there: int, wanted: int) -> None:
    """Copy the rows of the sleeper until there are so many."""
    file = scene.place.file(name)
    assert file is not None
    connection = sqlite3.connect(file)
    columns = [row[1] for row in connection.execute("PRAGMA table_info(instances)")]
    if wanted > there:
        span = {"first": there, "end": wanted}
        connection.execute(
            COPY_INSTANCES.format(columns=", ".join(columns), values=", ".join(map(copied, columns))), span
        )
        connection.execute(COPY_EVENTS, span)
    connection.commit()
    connection.close()


async def workers(scene: Scene) -> Curve:
    """Steps per second of 1,000 chains of 10, started beforehand, by so many worker processes."""
    points = []
    number, length = scene.size(1000), 10
    for processes in (1, 2, 4):
        url = scene.place.url(f"workers-{processes}")
        async with Engine(url, registry=programs.registry, worker=False) as engine:
            await asyncio.gather(*[engine.start(programs.chain, length) for _ in range(number)])
            children = [subprocess.Popen([sys.executable, __file__, "--serve", url]) for _ in range(processes)]
            try:
                begin = time.perf_counter()
                finished, seconds = 0, 0.0
                while finished < number and seconds < PATIENCE:
                    await asyncio.sleep(0.02)
                    finished = (await engine.store.stats()).instances.get("completed", 0)
                    seconds = time.perf_counter() - begin
            finally:
                for child in children:
                    child.terminate()
                for child in children:
                    child.wait()
        points.append({"x": processes, "rate": finished * length / seconds, "done": finished, "of": number})
    return {"x": "worker processes", "y": "steps per second, their start included", "points": points}


async def payload(scene: Scene) -> Curve:
    """Time per step against the size of what an activity takes and gives back."""
    points = []
    for size in (100, 1_000, 10_000, 100_000, 1_048_576):
        steps = scene.size(100 if size < 1_000_000 else 20)
        async with scene.engine(f"payload-{size}") as engine:
            await engine.execute(programs.carrying, 2, "x" * size)
            times = [await timed(engine.execute(programs.carrying, steps, "x" * size)) / steps for _ in range(5)]
        points.append({"x": size, "p50": statistics.median(times), "p95": max(times)})
    return {"x": "bytes of the payload", "y": "seconds per step", "points": points}


async def memory(scene: Scene) -> Curve:
    """Bytes per sleeper that is in the cache, and per one that is not."""
    points = []
    # Cold first: what the hot ones leave behind would be used again by them.
    for kind, cache in (("cold", 0), ("hot", 1_000_000)):
        async with Engine(scene.place.url(f"memory-{kind}"), registry=programs.registry, cache_size=cache) as engine:
            held = [await sleeping(engine, scene.size(2_000)), await sleeping(engine, scene.size(5_000))]
        points.append({"x": kind, "bytes": (held[1] - held[0]) / scene.size(5_000)})
    return {"x": "instance", "y": "bytes", "points": points, "rss": rss(), "peak": peak()}


async def sleeping(engine: Engine, number: int) -> int:
    """Start sleepers, and return what the process holds when all are asleep."""
    for begun in range(0, number, 500):
        await asyncio.gather(*[engine.start(programs.sleeper) for _ in range(min(500, number - begun))])
    await at_rest(engine)
    return rss()


def budget(scale: float, folder: Path) -> Curve:
    """Memory of a worker with the default cache through W2, and through W7 ten times over."""
    points = []
    for name, times in (("W2", 1), ("W7", 10)):
        command = [sys.executable, "-m", "resurgam.bench", name, repr(times * scale), f"sqlite:///{folder}/x.db"]
        done = subprocess.run(command, capture_output=True, check=True)
        [figures] = json.loads(done.stdout)
        points.append({"x": f"{name} x {times}", "rss": figures["rss"], "peak": figures["peak"]})
    return {"x": "workload", "y": "bytes, budget 300 MB", "points": points}


CURVES: dict[str, Callable[[Scene], Coroutine[Any, Any, Curve]]] = {
    "history": history,
    "instances": instances,
    "workers": workers,
    "payload": payload,
    "memory": memory,
}


async def serve(url: str) -> None:
    """Be a worker process."""
    async with Engine(url, registry=programs.registry) as engine:
        await engine.run()


def main() -> None:
    """Measure the curves and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join([*CURVES, "budget"]))
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--folder", help="where the files are made; this folder without it")
    parser.add_argument("--serve", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--here", metavar="CURVE", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    folder = Path(asked.folder or ".").resolve()
    if asked.serve:
        asyncio.run(serve(asked.serve))
    elif asked.here:
        print(json.dumps(asyncio.run(CURVES[asked.here](Scene(Place(folder), asked.scale)))))
    else:
        write({name: curve(name, asked.scale, folder) for name in asked.only.split(",")}, asked.scale, folder)


def curve(name: str, scale: float, folder: Path) -> Curve:
    """Measure one curve in a process of its own."""
    print(f"growth: {name}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="growth-", dir=folder) as place:
        if name == "budget":
            return budget(scale, Path(place))
        command = [sys.executable, __file__, "--here", name, "--scale", repr(scale), "--folder", place]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found: Curve = json.loads(done.stdout)
    return found


def write(curves: dict[str, Curve], scale: float, folder: Path) -> None:
    """Add curves to those that were measured before."""
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / "growth.json"
    known = json.loads(file.read_text())["curves"] if file.exists() else {}
    for found in curves.values():
        found |= {"scale": scale, "file_system": file_system(folder)}
    report = {"curves": known | curves}
    file.write_text(json.dumps(report, indent=1) + "\n")
    for name, found in curves.items():
        print(f"{name}: {found['y']} by {found['x']}")
        for point in found["points"]:
            shown = {key: f"{value:.6g}" if isinstance(value, float) else value for key, value in point.items()}
            print("   ", "  ".join(f"{key}={value}" for key, value in shown.items()))


if __name__ == "__main__":
    main()
