"""Resurgam and DBOS on SQLite side by side: ``compare.py PEER_PYTHON [--repeats 3] [--scale 1] [--only W1,W4]``.

The sides take turns within each workload, every run in a process and on a file of its own, so that a disturbance of the
machine meets them alike. What is told is the median over the repeats.
"""

import argparse
import json
import os
import platform
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from resurgam.bench.place import file_system

HERE = Path(__file__).parent
RESULTS = HERE / "results"
SIDES = ("resurgam", "dbos", "dbos, tuned")
TITLES = {
    "W1": "1 workflow x 100 steps in a row",
    "W2": "1,000 workflows x 10 steps at once",
    "W3": "start, 1 step, result",
    "W4": "1 workflow, 1,000 steps gathered",
    "W5": "signal, reaction, seen by the client",
    "W6": "killed after {:,} steps, until the next one",
    "W7": "10,000 sleepers, until all are started",
}
BY_RATE = {"W1", "W2", "W4"}
LONGEST = 1800
"""Seconds that one run of one workload may take; a side that needs more cannot do it."""

Runs = dict[str, dict[str, list[dict[str, Any]]]]


def main() -> None:
    """Measure both sides and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", help="the Python that has the peer")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--only", default=",".join(TITLES))
    parser.add_argument("--folder", help="where the files are made; this folder without it")
    asked = parser.parse_args()
    folder = Path(asked.folder or ".").resolve()
    runs: Runs = {}
    failures: dict[str, str] = {}
    for repeat in range(asked.repeats):
        for name in asked.only.split(","):
            for side in SIDES:
                tell(f"{repeat + 1}/{asked.repeats} {name} {side}")
                note(runs, failures, side, measure(side, name, asked.peer, asked.scale, folder))
    report = {
        "machine": machine(asked.peer, folder),
        "scale": asked.scale,
        "repeats": asked.repeats,
        "rows": [row(case, sides, failures) for case, sides in sorted(runs.items(), key=order)],
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "compare.json").write_text(json.dumps(report, indent=1) + "\n")
    (RESULTS / "compare.md").write_text(table(report))
    print(table(report))


def measure(side: str, name: str, peer: str, scale: float, folder: Path) -> list[dict[str, Any]] | str:
    """Run one workload of one side; a text says why it could not be run."""
    with tempfile.TemporaryDirectory(prefix="compare-", dir=folder) as place:
        if side == "resurgam":
            command = [sys.executable, "-m", "resurgam.bench", name, repr(scale), f"sqlite:///{place}/x.db"]
        else:
            settings = "fast" if side == "dbos, tuned" else "default"
            command = [peer, str(HERE / "peer_dbos.py"), name, settings, place, repr(scale)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, check=False)
        except subprocess.TimeoutExpired:
            return f"{name}: not done within {LONGEST} s"
    if done.returncode:
        return f"{name}: {(done.stderr.strip().splitlines() or ['failed'])[-1][:200]}"
    found: list[dict[str, Any]] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def note(runs: Runs, failures: dict[str, str], side: str, measured: list[dict[str, Any]] | str) -> None:
    """Keep what a run gave under its case."""
    if isinstance(measured, str):
        failures[f"{side} {measured.partition(':')[0]}"] = measured
        tell(f"  {measured}")
        return
    for figures in measured:
        length = int(figures.get("more", {}).get("length", 0))
        case = f"{figures['workload']} {length}" if length else figures["workload"]
        runs.setdefault(case, {}).setdefault(side, []).append(figures)


def order(item: tuple[str, Any]) -> tuple[str, int]:
    """Sort cases by workload, then by length."""
    name, _, length = item[0].partition(" ")
    return name, int(length or 0)


def row(case: str, sides: dict[str, list[dict[str, Any]]], failures: dict[str, str]) -> dict[str, Any]:
    """Return the medians of a case, and how many times better ours is."""
    name, _, length = case.partition(" ")
    by_rate = name in BY_RATE
    medians = {
        side: {
            "value": statistics.median(run["rate" if by_rate else "p50"] for run in found),
            "p95": statistics.median(run["p95"] for run in found),
            "rss": statistics.median(run["rss"] for run in found),
            "runs": [run["rate" if by_rate else "p50"] for run in found],
            "level": found[-1].get("level"),
        }
        for side, found in sides.items()
    }
    ours = medians.get("resurgam", {}).get("value")
    ratios = {
        side: (ours / medians[side]["value"] if by_rate else medians[side]["value"] / ours)
        for side in SIDES[1:]
        if side in medians and ours
    }
    return {
        "workload": name,
        "title": TITLES[name].format(int(length or 0)),
        "unit": "steps/s" if by_rate else "s",
        "sides": medians,
        "ratios": ratios,
        "failures": {side: failures[f"{side} {name}"] for side in SIDES if f"{side} {name}" in failures},
    }


def table(report: dict[str, Any]) -> str:
    """Return the comparison in Markdown."""
    machine = report["machine"]
    levels = {side["level"] for found in report["rows"] for side in found["sides"].values()} - {None}
    lines = [
        f"Medians of {report['repeats']} runs each, taking turns; {machine['processor']}, {machine['cores']} cores, "
        f"{machine['file_system']}; Python {machine['python']}, SQLite {machine['sqlite']}, DBOS {machine['dbos']}; "
        f"`synchronous` reads {' and '.join(sorted(levels))}."
        + ("" if report["scale"] == 1 else f" At {report['scale']:g} of the size!"),
        "",
        "| | workload | Resurgam | DBOS | ratio | DBOS, tuned | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    for found in report["rows"]:
        cells = [cell(found, side) for side in SIDES]
        ratios = [f"{found['ratios'][side]:.1f} x" if side in found["ratios"] else "" for side in SIDES[1:]]
        shown = [found["workload"], found["title"], cells[0], cells[1], ratios[0], cells[2], ratios[1]]
        lines.append(f"| {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


def cell(found: dict[str, Any], side: str) -> str:
    """Return the figure of a side, or why there is none."""
    if side not in found["sides"]:
        return str(found["failures"].get(side, "not measured"))
    value = found["sides"][side]["value"]
    if found["unit"] == "steps/s":
        return f"{value:,.0f} steps/s"
    return f"{value * 1000:,.2f} ms" if value < 1 else f"{value:,.2f} s"


def machine(peer: str, folder: Path) -> dict[str, Any]:
    """Return what was measured on."""
    version = "import importlib.metadata as m; print(m.version('dbos'))"
    found = subprocess.run([peer, "-c", version], capture_output=True, text=True, check=True)
    cpu = Path("/proc/cpuinfo")
    models = [line for line in cpu.read_text().splitlines() if line.startswith("model name")] if cpu.exists() else []
    return {
        "processor": models[0].partition(":")[2].strip() if models else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "file_system": file_system(folder),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "dbos": found.stdout.strip(),
    }


def tell(line: str) -> None:
    """Say what is being done."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
