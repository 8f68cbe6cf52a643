"""Choose where to measure: in new files beside the file of a URL, in temporary files on a disk, or on a server."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable
from urllib.parse import parse_qs, quote, unquote, urlsplit

from resurgam.bench.raw import RawFile
from resurgam.core import event as events
from resurgam.core.errors import StoreError
from resurgam.runtime.system import SystemClock
from resurgam.store.open import is_postgres, is_redis, open_store

_IN_MEMORY = ("tmpfs", "ramfs")


class RawWriter(Protocol):
    """Writes what a store writes, without an engine."""

    def write(self, history: Sequence[events.Event], instances: int = 1) -> list[float]:
        """Write a history for some new instances together; return the seconds of each of its commits."""
        ...


class Storage(Protocol):
    """Where the stores of one run are; its text says so to people."""

    @property
    def shared(self) -> bool:
        """Whether processes can share a store, and it outlives them."""
        ...

    @property
    def server(self) -> str | None:
        """What the server is and how it keeps its data; None if there is none."""
        ...

    def url(self, name: str) -> str:
        """Return the URL of a store with this name."""
        ...

    def file(self, name: str) -> Path | None:
        """Return the file of a store with this name; None if it has none."""
        ...

    def raw(self) -> AbstractContextManager[RawWriter | None]:
        """Open what measures the raw limit; None if there is no limit for this store."""
        ...

    async def calls(self, history: Sequence[events.Event], times: int) -> Sequence[float]:
        """Write a history as the raw limit does, but through a connection as stores have it; return the seconds of each time."""
        ...

    async def memory(self) -> int | None:
        """Return the bytes that the server uses; None if there is none."""
        ...


@runtime_checkable
class Crowded(Protocol):
    """A server that can hold a million idle instances."""

    @property
    def originals(self) -> int:
        """How many workflows must sleep before they are copied."""
        ...

    async def copy_sleepers(self, name: str, number: int) -> int:
        """Copy sleeping workflows of a store until there are *number* copies; return how many there are."""
        ...


@dataclass(frozen=True)
class Files:
    """The folder for the files of one run, None for a store without files, and the options of their URLs."""

    folder: Path | None
    options: str = ""
    server: str | None = None

    @property
    def shared(self) -> bool:
        """Whether processes can share a store: not one in memory."""
        return self.folder is not None

    def url(self, name: str) -> str:
        """Return the URL of a store with this name."""
        file = self.file(name)
        return "memory://" if file is None else f"sqlite:///{quote(str(file))}{self.options}"

    def file(self, name: str) -> Path | None:
        """Return the file of a store with this name."""
        return None if self.folder is None else self.folder / f"{name}.db"

    @contextlib.contextmanager
    def raw(self) -> Iterator[RawWriter | None]:
        """Open a file for plain statements, at the same level of durability."""
        path = self.file("raw")
        if path is None:
            yield None
            return
        with contextlib.closing(RawFile(path, self.level())) as file:
            yield file

    async def calls(self, history: Sequence[events.Event], times: int) -> Sequence[float]:
        """Return nothing: there is no connection."""
        return ()

    async def memory(self) -> int | None:
        """Return None: there is no server."""
        return None

    def level(self) -> str:
        """Return the level of ``synchronous`` in the URL."""
        return parse_qs(self.options[1:]).get("synchronous", ["full"])[-1].upper()

    def __str__(self) -> str:
        return "memory" if self.folder is None else f"{self.folder.parent} ({file_system(self.folder)})"


@contextlib.contextmanager
def open_storage(url: str | None) -> Iterator[Storage]:
    """Create a folder for the stores of a run beside the file of *url*, or choose prefixes or schemas on its server.

    The store of *url* itself is never touched: a measurement starts with an empty one, and it
    leaves nothing behind.
    """
    if url is not None and is_redis(url):
        from resurgam.bench.servers import open_servers  # noqa: PLC0415 -- needs a package that only this store needs

        open_store(url, SystemClock(), name="bench", lease=1000)  # raises if that package is missing
        with open_servers(url) as servers:
            yield servers
        return
    if url is not None and is_postgres(url):
        open_store(url, SystemClock(), name="bench", lease=1000)  # as above
        from resurgam.bench.schemas import open_schemas  # noqa: PLC0415 -- as above

        with open_schemas(url) as schemas:
            yield schemas
        return
    parts = urlsplit(url or "sqlite://")
    if parts.scheme != "sqlite" or parts.netloc:
        open_store(url or "", SystemClock(), name="bench", lease=1000)  # raises for an unknown URL
        yield Files(None)
        return
    named = unquote(parts.path[1:])
    try:
        folder = Path(tempfile.mkdtemp(prefix="resurgam-bench-", dir=Path(named).parent if named else _disk()))
    except OSError as error:
        raise StoreError(f"{url}: cannot create a file there: {error.strerror}") from error
    try:
        yield Files(folder.resolve(), f"?{parts.query}" if parts.query else "")
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
