"""Detect dead processes: each open store holds a lock on a file of its own, beside those of the others.

The lock ends with its process, however that ends. If another process can take it, its owner is dead, and the leases of
that owner end at once. It is an `flock`: POSIX record locks belong to the process, so a second engine in it could take them.
"""

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

_UNNAMED: Final = "~"
"""Prefix of a lock file that is being created."""

BESIDE: Final = "+"
"""Prefix of another file of an owner; `quote` leaves no such character in a name."""


def path_of(folder: Path, name: str) -> Path:
    """Return the path of an owner's lock file."""
    return folder / quote(name, safe="")


class OwnerFile:
    """A locked file that is named after an owner.

    Raise `FileExistsError` if the name is in use, `FileNotFoundError` if the folder is gone: the last store to close removes
    it.
    """

    def __init__(self, folder: Path, name: str, mode: int = 0o600) -> None:
        self._folder = folder
        self._path = path_of(folder, name)
        unnamed = self._path.with_name(f"{_UNNAMED}{self._path.name}")
        self._file = os.open(unnamed, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        if self._path.exists():
            os.close(self._file)
            unnamed.unlink()
            raise FileExistsError(f"there is an owner {name!r} in {folder}")
        os.fchmod(self._file, mode)
        # It gets its name once it is locked, or it would look like a dead owner's.
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unnamed.rename(self._path)

    def dead(self) -> list[str]:
        """Return the owners whose lock can be taken; call `remove` for each once its leases are ended."""
        files = os.listdir(self._folder)  # noqa: PTH208 -- names are all that is needed
        names = [unquote(file) for file in files if not file.startswith((_UNNAMED, BESIDE))]
        return [name for name in names if self.is_free(name)]

    def is_free(self, name: str) -> bool | None:
        """Whether the lock of another owner can be taken; None if it was closed, or removed by another store."""
        path = path_of(self._folder, name)
        if path == self._path:
            return False
        try:
            file = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        else:
            return True
        finally:
            os.close(file)

    def remove(self, name: str) -> None:
        """Remove the file of a dead owner."""
        with contextlib.suppress(FileNotFoundError):
            path_of(self._folder, name).unlink()

    def note(self, note: bytes) -> None:
        """Write into the file, for the other owners."""
        os.pwrite(self._file, note, 0)

    def leave_behind(self) -> None:
        """Close this process's copy of the lock after a fork: the child must not hold the lock of its parent."""
        os.close(self._file)

    def close(self) -> None:
        """Release the lock and remove its file, and the folder after the last one."""
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        os.close(self._file)
        with contextlib.suppress(OSError):
            self._folder.rmdir()
