"""Detect dead processes: each open store holds a lock on a file of its own, beside the database.

The lock ends with its process, however that ends. If another process can take it, its owner is dead, and the leases of
that owner end at once. It is an `flock` on a separate file: POSIX record locks belong to the process, so a second
engine in it could take them, and SQLite locks the database file itself. The lock files have the mode of the database,
since every user who may open it must be able to test them.
"""

import contextlib
import fcntl
import itertools
import os
import stat
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

_UNNAMED: Final = "~"
"""Prefix of a lock file that is being created."""

PIPE: Final = "+"
"""Prefix of the pipe by which an owner is told something; `quote` leaves no such character in a name."""


class Owner:
    """The lock of one open store."""

    def __init__(self, database: Path, name: str) -> None:
        self.folder = database.with_name(database.name + "-owners")
        self.mode = stat.S_IMODE(database.stat().st_mode) & 0o666 if database.exists() else 0o600
        self.name, self._file = self._open(name)
        self._path = self.file_of(self.name)

    def file_of(self, name: str) -> Path:
        """Return the path of an owner's lock file."""
        return self.folder / quote(name, safe="")

    @property
    def pipe(self) -> Path:
        """The path of this owner's own pipe."""
        return self.pipe_of(self.name)

    def pipe_of(self, name: str) -> Path:
        """Return the path of the pipe by which an owner is told something."""
        return self.folder / f"{PIPE}{quote(name, safe='')}"

    def _open(self, name: str) -> tuple[str, int]:
        """Create and lock a file; return the owner's name, with a number if *name* is in use, and the open file.

        An engine that was created before a fork and is opened on both sides of it uses the same name twice.
        """
        for number in itertools.count(1):
            free = name if number == 1 else f"{name}-{number}"
            if (file := self._lock(free)) is not None:
                return free, file
        raise AssertionError("a count has no end")

    def _lock(self, name: str) -> int | None:
        """Create a file that gets its name once it is locked, or it would look like a dead owner's; None if the name is used.

        The last store to close removes the folder, possibly in between.
        """
        path = self.file_of(name)
        unnamed = path.with_name(f"{_UNNAMED}{path.name}")
        while True:
            self._make_folder()
            try:
                file = os.open(unnamed, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
            except FileNotFoundError:
                continue
            except FileExistsError:
                return None
            if path.exists():
                os.close(file)
                unnamed.unlink()
                return None
            os.fchmod(file, self.mode)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            unnamed.rename(path)
            return file

    def _make_folder(self) -> None:
        with contextlib.suppress(FileExistsError):
            self.folder.mkdir(0o700)
            with contextlib.suppress(FileNotFoundError):
                self.folder.chmod(self.mode | (self.mode & 0o444) >> 2)

    def others_with_pipe(self) -> list[str]:
        """Return the names of the other owners that have a pipe."""
        files = os.listdir(self.folder)  # noqa: PTH208 -- names are all that is needed
        names = [unquote(file.removeprefix(PIPE)) for file in files if file.startswith(PIPE)]
        return [name for name in names if name != self.name]

    def note(self, note: bytes) -> None:
        """Write into the lock file, for the other owners."""
        os.pwrite(self._file, note, 0)

    def dead(self) -> list[str]:
        """Return the owners whose lock can be taken; call `remove` for each once its leases are ended."""
        files = os.listdir(self.folder)  # noqa: PTH208 -- names are all that is needed
        names = [unquote(file) for file in files if not file.startswith((_UNNAMED, PIPE))]
        return [name for name in names if self.is_dead(name)]

    def is_dead(self, name: str) -> bool:
        """Whether another owner's lock can be taken."""
        if name == self.name:
            return False
        try:
            file = os.open(self.file_of(name), os.O_RDWR)
        except FileNotFoundError:
            return True  # it was closed, or removed by another store
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        else:
            return True
        finally:
            os.close(file)

    def remove(self, name: str) -> None:
        """Remove the files of a dead owner."""
        for path in (self.pipe_of(name), self.file_of(name)):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()

    def leave_behind(self) -> None:
        """Close this process's copy of the lock after a fork: the child must not hold the lock of its parent."""
        os.close(self._file)

    def close(self) -> None:
        """Release the lock and remove its files."""
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        os.close(self._file)
        with contextlib.suppress(OSError):
            self.folder.rmdir()
