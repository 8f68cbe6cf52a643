"""The process of a server: started on a free port, supervised, and ended with the process that started it."""

import fcntl
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from resurgam.core.errors import StoreError

HOST: Final = "127.0.0.1"

_PAUSE: Final = 0.005
"""Seconds between two looks."""

_SUPERVISE: Final = '"$@" >&2 & echo $!; cat > /dev/null; kill -{end} $! 2> /dev/null; wait'
"""Start a server, say its process id, and end it when the input ends."""


class ServerProcess:
    """A server below a shell that holds the end of a pipe: it ends with the process that started it, however that ends."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        end: str = "KILL",
        user: int | None = None,
        env: Mapping[str, str] | None = None,
        inherited: Sequence[int] = (),
    ) -> None:
        with log.open("ab") as output:
            # A session of its own: Ctrl-C in a terminal ends the program that started it, which stops the server.
            self._shell = subprocess.Popen(  # noqa: S603 -- the command is the server
                ["/bin/sh", "-c", _SUPERVISE.format(end=end), "sh", *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                pass_fds=inherited,
                start_new_session=True,
                cwd="/",
                env=env,
                user=user,
                group=user,
                extra_groups=None if user is None else (),
            )
        assert self._shell.stdout is not None
        self.pid = int(self._shell.stdout.readline())

    @property
    def runs(self) -> bool:
        """Whether the server has not ended."""
        return is_alive(self.pid)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the server, unless it has ended."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def reap(self) -> None:
        """End the shell, and the server with it if it still runs."""
        self._shell.communicate()

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the server; return whether it has ended."""
        return wait_for(lambda: not self.runs, seconds)


def run_as(user: int | None, command: Sequence[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end as a user of this machine; None: as the one who runs this."""
    return subprocess.run(  # noqa: S603 -- as above
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        cwd="/",
        env=env,
        user=user,
        group=user,
        extra_groups=None if user is None else (),
    )


def lock_folder(folder: Path) -> int:
    """Return a locked file that the server inherits: two servers must not write the same data."""
    lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise StoreError(f"another server runs with the data in {folder.absolute()}; stop it first") from None
    return lock


def wait_for(holds: Callable[[], bool], seconds: float) -> bool:
    """Wait until something holds; return whether it does after all."""
    deadline = time.monotonic() + seconds
    while not (held := holds()) and time.monotonic() < deadline:
        time.sleep(_PAUSE)
    return held


def free_port() -> int:
    """Return a port that no program listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def last_line(log: Path, word: str = "") -> str:
    """Return the last line of a log, or the last one with a word if there is one."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    lines = [line for line in lines if word in line] or lines
    return lines[-1] if lines else "it left no message"


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not reaped yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self/stat").exists():
            return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
