"""What is measured on, and how a part of it is run in a process of its own."""

import contextlib
import os
import platform
import signal
import sqlite3
import subprocess
from collections.abc import Sequence
from pathlib import Path

from resurgam.bench.place import file_system


class Failed(Exception):
    """A process that gave no figures; the text says why, in a few words."""


class TooLong(Failed):
    """A process that was ended because its time was up."""


def machine(folder: Path) -> dict[str, str | int | None]:
    """Return what was measured on."""
    cpu = Path("/proc/cpuinfo")
    models = [line for line in cpu.read_text().splitlines() if line.startswith("model name")] if cpu.exists() else []
    return {
        "processor": models[0].partition(":")[2].strip() if models else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "file_system": file_system(folder),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
    }


def load() -> str:
    """Return a warning if others keep this machine busy, as figures taken beside them are theirs too."""
    busy = os.getloadavg()[0]
    return f"; load is {busy:.1f} before anything is measured: others are at work" if busy > 0.5 else ""


def output(command: Sequence[str], limit: float, *, quiet: bool = True) -> str:
    """Return the last line that a command prints; `Failed` or `TooLong` if there is none.

    It leads a process group of its own, which is killed as a whole: some workloads have processes of theirs.
    """
    errors = subprocess.PIPE if quiet else None
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True) as process:
        try:
            told, said = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            raise TooLong(f"over {limit:.0f} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    lines = told.strip().splitlines()
    if process.returncode or not lines:
        raise Failed(reason(said or "", process.returncode))
    return lines[-1]


def reason(said: str, code: int) -> str:
    """Return the end of an error in one line, without the name of its class and where to read about it."""
    last = (said.strip().splitlines() or [f"ended with {code}"])[-1]
    name, _, text = last.partition(": ")
    shown = text if text and " " not in name else last
    return shown.partition(" (Background")[0].replace("|", "/")[:120]
