"""Compare Resurgam with DBOS on SQLite and with Restate: ``compare.py PEER_PYTHON [--repeats 3] [--scale 1] [--only W1]``.

With ``--store postgresql://...`` both are compared on that server, every run in a database of its own; see `postgres`.

The sides alternate within each workload, every run in its own process and on its own file, so that a disturbance of the
machine affects all. Restate is left out if its server or its SDK is not installed. Results are written after every run, and
with ``--only`` added to the existing ones. A workload that fails or exceeds the limit is recorded as such.
"""

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from machine import Failed, TooLong, load, machine, output
from results import EXPECTED, HERE, ON_POSTGRES, RESULTS, SIDES, TITLES, UNITS, Results, keep, known, print_progress
from resurgam.bench.schemas import connected, settings_of
from resurgam.store.postgres.url import parse
from tables import comparison

AT_ONCE = {"W2": (1000, 500, 200, 100, 50, 20), "W7": (1000, 500, 200, 100, 50, 20)}
"""How many workflows are started together. If the peer fails, it is tried again with fewer."""

DBOS_SHARE = {"W7": (0.1, 10_000, "sleepers")}
"""Workloads that would take DBOS many minutes: it runs this share of the size, and is judged by its rate."""

RESTATE = ("W1", "W2", "W3", "W4", "W5", "W7")
"""The workloads that Restate has, see `peer_restate`."""


@dataclass(frozen=True)
class Plan:
    """The options: *limit* is the number of seconds that one run of one workload may take.

    *restate* is the program of Restate's server, None if there is none; *store* is the URL of a Postgres server, None for
    files; *sides* are those that take turns.
    """

    peer: str
    restate: str | None
    repeats: int
    scale: float
    folder: Path
    limit: float
    results: Path
    store: str | None = None
    sides: tuple[str, ...] = SIDES


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
        share, full, things = DBOS_SHARE.get(name, (1, 0, "")) if side.startswith("dbos") else (1, 0, "")
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
    """Measure all sides and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", help="the Python that has the peers")
    parser.add_argument("--restate", help="the program of Restate's server; without it the one beside that Python")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--only", default=",".join(TITLES))
    parser.add_argument("--limit", type=float, default=600.0, help="seconds that one run of one workload may take")
    parser.add_argument("--folder", type=Path, default=Path(), help="where the files are made; this folder without it")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the results are written")
    parser.add_argument("--store", help="a Postgres server, as postgresql://user:password@host:port/database")
    parser.add_argument("--without", action="append", default=[], choices=SIDES[1:], help="a peer that is left out")
    options = parser.parse_args()
    described, restate = described_server(options)
    plan = Plan(
        peer=options.peer,
        restate=restate,
        repeats=options.repeats,
        scale=options.scale,
        folder=options.folder.resolve(),
        limit=options.limit,
        results=options.results / ("compare.json" if options.store is None else "postgres.json"),
        store=options.store,
        sides=tuple(side for side in SIDES if side not in options.without),
    )
    names = options.only.upper().split(",")
    if unknown := set(names) - set(TITLES):
        parser.error(f"there is no workload {', '.join(sorted(unknown))}; there are {', '.join(TITLES)}")
    where = machine(plan.folder) | {"dbos": dbos_version(plan.peer)} | described
    print_progress(f"{', '.join(f'{key} {text}' for key, text in where.items())}{load()}")
    for name in names:
        for tallies in measured(name, plan):
            write(name, tallies, plan, where)
    print(comparison(known(plan.results), EXPECTED if plan.store is None else ON_POSTGRES))


def dbos_version(peer: str) -> str:
    """Return the version of DBOS."""
    code = "import importlib.metadata as m; print(m.version('dbos'))"
    return subprocess.run([peer, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def described_server(options: argparse.Namespace) -> tuple[Results, str | None]:
    """Return what is known of the servers that are measured, and the program of Restate's."""
    if options.store is not None:
        return {"server": asyncio.run(settings_of(parse(options.store)))}, None
    return described_restate(options.peer, options.restate or installed_restate(options.peer))


