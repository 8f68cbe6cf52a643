"""Start processes that measure together: each says when it is ready, and all begin at the same time."""

import compileall
import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from resurgam.core.errors import StoreError

READY = b"ready\n"
"""What a process prints when it is ready; it then waits for a line."""


def compile_package() -> None:
    """Compile this package once, as in an installation; with PYTHONDONTWRITEBYTECODE every process would do it again."""
    compileall.compile_dir(Path(__file__).parents[1], quiet=2)


@contextlib.contextmanager
def ready(command: Sequence[str], number: int) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Start processes and wait until all are ready; they are killed at the end."""
    with contextlib.ExitStack() as running:
        processes = []
        for _ in range(number):
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ)  # noqa: S603 -- our own
            processes.append(running.enter_context(process))
            running.callback(process.kill)  # before the end of its context, which waits for it
        for process in processes:
            assert process.stdout is not None
            if process.stdout.readline() != READY:
                raise StoreError(f"{' '.join(command[:4])} ended before its engine was open")
        yield processes


def go(running: Sequence["subprocess.Popen[bytes]"]) -> list[bytes]:
    """Let all processes begin, and return the line that each prints at its end."""
    for process in running:  # start all before waiting for the first
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.flush()
    lines = []
    for process in running:
        assert process.stdout is not None
        lines.append(process.stdout.readline())
    if not all(lines):
        raise StoreError("a process ended before it had measured")
    return lines
