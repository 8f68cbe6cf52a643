"""Choose where to measure: in new files beside the file of a URL, or in temporary files on a disk."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

from resurgam.core.errors import StoreError
from resurgam.runtime.system import SystemClock
from resurgam.store.open import open_store

_IN_MEMORY = ("tmpfs", "ramfs")


@dataclass(frozen=True)
class Storage:
    """The folder for the files of one run, None for a store without files, and the options of their URLs."""

    folder: Path | None
    options: str = ""

    def url(self, name: str) -> str:
        """Return the URL of a store with this name."""
        file = self.file(name)
        return "memory://" if file is None else f"sqlite:///{quote(str(file))}{self.options}"

    def file(self, name: str) -> Path | None:
        """Return the file of a store with this name."""
        return None if self.folder is None else self.folder / f"{name}.db"

    def level(self) -> str:
        """Return the level of ``synchronous`` in the URL."""
        return parse_qs(self.options[1:]).get("synchronous", ["full"])[-1].upper()

    def __str__(self) -> str:
        return "memory" if self.folder is None else f"{self.folder.parent} ({file_system(self.folder)})"


@contextlib.contextmanager
def open_storage(url: str | None) -> Iterator[Storage]:
    """Create a folder for the stores of a run, beside the file of *url*, and remove it afterwards.

    The file itself is never touched: a measurement starts with an empty file, and leaves nothing behind.
    """
    parts = urlsplit(url or "sqlite://")
    if parts.scheme != "sqlite" or parts.netloc:
        open_store(url or "", SystemClock(), name="bench", lease=1000)  # raises for an unknown URL
        yield Storage(None)
        return
    named = unquote(parts.path[1:])
    try:
        folder = Path(tempfile.mkdtemp(prefix="resurgam-bench-", dir=Path(named).parent if named else _disk()))
    except OSError as error:
        raise StoreError(f"{url}: cannot create a file there: {error.strerror}") from error
    try:
        yield Storage(folder.resolve(), f"?{parts.query}" if parts.query else "")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _disk() -> Path:
    """Return the folder for temporary files, or the current one if that is only in memory."""
    candidates = [Path(tempfile.gettempdir()), Path.cwd()]
    return next((folder for folder in candidates if file_system(folder) not in _IN_MEMORY), candidates[0])


def file_system(folder: Path) -> str:
    """Return the type of the file system of a folder."""
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text("utf-8").splitlines()]
    except OSError:
        return "file system unknown"
    resolved = folder.resolve()
    holding = [(len(mount[1]), mount[2]) for mount in mounts if resolved.is_relative_to(mount[1])]
    # Of several mounts on one path the last is the visible one.
    return max(enumerate(holding), key=lambda found: (found[1][0], found[0]))[1][1] if holding else "unknown"
