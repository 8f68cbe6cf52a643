"""W10: the load of W2 in two processes on one store, beside one process."""

import asyncio
import os
import sys
import time
from typing import Final

from msgspec.structs import replace

from resurgam.bench.figures import Figures, level_of, percentile, rounds, sampled
from resurgam.bench.processes import READY, compile_package, go, ready
from resurgam.bench.programs import chain, registry
from resurgam.bench.scene import Scene
from resurgam.bench.storage import Storage
from resurgam.engine import Engine

_LENGTH: Final = 10
"""The activities of a workflow, as in W2."""

_ROUNDS: Final = 5


async def several(scene: Scene) -> list[Figures]:
    """W10: 1,000 workflows of 10 activities by one process, then by two that execute half of them each; in turns."""
    if not scene.storage.shared:
        return []  # processes cannot share a store in memory
    compile_package()
    number = scene.size(1000)
    times: dict[int, list[float]] = {1: [], 2: []}
    level = None
    for repeat in rounds(scene.size(_ROUNDS), patience=120):
        for processes, taken in times.items():
            url = scene.storage.url(f"w10-{processes}-{repeat}")
            async with Engine(url, worker=False) as engine:
                level = level_of(engine.store)
            taken.append(_measured(url, processes, number // processes))
    ratio = percentile([one / two for one, two in zip(times[1], times[2], strict=True)], 0.5)
    return [
        replace(
            sampled("W10", _title(number, processes, scene.storage), "whole", taken),
            rate=(number // processes * processes) * _LENGTH / percentile(taken, 0.5),
            level=level,
            more={"processes": float(processes), "cores": float(os.cpu_count() or 1)}
            | ({"to_one_process": ratio} if processes == 2 else {}),
        )
        for processes, taken in times.items()
    ]


def _title(number: int, processes: int, storage: Storage) -> str:
    shared = "one file" if storage.server is None else "one server"
    by = "1 process" if processes == 1 else f"{processes} processes on {shared}"
    return f"{number:,} workflows x {_LENGTH} activities by {by}"


def _measured(url: str, processes: int, each: int) -> float:
    """Return the seconds from when all processes are ready until all their workflows are done."""
    with ready([sys.executable, "-m", "resurgam.bench.several", url, str(each)], processes) as running:
        begin = time.perf_counter()
        go(running)
        return time.perf_counter() - begin


async def _serve(url: str, number: int) -> None:
    """Execute workflows when told to, after a tenth of them as a warm-up."""
    async with Engine(url, registry=registry) as engine:
        await asyncio.gather(*[engine.execute(chain, _LENGTH) for _ in range(max(1, number // 10))])
        sys.stdout.buffer.write(READY)
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.readline)
        await asyncio.gather(*[engine.execute(chain, _LENGTH) for _ in range(number)])
        sys.stdout.write("done\n")
        sys.stdout.flush()
        await asyncio.Event().wait()  # serves the other process until it is killed


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2])))
