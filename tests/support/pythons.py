"""Run the named programs on every Python >= 3.11 of this machine, each replaying the histories that the others wrote.

``python tests/support/pythons.py`` is what ``make test-pythons`` runs. For each minor version it makes an environment under
``.venv-pythons``, and there calls this same file with ``record`` and ``replay``.
"""

import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = ROOT / ".venv-pythons"
NEEDED = ("msgspec>=0.20", "tzdata>=2025.1")
OLDEST, NEWEST = 11, 15
ORDERS = 8
"""How many orders of completion are recorded of each program."""

_VERSION = "import sys; print(*sys.version_info[:3], sys.version_info.releaselevel == 'final')"


def say(text: str) -> None:
    """Print a line, at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


# What is run under each version. The engine is imported here only, for the version at the top needs none.


async def record(file: Path) -> dict[str, str]:
    """Run every program live under this Python and write the histories to *file*; return the misfits of a replay."""
    from support.programs import PROGRAMS
    from support.programs.simulated import simulate

    written = {}
    for name in PROGRAMS:
        logs = [await simulate(name, random.Random(seed)).run() for seed in range(ORDERS)]
        written[name] = [[entry.to_json() for entry in log] for log in logs]
    file.write_text(json.dumps(written))
    return await replay(file)


async def replay(file: Path) -> dict[str, str]:
    """Replay the histories in *file* under this Python; return by name of the program in which way they do not fit."""
    from resurgam.core.event import decode_event
    from support.programs.simulated import misfit

    found = {}
    for name, logs in json.loads(file.read_text()).items():
        reasons = [await misfit(name, [decode_event(entry) for entry in log]) for log in logs]
        found[name] = next(filter(None, reasons), "")
    return found


# Which versions there are.


@dataclass(frozen=True)
class Python:
    """One minor version, with an environment of its own."""

    minor: str
    executable: Path

    def call(self, *arguments: str | Path) -> dict[str, str]:
        """Run this file under this version and return what it found."""
        paths = os.pathsep.join(map(str, (ROOT / "src", ROOT / "tests")))
        done = subprocess.run(
            [self.executable, "-W", "error", __file__, *arguments],
            env=os.environ | {"PYTHONPATH": paths},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            return {"(all programs)": f"Python {self.minor} ended with {done.returncode}: {done.stderr[-2000:]}"}
        return dict(json.loads(done.stdout.splitlines()[-1]))


def candidates() -> Iterator[Path]:
    """Yield what may be an interpreter: this one, pyenv's, and those on the path."""
    yield Path(sys.executable)
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from pyenv.glob("versions/*/bin/python")
    for folder in os.get_exec_path():
        yield from (Path(folder, f"python3.{minor}") for minor in range(OLDEST, NEWEST + 1))


def version_of(executable: Path) -> tuple[int, ...]:
    """Return the version of an interpreter; nothing, if it does not run or is not a release."""
    try:
        done = subprocess.run([executable, "-c", _VERSION], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    *numbers, final = done.stdout.split() or [""]
    return tuple(map(int, numbers)) if final == "True" else ()


def find_pythons() -> list[Python]:
    """Return the newest interpreter of every minor version, each in its environment."""
    newest: dict[tuple[int, ...], tuple[tuple[int, ...], Path]] = {}
    for executable in candidates():
        version = version_of(executable)
        if version >= (3, OLDEST) and version > newest.get(version[:2], ((),))[0]:
            newest[version[:2]] = (version, executable)
    return [make_environment(f"{major}.{minor}", newest[major, minor][1]) for major, minor in sorted(newest)]


def make_environment(minor: str, base: Path) -> Python:
    """Make the environment of a minor version, unless it is there."""
    folder = ENVIRONMENTS / minor
    python = Python(minor, folder / "bin" / "python")
    if not (folder / ".installed").exists():
        say(f"setting up {folder.relative_to(ROOT)} ...")
        subprocess.run([base, "-m", "venv", "--clear", folder], check=True)
        pip = [python.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *NEEDED], check=True)
        (folder / ".installed").touch()
    return python


# The report.


@dataclass
class Report:
    """Who could replay what."""

    bound: dict[str, str]
    passed: int = 0
    failed: int = 0
    fits: dict[tuple[str, str], str] = field(default_factory=dict)
    misfits: dict[str, list[str]] = field(default_factory=dict)
    expected: set[str] = field(default_factory=set)

    def add(self, recorder: str, replayer: str, found: dict[str, str]) -> None:
        """Take in what one version found of the histories of another, or of its own."""
        fitting = 0
        for name, reason in found.items():
            excused = bool(reason) and recorder != replayer and name in self.bound
            fitting += not reason
            self.passed += excused or not reason
            self.failed += bool(reason) and not excused
            if excused:
                self.expected.add(name)
            elif reason:
                self.misfits.setdefault(f"{name}: {reason}", []).append(f"{recorder} > {replayer}")
        self.fits[recorder, replayer] = f"{fitting}/{len(found)}"

    def show(self, minors: list[str]) -> None:
        """Print the table, what does not fit, and what is said not to but does."""
        say("recorded by  | replayed by " + " ".join(f"{minor:>8}" for minor in minors))
        for recorder in minors:
            cells = " ".join(f"{self.fits.get((recorder, replayer), '-'):>8}" for replayer in minors)
            say(f"{recorder:<12} |             {cells}")
        for text, pairs in self.misfits.items():
            say(f"does not fit ({', '.join(pairs)}): {text}")
        for name, reason in self.bound.items():
            if name in self.expected:
                say(f"bound to its minor version: {name}: {reason}")
            elif len(minors) > 1:
                say(f"said to be bound to its minor version, but fits everywhere: {name}")


def bound_programs(python: Python) -> dict[str, str]:
    """Return the table of the programs that need not fit."""
    return python.call("bound")


def main() -> int:
    """Record with every version, replay with every version, and report."""
    pythons = find_pythons()
    report = Report(bound_programs(pythons[0]))
    with tempfile.TemporaryDirectory() as folder:
        for recorder in pythons:
            file = Path(folder, f"{recorder.minor}.json")
            report.add(recorder.minor, recorder.minor, recorder.call("record", file))
            for replayer in pythons:
                if replayer is not recorder and file.exists():
                    report.add(recorder.minor, replayer.minor, replayer.call("replay", file))
    report.show([python.minor for python in pythons])
    say(f"{report.passed} passed, {report.failed} failed")
    return 1 if report.failed else 0


def work(command: str, *arguments: str) -> dict[str, str]:
    """Do what the version at the top asks for."""
    if command == "bound":
        from support.programs import BOUND_TO_MINOR

        return BOUND_TO_MINOR
    return asyncio.run({"record": record, "replay": replay}[command](Path(*arguments)))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        say(json.dumps(work(*sys.argv[1:])))
    else:
        sys.exit(main())
