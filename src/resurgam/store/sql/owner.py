"""Tells the living from the dead: each open store holds a lock on a file of its own, beside the database.

A lock belongs to its process and ends with it, however it ends. One that can be taken means that its owner is dead, and
its leases end at once. It is `flock`, on a file of its own: POSIX record locks belong to the process, so a second
engine in it could take them, and the database's own file is locked by SQLite in ways of its own.
"""

import contextlib
import fcntl
import os
from pathlib import Path
from urllib.parse import quote, unquote

_UNNAMED = "~"
"""Before the name of a file that is being made."""


class Owner:
    """The lock of one open store."""

    def __init__(self, database: Path, name: str) -> None:
        self.name = name
        self._folder = database.with_name(database.name + "-owners")
        self._path = self._file_of(name)
        self._file = self._open()

    def _file_of(self, name: str) -> Path:
        return self._folder / quote(name, safe="")

    def _open(self) -> int:
        """Make the file; whoever closes last removes the folder, and may do so in between.

        It gets its name only when it is locked: a file that is not would be taken for a dead owner's.
        """
        unnamed = self._path.with_name(f"{_UNNAMED}{self._path.name}")
        while True:
            with contextlib.suppress(FileExistsError):
                self._folder.mkdir()
            with contextlib.suppress(FileNotFoundError):
                file = os.open(unnamed, os.O_CREAT | os.O_RDWR, 0o600)
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                unnamed.rename(self._path)
                return file

    def dead(self) -> list[str]:
        """Return the owners whose lock can be taken; each is to be buried when its leases have been ended."""
        names = [unquote(path.name) for path in self._folder.iterdir() if not path.name.startswith(_UNNAMED)]
        return [name for name in names if self.is_dead(name)]

    def is_dead(self, name: str) -> bool:
        """Whether another owner's lock can be taken."""
        if name == self.name:
            return False
        try:
            file = os.open(self._file_of(name), os.O_RDWR)
        except FileNotFoundError:
            return True  # it has closed, or somebody else has buried it
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        else:
            return True
        finally:
            os.close(file)

    def bury(self, name: str) -> None:
        """Remove what a dead owner has left behind."""
        with contextlib.suppress(FileNotFoundError):
            self._file_of(name).unlink()

    def close(self) -> None:
        """Give the lock up, and leave nothing behind."""
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        os.close(self._file)
        with contextlib.suppress(OSError):
            self._folder.rmdir()
