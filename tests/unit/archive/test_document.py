"""The content of archive files: what it holds is bounded, and damage is found."""

import re
import tracemalloc

import pytest
import zstandard

from resurgam.archive import document
from resurgam.core.errors import CorruptHistory

MIB = 2**20


def compressed(content):
    return zstandard.ZstdCompressor(level=9).compress(content)


def streamed(content):
    """Compress content as a pipe does: the frame does not say how much it holds."""
    stream = zstandard.ZstdCompressor(level=9).compressobj()
    return stream.compress(content) + stream.flush()


def contents(number, size=0):
    return document.Contents(
        entity_id=f"o-{number}",
        execution_id=f"e-{number}",
        tree_id="t",
        parent=None,
        kind="workflow",
        name="order",
        status="completed",
        created_at=1,
        closed_at=2,
        size=size,
    )


def file_of(*frames):
    parts = [(contents(number, len(frame)), frame) for number, frame in enumerate(frames)]
    return b"".join(document.content_of("trees/00/x", parts))


@pytest.mark.parametrize("compress", [compressed, streamed])
def test_a_frame_that_holds_too_much_is_refused_before_it_takes_all_memory(monkeypatch, compress):
    monkeypatch.setattr(document, "_LARGEST", MIB)
    bomb = compress(bytes(400 * MIB))
    assert len(bomb) < MIB // 16
    refusal = "the file f.* is damaged: one of its frames holds more than 1,048,576 bytes"
    tracemalloc.start()
    for read in (
        lambda: document.text_of(compress(b"fine") + bomb, "f"),
        lambda: document.header_in(bomb, "f"),
        lambda: document.File(bomb, "f"),
        lambda: document.File(file_of(bomb), "f").read("e-0"),
    ):
        with pytest.raises(CorruptHistory, match=refusal):
            read()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100 * MIB


def test_the_text_of_all_frames_is_read(monkeypatch):
    monkeypatch.setattr(document, "_LARGEST", 10_000)  # of each
    texts = ["a" * 10_000, "", "ü\n" * 3000]
    assert document.text_of(b"".join(compressed(text.encode()) for text in texts), "f") == "".join(texts)


def test_a_header_is_read_from_the_first_bytes_of_a_file():
    whole = file_of(b"x" * 5000, b"y" * 6000)
    [short] = {document.header_in(whole[:size], "f") for size in range(10, 60, 10)}
    assert short is None
    header = document.header_in(whole[:-10_000], "f")
    assert [one.execution_id for one in header.executions] == ["e-0", "e-1"]
    assert header == document.File(whole, "f").header


@pytest.mark.parametrize(
    ("read", "error"),
    [
        (lambda: document.header_in(b"rubbish", "f"), "the file f is damaged: "),
        (lambda: document.header_in(compressed(b"rubbish"), "f"), "the archive file f has no header: "),
        (lambda: document.File(file_of()[:-1], "f"), "the archive file f is damaged: it ends in its header"),
        (lambda: document.File(file_of(b"1234")[:-1], "f"), "3 bytes follow its header, not 4"),
        (
            lambda: document.File(file_of(compressed(b"1") + b"2"), "f").read("e-0"),
            "the archive file f, at e-0, is damaged: its frame is not of",
        ),
        (
            lambda: document.File(file_of(compressed(b"1")[:-1]), "f").read("e-0"),
            "the archive file f, at e-0, is damaged: its frame is not of",
        ),
        (lambda: document.text_of(compressed(b"1")[:-1], "f"), "the file f is damaged: it ends too early"),
        (lambda: document.text_of(compressed(b"\xff"), "f"), "the file f is damaged: 'utf-8' codec"),
    ],
)
def test_damage_is_found(read, error):
    with pytest.raises(CorruptHistory, match=re.escape(error)):
        read()
