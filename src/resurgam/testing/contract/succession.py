"""Successors: retries and continuations, started by the commit that ends the execution before."""

from typing import Any

from resurgam.core import event as events
from resurgam.core.outcome import ChildRequest, Succession
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.testing.contract.bench import HOUR, LEASE, QUEUE, Bench, OpensStores, ids, request, signal, values
from resurgam.testing.contract.children import parent_of, request_of

MOVES = ("signal_received", "cancel_requested")


class SuccessionCases(OpensStores):
    """`Outcome.successor`."""

    async def test_a_successor_is_there_when_the_one_before_has_ended(self) -> None:
        """It is the newest of its entity, and ready; both have their own logs."""
        async with self.bench() as b:
            old = await b.create()
            claim = await b.claim_one()
            started = b.started(generation=2, previous=old.execution_id)
            await self._succeed(b, claim, started)
            assert await b.get() == r.Instance.of(started)
            ended = await b.store.inspector.get("order", old.run_id)
            assert ended is not None
            assert ended.status is Status.CONTINUED
            assert await b.store.read(started) == [started]
            assert [copy.instance.execution_id for copy in await b.store.transfer.copies("order")] == [
                old.execution_id,
                started.execution_id,
            ]
            assert (await b.claim_one()).instance.execution_id == started.execution_id

    async def test_what_is_unread_moves_along_in_order(self) -> None:
        """After the first entries of the successor; only unconsumed entries of the named types."""
        async with self.bench() as b:
            await b.create()
            await b.wanting(2, entity_id="filler")
            await b.send_signals("order", "read")
            claim = await b.claim_one()
            await b.send_signals("order", "one")
            await b.deliver(events.WorkflowPaused(at=1))
            await b.resume()
            await b.send_signals("order", "two", "three")
            await b.deliver(events.CancelRequested(at=1))
            first = (signal("back"), signal("again"))
            await self._succeed(b, claim, b.started(), inbox=first, consumed=ids(claim.inbox))
            claims = {claim.instance.status: claim for claim in await b.claim()}
            assert values(claims[Status.RUNNING].inbox) == ["back", "again", "one", "two", "three", "cancel_requested"]
            assert values(claims[Status.CONTINUED].inbox) == ["workflow_paused", "workflow_resumed"]

    async def test_what_moved_is_told_once(self) -> None:
        """Under new ids, which are consumed like any others; none is delivered again later."""
        async with self.bench() as b:
            await b.create()
            claim = await b.claim_one()
            await b.send_signals("order", "one", "two")
            await self._succeed(b, claim, b.started())
            new = await self._claim_new(b)
            assert values(new.inbox) == ["one", "two"]
            kept = await b.committed(new, consumed=ids(new.inbox)[:1], release=False)
            assert kept == r.Committed(wake=new.wake)
            await b.send_signals("order", "three")
            done = await b.committed(new, wake=kept.wake, release=False)
            assert values(done.inbox) == ["three"]
            await b.release(new)
            assert values((await b.claim_one()).inbox) == ["two", "three"]

    async def test_ten_thousand_entries_are_moved_and_claimed(self) -> None:
        """In order, and in a short time per entry."""
        async with self.bench() as b:
            await b.create()
            claim = await b.claim_one()
            names = [f"{n:05}" for n in range(10_000)]
            await b.store.deliver([r.Delivery(event=signal(name), entity_id="order") for name in names])
            await self._succeed(b, claim, b.started())
            new = await self._claim_new(b)
            assert values(new.inbox) == names
            await b.committed(new, consumed=ids(new.inbox))
            assert not await b.claim()

    async def test_a_successor_may_be_scheduled(self) -> None:
        """It has a start time; moved signals do not start it."""
        async with self.bench() as b:
            await b.create()
            claim = await b.claim_one()
            await b.send_signals("order", "x")
            started = b.started(begins_at=b.clock.now() + HOUR)
            await self._succeed(b, claim, started, status=Status.FAILED)
            assert (await b.get()).status is Status.SCHEDULED
            await b.end(await b.claim_one())
            assert not await b.claim()
            await b.pass_time(HOUR)
            assert values((await b.claim_one()).inbox) == ["x"]

    async def test_a_retry_that_waits_for_its_moment_is_running(self) -> None:
        """The run has started; a holder that claims it before its time commits its deadline."""
        async with self.bench() as b:
            old = await b.create()
            started = b.started(run_id=old.run_id, attempt=2, begins_at=b.clock.now() + HOUR)
            await self._succeed(b, await b.claim_one(), started, status=Status.FAILED)
            assert (await b.get()).status is Status.RUNNING

    async def test_a_request_to_cancel_that_moves_starts_a_scheduled_instance(self) -> None:
        """As if it arrived then; whether it is moved or among the first entries."""
        for moved in (True, False):
            async with self.bench() as b:
                await b.create()
                claim = await b.claim_one()
                cancel = events.CancelRequested(at=1)
                if moved:
                    await b.deliver(cancel)
                inbox = () if moved else (cancel,)
                started = b.started(begins_at=b.clock.now() + HOUR)
                await self._succeed(b, claim, started, inbox=inbox)
                new = await self._claim_new(b)
                assert values(new.inbox) == ["cancel_requested"]

    async def test_a_successor_is_paused_as_the_one_before_was(self) -> None:
        """The one before, which has ended, is not paused any more."""
        for tree in (True, False):
            async with self.bench() as b:
                await b.create()
                claim = await b.claim_one()
                await b.pause(tree=tree)
                await self._succeed(b, claim, b.started())
                old, new = await b.store.transfer.copies("order")
                assert (old.paused, new.paused) == (None, r.Pause.TREE if tree else r.Pause.ALONE)
                assert old.instance.status is Status.CONTINUED
                assert [claim.instance.status for claim in await b.claim()] == [Status.CONTINUED]
                await b.resume()
                assert (await b.claim_one()).instance.status is Status.RUNNING

    async def test_a_refused_commit_leaves_no_successor(self) -> None:
        """And moves nothing."""
        async with self.bench() as b:
            old = await b.create()
            stale = await b.claim_one()
            await b.send_signals("order", "x")
            await b.pass_time(LEASE)
            fresh = await b.claim_one("second")
            assert isinstance(await self._commit(b, stale, b.started()), r.Refused)
            assert isinstance(await self._commit(b, fresh, b.started(), base_seq=9), r.Refused)
            assert (await b.get()).execution_id == old.execution_id
            assert values(fresh.inbox) == ["x"]
            [copy] = await b.store.transfer.copies("order")
            assert values_of(copy) == ["x"]

    async def test_a_waiter_for_the_end_of_the_predecessor_is_woken(self) -> None:
        """And a worker that waits for work finds the successor."""
        async with self.bench() as b:
            old = await b.create()
            claim = await b.claim_one()
            assert not await b.is_there(r.Closed(entity_id=old.entity_id, execution_id=old.execution_id))
            await self._succeed(b, claim, b.started())
            assert await b.is_there(r.Closed(entity_id=old.entity_id, execution_id=old.execution_id))
            assert await b.is_there(r.Work(worker="first", queues=(QUEUE,)))

    async def test_late_answers_stay_with_the_one_before(self) -> None:
        """Its calls are its own; its successor starts without them."""
        async with self.bench() as b:
            await b.create()
            claim = await b.claim_one()
            await b.want(claim, request(2), release=False)
            task = await b.task()
            await self._succeed(b, claim, b.started(), base_seq=2)
            assert await b.answer(task) == r.Accepted()
            claims = {claim.instance.status: values(claim.inbox) for claim in await b.claim()}
            assert claims == {Status.CONTINUED: ["activity_completed"], Status.RUNNING: []}

    async def test_a_successor_of_a_child_is_the_same_child(self) -> None:
        """Its parent finds it, and messages reach it by the key."""
        async with self.bench() as b:
            parent = await b.create("parent", queue="parent")
            request: ChildRequest = request_of(b, parent, "child")
            await b.committed(await b.claim_one(queues=["parent"]), children=(request,))
            child = await b.claim_one()
            started = b.started("child", generation=2, parent=parent_of(parent))
            await self._succeed(b, child, started)
            page = await b.store.inspector.list(r.Query(parent="parent"))
            assert [instance.generation for instance in page.instances] == [2, 1]

    async def test_an_entity_that_goes_on_cannot_be_started_as_a_child_of_itself(self) -> None:
        """The successor has the id, although the execution that asks for the child has ended."""
        async with self.bench() as b:
            old = await b.create()
            claim, child = await b.claim_one(), request_of(b, old, "order")
            await self._succeed(b, claim, b.started(generation=2), children=(child,))
            assert [copy.instance.generation for copy in await b.store.transfer.copies("order")] == [1, 2]
            claims = {claim.instance.status: claim.inbox for claim in await b.claim()}
            assert [entry.event for entry in claims[Status.CONTINUED]] == [child.refused]

    async def _claim_new(self, b: Bench) -> r.Claim:
        """Claim all ready instances, and return the only open execution."""
        found = [claim for claim in await b.claim() if not claim.instance.status.terminal]
        assert len(found) == 1, f"expected one that is open, got {len(found)}"
        return found[0]

    async def _succeed(self, b: Bench, claim: r.Claim, started: events.WorkflowStarted, **fields: Any) -> None:
        answer = await self._commit(b, claim, started, **fields)
        assert isinstance(answer, r.Committed), answer

    async def _commit(
        self, b: Bench, claim: r.Claim, started: events.WorkflowStarted, **fields: Any
    ) -> r.Committed | r.Refused:
        inbox = fields.pop("inbox", ())
        successor = Succession(started=started, inbox=inbox, moves=MOVES)
        return await b.commit(claim, successor=successor, **{"status": Status.CONTINUED, **fields})


def values_of(copy: r.Copy) -> list[str]:
    """Return the ids of the signals in the inbox of a copy."""
    return [event.id for event in copy.inbox if isinstance(event, events.SignalReceived)]
