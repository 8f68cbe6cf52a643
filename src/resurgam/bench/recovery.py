"""W6: kill a process in the middle of a long history, and measure how fast another one resumes it."""

import asyncio
import compileall
import os
import subprocess
import sys
import time
from pathlib import Path

from msgspec.structs import replace

from resurgam.bench.figures import Figures, Raw, level_of, percentile, rounds, sampled
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
    if scene.storage.folder is None:
        return []  # a store in memory does not outlive its process
    # Compiled once, as in an installation; with PYTHONDONTWRITEBYTECODE every process would compile again.
    compileall.compile_dir(Path(__file__).parents[1], quiet=2)
    return [await _recovered(scene, scene.size(length)) for length in (1_000, 10_000)]


async def _recovered(scene: Scene, length: int) -> Figures:
    name = f"w6-{length}"
    victim = [sys.executable, "-m", "resurgam.bench.recovery", scene.storage.url(name), str(length)]
    written = _reached(victim)
    times = [_reached(victim) for _ in rounds(scene.size(5))]
    bare = [_reached([sys.executable, "-c", _BARE, str(scene.storage.file(name))]) for _ in range(scene.size(5))]
    async with Engine(scene.storage.url(name), worker=False) as engine:
        level = level_of(engine.store)
    return replace(
        sampled("W6", f"killed after {length:,} activities", "recovery", times),
        raw=Raw(of="a Python that reads the rows", p50=percentile(bare, 0.5)),
        level=level,
        more={"length": float(length), "seconds_to_write": written},
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


async def _serve(url: str, length: int) -> None:
    async with Engine(url, registry=registry) as engine:
        await engine.start(until_killed, length, id="w6", if_exists="attach")
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2])))
