"""Disks that are read-only or full, and locked databases: one line says what, where and the remedy; nothing is lost."""

import asyncio
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from resurgam.errors import StoreError
from support import shop
from support.cluster import Cluster, check_effects, check_run, eventually
from support.limits import HANGS

READ_ONLY = "attempt to write a readonly database: the file, or its folder, may not be written; change the permissions"
NOT_OPENED = "unable to open database file: the file cannot be opened; does its folder exist, and may it be written?"
FULL = "database or disk is full: the disk is full; make room, the work goes on by itself"
LOCKED = "database is locked: another program holds the database; end its transaction"
LARGE = {f"size {number}": "x" * 1000 for number in range(20 * shop.FAT // 1000)}
"""Tags that need more room than a full disk has."""


# Read-only.


OPEN = """
import asyncio, os, sys
from resurgam import Engine
from resurgam.errors import StoreError

async def main():
    async with Engine(f"sqlite:///{sys.argv[1]}"):
        pass

assert not os.access(sys.argv[2], os.W_OK), "the permissions do not bind"
try:
    asyncio.run(main())
except StoreError as error:
    sys.exit(f"StoreError: {error}")
"""


def bound(*arguments: str) -> subprocess.Popen:
    """Start a Python that permissions bind: root has to give up its right to pass over them."""
    command = [sys.executable, *arguments]
    if os.geteuid() == 0:
        if not shutil.which("setpriv"):
            pytest.fail("setpriv (of util-linux) is not installed; without it permissions do not bind root")
        lost = "-dac_override,-dac_read_search"
        command = ["setpriv", f"--bounding-set={lost}", f"--inh-caps={lost}", *command]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/"
    )


def ended(process: subprocess.Popen) -> tuple[int, str]:
    """Return the exit code of a process, and what it said when something was wrong."""
    _, err = process.communicate(timeout=HANGS)
    return process.returncode, err


@pytest.mark.parametrize(
    ("file", "protected", "mode", "reason"),
    [
        ("shop.db", "shop.db", 0o444, READ_ONLY),
        ("shop.db", ".", 0o555, READ_ONLY),
        ("new.db", ".", 0o555, NOT_OPENED),
    ],
    ids=["the file", "its folder", "the folder of a new file"],
)
def test_what_is_read_only_is_one_line_and_can_be_repaired(tmp_path, file, protected, mode, reason):
    folder = tmp_path / "shop"
    folder.mkdir()
    (tmp_path / "mine.py").write_text("")
    database, target = folder / file, folder / protected
    starting = "-m", "resurgam", "start", "w", "--store", f"sqlite:///{database}"
    if file == "shop.db":
        assert ended(bound(*starting)) == (0, "")
    normal = target.stat().st_mode
    target.chmod(mode)
    try:
        opening = bound("-c", OPEN, str(database), str(target))
        asking = bound(*starting)
        serving = bound("-m", "resurgam", "worker", str(tmp_path / "mine.py"), "--store", f"sqlite:///{database}")
        found = [ended(process) for process in (opening, asking, serving)]
    finally:
        target.chmod(normal)

    assert found == [
        (1, f"StoreError: {database}: {reason}\n"),
        (1, f"Error: {database}: {reason}\n"),
        (1, f"Error: {database}: {reason}\n"),
    ]
    assert ended(bound(*starting)) == (0, "")  # nothing was left behind that is in the way


# Full.


class SmallFileSystem:
    """A file system of its own, which a big file fills."""

    reason = FULL

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=8m,mode=0700", "none", str(folder)], check=True, capture_output=True
        )

    def fill(self, worker: subprocess.Popen, room: int) -> None:
        state = os.statvfs(self.folder)
        (self.folder / "filler").write_bytes(bytes(state.f_bavail * state.f_frsize - room))

    def make_room(self, worker: subprocess.Popen) -> None:
        (self.folder / "filler").unlink()

    def close(self) -> None:
        subprocess.run(["umount", "-l", str(self.folder)], check=True)


class LimitedFiles:
    """Files that a process may not make longer than so much: a limit that the kernel keeps, for whomever it may be."""

    reason = "disk I/O error: the disk does not answer as it should"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self, worker: subprocess.Popen, room: int) -> None:
        longest = max(file.stat().st_size for file in self.folder.iterdir())
        resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (longest + room, resource.RLIM_INFINITY))

    def make_room(self, worker: subprocess.Popen) -> None:
        resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    def close(self) -> None:
        pass


def _small_disk(folder: Path) -> SmallFileSystem | LimitedFiles:
    """Mount one, or where that is not allowed, take the limit in its place."""
    try:
        return SmallFileSystem(folder)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"no file system can be mounted here ({error}); the size of files is limited instead")
        return LimitedFiles(folder)


@pytest.fixture(params=[(_small_disk, 60.0), (LimitedFiles, 1.0)], ids=["long leases", "leases that run out"])
def crowded(request, tmp_path):
    """A cluster whose database is on a disk that can be filled, the disk, and the length of its leases."""
    make, lease = request.param
    folder = tmp_path / "disk"
    folder.mkdir()
    disk = make(folder)
    cluster = Cluster(tmp_path, disk=folder)
    try:
        yield cluster, disk, lease
    finally:
        cluster.close()
        disk.close()


