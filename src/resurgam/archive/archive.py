"""An archive: executions in files, one for each tree, or for each part of an open tree that is archived by itself."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from hashlib import blake2b
from pathlib import PurePosixPath
from typing import Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

from resurgam.archive import document
from resurgam.archive.folder import ArchiveBusy, ArchiveFailed, Files, open_files
from resurgam.core.errors import CorruptHistory, NotFound
from resurgam.store import records as r

logger = logging.getLogger("resurgam.archive")

T = TypeVar("T")

_KEPT: Final = 8
"""Files that stay in memory, because a tree is read execution by execution."""

_FIRST: Final = 4096
_MORE: Final = 8
"""Bytes of a file that are read for its header, and how many times more where that is longer."""

_PATIENCE: Final = 20.0
_POLL: Final = 0.2
"""Seconds to wait for a process that changes files, and between two polls."""

OWNER: Final = ".store"
"""The file that says which store the archive belongs to. It is above those with histories."""

_DEPTH: Final = 3
"""Parts of the name of a file: its kind, two digits of its digest, its id."""


class Identity(NamedTuple):
    """The store that an archive belongs to, and the archive's own id; that is empty if a person wrote the file."""

    owner: str
    id: str


class Archive:
    """Read and write the files of an archive, in threads; only its lock is taken on the loop."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self._read: OrderedDict[str, tuple[object, document.File]] = OrderedDict()

    @property
    def url(self) -> str:
        """The prefix of the URL of every file."""
        return self.files.url

    async def add(self, name: str, frames: Sequence[document.Frame]) -> dict[str, str]:
        """Put executions into a file, read it back, and return the digests of all that it holds, by the ids of executions.

        Other executions that the file has stay: the store may hold only their rows. One that the file has
        and that differs is refused. The file is durable on return, also if nothing had to be written. Called in `exclusive`.
        """
        return await _run_to_completion(partial(self._add, name, frames))

    def _add(self, name: str, frames: Sequence[document.Frame]) -> dict[str, str]:
        before = {frame.instance.execution_id: frame for _, frame in self._archived(name)}
        coming = {frame.instance.execution_id: frame for frame in frames}
        for execution_id in before.keys() & coming.keys():
            if before[execution_id].digest != coming[execution_id].digest:
                raise differs(execution_id, f"{self.url}{name}")
        if not coming.keys() <= before.keys():
            self.files.write(name, _content(name, (coming | before).values()))
        else:
            self.files.sync(name)  # an archiver may have died between its write and this
        return {frame.instance.execution_id: frame.digest for _, frame in self._archived(name)}

    def _archived(self, name: str) -> Iterator[tuple[r.Copy, document.Frame]]:
        file = self._file(name)
        return iter(()) if file is None else iter(file)

    def _file(self, name: str) -> document.File | None:
        content = self.files.read(name)
        if content is None:
            return None
        file = document.File(content, f"{self.url}{name}")
        self._check_name(file.header, name)
        return file

    def _header(self, name: str) -> document.Header | None:
        """Return the header of a file, and read no more of the file than that needs."""
        size = _FIRST
        while (content := self.files.read(name, size)) is not None:
            header = document.header_in(content, f"{self.url}{name}")
            if header is not None:
                self._check_name(header, name)
                return header
            if len(content) < size:
                raise CorruptHistory(f"the archive file {self.url}{name} is damaged: it ends in its header")
            size *= _MORE
        return None

    def _check_name(self, header: document.Header, name: str) -> None:
        if header.name != name:
            raise CorruptHistory(
                f"the archive file {self.url}{name} has the header of {header.name}; it was renamed or moved"
            )

    def _cached(self, url: str) -> document.File | None:
        """Return a file that was read lately, or read it again if it has changed since."""
        name = name_in(url)
        stamp = self.files.stamp(name)
        known = self._read.pop(url, None)
        file = known[1] if known is not None and known[0] == stamp else self._file(name)
        if file is not None:
            self._read[url] = stamp, file
            if len(self._read) > _KEPT:
                self._read.popitem(last=False)
        return file

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Keep other processes from changing files in the block; raise `ArchiveBusy` if one of them does not end its own."""
        until = asyncio.get_running_loop().time() + _PATIENCE
        block = self.files.exclusive()
        while True:
            try:
                block.__enter__()
                break
            except ArchiveBusy:
                if asyncio.get_running_loop().time() >= until:
                    raise
            await asyncio.sleep(_POLL)
            block = self.files.exclusive()
        try:
            yield
        finally:
            block.__exit__(None, None, None)

    async def identity(self) -> "Identity | None":
        """Return to which store the archive belongs; None if it is new, or not there at all."""
        return await asyncio.to_thread(self._identity)

    def _identity(self) -> "Identity | None":
        found = self.files.read(OWNER)
        if found is None:
            return None
        owner, _, archive_id = found.decode(errors="replace").strip().partition(" ")
        return Identity(owner, archive_id)

    async def check_owner(self, owner: str) -> "Identity | None":
        """Return the identity of an archive of a store; None if it is new. Raise `ArchiveFailed` if it is another's."""
        found = await self.identity()
        if found is not None and found.owner != owner:
            raise ArchiveFailed(
                f"the archive {self.url} belongs to another store; give each store an archive of its own. If that store has "
                f"become this one, write {owner} into {self.url}{OWNER}",
                everywhere=True,
            )
        return found

    async def claim(self, identity: "Identity") -> None:
        """Make a new archive that of a store. Called in `exclusive`."""
        await _run_to_completion(partial(self.files.write, OWNER, [f"{identity.owner} {identity.id}".encode()]))

    async def copy(self, instance: r.Instance) -> r.Copy:
        """Return an archived execution; raise `NotFound` if its file is gone."""
        assert instance.archived is not None
        url = instance.archived
        file = await asyncio.to_thread(self._cached, url)
        if file is None or instance.execution_id not in file:
            raise NotFound(
                f"execution {instance.execution_id!r} of {instance.entity_id!r} is not in the archive file {url}; if the "
                "archive has moved, give its URL as archive= or --archive, else restore the file from a backup"
            )
        copy, _ = await asyncio.to_thread(file.read, instance.execution_id)
        return copy

    async def lines(self, url: str, entity_id: str, *, readable_only: bool = False) -> str:
        """Return the lines of a file that holds an entity, for `Engine.import_`; raise `NotFound` if the file is gone.

        With *readable_only* executions that are damaged are logged and left out, as long as one of the entity is left; else
        they raise `CorruptHistory`.
        """
        name = name_in(url)
        file = await asyncio.to_thread(self._file, name)
        if file is None:
            raise NotFound(
                f"there is no archive file {self.url}{name}; if the archive has moved, give its URL as --archive, else "
                "restore the file from a backup"
            )
        return await asyncio.to_thread(file.lines_with, entity_id, readable_only=readable_only)

    async def find(self, entity_id: str) -> list[str]:
        """Return the URLs of the files with executions of an entity, by the headers of all files.

        For entities of which the store has no rows any more.
        """
        if await self.identity() is None:
            raise NotFound(f"there is no archive at {self.url}; check the URL, and whether its disk is mounted")
        held = await self.listed(lambda one: one.entity_id == entity_id)
        return [f"{self.url}{name}" for name in dict.fromkeys(name for name, _ in held)]

    def is_elsewhere(self, url: str) -> bool:
        """Whether the file of a URL is in another archive: not here under its name, and made under another address.

        An archive without an owner is not there at all: its disk may not be mounted.
        """
        return self.files.stamp(name_in(url)) is None and (base_of(url) != self.url or self._identity() is None)

    async def listed(self, wanted: Callable[[document.Contents], bool]) -> list[tuple[str, document.Contents]]:
        """Return the executions that are *wanted*, each with the name of its file.

        The headers of all files are read, and nothing else: rows of the store do not name a file that an archiver has
        written before it died. A damaged file is logged and left out.
        """
        return await asyncio.to_thread(self._listed, wanted)

    def _listed(self, wanted: Callable[[document.Contents], bool]) -> list[tuple[str, document.Contents]]:
        found: list[tuple[str, document.Contents]] = []
        for name in self._names():
            header = self._header_if_whole(name)
            if header is not None:
                found += [(name, one) for one in header.executions if wanted(one)]
        return found

    async def remove(self, names: Iterable[str], wanted: Callable[[document.Contents], bool]) -> set[str]:
        """Delete executions that are *wanted* from some files; return their ids. Called in `exclusive`.

        A damaged file is left, and raises `CorruptHistory` once the others are done.
        """
        return await _run_to_completion(partial(self._remove_all, list(names), wanted))

    def _remove_all(self, names: Sequence[str], wanted: Callable[[document.Contents], bool]) -> set[str]:
        removed: set[str] = set()
        damaged = None
        for name in names:
            try:
                removed |= self._remove(name, wanted)
            except CorruptHistory as error:
                damaged = error
        if damaged is not None:
            raise damaged
        return removed

    def _remove(self, name: str, wanted: Callable[[document.Contents], bool]) -> set[str]:
        file = self._file(name)
        if file is None:
            return set()
        held = list(file.parts)
        kept = [(listed, content) for listed, content in held if not wanted(listed)]
        if not kept:
            self.files.delete(name)
        elif len(kept) < len(held):
            self.files.write(name, document.content_of(name, kept))
        return {listed.execution_id for listed, _ in held} - {listed.execution_id for listed, _ in kept}

    async def damaged(self) -> list[str]:
        """Return the URLs of the files whose headers cannot be read: what they hold is not known."""
        return await asyncio.to_thread(
            lambda: [f"{self.url}{name}" for name in self._names() if self._is_damaged(name)]
        )

    def _names(self) -> list[str]:
        """Return the names of all files with histories; the file system may have others, as NFS has for deleted ones."""
        return [name for name in self.files.names() if name.endswith(document.SUFFIX)]

    def _is_damaged(self, name: str) -> bool:
        try:
            self._header(name)
        except CorruptHistory:
            return True
        return False

    def _header_if_whole(self, name: str) -> document.Header | None:
        """Return a header; one that is damaged is logged, and must not hide the others."""
        try:
            return self._header(name)
        except CorruptHistory as error:
            logger.error("%s", error)  # noqa: TRY400 -- it says enough
            return None


