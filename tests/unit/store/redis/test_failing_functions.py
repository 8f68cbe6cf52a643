"""Redis does not roll back a function that fails: keys are written before the lists that lead to them."""

import pytest

from resurgam.core.errors import StoreError
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.testing.contract.bench import HOUR, QUEUE
from support.redis import shared_server


def break_list(b, name):
    """Have all writes to a list of ``order`` fail; return its key."""
    link = b.store._link
    key = f"{link.keys[link.partition_of('order')]}{name}"
    shared_server().ask("SET", key, "no list")
    return key


async def test_an_execution_whose_list_cannot_be_written_is_whole(b):
    await b.create("another")
    key = break_list(b, f"ready-{QUEUE}")
    started = b.started()
    with pytest.raises(StoreError, match="WRONGTYPE"):
        await b.store.create([r.Creation(started=started)])
    shared_server().ask("DEL", key)
    instance = await b.get()
    assert (instance.execution_id, instance.status, instance.last_seq) == (started.execution_id, Status.RUNNING, 1)
    assert "order" in [one.entity_id for one in (await b.store.inspector.list(r.Query())).instances]
    assert len(await b.store.inspector.history(instance)) == 1


async def test_a_commit_whose_list_cannot_be_written_counts(b):
    instance = await b.create()
    claim = await b.claim_one()
    break_list(b, "timers")
    with pytest.raises(StoreError, match="WRONGTYPE"):
        await b.commit(claim, wake_at=b.clock.now() + HOUR)
    found = await b.get()
    assert found.wake_at == b.clock.now() + HOUR
    assert (await b.store.inspector.open_work(instance)).worker is None
