"""A log that is too long for one statement is purged by several."""

import pytest

from resurgam.core import event as events
from resurgam.store import records as r
from resurgam.store.postgres import work_parts
from resurgam.testing.contract.bench import ids, request, scheduled
from support.postgres import execute

MOST = 4


@pytest.fixture(autouse=True)
def _few_events_each(monkeypatch):
    monkeypatch.setattr(work_parts, "PURGED", MOST)


def logged(last):
    """Return the events of a log after the first."""
    return [scheduled(request(seq)) for seq in range(2, last + 1)]


async def ended(b, entity_id, count):
    """Return an execution with *count* events that has ended."""
    instance = await b.create(entity_id, queue=entity_id)
    claim = await b.claim_one(queues=[entity_id])
    await b.committed(claim, *logged(count - 2))
    await b.send_signals(entity_id, "end")
    claim = await b.claim_one(queues=[entity_id])
    await b.end(claim, consumed=ids(claim.inbox))
    assert await left(b, instance) == count
    return instance


async def left(b, instance):
    statement = f"SELECT count(*) FROM {b.schema}.events WHERE execution_id = $1"
    return (await execute(statement, instance.execution_id))[0][0]


async def purge_once(b, instance):
    return await b.store._pool.ask("purge", (instance.entity_id, instance.execution_id))


async def test_a_call_deletes_no_more_than_it_has_room_for(b):
    instance = await ended(b, "order", 10)
    assert await purge_once(b, instance) == "more"
    assert await left(b, instance) == 10 - MOST
    assert await purge_once(b, instance) == "more"
    assert await left(b, instance) == 10 - 2 * MOST
    assert await purge_once(b, instance) == "purged"
    assert await left(b, instance) == 0
    assert await purge_once(b, instance) == "missing"


async def test_a_long_log_is_purged_whole(b):
    instance = await ended(b, "order", 10)
    flights = b.store.flights
    assert await b.store.purge([instance]) == [r.Purged()]
    assert b.store.flights - flights == 3
    assert await left(b, instance) == 0
    assert await b.store.inspector.get("order") is None


async def test_what_one_call_has_no_room_for_is_purged_by_the_next(b):
    instances = [await ended(b, name, 4) for name in ("one", "two", "three")]
    flights = b.store.flights
    assert await b.store.purge([*instances, *instances[:1]]) == [r.Purged(), r.Purged(), r.Purged(), r.Missing()]
    assert b.store.flights - flights == 3
    assert [await left(b, instance) for instance in instances] == [0, 0, 0]


async def test_an_execution_that_is_half_purged_is_listed_until_the_rest_is(b):
    instance = await ended(b, "order", 10)
    await purge_once(b, instance)
    found = await b.store.inspector.get("order")
    assert found.status.terminal
    [*_, last] = await b.store.read(instance)
    assert isinstance(last, events.WorkflowDeactivated)
    assert await b.store.purge([instance]) == [r.Purged()]


async def test_an_execution_that_is_half_purged_is_not_claimed(b):
    """A terminated one would be: its code must see that. Its log is not whole any more."""
    instance = await b.create("order", queue="long")
    claim = await b.claim_one(queues=["long"])
    await b.committed(claim, *logged(8), release=False)
    await b.deliver(events.WorkflowTerminated(reason="no"))
    assert await purge_once(b, instance) == "more"
    assert await b.claim(queues=["long"]) == []
    assert await b.store.purge([instance]) == [r.Purged()]
