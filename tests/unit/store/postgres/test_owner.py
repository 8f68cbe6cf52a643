import asyncio
import os
import signal
import subprocess
import sys
import tempfile

import pytest

from resurgam.runtime.system import SystemClock
from resurgam.store import records as r
from resurgam.store.postgres.store import PostgresStore
from resurgam.testing.contract.bench import QUEUE, Bench, OpensStores
from support.postgres import fresh_url, shared_server

CLAIM = """
import asyncio, sys
from resurgam.runtime.system import SystemClock
from resurgam.store.postgres.store import PostgresStore

async def main():
    store = PostgresStore(sys.argv[1], SystemClock(), name="doomed", lease=600_000)
    claims = await store.claim("doomed", ["default"], 10)
    print(len(claims), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    shared_server()  # which is not in this folder
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def start_claiming(url, temporary):
    """Start a process that claims everything and lives on."""
    environment = {**os.environ, "TMPDIR": str(temporary)}
    command = [sys.executable, "-c", CLAIM, url]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    assert child.stdout.readline() == b"3\n"
    return child


def kill(child):
    child.send_signal(signal.SIGKILL)
    child.communicate()


async def opened(url, name):
    """Return an open store with three instances, if it is the first."""
    store = PostgresStore(url, SystemClock(), name=name, lease=600_000)
    bench = Bench(store, SystemClock(), OpensStores())
    for entity_id in ("one", "two", "three"):
        await bench.create(entity_id)
    return store


async def test_the_leases_of_a_dead_process_end_at_once(temporary):
    url = fresh_url()
    store = await opened(url, "survivor")
    try:
        child = start_claiming(url, temporary)
        assert await store.claim("survivor", [QUEUE], 10) == []
        kill(child)
        work = r.Work(worker="survivor", queues=(QUEUE,))
        assert await asyncio.wait_for(store.wait(work), 60)  # the leases would last ten minutes
        claims = await store.claim("survivor", [QUEUE], 10)
        assert sorted(claim.instance.entity_id for claim in claims) == ["one", "three", "two"]
    finally:
        await store.close()


async def test_a_store_that_is_opened_later_ends_them_before_its_first_claim(temporary):
    url = fresh_url()
    await (await opened(url, "first")).close()
    kill(start_claiming(url, temporary))
    second = PostgresStore(url, SystemClock(), name="second", lease=600_000)
    try:
        assert len(await second.claim("second", [QUEUE], 10)) == 3
    finally:
        await second.close()
    assert list(temporary.glob("resurgam-*/*")) == []
