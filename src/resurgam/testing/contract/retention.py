"""Retention: closed executions are listed in the order of their ends, and purged unless another one needs them."""

from typing import Any

from resurgam.core import event as events
from resurgam.core.location import Location
from resurgam.core.outcome import Succession
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.retention import LOOKED_UP, Batch, Purge
from resurgam.testing.contract.bench import HOUR, QUEUE, Bench, OpensStores, ids, request

CALL = Location((1,))
"""Where the parents of these cases call for their child."""


class RetentionCases(OpensStores):
    """`Inspector.ended`, `Store.purge`, and the pass of `store.retention` over both."""

    async def test_ended_executions_are_listed_in_the_order_in_which_they_ended(self) -> None:
        """Those that ended before the moment, page by page; not an open one, nor one with work outstanding."""
        async with self.bench() as b:
            await _terminated_at_work(b)
            for entity_id in ("c", "a", "b"):
                await b.ended(entity_id)
                await b.pass_time(10)
            await b.ended("late")
            await b.create("open")
            query = r.EndedQuery(before=b.clock.now(), limit=2)
            first = await b.store.inspector.ended(query)
            assert [one.entity_id for one in first] == ["c", "a"]
            after = (first[-1].closed_at or 0, first[-1].execution_id)
            rest = await b.store.inspector.ended(r.EndedQuery(before=b.clock.now(), limit=2, after=after))
            assert [one.entity_id for one in rest] == ["b"]

    async def test_executions_that_ended_at_one_moment_are_listed_once_each(self) -> None:
        """The id decides their order, so that no page repeats or leaves out one of them."""
        async with self.bench() as b:
            made = [(await b.ended(f"order-{n}")).execution_id for n in range(5)]
            query, seen = r.EndedQuery(before=b.clock.now() + 1, limit=2), list[str]()
            while page := await b.store.inspector.ended(query):
                seen += [one.execution_id for one in page]
                query = r.EndedQuery(before=query.before, limit=2, after=(page[-1].closed_at or 0, seen[-1]))
            assert seen == sorted(made)

    async def test_ended_executions_are_listed_by_status_and_name(self) -> None:
        """Each alone, and both together."""
        async with self.bench() as b:
            await b.ended("completed")
            await b.create("failed", name="buy")
            await _end(b, "failed", Status.FAILED)
            await b.pass_time(1)
            for fields, found in (
                ({"status": Status.FAILED}, ["failed"]),
                ({"status": Status.COMPLETED}, ["completed"]),
                ({"name": "buy"}, ["failed"]),
                ({"name": "sell", "status": Status.FAILED}, []),
            ):
                query = r.EndedQuery(before=b.clock.now(), **fields)
                assert [one.entity_id for one in await b.store.inspector.ended(query)] == found, fields

    async def test_a_pass_removes_what_ended_before_the_moment(self) -> None:
        """In batches; a dry run counts the same and removes nothing."""
        async with self.bench() as b:
            for n in range(5):
                await b.ended(f"order-{n}")
            await b.pass_time(HOUR)
            await b.ended("young")
            query = r.EndedQuery(before=b.clock.now(), limit=2)
            assert await Purge(b.store, query, dry_run=True).total() == Batch(5, 0)
            assert (await b.store.inspector.stats()).instances == {"completed": 6}
            assert [batch.removed async for batch in Purge(b.store, query).batches()] == [2, 2, 1]
            assert (await b.store.inspector.stats()).instances == {"completed": 1}
            assert await b.store.inspector.get("young") is not None

    # What is kept.

    async def test_the_executions_before_an_open_one_are_kept_as_far_as_updates_are_looked_up(self) -> None:
        """Of a chain of continuations only the last ones stay; all go when the chain has ended."""
        async with self.bench() as b:
            await b.create(generation=1, tree_id="tree")
            for generation in range(2, 8):
                claim = await b.claim_one()
                successor = Succession(started=b.started(generation=generation, tree_id="tree"))
                log = _ending(claim, events.WorkflowContinued(seq=2, run_id="next", execution_id="next"))
                await b.committed(claim, *log, status=Status.CONTINUED, deactivated=True, successor=successor)
            assert await _purge(b) == Batch(7 - LOOKED_UP, LOOKED_UP - 1)
            assert [copy.instance.generation for copy in await b.store.transfer.copies("order")] == [4, 5, 6, 7]
            await b.end(await b.claim_one())
            assert await _purge(b) == Batch(LOOKED_UP, 0)

    async def test_the_attempts_before_an_open_one_are_kept_as_far_as_updates_are_looked_up(self) -> None:
        """A later start of the same id is another line, and keeps nothing of this one."""
        async with self.bench() as b:
            run_id = (await b.create()).run_id
            for attempt in range(2, 8):
                claim = await b.claim_one()
                successor = Succession(started=b.started(run_id=run_id, tree_id=run_id, attempt=attempt))
                failed = events.WorkflowFailed(seq=2, failure=events.Failure(type="E", message="no"))
                log = _ending(claim, failed)
                await b.committed(claim, *log, status=Status.FAILED, deactivated=True, successor=successor)
            assert await _purge(b) == Batch(7 - LOOKED_UP, LOOKED_UP - 1)
            await b.end(await b.claim_one())
            await b.create()
            assert await _purge(b) == Batch(LOOKED_UP, 0)
            assert (await b.get()).status is Status.RUNNING

    async def test_a_child_is_kept_while_its_parent_waits_for_it(self) -> None:
        """Until the parent has recorded its end, or has ended itself."""
        async with self.bench() as b:
            parent, scheduled = await _calling(b)
            await _child(b, parent)
            assert await _purge(b) == Batch(0, 1)
            await b.send_signals("order", "x")
            claim = await b.claim_one()
            answer = events.ChildCompleted(seq=claim.instance.last_seq + 1, ref=scheduled.seq)
            await b.committed(claim, answer, consumed=ids(claim.inbox))
            assert await _purge(b) == Batch(1, 0)
            assert await b.store.inspector.get("child") is None

    async def test_a_child_of_an_ended_parent_is_removed(self) -> None:
        """Whether or not the parent is removed too."""
        async with self.bench() as b:
            parent, _ = await _calling(b)
            await _child(b, parent)
            await b.deliver(events.WorkflowTerminated())
            assert await _purge(b) == Batch(1, 0)
            assert (await b.get()).status is Status.TERMINATED

    async def test_a_child_of_an_earlier_attempt_is_kept_until_the_parent_comes_to_its_call(self) -> None:
        """The current attempt takes the child over when its code makes the same call."""
        async with self.bench() as b:
            run_id = (await b.create()).run_id
            await _end(b, "order", Status.FAILED)
            earlier = events.EarlierChild(
                location=CALL, name="sell", entity_id="child", run_id="c", by="first", at=1, open=True
            )
            parent = await b.create(run_id=run_id, tree_id=run_id, attempt=2, children=(earlier,))
            await b.committed(await b.claim_one())
            await _child(b, parent, run_id="c")
            kept = await _purge(b)
            assert kept.kept == 2  # the attempt before, and the child
            assert await b.store.inspector.get("child") is not None

    async def test_a_detached_child_is_not_kept_for_its_parent(self) -> None:
        """The parent does not wait for it."""
        async with self.bench() as b:
            parent, _ = await _calling(b)
            await _child(b, parent, detached=True)
            assert await _purge(b) == Batch(1, 0)

    async def test_a_compensation_by_hand_is_kept_as_long_as_what_it_compensates(self) -> None:
        """It says that the step was taken back; both go in one pass when both are old enough."""
        async with self.bench() as b:
            await b.create(name="buy")
            await _end(b, "order", Status.FAILED)
            parent = await b.get()
            await b.pass_time(10)
            await _child(b, parent, key="child", detached=True)
            assert await _purge(b, name="sell") == Batch(0, 1)
            query = r.EndedQuery(before=b.clock.now())
            assert await Purge(b.store, query, dry_run=True).total() == Batch(2, 0)
            assert await _purge(b) == Batch(2, 0)


