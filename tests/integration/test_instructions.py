"""What a step and a replayed event may cost in instructions and allocations, counted by callgrind.

Python cannot count what it has freed again, nor what its own C code does; callgrind counts both, the same on every run
but for a few in a thousand. The budget is that of `test_budget.py`; where there is no valgrind, only this part is left out.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from support import count_instructions
from support.budget import within

STEPS = 60
ALLOCATING = {"malloc", "calloc", "realloc"}
_CALLED = re.compile(r"^cfn=\((\d+)\)(?: (.*))?$|^fn=\((\d+)\)(?: (.*))?$|^calls=(\d+)")


class Counts(NamedTuple):
    """What was counted between two marks."""

    instructions: int
    allocations: int

    @classmethod
    def read(cls, file: Path) -> "Counts":
        """Read what callgrind wrote: a name stands beside its number once, and every call after whom it calls."""
        names: dict[str, str] = {}
        instructions, allocations, called = 0, 0, ""
        for line in file.read_text("utf-8", "replace").splitlines():
            if line.startswith("totals:"):
                instructions = int(line.split()[1])
            elif found := _CALLED.match(line):
                callee, callee_name, function, function_name, calls = found.groups()
                if calls:
                    allocations += int(calls) if names.get(called) in ALLOCATING else 0
                else:
                    called = callee or function
                    if name := callee_name or function_name:
                        names[called] = name
        return cls(instructions, allocations)


def counted_parts(valgrind: str, folder: Path) -> list[Counts]:
    """Return what was counted before each mark; one run for all of it, as most of that is starting Python."""
    command = [
        valgrind,
        "--tool=callgrind",
        f"--dump-before={count_instructions.MARK}",
        f"--callgrind-out-file={folder}/out",
    ]
    done = subprocess.run(
        [*command, sys.executable, count_instructions.__file__, str(folder), str(STEPS)],
        # callgrind does not see Python's own allocator; with that of the C library, every allocation is a call that counts.
        env=os.environ | {"PYTHONHASHSEED": "0", "PYTHONMALLOC": "malloc"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [Counts.read(folder / f"out.{number}") for number in range(1, 9)]


def test_instructions_and_allocations(tmp_path) -> None:
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        pytest.skip("instructions and allocations are counted by valgrind, which is not on this machine")
    # What is counted lies between two marks, the rest between one pair and the next.
    _, short, _, long, _, short_replay, _, long_replay = counted_parts(valgrind, tmp_path)
    within("instructions per sequential step", (long.instructions - short.instructions) / STEPS)
    within("allocations per sequential step", (long.allocations - short.allocations) / STEPS)
    # A step is two events: its activity is scheduled, and completed.
    events = 2 * STEPS
    within("instructions per replayed event", (long_replay.instructions - short_replay.instructions) / events)
    within("allocations per replayed event", (long_replay.allocations - short_replay.allocations) / events)