def complaints(cluster: Cluster, worker: subprocess.Popen, reason: str) -> list[str]:
    """Return the lines in which a worker says what is wrong with its store."""
    return [line for line in cluster.said(worker).splitlines() if line.endswith(f": {cluster.file}: {reason}")]


def check_said(cluster: Cluster, worker: subprocess.Popen, reason: str) -> None:
    """Check that a worker said nothing else, but for what was lost with leases that ran out meanwhile."""
    lost = ("refused", "is lost", "is not heard")
    rest = set(cluster.said(worker).splitlines()) - set(complaints(cluster, worker, reason))
    assert [line for line in rest if not any(word in line for word in lost)] == []


async def test_a_full_disk_holds_everything_up_and_loses_nothing(crowded):
    """Runs that need room wait, retried every second, and go on by themselves when there is some."""
    cluster, disk, lease = crowded
    numbers, parts = range(6), 5
    async with cluster.client() as engine:
        for number in numbers:
            await engine.start(shop.fat, parts, id=f"fat-{number}")
        worker = cluster.start_worker(lease=lease)
        disk.fill(worker, room=8 * shop.FAT)
        began = time.monotonic()
        await eventually(lambda: len(complaints(cluster, worker, disk.reason)) > 2 * len(numbers), "the disk is full")
        await eventually(lambda: time.monotonic() > began + 1.5, "short leases have run out")
        statuses = {(await engine.handle(f"fat-{number}").describe()).status for number in numbers}
        assert statuses == {"running"}
        assert worker.poll() is None
        if disk.reason == FULL:
            with pytest.raises(StoreError, match=f"{cluster.file}: {FULL}"):
                await engine.start(shop.fat, parts, id="one more", tags=LARGE)
        disk.make_room(worker)

        results = await asyncio.gather(*(engine.handle(f"fat-{n}").result(timeout=HANGS) for n in numbers))
        assert results == [[shop.FAT] * parts] * len(numbers)
        for number, result in zip(numbers, results, strict=True):
            history = await engine.handle(f"fat-{number}").history()
            await check_run(shop.fat, history, result)
            check_effects(history, cluster.effects())
        assert [found.entity_id for found in (await engine.list()).instances if found.entity_id == "one more"] == []
    worker.terminate()
    assert worker.wait(HANGS) == 0
    check_said(cluster, worker, disk.reason)
    keys = [effect.key for effect in cluster.effects()]
    assert len(set(keys)) == len(numbers) * parts
    assert lease < 60 or len(keys) == len(set(keys)), "done twice, though its lease was held"


# Locked databases.


@pytest.mark.parametrize(
    ("lease", "patience"),
    [(60.0, "1.5"), (1.0, "0.05")],  # the watchdog would tell of a loop that stands still for as long as 1.5 s
    ids=["long leases", "leases that run out"],
)
async def test_a_locked_database_delays_everything_and_loses_nothing(cluster, lease, patience):
    """Another process leaves a transaction open: the worker says so, and goes on when it ends."""
    numbers = range(5)
    gate = cluster.folder / "gate"
    worker = cluster.start_worker(lease=lease, SHOP_PATIENCE=patience, SHOP_GATE=str(gate))
    async with cluster.client() as engine:
        for number in numbers:
            handle = await engine.start(shop.order, number, id=f"order-{number}")
            await handle.signal("approve", 7)
        await eventually(lambda: len(cluster.effects()) > len(numbers), "work has begun")
        with closing(sqlite3.connect(cluster.file, isolation_level=None, timeout=HANGS)) as other:
            other.execute("BEGIN IMMEDIATE")
            gate.touch()  # from now on every order has something to write
            began = time.monotonic()
            held = [await engine.handle(f"order-{number}").history() for number in numbers]
            await eventually(lambda: len(complaints(cluster, worker, LOCKED)) > 1, "it is said")
            await eventually(lambda: time.monotonic() > began + 1.5, "short leases have run out")
            assert [await engine.handle(f"order-{number}").history() for number in numbers] == held
            assert worker.poll() is None
            other.execute("ROLLBACK")

        results = await asyncio.gather(*(engine.handle(f"order-{n}").result(timeout=HANGS) for n in numbers))
        assert results == [shop.ordered(number, 7) for number in numbers]
        for number, result, before in zip(numbers, results, held, strict=True):
            history = await engine.handle(f"order-{number}").history()
            assert history[: len(before)] == before
            await check_run(shop.order, history, result)
            check_effects(history, cluster.effects())
    check_said(cluster, worker, LOCKED)
    keys = [effect.key for effect in cluster.effects() if effect.key]
    assert lease < 60 or len(keys) == len(set(keys)), "done twice, though its lease was held"


async def test_a_locked_database_cannot_be_opened_and_says_why(cluster, monkeypatch):
    """A file that is not yet of this schema has to be written."""
    monkeypatch.setattr("resurgam.store.sqlite.connection.BUSY_TIMEOUT", 0.05)
    with closing(sqlite3.connect(cluster.file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match=f"^{cluster.file}: {LOCKED}$"):
            async with cluster.client():
                pass
        other.execute("ROLLBACK")
    async with cluster.client() as engine:
        assert (await engine.list()).instances == ()
