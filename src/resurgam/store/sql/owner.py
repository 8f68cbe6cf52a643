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
        self._sweep()

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

    def _sweep(self) -> None:
        """Remove what owners left behind that were killed without holding anything."""
        for path in self._folder.iterdir():
            if not path.name.startswith(_UNNAMED):
                self.is_dead(unquote(path.name))

    def is_dead(self, name: str) -> bool:
        """Whether another owner's lock can be taken; then its file is removed."""
        if name == self.name:
            return False
        path = self._file_of(name)
        try:
            file = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return True  # it has closed, or somebody else has found it dead
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        else:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            return True
        finally:
            os.close(file)

    def close(self) -> None:
        """Give the lock up, and leave nothing behind."""
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        os.close(self._file)
        with contextlib.suppress(OSError):
            self._folder.rmdir()
