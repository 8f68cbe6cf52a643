"""The files of an archive: the seam `Files`, and the folder that implements it."""

import errno
import fcntl
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Final, Protocol
from urllib.parse import quote, unquote, urlsplit

from resurgam.core.errors import StoreError

_UNFINISHED: Final = ".part"
"""The end of the name of a file that is being written. It is in the folder itself, where no file of the archive is."""

_LOCK: Final = ".lock"
_ABOVE: Final = 2
"""Folders between that of the archive and a file with histories."""

KINDS: Final = ("runs", "trees")
"""Folders with histories. Others, such as ``lost+found`` on a disk of its own, may not even be readable."""

_EVERYWHERE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""Errors that every other file would meet too."""


class Files(Protocol):
    """Named files, each written whole or not at all. Another backend for archives implements this protocol.

    Names are relative paths of ASCII letters, digits and ``._-/``.
    """

    @property
    def url(self) -> str:
        """The prefix of the URL of every file; it ends with ``/``."""
        ...

    def write(self, name: str, content: Iterable[bytes]) -> None:
        """Write a file, in place of the one that is there. It is durable, and whole to every reader, on return."""
        ...

    def sync(self, name: str) -> None:
        """Make a file durable that is there already: the process that wrote it may have died before `write` returned."""
        ...

    def read(self, name: str, first: int | None = None) -> bytes | None:
        """Return the content of a file, or its *first* bytes; None if there is no such file."""
        ...

    def delete(self, name: str) -> None:
        """Delete a file, if there is one."""
        ...

    def names(self) -> Iterator[str]:
        """Yield the names of all files, in order."""
        ...

    def stamp(self, name: str) -> object:
        """Return a value that differs once a file was written or deleted."""
        ...

    def exclusive(self) -> AbstractContextManager[None]:
        """Keep all other processes, on any machine, from changing files in the block. A process that dies ends its block.

        Raise `ArchiveBusy` if another process is in such a block.
        """
        ...


class ArchiveBusy(StoreError):
    """Another process changes files of the archive."""


class ArchiveFailed(StoreError):
    """A file of an archive cannot be read or written. *everywhere*: no other could be either."""

    def __init__(self, message: str, *, everywhere: bool) -> None:
        super().__init__(message)
        self.everywhere = everywhere


class Folder:
    """A folder of this machine, or one that several machines have mounted."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self._durable: set[Path] = set()
        """Folders that this process has made durable, with all above them."""

    @property
    def url(self) -> str:
        """The folder as a URL."""
        return f"file://{quote(str(self._path))}/"

    def write(self, name: str, content: Iterable[bytes]) -> None:
        """Write a temporary file, sync it, and rename it."""
        path = self._path / name
        part = self._path / f"{token_hex(8)}{_UNFINISHED}"
        try:
            self._make(path.parent)
            try:
                # Histories hold payloads: only this user may read them, as with the file of a SQLite store.
                with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                    file.writelines(content)
                    file.flush()
                    os.fsync(file.fileno())
                part.replace(path)
            finally:
                part.unlink(missing_ok=True)
            _sync(path.parent)
        except OSError as error:
            raise _failed(path, "written", error) from error

    def sync(self, name: str) -> None:
        """Sync a file, its folder, and the folders above."""
        path = self._path / name
        try:
            self._make(path.parent)
            _sync(path)
            _sync(path.parent)
        except OSError as error:
            raise _failed(path, "synced to disk", error) from error

    def _make(self, folder: Path) -> None:
        """Make a folder and those above it, each durable: a file is lost with a folder that is not.

        A folder that is there already is synced too, once by each process: the one that made it may have died before.
        """
        if (folder in self._durable and folder.is_dir()) or folder.is_mount():
            return
        self._make(folder.parent)
        if not folder.is_dir():
            folder.mkdir(mode=0o700 if folder.is_relative_to(self._path) else 0o777, exist_ok=True)
        try:
            _sync(folder.parent)
        except PermissionError:
            if folder.parent.is_relative_to(self._path):
                raise
            # Above the archive are folders that this user may pass but not read; another user has made those.
        self._durable.add(folder)

    def read(self, name: str, first: int | None = None) -> bytes | None:
        """Return the content of a file, or its first bytes."""
        path = self._path / name
        try:
            with path.open("rb") as file:
                return file.read(-1 if first is None else first)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _failed(path, "read", error) from error

    def delete(self, name: str) -> None:
        """Delete a file."""
        path = self._path / name
        try:
            path.unlink(missing_ok=True)
            if path.parent.is_dir():
                _sync(path.parent)
        except OSError as error:
            raise _failed(path, "deleted", error) from error

    def names(self) -> Iterator[str]:
        """Yield the names of all files."""
        found = []
        for kind in KINDS:
            for folder, _, names in os.walk(self._path / kind, onerror=self._refuse_unreadable):
                within = Path(folder).relative_to(self._path)
                if len(within.parts) == _ABOVE:
                    found += [(within / name).as_posix() for name in names]
        yield from sorted(found)

    def _refuse_unreadable(self, error: OSError) -> None:
        """Raise for a folder that cannot be read: what it holds would look as if it were not there."""
        if not isinstance(error, FileNotFoundError):
            raise _failed(Path(error.filename), "read", error) from error

    def stamp(self, name: str) -> object:
        """Return the identity, the time and the size of a file."""
        path = self._path / name
        try:
            found = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _failed(path, "read", error) from error
        return found.st_ino, found.st_mtime_ns, found.st_size

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Lock the folder by the kernel: a process that is stopped keeps the lock, so it cannot overwrite newer files.

        What processes have left that were killed as they wrote is deleted: a deletion must not leave a history there.
        """
        path = self._path / _LOCK
        try:
            self._make(self._path)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise ArchiveFailed(str(_failed(path, "written", error)), everywhere=True) from error
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ArchiveBusy(
                    f"another process is writing files of the archive {self._path}; wait for it, and end it if it is stopped"
                ) from None
            for left in self._path.glob(f"*{_UNFINISHED}"):
                self.delete(left.name)
            yield
        finally:
            os.close(descriptor)


def _sync(path: Path) -> None:
    """Sync a file, or a folder, so that its entries survive a crash."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _failed(path: Path, done: str, error: OSError) -> ArchiveFailed:
    message = f"the archive file {path} cannot be {done}: {error.strerror or error}"
    return ArchiveFailed(message, everywhere=error.errno in _EVERYWHERE)


def open_files(url: object) -> Files:
    """Return the files of an archive by its URL, ``file:///srv/archive``, or by the path of a folder."""
    if "\0" in str(url):
        raise ValueError(f"archive must be the URL of a folder, such as file:///srv/archive, got {url!r}")
    if isinstance(url, Path):
        return Folder(url.absolute())
    if not isinstance(url, str) or not url:
        raise ValueError(f"archive must be the URL of a folder, such as file:///srv/archive, got {url!r}")
    if not re.match(r"[a-zA-Z][a-zA-Z0-9+.-]+:", url):
        return Folder(Path(url).absolute())
    parts = urlsplit(url)
    if (
        parts.scheme != "file"
        or parts.netloc not in ("", "localhost")
        or len(parts.path) < 2
        or parts.query
        or parts.fragment
    ):
        raise ValueError(f"archive must be the URL of a folder, such as file:///srv/archive, got {url!r}")
    return Folder(Path(unquote(parts.path)))