class ArchiveSet:
    """Several archives of one store, for a deletion. Files are named by their URLs."""

    def __init__(self, archives: Sequence[Archive]) -> None:
        self._archives = archives

    async def listed(self, wanted: Callable[[document.Contents], bool]) -> list[tuple[str, document.Contents]]:
        """Return the executions that are *wanted*, each with the URL of its file."""
        return [(f"{one.url}{name}", held) for one in self._archives for name, held in await one.listed(wanted)]

    async def remove(self, urls: Iterable[str], wanted: Callable[[document.Contents], bool]) -> set[str]:
        """Delete executions that are *wanted* from some files; return their ids. Called in `Archive.exclusive` of each."""
        given, removed = list(urls), set[str]()
        for one in self._archives:
            removed |= await one.remove([name_in(url) for url in given if base_of(url) == one.url], wanted)
        return removed

    async def damaged(self) -> list[str]:
        """Return the URLs of the files whose headers cannot be read."""
        return [url for one in self._archives for url in await one.damaged()]

    async def is_elsewhere(self, url: str, execution_id: str) -> bool:
        """Whether an execution is, or may be, in the file of a URL that is in none of these archives.

        It is not if that archive is there and has it no longer: another store, to which it belongs, has deleted it.
        """
        if not all(one.is_elsewhere(url) for one in self._archives):
            return False
        other = open_known(base_of(url))
        if other is None or await other.identity() is None:
            return True
        return bool(await other.listed(lambda one: one.execution_id == execution_id))


