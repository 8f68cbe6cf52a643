"""Run one workload in this process and print JSON: ``python -m resurgam.bench W1 [SCALE [URL]]``."""

import asyncio
import sys

import msgspec

from resurgam.bench.catalog import WORKLOADS
from resurgam.bench.scene import Scene
from resurgam.bench.storage import open_storage
from resurgam.core.errors import ResurgamError


def main(name: str, scale: str = "1", url: str | None = None) -> None:
    """Run a workload and print its figures."""
    with open_storage(url) as storage:
        figures = asyncio.run(WORKLOADS[name](Scene(storage, float(scale))))
    sys.stdout.buffer.write(msgspec.json.encode(figures) + b"\n")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except ResurgamError as error:
        sys.exit(str(error))