def installed_restate(peer: str) -> str | None:
    """Return the program of Restate's server that npm has put into the environment of a Python, None if there is none."""
    found = Path(peer).absolute().parents[1].glob("node_modules/@restatedev/restate-server-*/bin/restate-server")
    return next(map(str, sorted(found)), None)


def described_restate(peer: str, server: str | None) -> tuple[Results, str | None]:
    """Return the versions and the durability of Restate, and its server; or the reason why it is left out."""
    if server is None:
        return {"no_restate": "its server is not installed"}, None
    try:
        return json.loads(output([peer, str(HERE / "peer_restate.py"), "describe", server], 60)), server
    except (Failed, OSError) as error:
        return {"no_restate": str(error)}, None


def measured(name: str, plan: Plan) -> Iterator[dict[str, Tally]]:
    """Alternate the sides in a workload; yield the results after each run. A side that fails is not run again."""
    has_restate = plan.restate is not None and name in RESTATE
    tallies = {side: Tally() for side in plan.sides if side != "restate" or has_restate}
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
    with new_database(plan.store) if plan.store is not None else new_folder(plan.folder) as place:
        if side == SIDES[0]:
            url = place if plan.store is not None else f"sqlite:///{place}/x.db"
            command = [sys.executable, "-m", "resurgam.bench", name, repr(plan.scale), url]
        else:
            command = peer_command(side, name, plan, place, at_once or 1000)
        found: list[dict[str, Any]] = json.loads(output(command, plan.limit))
    return found


@contextlib.contextmanager
def new_folder(beside: Path) -> Iterator[str]:
    """Make a folder, and remove it afterwards."""
    with tempfile.TemporaryDirectory(prefix="compare-", dir=beside, ignore_cleanup_errors=True) as folder:
        yield folder


@contextlib.contextmanager
def new_database(server: str) -> Iterator[str]:
    """Create a database on a Postgres server, and drop it afterwards; yield its URL."""
    name = f"compare_{token_hex(4)}"
    asyncio.run(execute(server, f"CREATE DATABASE {name}"))
    try:
        yield urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
    finally:
        asyncio.run(execute(server, f"DROP DATABASE {name} WITH (FORCE)"))


async def execute(server: str, statement: str) -> None:
    """Execute a statement, then write everything to disk, so that no run pays for the one before it."""
    async with connected(parse(server)) as connection:
        await connection.execute(statement)
        await connection.execute("CHECKPOINT")


def peer_command(side: str, name: str, plan: Plan, place: str, at_once: int) -> list[str]:
    """Return the command that runs one workload of a peer, in a folder or a database."""
    if side == "restate":
        assert plan.restate is not None
        program, setting, scale = "peer_restate.py", plan.restate, plan.scale
    else:
        program, setting = "peer_dbos.py", "fast" if side == "dbos, tuned" else "default"
        scale = plan.scale * DBOS_SHARE[name][0] if name in DBOS_SHARE else plan.scale
    return [plan.peer, str(HERE / program), name, setting, place, repr(scale), str(at_once)]


def write(name: str, tallies: dict[str, Tally], plan: Plan, where: Results) -> None:
    """Replace the results of a workload in the file."""
    report = known(plan.results)
    cases = {case: found for case, found in report.get("cases", {}).items() if case.partition(" ")[0] != name}
    # A case without any figure has a row for its failure.
    for case in dict.fromkeys(case for tally in tallies.values() for case in tally.runs) or [name]:
        cases[case] = {
            "scale": plan.scale,
            "repeats": plan.repeats,
            "sides": {side: tally.summary(case, plan, side) for side, tally in tallies.items()},
        }
    keep(plan.results, {"machine": where, "cases": cases})


if __name__ == "__main__":
    main()