async def _run_to_completion(work: Callable[[], T]) -> T:
    """Run in a thread, and return when it has ended, also if cancelled: a thread cannot be stopped, and goes on to write.

    `Archive.exclusive` must not end before it.
    """
    running = asyncio.ensure_future(asyncio.to_thread(work))
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.wait({running})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        running.exception()  # as the caller will not look at it
        raise cancelled
    return running.result()


def differs(execution_id: str, url: str) -> CorruptHistory:
    """Return the error for an execution that a file has in another form than the store."""
    return CorruptHistory(
        f"execution {execution_id} in the archive file {url} differs from the one in the store; nothing was deleted. If "
        "another store, or a copy of this one, uses the archive, give it one of its own; else move the file away, and "
        "archive again"
    )


def owner_of(store_id: str) -> str:
    """Return how an archive names the store that it belongs to."""
    return blake2b(store_id.encode(), digest_size=12, person=b"archive").hexdigest()


def _content(name: str, frames: Iterable[document.Frame]) -> Iterator[bytes]:
    """Return the content of a file: the root of a tree comes last, where a reader of one history looks for it."""
    ordered = sorted(frames, key=lambda frame: _position(frame.instance))
    return document.content_of(name, [frame.part for frame in ordered])


def _position(one: r.Instance) -> tuple[bool, int, int, int, str]:
    return one.parent is None, one.created_at, one.generation, one.attempt, one.execution_id


def open_archive(url: object) -> Archive:
    """Return an archive by its URL or path."""
    return Archive(open_files(url))


def open_known(url: str) -> Archive | None:
    """Return an archive by a URL that the store remembers; None if this process cannot open such a URL."""
    try:
        return open_archive(url)
    except ValueError:
        return None


def name_of(kind: str, id: str) -> str:
    """Return the name of the file of a tree (*kind* ``trees``) or of a run (``runs``)."""
    digest = blake2b(id.encode(), digest_size=12).hexdigest()
    plain = id.isascii() and id.replace("-", "").replace("_", "").isalnum() and len(id) <= 64
    return f"{kind}/{digest[:2]}/{id if plain else digest}{document.SUFFIX}"


def name_in(url: str) -> str:
    """Return the name of a file by its URL: the archive may have been moved to another place since."""
    return "/".join(PurePosixPath(urlsplit(url).path).parts[-_DEPTH:])


def base_of(url: str) -> str:
    """Return the URL of the archive that a file belongs to."""
    return url[: -len(name_in(url))]
