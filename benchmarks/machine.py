"""Describe the machine, and run a measurement in its own process."""

import contextlib
import os
import platform
import signal
import sqlite3
import subprocess
from collections.abc import Sequence
from pathlib import Path

from resurgam.bench.storage import file_system


class Failed(Exception):
    """A process that printed no figures; the text is the reason, in a few words."""


class TooLong(Failed):
    """A process that was killed because it exceeded its limit."""


def machine(folder: Path) -> dict[str, str | int | None]:
    """Return a description of this machine."""
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
    """Return a warning if other processes keep this machine busy, which distorts the figures."""
    busy = os.getloadavg()[0]
    return f"; load is {busy:.1f} before the measurement: other processes are running" if busy > 0.5 else ""


def output(command: Sequence[str], limit: float, *, quiet: bool = True) -> str:
    """Return the last line that a command prints; raise `Failed` or `TooLong` if there is none.

    The command has its own process group, which is killed as a whole: some workloads start processes.
    """
    errors = subprocess.PIPE if quiet else None
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True) as process:
        try:
            out, err = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            raise TooLong(f"over {limit:.0f} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    lines = out.strip().splitlines()
    if process.returncode or not lines:
        raise Failed(reason(err or "", process.returncode))
    return lines[-1]


def reason(err: str, code: int) -> str:
    """Return the last line of an error, without the name of its class and without links."""
    last = (err.strip().splitlines() or [f"ended with {code}"])[-1]
    name, _, text = last.partition(": ")
    shown = text if text and " " not in name else last
    return shown.partition(" (Background")[0].replace("|", "/")[:120]
