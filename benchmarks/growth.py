"""What grows with what: ``growth.py [--only history,instances,workers,payload,memory,budget] [--scale 1]``.

Time per step against the length of the history, the number of open instances, the number of worker processes and the
size of payloads; memory per instance and of a worker. Each is measured in a process of its own, written when it is done
and added to what is there; one that fails says so and does not keep the others from being measured.
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
from results import RESULTS, keep, known, tell
from resurgam import Engine
from resurgam.bench import programs
from resurgam.bench.place import Place
from resurgam.bench.scene import Scene
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
"""What makes up the curve *budget*: each has a process of its own, as the most that one ever held is told of it."""

LIMIT = 3600.0
"""Seconds after which a curve is given up."""


async def serve(url: str) -> None:
    """Be a worker process."""
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
    asked = parser.parse_args()
    folder = asked.folder.resolve()
    if asked.serve:
        asyncio.run(serve(asked.serve))
    elif asked.here:
        here(asked.here, Scene(Place(folder), asked.scale))
    elif unknown := set(asked.only.split(",")) - set(names):
        parser.error(f"there is no curve {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    else:
        measure(asked.only.split(","), asked.scale, folder, asked.results)


def here(name: str, scene: Scene) -> None:
    """Measure in this process and print the curve, or in a word why there is none."""
    try:
        found = asyncio.run(MEASURES[name](scene))
    except Exception as error:  # noqa: BLE001 -- whatever it is, it belongs into the results
        traceback.print_exc()
        found = {"failed": f"{type(error).__name__}: {error}"}
    print(json.dumps(found))


def measure(names: list[str], scale: float, folder: Path, results: Path) -> None:
    """Measure some curves and add each to those that were measured before."""
    file = results / "growth.json"
    where = machine(folder)
    tell(f"{', '.join(f'{key} {text}' for key, text in where.items())}{load()}")
    for name in names:
        tell(f"growth: {name}")
        found = curve(name, scale, folder) | {"scale": scale}
        keep(file, {"machine": where, "curves": known(file).get("curves", {}) | {name: found}})
    print(growth(known(file), CURVES | MEMORY))


def curve(name: str, scale: float, folder: Path) -> Curve:
    """Measure one curve, or return why it could not be."""
    try:
        if name != "budget":
            return measured(name, scale, folder)
        points = [measured(part, scale, folder) for part in BUDGET]
        return {"x": "workload", "y": "bytes", "points": points, "level": points[0]["level"]}
    except Failed as error:
        why = str(error) if isinstance(error, TooLong) else f"failed: {error}"
        tell(f"  {why}")
        return {"failed": f"{name} {why}", "points": []}


def measured(name: str, scale: float, folder: Path) -> Curve:
    """Run one measure in a process of its own, on files of its own."""
    with tempfile.TemporaryDirectory(prefix="growth-", dir=folder, ignore_cleanup_errors=True) as place:
        command = [sys.executable, __file__, "--here", name, "--scale", repr(scale), "--folder", place]
        found: Curve = json.loads(output(command, LIMIT, quiet=False))
    if "failed" in found:
        raise Failed(found["failed"])
    return found


if __name__ == "__main__":
    main()
