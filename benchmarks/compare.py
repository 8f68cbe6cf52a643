"""Compare Resurgam and DBOS on SQLite: ``compare.py PEER_PYTHON [--repeats 3] [--scale 1] [--only W1,W4]``.

The sides alternate within each workload, every run in its own process and on its own file, so that a disturbance of the
machine affects both. Results are written after every run, and with ``--only`` added to the existing ones. A workload that
fails or exceeds the limit is recorded as such.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from machine import Failed, TooLong, load, machine, output
from results import HERE, RESULTS, SIDES, TITLES, UNITS, Results, keep, known, print_progress
from tables import comparison

AT_ONCE = {"W2": (1000, 500, 200, 100, 50, 20), "W7": (1000, 500, 200, 100, 50, 20)}
"""How many workflows are started together. If the peer fails, it is tried again with fewer."""

PEER_SHARE = {"W7": (0.1, 10_000, "sleepers")}
"""Workloads that would take the peer many minutes: it runs this share of the size, and is judged by its rate."""


@dataclass(frozen=True)
class Plan:
    """The options: *limit* is the number of seconds that one run of one workload may take."""

    peer: str
    repeats: int
    scale: float
    folder: Path
    limit: float
    results: Path


@dataclass
class Tally:
    """The results of one side in one workload: its figures by case, or the reason why there are none.

    *at_once* is how many workflows were started together, *refused* are the errors with more of them.
    """

    runs: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    failed: str | None = None
    at_once: int | None = None
    refused: dict[int, str] = field(default_factory=dict)
    taken: int = 0

    def note(self, measured: list[dict[str, Any]]) -> None:
        """Add the figures of a run under its case."""
        self.taken += 1
        for figures in measured:
            length = int(figures.get("more", {}).get("length", 0))
            case = f"{figures['workload']} {length}" if length else figures["workload"]
            self.runs.setdefault(case, []).append(figures)

    def summary(self, case: str, plan: Plan, side: str) -> Results:
        """Return the results of a case, as they are written."""
        name = case.partition(" ")[0]
        found = self.runs.get(case, [])
        share, full, things = PEER_SHARE.get(name, (1, 0, "")) if side != SIDES[0] else (1, 0, "")
        return {
            "values": [run["rate" if name in UNITS else "p50"] for run in found],
            "p95": [run["p95"] for run in found],
            "rss": [run["rss"] for run in found],
            "level": found[-1].get("level") if found else None,
            "failed": self.failed,
            "at_once": self.at_once if self.refused else None,
            "refused": {str(number): why for number, why in self.refused.items()},
            "reduced": f"{round(full * share * plan.scale):,} {things}" if share != 1 else None,
        }


def main() -> None:
    """Measure both sides and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", help="the Python that has the peer")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--only", default=",".join(TITLES))
    parser.add_argument("--limit", type=float, default=600.0, help="seconds that one run of one workload may take")
    parser.add_argument("--folder", type=Path, default=Path(), help="where the files are made; this folder without it")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the results are written")
    options = parser.parse_args()
    plan = Plan(options.peer, options.repeats, options.scale, options.folder.resolve(), options.limit, options.results)
    names = options.only.upper().split(",")
    if unknown := set(names) - set(TITLES):
        parser.error(f"there is no workload {', '.join(sorted(unknown))}; there are {', '.join(TITLES)}")
    where = machine(plan.folder) | {"dbos": peer_version(plan.peer)}
    print_progress(f"{', '.join(f'{key} {text}' for key, text in where.items())}{load()}")
    for name in names:
        for tallies in measured(name, plan):
            write(name, tallies, plan, where)
    print(comparison(known(plan.results / "compare.json")))


def peer_version(peer: str) -> str:
    """Return the version of the peer."""
    code = "import importlib.metadata as m; print(m.version('dbos'))"
    return subprocess.run([peer, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def measured(name: str, plan: Plan) -> Iterator[dict[str, Tally]]:
    """Alternate the sides in a workload; yield the results after each run. A side that fails is not run again."""
    tallies = {side: Tally() for side in SIDES}
    for repeat in range(plan.repeats):
        for side, tally in tallies.items():
            if tally.failed is None:
                print_progress(f"{name} {repeat + 1}/{plan.repeats} {side}")
                attempt(side, name, plan, tally, repeat + 1)
                yield tallies


def attempt(side: str, name: str, plan: Plan, tally: Tally, wanted: int) -> None:
    """Run one workload of one side until it has *wanted* runs, with fewer workflows at once each time the peer fails.

    Runs with more at once are then repeated: a median must be of equal runs.
    """
    steps = AT_ONCE.get(name, ()) if side != SIDES[0] else ()
    while tally.taken < wanted and tally.failed is None:
        tally.at_once = tally.at_once or (steps[0] if steps else None)
        try:
            tally.note(run(side, name, plan, tally.at_once))
        except Failed as error:
            print_progress(f"  {error}")
            fewer = [number for number in steps if tally.at_once is not None and number < tally.at_once]
            if fewer and tally.at_once is not None and not isinstance(error, TooLong):
                tally.refused[tally.at_once] = str(error)
                tally.at_once, tally.taken = fewer[0], 0
                tally.runs.clear()
                continue
            tally.failed = str(error) if isinstance(error, TooLong) else f"failed: {error}"


def run(side: str, name: str, plan: Plan, at_once: int | None) -> list[dict[str, Any]]:
    """Return the figures of one run."""
    with tempfile.TemporaryDirectory(prefix="compare-", dir=plan.folder, ignore_cleanup_errors=True) as folder:
        if side == SIDES[0]:
            command = [sys.executable, "-m", "resurgam.bench", name, repr(plan.scale), f"sqlite:///{folder}/x.db"]
        else:
            settings = "fast" if side == "dbos, tuned" else "default"
            scale = plan.scale * PEER_SHARE[name][0] if name in PEER_SHARE else plan.scale
            command = [plan.peer, str(HERE / "peer_dbos.py"), name, settings, folder, repr(scale), str(at_once or 1000)]
        found: list[dict[str, Any]] = json.loads(output(command, plan.limit))
    return found


def write(name: str, tallies: dict[str, Tally], plan: Plan, where: Results) -> None:
    """Replace the results of a workload in the file."""
    file = plan.results / "compare.json"
    report = known(file)
    cases = {case: found for case, found in report.get("cases", {}).items() if case.partition(" ")[0] != name}
    # A case without any figure has a row for its failure.
    for case in dict.fromkeys(case for tally in tallies.values() for case in tally.runs) or [name]:
        cases[case] = {
            "scale": plan.scale,
            "repeats": plan.repeats,
            "sides": {side: tally.summary(case, plan, side) for side, tally in tallies.items()},
        }
    keep(file, {"machine": where, "cases": cases})


if __name__ == "__main__":
    main()
