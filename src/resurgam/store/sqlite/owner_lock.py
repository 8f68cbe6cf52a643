"""The lock of one open store, beside the database, and the pipe that belongs to it.

The lock is on a file of its own, because SQLite locks the database file itself. The lock files have the mode of the
database, since every user who may open it must be able to test them.
"""

import contextlib
import itertools
import os
import stat
from pathlib import Path
from urllib.parse import quote, unquote

from resurgam.store.owner_file import BESIDE, OwnerFile, path_of


class Owner:
    """The lock of one open store."""

    def __init__(self, database: Path, name: str) -> None:
        self.folder = database.with_name(database.name + "-owners")
        self.mode = stat.S_IMODE(database.stat().st_mode) & 0o666 if database.exists() else 0o600
        self.name, self._file = self._open(name)

    def file_of(self, name: str) -> Path:
        """Return the path of an owner's lock file."""
        return path_of(self.folder, name)

    @property
    def pipe(self) -> Path:
        """The path of this owner's own pipe."""
        return self.pipe_of(self.name)

    def pipe_of(self, name: str) -> Path:
        """Return the path of the pipe by which an owner is told something."""
        return self.folder / f"{BESIDE}{quote(name, safe='')}"

    def _open(self, name: str) -> tuple[str, OwnerFile]:
        """Create and lock a file; return the owner's name, with a number if *name* is in use, and the file.

        An engine that was created before a fork and is opened on both sides of it uses the same name twice.
        """
        for number in itertools.count(1):
            free = name if number == 1 else f"{name}-{number}"
            if (file := self._lock(free)) is not None:
                return free, file
        raise AssertionError("a count has no end")

    def _lock(self, name: str) -> OwnerFile | None:
        """Create a file; None if the name is used. The last store to close removes the folder, possibly in between."""
        while True:
            self._make_folder()
            with contextlib.suppress(FileNotFoundError):
                try:
                    return OwnerFile(self.folder, name, self.mode)
                except FileExistsError:
                    return None

    def _make_folder(self) -> None:
        with contextlib.suppress(FileExistsError):
            self.folder.mkdir(0o700)
            with contextlib.suppress(FileNotFoundError):
                self.folder.chmod(self.mode | (self.mode & 0o444) >> 2)

    def others_with_pipe(self) -> list[str]:
        """Return the names of the other owners that have a pipe."""
        files = os.listdir(self.folder)  # noqa: PTH208 -- names are all that is needed
        names = [unquote(file.removeprefix(BESIDE)) for file in files if file.startswith(BESIDE)]
        return [name for name in names if name != self.name]

    def note(self, note: bytes) -> None:
        """Write into the lock file, for the other owners."""
        self._file.note(note)

    def dead(self) -> list[str]:
        """Return the owners whose lock can be taken; call `remove` for each once its leases are ended."""
        return self._file.dead()

    def is_dead(self, name: str) -> bool:
        """Whether another owner's lock can be taken, or is no longer there."""
        return self._file.is_free(name) is not False

    def remove(self, name: str) -> None:
        """Remove the files of a dead owner."""
        self.pipe_of(name).unlink(missing_ok=True)
        self._file.remove(name)

    def leave_behind(self) -> None:
        """Close this process's copy of the lock after a fork: the child must not hold the lock of its parent."""
        self._file.leave_behind()

    def close(self) -> None:
        """Release the lock and remove its file."""
        self._file.close()
