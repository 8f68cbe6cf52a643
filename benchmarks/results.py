"""Read, write and evaluate the files of results.

It imports neither side, so that the environment of either can read the results of the other.
"""

import json
import statistics
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results"
SIDES = ("resurgam", "dbos", "dbos, tuned", "restate")
PEERS = {"dbos": "DBOS", "dbos, tuned": "DBOS, tuned", "restate": "Restate"}
UNITS = {"W1": "steps/s", "W2": "steps/s", "W4": "steps/s", "W7": "sleepers/s"}
"""The workloads that are judged by a rate; the others by the p50 of their time, in seconds."""

TITLES = {
    "W1": "1 workflow x 100 steps in a row",
    "W2": "1,000 workflows x 10 steps at once",
    "W3": "start, 1 step, result",
    "W4": "1 workflow, 1,000 steps gathered",
    "W5": "signal, reaction, seen by the client",
    "W6": "killed after {:,} steps, until the next one",
    "W7": "10,000 sleepers started",
}

EXPECTED = {
    "dbos": {"W1": 8, "W2": 40, "W3": 5, "W4": 80, "W6": 20, "W7": 40},
    "restate": {"W1": 5, "W2": 4, "W4": 20},
}
"""How many times better than a peer a workload is expected to be."""

ON_POSTGRES = {"dbos": {"W1": 4, "W2": 20, "W4": 30, "W5": 2, "W6": 15}}
"""The same, both on one Postgres server."""

Results = dict[str, Any]


def known(file: Path) -> Results:
    """Return the content of a file of results, empty if there is none yet."""
    found: Results = json.loads(file.read_text("utf-8")) if file.exists() else {}
    return found


def keep(file: Path, results: Results) -> None:
    """Write results so that an interrupted run leaves either the old file or the new one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_suffix(".new")
    beside.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    beside.replace(file)


def order(case: str) -> tuple[str, int]:
    """Sort cases by workload, then by length."""
    name, _, length = case.partition(" ")
    return name, int(length or 0)


def title(case: str) -> str:
    """Return the title of a case."""
    name, length = order(case)
    return TITLES[name].format(length)


def value(side: Results) -> float | None:
    """Return the median of a side's runs; None if it has none."""
    return statistics.median(side["values"]) if side.get("values") else None


def ratio(case: str, sides: dict[str, Results], side: str) -> float | None:
    """Return how many times better ours is than another side; None if one of them has no figure."""
    ours, theirs = value(sides.get("resurgam", {})), value(sides.get(side, {}))
    if not ours or not theirs:
        return None
    return ours / theirs if order(case)[0] in UNITS else theirs / ours


def print_progress(line: str) -> None:
    """Print a line of progress."""
    print(line, file=sys.stderr, flush=True)
