"""Several open one file at the same moment, or one opens what another is just closing."""

import asyncio
import multiprocessing
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from resurgam import Engine
from resurgam.runtime.system import SystemClock
from resurgam.store.sqlite import connection
from resurgam.store.sqlite.store import SqliteStore
from support import shop
from support.limits import HANGS


def _open_and_close(file, name: str) -> None:
    asyncio.run(SqliteStore(file, SystemClock(), name=name, synchronous="OFF").close())


def _open_at_once(file, barrier, failures) -> None:
    barrier.wait(HANGS)
    try:
        _open_and_close(file, f"process-{multiprocessing.current_process().pid}")
    except Exception as error:
        failures.put(repr(error))


def test_processes_make_one_file_together(tmp_path):
    """The second waits for the first, as for any other writer."""
    context = multiprocessing.get_context("spawn")
    rounds, failures = 12, context.Queue()
    barrier = context.Barrier(4)
    workers = [context.Process(target=_open_many, args=(tmp_path, rounds, barrier, failures)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(HANGS)
    assert failures.empty(), failures.get()
    assert [worker.exitcode for worker in workers] == [0] * 4


def _open_many(folder, rounds: int, barrier, failures) -> None:
    connection.BUSY_TIMEOUT = HANGS
    for number in range(rounds):
        _open_at_once(folder / f"{number}.db", barrier, failures)


def test_a_file_that_another_program_is_just_making(tmp_path):
    """It holds the new file for a moment, in the mode that SQLite begins with."""
    file = tmp_path / "shop.db"
    with closing(sqlite3.connect(file, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        letting_go = threading.Timer(0.3, lambda: other.execute("COMMIT"))
        letting_go.start()
        try:
            _open_and_close(file, "second")
        finally:
            letting_go.join()


def test_opening_while_others_close(tmp_path):
    """The last to close tidies up, which must not break an open at the same moment."""
    file = tmp_path / "shop.db"
    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(_come_and_go, file, number) for number in range(2)]:
            done.result(HANGS)


def _come_and_go(file, number: int) -> None:
    for turn in range(150):
        _open_and_close(file, f"{number}-{turn}")


async def test_engines_come_and_go(tmp_path, monkeypatch):
    """A run is carried on by whichever engine is open, each in its turn."""
    monkeypatch.setenv("SHOP_EFFECTS", str(tmp_path / "effects"))
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    async with Engine(url, registry=shop.registry, worker=False) as engine:
        handle = await engine.start(shop.small, 4, id=shop.SMALL)
    for _ in range(50):
        async with Engine(url, registry=shop.registry, grace=0) as engine:
            handle = engine.handle(shop.SMALL)
            await asyncio.sleep(0)
            if (await handle.describe()).status == "completed":
                break
            await asyncio.sleep(0.01)
    async with Engine(url, registry=shop.registry) as engine:
        assert await engine.handle(shop.SMALL).result(timeout=HANGS) == shop.SMALL_RESULT