# How things come to stand as they do.


async def _purge(b: Bench, **fields: Any) -> Batch:
    await b.pass_time(1)
    return await Purge(b.store, r.EndedQuery(before=b.clock.now(), **fields)).total()


def _ending(claim: r.Claim, ended: events.Event) -> tuple[events.Event, ...]:
    return (ended, events.WorkflowDeactivated(seq=claim.instance.last_seq + 2))


async def _end(b: Bench, entity_id: str, status: Status, queue: str = QUEUE) -> None:
    claim = await b.claim_one(queues=[queue])
    assert claim.instance.entity_id == entity_id
    ended: events.Event = events.WorkflowCompleted(seq=claim.instance.last_seq + 1)
    if status is Status.FAILED:
        failure = events.Failure(type="E", message="no")
        ended = events.WorkflowFailed(seq=claim.instance.last_seq + 1, failure=failure)
    await b.committed(claim, *_ending(claim, ended), status=status, deactivated=True)


async def _terminated_at_work(b: Bench) -> r.Instance:
    """Return an execution that was terminated while an activity of it was under way."""
    instance = await b.create("at work", queue="at work")
    await b.want(await b.claim_one(queues=["at work"]), request(2, "work"))
    await b.task(queues=["work"])
    await b.deliver(events.WorkflowTerminated(), "at work")
    return instance


async def _calling(b: Bench) -> tuple[r.Instance, events.ChildScheduled]:
    """Return an open execution whose code has called for a child, and the entry that says so."""
    parent = await b.create()
    scheduled = events.ChildScheduled(
        seq=2, command="child", location=CALL, version=1, name="sell", queue=QUEUE, entity_id="child", run_id="c"
    )
    await b.committed(await b.claim_one(), scheduled)
    return parent, scheduled


async def _child(b: Bench, parent: r.Instance, key: str = "key", *, detached: bool = False, **fields: Any) -> None:
    """Begin and end a child that was called for at `CALL`."""
    call = events.Parent(
        entity_id=parent.entity_id,
        run_id=parent.run_id,
        execution_id=parent.execution_id,
        location=CALL,
        key=key,
        detached=detached,
    )
    await b.create("child", queue="child", parent=call, **fields)
    await _end(b, "child", Status.COMPLETED, queue="child")
