"""Results that are completed all at once do what they do one after the other."""

import pytest

from resurgam.core import event as events
from resurgam.store import records as r
from resurgam.store.postgres.store import PostgresStore
from resurgam.testing import ManualClock
from resurgam.testing.contract.bench import LEASE, QUEUE, Bench, OpensStores, request
from support.postgres import execute, fresh_url

STRANGER = r.ActivityResult(
    entity_id="nobody", execution_id="nothing", epoch=0, event=events.ActivityCompleted(ref=2, attempt=1)
)
"""A result with epoch 0: a call that has one goes through its parts one after the other."""


def result(task, **changes):
    """Return the final result of a task."""
    fields = {"entity_id": task.entity_id, "execution_id": task.execution_id, "epoch": task.epoch, **changes}
    return r.ActivityResult(event=events.ActivityCompleted(ref=task.request.ref, attempt=task.attempt), **fields)


async def completed(*, at_once):
    """Complete many results in one call; return the answers and what is stored then."""
    url, clock = fresh_url(), ManualClock()
    store = PostgresStore(url, clock, name="store", lease=LEASE)
    b = Bench(store, clock, OpensStores())
    try:
        names = ("free", "leased", "paused", "dead", "closed", "two", "ready")
        for name in names:
            await b.wanting(2, 3, entity_id=name)
        tasks = sorted(await b.tasks(), key=lambda task: (task.entity_id, task.request.ref))
        await b.send_signals("ready", "news")
        await b.send_signals("leased", "news")
        await b.send_signals("dead", "news")
        claims = {claim.instance.entity_id: claim for claim in await b.claim(queues=["wanting"])}
        await b.release(claims["ready"])
        lease = r.Lease(entity_id="dead", execution_id=claims["dead"].instance.execution_id, epoch=claims["dead"].epoch)
        await store.release([r.Release(lease=lease, failed="no", final=True)])
        await b.pause("paused")
        await b.deliver(events.WorkflowTerminated(reason="no"), "closed")
        by_name = {(task.entity_id, task.request.ref): task for task in tasks}
        released = by_name["two", 3]
        lease = r.Lease(entity_id="two", execution_id=released.execution_id, epoch=released.epoch, ref=3)
        await store.release([r.Release(lease=lease)])
        parts = [result(task) for task in tasks if task.entity_id != "two"]
        parts += [
            result(released),
            result(by_name["two", 2], entity_id="free"),
            result(by_name["two", 2], epoch=7),
            result(by_name["two", 2]),
            result(by_name["two", 2]),
        ]
        answers = list(await store.complete_activities(parts if at_once else [*parts, STRANGER]))
        schema = url.partition("schema=")[2]
        states = await execute(
            f"SELECT entity_id, wake, ready_at IS NULL AS idle, offered_at IS NULL AS held FROM {schema}.states ORDER BY 1"
        )
        inboxes = await execute(
            f"SELECT s.entity_id, i.wake, i.type, i.body, i.overtakes FROM {schema}.inbox i "
            f"JOIN {schema}.states s USING (execution_id) ORDER BY 1, 2"
        )
        left = await execute(
            f"SELECT s.entity_id, a.ref FROM {schema}.activities a JOIN {schema}.states s USING (execution_id) ORDER BY 1, 2"
        )
        work = await b.is_there(r.Work(worker="first", queues=("wanting",)))
        found = [list(map(dict, rows)) for rows in (states, inboxes, left)]
    finally:
        await store.close()
    # A result that is refused before another one is accepted for the same activity may name the other reason.
    return [type(answer) for answer in (answers if at_once else answers[:-1])], found, work


async def test_results_completed_at_once_equal_those_that_are_completed_in_turn():
    at_once = await completed(at_once=True)
    assert at_once == await completed(at_once=False)
    answers, (_, inboxes, left), work = at_once
    assert answers.count(r.Accepted) == 13
    assert len(inboxes) == 13 + 4  # three signals and a pause
    assert left == [{"entity_id": "two", "ref": 3}]
    assert work


@pytest.mark.parametrize("count", [1, 30])
async def test_results_keep_their_order_in_the_inbox(count):
    clock = ManualClock()
    store = PostgresStore(fresh_url(), clock, name="store", lease=LEASE)
    b = Bench(store, clock, OpensStores())
    try:
        await b.wanting(*range(2, 2 + count))
        tasks = sorted(await b.tasks(), key=lambda task: -task.request.ref)
        assert [task.request for task in tasks] == [request(ref, QUEUE) for ref in range(count + 1, 1, -1)]
        await store.complete_activities([result(task) for task in tasks])
        claim = await b.claim_one(queues=["wanting"])
        assert [entry.event.ref for entry in claim.inbox] == [task.request.ref for task in tasks]
    finally:
        await store.close()
