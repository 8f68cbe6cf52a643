"""The content of an archive file: JSON lines, compressed with zstd, one frame for each execution.

The first line is a header that lists the executions of the file. The lines of each execution follow, as `resurgam export` writes
them; the last one is ``workflow_archived`` or ``flow_archived``, with the digest of all before it. ``zstd -dc FILE`` prints
them, and `resurgam import FILE` reads them.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from resurgam.core import event as events
from resurgam.core.errors import CorruptHistory, SerializationError, StoreError
from resurgam.core.flow_event import FLOW, FlowArchived
from resurgam.store import export
from resurgam.store import records as r

logger = logging.getLogger("resurgam.archive")

SUFFIX: Final = ".jsonl.zst"
MAGIC: Final = b"\x28\xb5\x2f\xfd"
"""The first bytes of every zstd frame."""

_HEADER: Final = f'{{"type":"{export.HEADER}"'.encode()
"""What the first line of an archive file begins with."""

_LEVEL: Final = 9
_WINDOW: Final = 2**31
"""The largest window of a frame that is read: what ``zstd --long=31`` writes."""

_LARGEST: Final = 2**31
"""The most bytes that a frame may hold once it is decompressed: a damaged one must not take all memory."""

_SLICE: Final = 1024
"""Compressed bytes that are read before the size is checked again. No format has them hold more than 32 MiB."""


class Contents(msgspec.Struct, frozen=True):
    """An execution in a file, as the header of the file lists it. *parent* is the entity that started it."""

    entity_id: str
    execution_id: str
    tree_id: str
    parent: str | None
    kind: str
    name: str
    status: str
    created_at: int
    closed_at: int | None
    size: int
    """The bytes of its frame."""


Part = tuple[Contents, bytes | memoryview]
"""An execution as the header of its file lists it, and its compressed lines."""


class Header(msgspec.Struct, frozen=True, tag_field="type", tag=export.HEADER):
    """The first line of a file. *name* is that of the file."""

    name: str
    executions: tuple[Contents, ...]
    format: int = export.FORMAT


class Frame(msgspec.Struct, frozen=True):
    """The compressed lines of an execution, and its `digest_of`."""

    instance: r.Instance
    digest: str
    content: bytes

    @property
    def part(self) -> Part:
        """The frame as a part of a file."""
        one = self.instance
        listed = Contents(
            entity_id=one.entity_id,
            execution_id=one.execution_id,
            tree_id=one.tree_id,
            parent=None if one.parent is None else one.parent.entity_id,
            kind=one.kind,
            name=one.name,
            status=one.status,
            created_at=one.created_at,
            closed_at=one.closed_at,
            size=len(self.content),
        )
        return listed, self.content


def frame_of(copy: r.Copy, at: int) -> Frame:
    """Return the frame of an execution that is archived at a moment."""
    lines = lines_of(copy)
    kind = FlowArchived if copy.instance.kind == FLOW else events.WorkflowArchived
    seq = copy.instance.last_seq + 1
    end = kind(seq=seq, at=max(at, copy.log[-1].at), digest=export.digest_of(lines))
    text = "".join(f"{line}\n" for line in (*lines, end.to_json())).encode()
    if len(text) > _LARGEST:
        raise CorruptHistory(
            f"it has {len(text):,} bytes, and an archive takes at most {_LARGEST:,}; it stays in the store"
        )
    return Frame(copy.instance, digest_of(copy), _compress(text))


def digest_of(copy: r.Copy) -> str:
    """Return the digest of what never changes in a complete execution: its promises move to another attempt of its run."""
    return export.digest_of(lines_of(msgspec.structs.replace(copy, promises=())))


def lines_of(copy: r.Copy) -> list[str]:
    """Return the lines of an execution, the same from every store: names of tags are sorted."""
    instance = copy.instance
    ordered = msgspec.structs.replace(
        instance,
        tags=dict(sorted(instance.tags.items())),
        signal_schemas=dict(sorted(instance.signal_schemas.items())),
    )
    return export.write([msgspec.structs.replace(copy, instance=ordered)])


def content_of(name: str, parts: Sequence[Part]) -> Iterator[bytes]:
    """Yield the content of a file with these executions, in this order."""
    header = Header(name=name, executions=tuple(listed for listed, _ in parts))
    yield _compress(msgspec.json.encode(header) + b"\n")
    for _, content in parts:
        yield bytes(content)


def header_in(content: bytes, where: str) -> Header | None:
    """Return the header of a file by its first bytes; None if the header is longer."""
    found = _first_frame(content, where)
    return None if found is None else _header(found[0], where)


class File:
    """A file of an archive that was read. *where* names it in errors."""

    def __init__(self, content: bytes, where: str) -> None:
        self._where = where
        found = _first_frame(content, where)
        if found is None:
            raise CorruptHistory(f"the archive file {where} is damaged: it ends in its header")
        self.header, rest = _header(found[0], where), found[1]
        self._parts: dict[str, Part] = {}
        at = 0
        for one in self.header.executions:
            self._parts[one.execution_id] = one, rest[at : at + one.size]
            at += one.size
        if at != len(rest):
            raise CorruptHistory(f"the archive file {where} is damaged: {len(rest)} bytes follow its header, not {at}")

    @property
    def parts(self) -> Iterable[Part]:
        """All executions, compressed as they are, and not compared with their digests."""
        return self._parts.values()

    def __contains__(self, execution_id: object) -> bool:
        """Whether the file holds an execution."""
        return execution_id in self._parts

    def read(self, execution_id: str) -> tuple[r.Copy, Frame]:
        """Return an execution, compared with its digest."""
        copy, frame, _ = self._read(execution_id)
        return copy, frame

    def text(self, execution_id: str) -> str:
        """Return the lines of an execution, compared with its digest."""
        return self._read(execution_id)[2]

    def _read(self, execution_id: str) -> tuple[r.Copy, Frame, str]:
        _, frame = self._parts[execution_id]
        where = f"{self._where}, at {execution_id},"
        found = _first_frame(frame, where)
        if found is None or found[1]:
            raise CorruptHistory(f"the archive file {where} is damaged: its frame is not of {len(frame)} bytes")
        try:
            text = found[0].decode()
            lines = text.split("\n")[:-1]
            [copy] = export.read(lines)
            end = events.decode_event(lines[-1])
            if not isinstance(end, events.Archived):
                raise SerializationError("its last line", f"must be the end of an archived execution, got {end.type}")
        except (SerializationError, ValueError) as error:
            raise CorruptHistory(f"the archive file {where} is damaged: {error}") from error
        return copy, Frame(copy.instance, digest_of(copy), bytes(frame)), text

    def lines_with(self, entity_id: str, *, readable_only: bool) -> str:
        """Return the lines of the file; raise `CorruptHistory` if no execution of an entity is among them."""
        texts = self._texts(readable_only=readable_only)
        if not any(one.execution_id in texts for one in self.header.executions if one.entity_id == entity_id):
            raise CorruptHistory(
                f"the archive file {self._where} has no readable execution of {entity_id!r}; restore it from a backup"
            )
        return self._joined(texts)

    def lines(self) -> str:
        """Return the lines of the file."""
        return self._joined(self._texts())

    def _joined(self, texts: dict[str, str]) -> str:
        return "".join((f"{msgspec.json.encode(self.header).decode()}\n", *texts.values()))

    def _texts(self, *, readable_only: bool = False) -> dict[str, str]:
        """Return the lines of each execution; with *readable_only* those that are damaged are logged and left out."""
        texts = {}
        for one in self.header.executions:
            try:
                texts[one.execution_id] = self.text(one.execution_id)
            except CorruptHistory as error:
                if not readable_only:
                    raise
                logger.error("%s", error)  # noqa: TRY400 -- it says enough
        return texts

    def __iter__(self) -> Iterator[tuple[r.Copy, Frame]]:
        """Yield all executions, each compared with its digest."""
        return map(self.read, self._parts)


def _header(text: bytes, where: str) -> Header:
    try:
        return msgspec.json.decode(text, type=Header)
    except msgspec.MsgspecError as error:
        raise CorruptHistory(f"the archive file {where} has no header: {error}") from error


def text_of(content: bytes, where: str) -> str:
    """Return the decompressed lines of a file, of an archive or of another zstd program.

    Raise `CorruptHistory` if it lacks something that its header lists.
    """
    first = _first_frame(content, where)
    if first is not None and first[0].startswith(_HEADER):
        return File(content, where).lines()
    rest, texts = memoryview(content), []
    while rest:
        found = _first_frame(rest, where)
        if found is None:
            raise CorruptHistory(f"the file {where} is damaged: it ends too early")
        texts.append(found[0])
        rest = found[1]
    try:
        return b"".join(texts).decode()
    except UnicodeDecodeError as error:
        raise CorruptHistory(f"the file {where} is damaged: {error}") from error


def _first_frame(content: bytes | memoryview, where: str) -> tuple[bytes, memoryview] | None:
    """Decompress the first frame; return its text and the bytes that follow it. None if the content ends in the frame."""
    zstd, content = _zstd(), memoryview(content)
    reader = zstd.ZstdDecompressor(max_window_size=_WINDOW).decompressobj()
    texts, size = [], 0
    for start in range(0, len(content), _SLICE):
        try:
            texts.append(reader.decompress(content[start : start + _SLICE]))
        except zstd.ZstdError as error:
            raise CorruptHistory(f"the file {where} is damaged: {error}") from error
        size += len(texts[-1])
        if size > _LARGEST:
            raise CorruptHistory(
                f"the file {where} is damaged: one of its frames holds more than {_LARGEST:,} bytes, the most that is read"
            )
        if reader.eof:
            end = min(start + _SLICE, len(content)) - len(reader.unused_data)
            return b"".join(texts), content[end:]
    return None


def _compress(content: bytes) -> bytes:
    compressed: bytes = _zstd().ZstdCompressor(level=_LEVEL, write_checksum=True).compress(content)
    return compressed


def _zstd() -> Any:
    try:
        import zstandard  # noqa: PLC0415 -- an extra, and only archives pay for the import
    except ImportError:
        raise StoreError("archives need the package zstandard: pip install 'resurgam[archive]'") from None
    return zstandard
