"""The database file and the files beside it: their modes, their disappearance under an open store, and forks."""

import asyncio
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from resurgam import Context, Engine, Registry
from resurgam.core import event as events
from resurgam.errors import StoreError
from resurgam.store import records as r
from resurgam.store.open import second_opening
from resurgam.store.sqlite.owner_lock import Owner
from resurgam.store.sqlite.store import SqliteStore
from resurgam.testing import ManualClock
from support.limits import HANGS

registry = Registry()


@registry.workflow
async def one(_ctx: Context) -> int:
    return 1


WORK = r.Work(worker="w", queues=("default",))


def opened(path: Path, name: str = "one") -> SqliteStore:
    return SqliteStore(path, ManualClock(), name=name, synchronous="OFF")


def creation(entity_id: str) -> r.Creation:
    ids = {"entity_id": entity_id, "execution_id": f"x-{entity_id}", "run_id": f"r-{entity_id}", "tree_id": "t"}
    return r.Creation(
        started=events.WorkflowStarted(seq=1, at=1, name="w", queue="default", python="3.11", **ids),
    )


def replace(file: Path) -> None:
    """Put another database in the place of one that is open."""
    (file.parent / "other").touch()
    (file.parent / "other").rename(file)


@pytest.mark.parametrize("gone", [Path.unlink, replace])
async def test_nothing_is_acknowledged_once_the_file_is_deleted_or_replaced(tmp_path, gone):
    file = tmp_path / "a.db"
    store = opened(file)
    try:
        await store.create([creation("before")])
        gone(file)
        with pytest.raises(StoreError, match=r"a\.db: the file was (deleted|replaced).*move the original back"):
            await store.create([creation("after")])
        for verb in (
            store.claim("w", ["default"], 1),
            store.inspector.get("before"),
            store.read(r.ExecutionRef(entity_id="before", execution_id="x-before")),
        ):
            with pytest.raises(StoreError, match="the file was"):
                await verb
        with pytest.raises(StoreError, match="the file was"):
            second_opening(f"sqlite:///{file}", store, ManualClock(), name="second", lease=1)()
    finally:
        await store.close()
    assert not file.exists() or file.stat().st_size == 0


async def test_a_store_goes_on_once_its_file_is_moved_back(tmp_path):
    file, elsewhere = tmp_path / "a.db", tmp_path / "elsewhere.db"
    store = opened(file)
    try:
        file.rename(elsewhere)
        with pytest.raises(StoreError):
            await store.create([creation("a")])
        elsewhere.rename(file)
        await store.create([creation("b")])
        assert await store.inspector.get("b")
    finally:
        await store.close()


@pytest.mark.parametrize("name", ["a.db", "a.db-wal"])
async def test_waiters_are_told_that_the_file_or_its_log_is_gone(tmp_path, monkeypatch, name):
    store = opened(tmp_path / "a.db")
    try:
        await store.create([creation("other queue")])
        waiting = asyncio.ensure_future(store.wait(r.Closed(entity_id="other queue", execution_id="x-other queue")))
        await asyncio.sleep(0)
        (tmp_path / name).unlink()
        with pytest.raises(StoreError, match=f"{name}: the file was deleted"):
            await asyncio.wait_for(waiting, HANGS)
        with pytest.raises(StoreError, match=f"{name}: the file was deleted"):
            await store.create([creation("a")])
    finally:
        await store.close()


async def test_closing_a_store_whose_file_was_replaced_leaves_the_log_of_the_replacement(tmp_path):
    file = tmp_path / "a.db"
    old = opened(file)
    await old.create([creation("old")])
    for path in tmp_path.glob("a.db*"):
        path.rename(path.with_name(path.name.replace("a.db", "gone.db")))
    new = opened(file, "two")
    try:
        await new.create([creation("new")])
        await old.close()
        assert (tmp_path / "a.db-wal").exists()
        await new.create([creation("newer")])
    finally:
        await new.close()


async def test_a_relative_path_stays_the_same_file_when_the_process_changes_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with Engine("sqlite:///a.db", registry=registry) as engine:
        (tmp_path / "below").mkdir()
        monkeypatch.chdir(tmp_path / "below")
        assert await engine.execute(one) == 1


@pytest.mark.parametrize(("existing", "files", "folders"), [(None, 0o600, 0o700), (0o664, 0o664, 0o775)])
async def test_the_files_are_private_unless_the_database_was_made_otherwise(tmp_path, existing, files, folders):
    file = tmp_path / "a.db"
    if existing is not None:
        file.touch()
        file.chmod(existing)
    store = opened(file)
    try:
        await store.create([creation("a")])
        waiting = asyncio.ensure_future(store.wait(WORK))
        await waiting
        modes = {path: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
        assert len(modes) >= 5
        assert modes == {path: folders if path.is_dir() else files for path in modes}
    finally:
        await store.close()


def test_two_owners_of_one_name_are_told_apart(tmp_path):
    first, second = Owner(tmp_path / "a.db", "one"), Owner(tmp_path / "a.db", "one")

    assert (first.name, second.name) == ("one", "one-2")
    assert first.dead() == second.dead() == []
    first.close()
    assert second.dead() == []
    second.close()
    assert list(tmp_path.iterdir()) == []


FORKED = """
import asyncio, os, sys
from resurgam.errors import StoreError
from resurgam.runtime.system import SystemClock
from resurgam.store.open import open_store

async def main(url):
    store = open_store(url, SystemClock(), name="parent", lease=1000)
    child = os.fork()
    if not child:
        try:
            asyncio.run(store.inspector.stats())
        except StoreError as error:
            print(error, flush=True)
        finally:
            asyncio.run(store.close())
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    await store.inspector.stats()
    assert url == "memory://" or os.listdir("a.db-owners") == ["parent"]
    await store.close()

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.parametrize("url", ["memory://", "sqlite:///a.db"])
def test_a_store_cannot_be_used_in_a_fork_and_stays_open_in_its_process(tmp_path, url):
    command = [sys.executable, "-c", FORKED, url]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANGS, check=False)

    assert (ran.returncode, ran.stderr) == (0, "")
    assert "cannot be used in its fork" in ran.stdout
    assert "open an engine in each process, after the fork" in ran.stdout


async def test_a_fork_does_not_keep_the_lock_of_its_parent(tmp_path):
    """The leases of the parent end with it, though the child lives on."""
    store = opened(tmp_path / "a.db", "parent")
    begun, begins = os.pipe()
    child = os.fork()
    if not child:
        os.write(begins, b".")
        signal.pause()
        os._exit(0)
    try:
        os.read(begun, 1)
        store._owner.leave_behind()  # as the end of this process does
        assert Owner(tmp_path / "a.db", "other").dead() == ["parent"]
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        store._owner._file._file = os.open(os.devnull, os.O_RDONLY)
        await store.close()
