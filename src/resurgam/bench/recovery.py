"""W6 and W11: kill a process in the middle of its runs, and measure how fast another one resumes them."""

import asyncio
import os
import subprocess
import sys
import time

from msgspec.structs import replace

from resurgam.bench.figures import Figures, Raw, level_of, percentile, rounds, sampled
from resurgam.bench.processes import compile_package
from resurgam.bench.programs import registry, until_killed
from resurgam.bench.scene import Scene
from resurgam.core.errors import StoreError
from resurgam.engine import Engine

_BARE = """
import sqlite3, sys
sqlite3.connect(sys.argv[1]).execute("SELECT body FROM events ORDER BY execution_id, seq").fetchall()
print("reached", flush=True)
"""
"""A process that only reads the rows."""


async def recovery(scene: Scene) -> list[Figures]:
    """W6: from the start of a process to its first new step, after histories of 1,000 and 10,000 activities."""
    if not scene.storage.shared:
        return []  # a store in memory does not outlive its process
    compile_package()
    lengths = [scene.size(length) for length in (1_000, 10_000)]
    return [await _recovered(scene, "W6", f"killed after {length:,} activities", length) for length in lengths]


async def recovery_of_many(scene: Scene) -> list[Figures]:
    """W11: from the start of a process until each of 1,000 runs, with 100 events each, has made its first new step."""
    if not scene.storage.shared:
        return []  # as above
    compile_package()
    runs, length = scene.size(1_000), 50
    return [await _recovered(scene, "W11", f"killed in {runs:,} runs of {2 * length} events", length, runs)]


async def _recovered(scene: Scene, workload: str, title: str, length: int, runs: int = 1) -> Figures:
    name = f"{workload.lower()}-{length}"
    victim = [sys.executable, "-m", "resurgam.bench.recovery", scene.storage.url(name), str(length)]
    written = _reached([*victim, str(runs)])
    times = [_reached(victim) for _ in rounds(scene.size(5))]
    file = scene.storage.file(name)
    reads = 0 if file is None else scene.size(5)
    bare = [_reached([sys.executable, "-c", _BARE, str(file)]) for _ in range(reads)]
    async with Engine(scene.storage.url(name), worker=False) as engine:
        level = level_of(engine.store)
    return replace(
        sampled(workload, title, "recovery", times),
        raw=Raw(of="a Python that reads the rows", p50=percentile(bare, 0.5)) if bare else None,
        level=level,
        more={"length": float(length), "runs": float(runs), "seconds_to_write": written},
    )


def _reached(command: list[str]) -> float:
    """Start a process, kill it when it prints that it is ready, and return the seconds until then."""
    begin = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ) as process:  # noqa: S603 -- our own
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds = time.perf_counter() - begin
        process.kill()
    if line != b"reached\n":
        raise StoreError(f"{' '.join(command[:4])} ended before its first new step")
    return seconds


async def _serve(url: str, length: int, runs: int) -> None:
    """Start *runs*, and serve them and those that are there already."""
    async with Engine(url, registry=registry) as engine:
        starts = [engine.start(until_killed, length, run, runs, id=f"run-{run}") for run in range(runs)]
        await asyncio.gather(*starts)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0))
