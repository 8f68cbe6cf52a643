"""Of the write-ahead log any part may be on the disk when the power goes: each leaves a run that ends as it should."""

import os
import shutil
import sqlite3
import struct
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from resurgam import Engine
from resurgam.runtime.system import SystemClock
from resurgam.store.sqlite.store import SqliteStore
from support import shop
from support.cluster import check_log, check_run, commands
from support.limits import HANGS

HEADER, FRAME = 32, 24


@dataclass
class Recorded:
    """A run, and the files as they were when it had ended, nothing of it in the main file yet."""

    database: bytes
    wal: bytes
    history: list

    @property
    def frame(self) -> int:
        """The length of a frame."""
        return FRAME + struct.unpack(">I", self.wal[8:12])[0]

    @property
    def frames(self) -> int:
        return (len(self.wal) - HEADER) // self.frame

    def commits(self, frames: int) -> int:
        """Return how many of the first *frames* end a transaction: they tell the size of the database, others 0."""
        begins = (HEADER + number * self.frame for number in range(frames))
        return sum(self.wal[begin + 4 : begin + 8] != bytes(4) for begin in begins)

    def put(self, folder: Path, length: int) -> Path:
        """Write the files as a power cut would leave them, with *length* bytes of the WAL; no other file survives."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "shop.db").write_bytes(self.database)
        (folder / "shop.db-wal").write_bytes(self.wal[:length])
        return folder / "shop.db"


@pytest.fixture
async def recorded(tmp_path, monkeypatch) -> Recorded:
    monkeypatch.setenv("SHOP_EFFECTS", os.devnull)
    file = tmp_path / "original.db"
    await _open(file).close()
    # A reader from before the run: nothing newer than what it sees may be moved into the main file.
    with closing(sqlite3.connect(file, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM instances").fetchone()
        async with Engine(f"sqlite:///{file}", registry=shop.registry) as engine:
            handle = await engine.start(shop.small, 4, id=shop.SMALL)
            assert await handle.result(timeout=HANGS) == shop.SMALL_RESULT
            history = await handle.history()
            wal = file.with_name("original.db-wal").read_bytes()
            return Recorded(file.read_bytes(), wal, history)


def _open(file: Path) -> SqliteStore:
    return SqliteStore(file, SystemClock(), name="look", synchronous="OFF")


async def _log(file: Path) -> list:
    """Open what is left, and return the log of the run; it must agree with the row of the instance."""
    store = _open(file)
    try:
        instance = await store.inspector.get(shop.SMALL)
        if instance is None:
            return []
        log = list(await store.inspector.history(instance))
        assert instance.last_seq == len(log)
        return log
    finally:
        await store.close()


async def _resume(file: Path) -> list:
    async with Engine(f"sqlite:///{file}?synchronous=off", registry=shop.registry) as engine:
        handle = await engine.start(shop.small, 4, id=shop.SMALL, if_exists="attach")
        assert await handle.result(timeout=HANGS) == shop.SMALL_RESULT
        return await handle.history()


async def test_every_frame_boundary(recorded, tmp_path):
    """It opens, it holds a whole number of commits, in order, and the run goes on to the same end."""
    by_commits: dict[int, list] = {}
    for frames in range(recorded.frames + 1):
        file = recorded.put(tmp_path / "cut", HEADER + frames * recorded.frame)
        log = await _log(file)
        check_log(log)
        assert log == recorded.history[: len(log)]
        assert by_commits.setdefault(recorded.commits(frames), log) == log, "half a transaction is seen"
        file = recorded.put(tmp_path / "cut", HEADER + frames * recorded.frame)
        history = await _resume(file)
        await check_run(shop.small, history, shop.SMALL_RESULT)
        assert history[: len(log)] == log
        assert commands(history) == commands(recorded.history)
    lengths = [len(log) for log in by_commits.values()]
    assert lengths == sorted(lengths)
    assert (lengths[0], lengths[-1]) == (0, len(recorded.history))
    print(f"{recorded.frames} frames, {len(by_commits) - 1} commits, {len(recorded.history)} events")


@pytest.mark.parametrize("damage", ["torn", "zeroed", "flipped"])
async def test_a_frame_that_is_not_whole_does_not_count(recorded, tmp_path, damage):
    """Half a frame, a frame of zeros or one with a wrong byte is as if it had never been written."""
    for frames in range(recorded.frames):
        end = HEADER + frames * recorded.frame
        file = recorded.put(tmp_path / "cut", end)
        expected = await _log(file)
        file = recorded.put(tmp_path / "cut", end)
        last = recorded.wal[end : end + recorded.frame]
        wrong = {
            "torn": last[: len(last) // 2],
            "zeroed": bytes(len(last)),
            "flipped": last[:-1] + bytes([last[-1] ^ 1]),
        }[damage]
        with file.with_name("shop.db-wal").open("ab") as wal:
            wal.write(wrong)
        assert await _log(file) == expected
