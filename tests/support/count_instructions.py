"""Count the instructions of a unit of a workload by callgrind, the same on a busy machine as on a quiet one.

    py tests/support/count_instructions.py                      all workloads: instructions and calls per unit
    py tests/support/count_instructions.py W2 replay            selected ones; also W1, W3, W4, W5, W7,
        W1-redis, W2-redis, W1-postgres, W2-postgres
    py tests/support/count_instructions.py W2 --by-function     the same with lists, each per unit: instructions by
        library, by C function without and with what it calls, and the calls that Python makes, by file and line
    --top 40                                                    the length of the lists

Python functions are not told apart in the instructions: all of them run in the interpreter's `_PyEval_EvalFrameDefault`,
which calls itself, so that its figure with what it calls says nothing. About 1,700 instructions belong to a call.

A unit is a step (W1, W2, W4), a start with one step (W3), a signal (W5), a sleeper (W7) or a replayed event: see
`support/count_workloads.py`, which runs under callgrind at two sizes. The cost of a unit is their difference. Figures
repeat to some tenths of a percent; to compare two versions, run this in both worktrees. It needs valgrind.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))  # if it is not run by pytest

from support import count_workloads
from support.count_calls import calls_per_unit
from support.count_workloads import WORKLOADS

VALGRIND = shutil.which("valgrind")
_LINE = re.compile(r"^ *([\d,]+) \([ \d.]+%\) +\S.*?:([^:\n]+?)(?:'\d+)?(?: \[(.*)\])?$", re.MULTILINE)
"""A line of callgrind_annotate: the instructions, "file:function", "'2" if it recurses, and "[library]"."""


class Dumps(NamedTuple):
    """What callgrind wrote down for both sizes of a workload."""

    name: str
    short: Path
    long: Path

    def instructions(self) -> float:
        """Return the instructions of one unit."""
        return WORKLOADS[self.name].per_unit(_total(self.short), _total(self.long))

    def by_function(self, *, inclusive: bool) -> dict[str, float]:
        """Return the instructions of one unit by C function and library, with or without what it calls."""
        short, long = (_annotated(dump, inclusive=inclusive) for dump in (self.short, self.long))
        return {name: WORKLOADS[self.name].per_unit(short.get(name, 0), long[name]) for name in long}


def count(names: Sequence[str], folder: Path) -> list[Dumps]:
    """Run workloads under callgrind; one run for all of them, as a large part of it is the start of Python."""
    assert VALGRIND is not None
    found_by = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {
        "PYTHONPATH": found_by,
        "PYTHONHASHSEED": "0",
        # Compiled code from a cache: compiling everything under callgrind would take longer than the workloads.
        "PYTHONPYCACHEPREFIX": str(folder / "compiled"),
        "PYTHONDONTWRITEBYTECODE": "",
    }
    program = [sys.executable, count_workloads.__file__]
    options = ["--tool=callgrind", f"--dump-before={count_workloads.MARK}", f"--callgrind-out-file={folder}/out"]
    for command in (program, [VALGRIND, *options, *program, *names]):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    # Each of the two sizes lies between two marks, and before each lies what is not counted.
    return [Dumps(name, folder / f"out.{4 * n + 2}", folder / f"out.{4 * n + 4}") for n, name in enumerate(names)]


def _total(dump: Path) -> int:
    with dump.open(encoding="utf-8", errors="replace") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("totals:"))


def _annotated(dump: Path, *, inclusive: bool) -> dict[str, int]:
    command = ["callgrind_annotate", "--threshold=100", f"--inclusive={'yes' if inclusive else 'no'}", str(dump)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [(_number(line[1]), *line.groups()[1:]) for line in _LINE.finditer(done.stdout)]
    # What is inlined from another file stands on a line of its own, without its library.
    libraries = {function: Path(library).name for _, function, library in lines if library}
    whole = _total(dump)
    found: dict[str, int] = defaultdict(int)
    for number, function, _ in lines:
        # Of a function that was entered before the first mark, callgrind_annotate knows the whole only.
        if number < whole:
            name = f"{function} [{libraries.get(function, '?')}]"
            found[name] = max(found[name], number) if inclusive else found[name] + number
    return found


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def _by_library(by_function: Mapping[str, float]) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for name, number in by_function.items():
        found[name.rpartition(" [")[2].rstrip("]")] += number
    return found


def _list(title: str, numbers: Mapping[str, float], top: int) -> Iterable[str]:
    yield f"\n{title}"
    for name, number in sorted(numbers.items(), key=lambda item: -item[1])[:top]:
        yield f"{number:14,.1f}  {name}"


def _lists(dumps: Dumps, calls: Mapping[str, float], top: int) -> Iterable[str]:
    alone = dumps.by_function(inclusive=False)
    yield from _list("instructions by library", _by_library(alone), top)
    yield from _list("instructions by C function, without what it calls", alone, top)
    yield from _list("instructions by C function, with what it calls", dumps.by_function(inclusive=True), top)
    yield from _list("calls by function", calls, top)


def main() -> None:
    """Print what a unit of each workload costs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD")
    parser.add_argument("--by-function", action="store_true")
    parser.add_argument("--top", type=int, default=40)
    options = parser.parse_args()
    names = options.workloads or list(WORKLOADS)
    if unknown := set(names) - set(WORKLOADS):
        parser.error(f"there is no workload {', '.join(sorted(unknown))}; there are {', '.join(WORKLOADS)}")
    if VALGRIND is None:
        sys.exit("valgrind is not on this machine")
    calls = calls_per_unit(names)
    with tempfile.TemporaryDirectory(prefix="resurgam-callgrind-") as folder:
        for dumps in count(names, Path(folder)):
            name, unit = dumps.name, WORKLOADS[dumps.name].unit
            print(
                f"{name:7}{dumps.instructions():12,.0f} instructions {sum(calls[name].values()):8,.1f} calls per {unit}"
            )
            if options.by_function:
                print("\n".join(_lists(dumps, calls[name], options.top)))


if __name__ == "__main__":
    main()
