"""Counts the functions that are called for a unit of each workload, in a process of its own: ``count_calls.py W1 replay``.

A profile function in a process in which other tests have interrupted ticks before can send Python 3.11 into a loop that
never ends; and a process that has done nothing else counts the same every time. Calls of this thread only.
"""

import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Self

from support.count_workloads import WORKLOADS, run_all
from support.limits import HANGS

_SOURCE = str(Path(__file__).parents[2] / "src") + "/"


class Calls:
    """Counts the functions that are called in this thread, Python's own and those written in C."""

    def __init__(self) -> None:
        self.by_function: Counter[object] = Counter()

    def __enter__(self) -> Self:
        sys.setprofile(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        del self.by_function[sys.setprofile]  # the call that ends the counting

    def _called(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            self.by_function[frame.f_code] += 1
        elif event == "c_call":
            self.by_function[getattr(argument, "__qualname__", argument)] += 1


def calls_per_unit(names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the calls per unit by function for some workloads, counted in a process of its own."""
    command = [sys.executable, __file__, *names]
    found_by = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": found_by}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=2 * HANGS)
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, float]] = json.loads(done.stdout)
    return found


def _name(function: object) -> str:
    if isinstance(function, CodeType):
        return f"{function.co_filename.removeprefix(_SOURCE)}:{function.co_firstlineno} {function.co_qualname}"
    return f"(C) {function}"


def _counted(name: str) -> dict[str, float]:
    sizes: list[Calls] = []

    def counted() -> Calls:
        sizes.append(Calls())
        return sizes[-1]

    run_all([name], counted)
    short, long = (calls.by_function for calls in sizes)
    per_unit: dict[str, float] = defaultdict(float)
    for function, number in long.items():
        per_unit[_name(function)] += WORKLOADS[name].per_unit(short[function], number)
    return per_unit


if __name__ == "__main__":
    sys.stdout.write(json.dumps({name: _counted(name) for name in sys.argv[1:]}))
