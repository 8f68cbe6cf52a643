"""An execution id belongs to one execution."""

import asyncio
from collections import Counter

import pytest

from resurgam.core.outcome import Outcome
from resurgam.errors import WriteRejected
from resurgam.store import records as r
from resurgam.testing.contract.bench import QUEUE, request, scheduled
from resurgam.testing.contract.children import request_of

TAKEN = "workflow 'other' cannot begin: its execution id 'mine' is that of an execution of workflow 'order'"


def creation(b, entity_id, execution_id, *, first):
    """Return the creation of an execution, with its first commit or without."""
    started = b.started(entity_id, execution_id=execution_id)
    if not first:
        return r.Creation(started=started)
    commit = r.Commit(
        execution_id=execution_id,
        entity_id=entity_id,
        epoch=1,
        base_seq=1,
        wake=0,
        outcome=Outcome(events=(scheduled(request(2)),), activities=(request(2),)),
        worker="first",
        eager=frozenset({2}),
        covers=True,
    )
    return r.Creation(started=started, offer=r.EagerOffer(worker="first", queues=(QUEUE,)), first=commit)


@pytest.mark.parametrize("first", [True, False])
async def test_a_second_workflow_with_an_execution_id_is_refused(b, first):
    await b.create("order", execution_id="mine")
    with pytest.raises(WriteRejected, match=TAKEN):
        await b.store.create([creation(b, "other", "mine", first=first)])
    assert await b.store.inspector.get("other") is None


async def test_a_second_run_with_an_execution_id_is_refused(b):
    old = await b.ended("order")
    with pytest.raises(WriteRejected, match="is that of an execution of workflow 'order'"):
        await b.create("order", execution_id=old.execution_id)


@pytest.mark.parametrize("first", [True, False])
async def test_of_two_workflows_that_begin_at_once_with_an_execution_id_one_is_refused(b, first):
    """What is created with them, in the same flight, holds."""
    await b.store.inspector.get("order")
    parts = [creation(b, f"order-{n}", "mine" if n in {3, 7} else f"own-{n}", first=first) for n in range(10)]
    answers = await asyncio.gather(*(b.store.create([part]) for part in parts), return_exceptions=True)
    assert Counter(map(type, answers)) == {list: 9, WriteRejected: 1}
    page = await b.store.inspector.list(r.Query())
    assert len(page.instances) == 9


async def test_a_child_with_the_execution_id_of_another_workflow_is_refused(b):
    await b.create("order", execution_id="mine", queue="elsewhere")
    parent = await b.create("parent")
    claim = await b.claim_one()
    with pytest.raises(WriteRejected, match=TAKEN):
        await b.commit(claim, children=(request_of(b, parent, "other", execution_id="mine"),))
    assert (await b.get("parent")).last_seq == 1
