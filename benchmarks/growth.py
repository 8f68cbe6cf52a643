"""Measure growth: ``growth.py [--only history,instances,workers,payload,memory,budget] [--scale 1]``.

Time per step against the length of the history, the number of open instances, the number of worker processes and the
size of payloads; memory per instance and of a worker. Each is measured in its own process and added to the existing
results when it is done; one that fails is recorded as failed, and the others are still measured.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import traceback
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from curves import Curve, history, instances, payload, workers
from machine import Failed, TooLong, load, machine, output
from memory import memory, through_chains, through_sleepers
from results import RESULTS, keep, known, print_progress
from resurgam import Engine
from resurgam.bench import programs
from resurgam.bench.scene import Scene
from resurgam.bench.storage import Files
from tables import CURVES, MEMORY, growth

MEASURES: dict[str, Callable[[Scene], Coroutine[Any, Any, Curve]]] = {
    "history": history,
    "instances": instances,
    "workers": workers,
    "payload": payload,
    "memory": memory,
    "through_chains": through_chains,
    "through_sleepers": through_sleepers,
}
BUDGET = ("through_chains", "through_sleepers")
"""The parts of the curve *budget*: each has its own process, because the peak memory of the process is measured."""

LIMIT = 3600.0
"""The most seconds that a curve may take."""


async def serve(url: str) -> None:
    """Run a worker process."""
    async with Engine(url, registry=programs.registry) as engine:
        await engine.run()


def main() -> None:
    """Measure the curves and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = [*(name for name in MEASURES if name not in BUDGET), "budget"]
    parser.add_argument("--only", default=",".join(names))
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--folder", type=Path, default=Path(), help="where the files are made; this folder without it")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the results are written")
    parser.add_argument("--serve", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--here", metavar="CURVE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder = options.folder.resolve()
    if options.serve:
        asyncio.run(serve(options.serve))
    elif options.here:
        here(options.here, Scene(Files(folder), options.scale))
    elif unknown := set(options.only.split(",")) - set(names):
        parser.error(f"there is no curve {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    else:
        measure(options.only.split(","), options.scale, folder, options.results)


def here(name: str, scene: Scene) -> None:
    """Measure in this process and print the curve, or the error."""
    try:
        found = asyncio.run(MEASURES[name](scene))
    except Exception as error:  # noqa: BLE001 -- every error is recorded in the results
        traceback.print_exc()
        found = {"failed": f"{type(error).__name__}: {error}"}
    print(json.dumps(found))


def measure(names: list[str], scale: float, folder: Path, results: Path) -> None:
    """Measure some curves and add each to the existing ones."""
    file = results / "growth.json"
    where = machine(folder)
    print_progress(f"{', '.join(f'{key} {text}' for key, text in where.items())}{load()}")
    for name in names:
        print_progress(f"growth: {name}")
        found = curve(name, scale, folder) | {"scale": scale}
        keep(file, {"machine": where, "curves": known(file).get("curves", {}) | {name: found}})
    print(growth(known(file), CURVES | MEMORY))


def curve(name: str, scale: float, folder: Path) -> Curve:
    """Measure one curve, or return the reason why it failed."""
    try:
        if name != "budget":
            return measured(name, scale, folder)
        points = [measured(part, scale, folder) for part in BUDGET]
        return {"x": "workload", "y": "bytes", "points": points, "level": points[0]["level"]}
    except Failed as error:
        why = str(error) if isinstance(error, TooLong) else f"failed: {error}"
        print_progress(f"  {why}")
        return {"failed": f"{name} {why}", "points": []}


def measured(name: str, scale: float, folder: Path) -> Curve:
    """Run one measure in its own process, on its own files."""
    with tempfile.TemporaryDirectory(prefix="growth-", dir=folder, ignore_cleanup_errors=True) as temporary:
        command = [sys.executable, __file__, "--here", name, "--scale", repr(scale), "--folder", temporary]
        found: Curve = json.loads(output(command, LIMIT, quiet=False))
    if "failed" in found:
        raise Failed(found["failed"])
    return found


if __name__ == "__main__":
    main()
