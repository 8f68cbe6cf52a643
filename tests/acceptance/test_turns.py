"""Processes that take turns at writing to one file: whoever holds the lock may be killed, or stopped."""

import asyncio
import contextlib
import signal
import subprocess
import sys

import pytest

from resurgam.core.errors import StoreError
from resurgam.runtime.system import SystemClock
from resurgam.store import records as r
from resurgam.store.sqlite.store import SqliteStore
from support.limits import HANGS

EXECUTION = r.ExecutionRef(entity_id="x", execution_id="x")

HOLDER = """
import asyncio, sys, time
from pathlib import Path
from resurgam.runtime.system import SystemClock
from resurgam.store.sqlite.store import SqliteStore


def hold(transaction):
    print("writing", flush=True)
    time.sleep(3600)


async def main():
    store = SqliteStore(Path(sys.argv[1]), SystemClock(), name="holder", synchronous="FULL")
    store._peers.listen()
    await store._writer.write(hold)


asyncio.run(main())
"""


@contextlib.contextmanager
def holder(file):
    """Run a process that holds the write lock of a file in a transaction that does not end."""
    command = [sys.executable, "-c", HOLDER, str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "writing\n"
            yield process
        finally:
            process.kill()


@pytest.fixture
async def stores(tmp_path):
    found = [SqliteStore(tmp_path / "a.db", SystemClock(), name=name, synchronous="FULL") for name in ("one", "two")]
    for store in found:
        store._peers.listen()
    yield found
    for store in found:
        await store.close()


async def wait_in_line(stores) -> "list[asyncio.Future[object]]":
    waiting = [asyncio.ensure_future(store.purge([EXECUTION])) for store in stores]
    while any(store._writer._turn is None for store in stores):
        await asyncio.sleep(0.001)
    return waiting


async def test_the_others_write_when_the_holder_of_the_lock_is_killed(tmp_path, stores):
    with holder(tmp_path / "a.db") as process:
        waiting = await wait_in_line(stores)
        await asyncio.sleep(0.1)
        assert not any(write.done() for write in waiting)
        process.send_signal(signal.SIGKILL)
        assert [len(answers) for answers in await asyncio.wait_for(asyncio.gather(*waiting), HANGS)] == [1, 1]


async def test_the_others_say_that_the_file_is_locked_while_its_holder_is_stopped(tmp_path, stores, monkeypatch):
    monkeypatch.setattr("resurgam.store.sqlite.writer.BUSY_TIMEOUT", 0.2)
    with holder(tmp_path / "a.db") as process:
        process.send_signal(signal.SIGSTOP)
        for write in await wait_in_line(stores):
            with pytest.raises(StoreError, match="database is locked"):
                await asyncio.wait_for(write, HANGS)


async def test_one_that_is_stopped_while_it_waits_does_not_keep_the_others_waiting(tmp_path, stores):
    """Its turn never comes to an end, as it is not taken."""
    one, two = stores
    two._peers.note_waiting(1)
    one._writer._turns.wanted = True
    for _ in range(20):
        await asyncio.wait_for(one.purge([EXECUTION]), HANGS)
    assert {peer.waits_since() for peer in one._peers.others()} == {1}
