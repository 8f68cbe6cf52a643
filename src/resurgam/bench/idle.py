"""W9: the cost of idle engines."""

import asyncio
import resource
import sys
import time
from typing import Final

from msgspec.structs import replace

from resurgam.bench.crowd import crowd
from resurgam.bench.figures import Figures, level_of, sampled
from resurgam.bench.processes import READY, go, ready
from resurgam.bench.programs import registry
from resurgam.bench.scene import Scene
from resurgam.engine import Engine

_SETTLING: Final = 3.0
"""Seconds between the last process opening the file and the measurement, in which polling becomes rare."""

_MEASURED: Final = 10.0
"""Seconds for which processor time is counted."""


async def idle(scene: Scene) -> list[Figures]:
    """W9: the processor time of one idle engine, and of twenty idle processes on one file; on a server see `crowd`."""
    if scene.storage.server is not None:
        return await crowd(scene)
    if not scene.storage.shared:
        return []  # processes cannot share a store in memory
    return [await _idle(scene, processes) for processes in (1, max(2, scene.size(20)))]


async def _idle(scene: Scene, processes: int) -> Figures:
    url = scene.storage.url(f"w9-{processes}")
    async with Engine(url, worker=False) as engine:
        level = level_of(engine.store)
    seconds = [str(max(0.2, length * scene.scale)) for length in (_SETTLING, _MEASURED)]
    with ready([sys.executable, "-m", "resurgam.bench.idle", url, *seconds], processes) as running:
        shares = [float(share) for share in go(running)]
    title = "1 idle engine" if processes == 1 else f"{processes} idle processes on one file"
    return replace(
        sampled("W9", title, "second of a process", shares),
        level=level,
        more={"processes": float(processes), "percent_of_a_core": 100 * sum(shares)},
    )


async def _serve(url: str, settling: float, measured: float) -> None:
    """Run an idle engine, and print its share of processor time."""
    async with Engine(url, registry=registry):
        sys.stdout.buffer.write(READY)
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.readline)
        await asyncio.sleep(settling)
        before, begin = _processor_time(), time.perf_counter()
        await asyncio.sleep(measured)
        share = (_processor_time() - before) / (time.perf_counter() - begin)
    sys.stdout.write(f"{share}\n")


def _processor_time() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], float(sys.argv[2]), float(sys.argv[3])))
