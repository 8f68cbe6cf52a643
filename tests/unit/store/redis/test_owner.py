import asyncio
import os
import signal
import subprocess
import sys
import tempfile

import pytest

from resurgam.core import event as events
from resurgam.core.state import Status
from resurgam.runtime.system import SystemClock
from resurgam.store import records as r
from resurgam.store.redis.reaping import reap
from resurgam.store.redis.store import RedisStore
from resurgam.testing.contract.bench import LEASE, QUEUE, Bench, OpensStores
from support.redis import fresh_url


def kill(child):
    child.send_signal(signal.SIGKILL)
    child.communicate()


CLAIM = """
import asyncio, sys
from resurgam.runtime.system import SystemClock
from resurgam.store.redis.reaping import reap
from resurgam.store.redis.store import RedisStore

async def main():
    store = RedisStore(sys.argv[1], SystemClock(), name="doomed", lease=600_000)
    queues = ["default", "second", "third"]
    claims, tasks = await store.claim("doomed", queues, 10), await store.claim_activities("doomed", queues, 10)
    print(len(claims), len(tasks), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def start_claiming(url, temporary, *, tasks):
    """Start a process that claims everything and lives on."""
    environment = {**os.environ, "TMPDIR": str(temporary)}
    child = subprocess.Popen(
        [sys.executable, "-c", CLAIM, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    assert child.stdout.readline() == b"3 %d\n" % tasks
    return child


QUEUES = (QUEUE, "second", "third")


async def work_in_each_queue(store):
    """Leave an instance in each queue and activities in two, all of one partition."""
    bench = Bench(store, SystemClock(), OpensStores())
    for queue in QUEUES:
        await bench.create(queue, queue=queue)
    for queue in QUEUES[1:]:
        await bench.wanting(2, entity_id=f"wanting-{queue}", queue=queue)


async def test_the_leases_of_a_dead_process_end_at_once_in_every_queue(temporary):
    url = fresh_url("partitions=1")
    store = RedisStore(url, SystemClock(), name="survivor", lease=600_000)
    try:
        await work_in_each_queue(store)
        child = start_claiming(url, temporary, tasks=2)
        assert await store.claim("survivor", QUEUES, 10) == []
        kill(child)
        claimed, tasks = [], []
        async with asyncio.timeout(60):  # the leases would last ten minutes
            while len(claimed) < len(QUEUES) or len(tasks) < len(QUEUES[1:]):
                await store.wait(r.Work(worker="survivor", queues=QUEUES))
                claimed += [claim.instance.queue for claim in await store.claim("survivor", QUEUES, 10)]
                tasks += [task.request.queue for task in await store.claim_activities("survivor", QUEUES, 10)]
        assert sorted(claimed) == sorted(QUEUES)
        assert sorted(tasks) == sorted(QUEUES[1:])
    finally:
        await store.close()


async def test_the_lease_of_a_dead_process_on_an_instance_that_was_paused_meanwhile_ends_at_once(temporary):
    url = fresh_url()
    store = RedisStore(url, SystemClock(), name="survivor", lease=600_000)
    try:
        bench = Bench(store, SystemClock(), OpensStores())
        for name in ("one", "two", "three"):
            await bench.create(name)
        child = start_claiming(url, temporary, tasks=0)
        await bench.deliver(events.WorkflowPaused(), "one")
        kill(child)
        other = RedisStore(url, SystemClock(), name="other", lease=600_000)
        assert len(await other.claim("other", [QUEUE], 10)) == 2
        await other.close()
        await bench.deliver(events.WorkflowResumed(), "one")
        [claim] = await store.claim("survivor", [QUEUE], 10)
        assert claim.instance.entity_id == "one"
    finally:
        await store.close()


async def test_the_activities_of_a_dead_process_are_claimed_at_once(b):
    """Also those whose instance was paused meanwhile, and however many there are."""
    dead = RedisStore(b.url, b.clock, name="dead", lease=LEASE)
    refs = range(2, 152)
    await b.wanting(*refs, entity_id="listed")
    await b.wanting(2, entity_id="paused")
    assert len(await dead.claim_activities("dead", [QUEUE], 200)) == 151
    await b.deliver(events.WorkflowPaused(), "paused")
    await reap(b.store._link, dead._link.owner)
    assert len(await b.tasks(limit=200)) == 150
    await b.deliver(events.WorkflowResumed(), "paused")
    assert (await b.task()).entity_id == "paused"
    await dead.close()


async def test_a_lease_of_a_dead_process_does_not_hold_up_an_instance_that_is_begun_on_request(b):
    dead = RedisStore(b.url, b.clock, name="dead", lease=LEASE)
    await b.create(begins_at=b.clock.now())
    [claim] = await dead.claim("dead", [QUEUE], 1)
    await Bench(dead, b.clock, OpensStores()).committed(claim, status=Status.SCHEDULED, release=False)
    await reap(b.store._link, dead._link.owner)
    assert not await b.claim()
    await b.deliver(events.WorkflowBegun())
    assert (await b.claim_one()).epoch == 2
    await dead.close()


async def test_a_store_that_is_opened_later_ends_them_before_its_first_claim(temporary):
    url = fresh_url("partitions=1")
    first = RedisStore(url, SystemClock(), name="first", lease=600_000)
    await work_in_each_queue(first)
    await first.close()
    kill(start_claiming(url, temporary, tasks=2))
    second = RedisStore(url, SystemClock(), name="second", lease=600_000)
    try:
        assert len(await second.claim("second", QUEUES, 10)) == 3
    finally:
        await second.close()
    assert list(temporary.glob("resurgam-*/*")) == []


async def test_without_a_temporary_directory_a_store_works_all_the_same(temporary, caplog):
    caplog.set_level("INFO", "resurgam.store")
    tempfile.tempdir = str(temporary / "missing")
    store = RedisStore(fresh_url(), SystemClock(), name="test", lease=1000)
    try:
        assert await store.claim("worker", [QUEUE], 1) == []
    finally:
        await store.close()
    assert "there is no lock" in caplog.text
