"""Measure on Postgres, beside DBOS on the same server: ``postgres.py PEER_PYTHON [--repeats 3] [--scale 1] [--store URL]``.

It starts a server of its own on this disk, with the settings of an installation: every commit is synced before it is
acknowledged. ``--store`` names another one; its user must be able to create databases. First the sides alternate, as
`compare` does it, then `resurgam bench` measures the other workloads. All of it takes less than twenty minutes.
"""

import argparse
import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from results import HERE, RESULTS, keep, print_progress
from resurgam.bench.run import run
from resurgam.dev.postgres import Server

COMPARED = "W1,W2,W3,W4,W5,W6"
OTHERS = "W1,W2,W7,W8,W9,W10"
"""W1 and W2 again, for their round trips."""


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", help="the Python that has DBOS")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--only", default=COMPARED, help="the workloads in which the sides are compared")
    parser.add_argument("--bench", default=OTHERS, help="the workloads of resurgam bench; empty: none")
    parser.add_argument("--tuned", action="store_true", help="also with the settings that are the fastest for DBOS")
    parser.add_argument("--store", help="a server that runs already")
    parser.add_argument(
        "--folder", type=Path, default=Path(), help="where the server keeps its data; this folder without it"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the results are written")
    options = parser.parse_args()
    with contextlib.nullcontext(options.store) if options.store else own_server(options.folder.resolve()) as url:
        if options.only:
            compare(url, options)
        if options.bench:
            names = options.bench.upper().split(",")
            report = run(names, url=url, scale=options.scale, progress=lambda name: print_progress(f"{name} alone"))
            keep(options.results / "postgres-bench.json", msgspec.to_builtins(report))


def compare(url: str, options: argparse.Namespace) -> None:
    """Let the sides take turns."""
    numbers = ["--repeats", str(options.repeats), "--scale", str(options.scale), "--only", options.only]
    without = [] if options.tuned else ["--without", "dbos, tuned"]
    places = ["--store", url, "--results", str(options.results), "--folder", str(options.folder)]
    subprocess.run([sys.executable, str(HERE / "compare.py"), options.peer, *numbers, *places, *without], check=True)


@contextlib.contextmanager
def own_server(beside: Path) -> Iterator[str]:
    """Start a server, and stop it afterwards; yield its URL."""
    folder = Path(tempfile.mkdtemp(prefix="postgres-", dir=beside))
    folder.chmod(0o755)  # it may run as another user
    server = Server(folder).start()
    try:
        yield server.url
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
