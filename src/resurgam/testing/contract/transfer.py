"""Moving whole executions from one store to another."""

import asyncio
from typing import Final

from msgspec.structs import replace

from resurgam.core import event as events
from resurgam.core.location import Location
from resurgam.core.outcome import OpenPromise
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.rules import REDELIVERIES
from resurgam.testing.contract.bench import (
    HOUR,
    LEASE,
    QUEUE,
    Bench,
    OpensStores,
    completed,
    ids,
    request,
    retried,
    routed,
    signal,
    values,
)

SAME_ROUTE: Final = "holder-31486"
"""An entity with the route of ``order``: the id of a promise fits both."""


class TransferCases(OpensStores):
    """`copies` and `adopt`."""

    # Out of a store.

    async def test_a_copy_holds_all_but_the_leases(self) -> None:
        """The instance, its log, its inbox in order, and every activity, running or not."""
        async with self.bench() as b:
            instance = await b.create(tags={"shop": "berlin"}, kind="counter")
            await b.want(await b.claim_one(), request(2), request(3), wake_at=b.clock.now() + HOUR)
            [task] = await b.tasks(limit=1)
            moment = b.clock.now()
            await b.send_signals("order", "one", "two")
            await b.claim_one()
            [copy] = await b.store.transfer.copies("order")
            assert copy.instance == replace(instance, last_seq=3, wake_at=moment + HOUR)
            assert copy.log == tuple(await b.store.read(instance))
            assert copy.inbox == (signal("one"), signal("two"))
            assert copy.activities == (
                r.Pending(request=task.request, visible_at=moment, deliveries=1),
                r.Pending(request=request(3), visible_at=moment),
            )

    async def test_copies_are_oldest_first_and_may_be_of_one_run(self) -> None:
        """Every execution of an entity, or of a run; none for an unknown id."""
        async with self.bench() as b:
            old, new = await b.ended(), await b.create()
            await b.create("other")
            assert [copy.instance for copy in await b.store.transfer.copies("order")] == [old, new]
            assert [copy.instance for copy in await b.store.transfer.copies("order", old.run_id)] == [old]
            assert await b.store.transfer.copies("unknown") == []
            assert await b.store.transfer.copies("order", "no run") == []

    async def test_copying_touches_nothing(self) -> None:
        """Leases on instances and activities are unchanged."""
        async with self.bench() as b:
            await b.wanting(2)
            task = await b.task()
            await b.create("held")
            claim = await b.claim_one()
            for name in ("order", "held"):
                await b.store.transfer.copies(name)
            assert await b.answer(task) == r.Accepted()
            await b.committed(claim)

    # Into another.

    async def test_what_was_adopted_is_the_same_as_what_was_copied(self) -> None:
        """In any state: running, retrying, parked, dead-lettered, closed, terminated, delayed, paused, with promises."""
        states = (_waiting, _retrying, _troubled, _dead, _parked, _terminated, _twice, _put_off, _halted, _promising)
        for arrange in states:
            async with self.bench() as a, self.bench(a.clock) as b:
                await arrange(a)
                copies = await _move(a, b)
                assert tuple(await b.store.transfer.copies("order")) == copies
                assert await b.get() == await a.get()
                for copy in copies:
                    assert await b.store.read(copy.instance) == list(copy.log)
                there, here = await a.store.inspector.stats(), await b.store.inspector.stats()
                assert here.instances == there.instances
                assert here.dead_instances == there.dead_instances == (arrange is _dead)
                assert here.dead_activities == there.dead_activities == (arrange is _troubled)

    async def test_an_adopted_instance_is_ready_with_its_inbox_in_order(self) -> None:
        """Waiting workers are woken, and later entries come after the adopted ones."""
        async with self.bench() as a, self.bench(a.clock) as b:
            await _waiting(a)
            await a.send_signals("order", "one", "two")
            await _move(a, b)
            assert await b.is_there(r.Work(worker="w", queues=(QUEUE,), activities=False))
            await b.send_signals("order", "three")
            claim = await b.claim_one()
            assert values(claim.inbox) == ["one", "two", "three"]
            await b.committed(claim, consumed=ids(claim.inbox)[:1])
            await b.send_signals("order", "four")
            assert values((await b.claim_one()).inbox) == ["two", "three", "four"]

    async def test_an_adopted_instance_is_ready_once_though_nothing_came_for_it(self) -> None:
        """A claim without new entries does no harm; afterwards its deadline wakes it."""
        async with self.bench() as a, self.bench(a.clock) as b:
            await _waiting(a)
            moment = a.clock.now() + HOUR
            await _move(a, b)
            await b.committed(await b.claim_one(), wake_at=moment)
            assert not await b.claim()
            await b.pass_time(HOUR)
            await b.claim_one()

    async def test_an_instance_that_was_held_is_free_where_it_arrives(self) -> None:
        """Leases do not move; the same epoch may be given again, and is fenced as ever."""
        async with self.bench() as a, self.bench(a.clock) as b:
            await a.create()
            held = await a.claim_one()
            await _move(a, b)
            assert isinstance(await b.commit(held), r.Refused)
            claim = await b.claim_one()
            await b.pass_time(LEASE)
            await b.committed(await b.claim_one("second"))
            assert isinstance(await b.commit(claim), r.Refused)

    async def test_adopting_again_changes_nothing_and_says_so(self) -> None:
        """Existing executions are unchanged, whatever their state."""
        async with self.bench() as a, self.bench(a.clock) as b:
            await _waiting(a)
            copies = await _move(a, b)
            await b.end(await b.claim_one())
            ended = await b.get()
            [answer] = await b.store.transfer.adopt([_adoption(*copies)])
            assert answer == r.Adopted(arrivals=(r.Arrival(instance=ended, new=False),))
            assert await b.get() == ended
            assert not await b.claim()

    async def test_a_second_open_execution_is_refused_with_all_that_came_with_it(self) -> None:
        """One part is applied whole or not at all, and does not hold up another."""
        async with self.bench() as a, self.bench(a.clock) as b:
            await a.ended()
            await a.create()
            await a.create("other")
            mine = await b.create(execution_id="here", run_id="here")
            [other] = await a.store.transfer.copies("other")
            parts = [_adoption(*await a.store.transfer.copies("order")), _adoption(other)]
            answers = await b.store.transfer.adopt(parts)
            assert answers[0] == r.Exists(instance=mine)
            assert isinstance(answers[1], r.Adopted)
            assert [copy.instance for copy in await b.store.transfer.copies("order")] == [mine]

    async def test_two_open_executions_of_one_part_are_refused(self) -> None:
        """The rule of one open execution holds within a part too."""
        async with self.bench() as a, self.bench(a.clock) as b:
            await a.create()
            [copy] = await a.store.transfer.copies("order")
            [answer] = await b.store.transfer.adopt([_adoption(copy, _with_id(copy, "twin"))])
            assert isinstance(answer, r.Exists)
            assert await b.store.inspector.get("order") is None

    async def test_older_executions_arrive_behind_the_current_one(self) -> None:
        """A delivery still means the open execution, and a second one is still refused."""
        async with self.bench() as a, self.bench(a.clock) as b:
            old, older = await a.ended(), await a.ended()
            mine = await b.create(execution_id="here", run_id="here")
            await _move(a, b)
            assert [copy.instance for copy in await b.store.transfer.copies("order")] == [old, older, mine]
            assert await b.get() == mine
            assert await b.send_signal("order", "x") == r.Delivered()
            [answer] = await b.store.create([r.Creation(started=b.started(execution_id="third", run_id="third"))])
            assert isinstance(answer, r.Exists)
            assert values((await b.claim_one()).inbox) == ["x"]

    async def test_executions_of_both_sides_stand_in_the_order_of_their_creation(self) -> None:
        """Executions that ended here before, during and after keep their positions."""
        async with self.bench() as a, self.bench(a.clock) as b:
            names: list[str] = []
            for number in range(5):
                side = a if number % 2 else b
                instance = await side.create(execution_id=f"e-{number}", run_id=f"r-{number}")
                await side.end(await side.claim_one())
                names.append(instance.execution_id)
                await a.pass_time(1)
            await _move(a, b)
            assert [copy.instance.execution_id for copy in await b.store.transfer.copies("order")] == names

    async def test_an_ended_execution_is_not_handed_out(self) -> None:
        """Its history is complete and readable, and a wait for its end returns at once."""
        async with self.bench() as a, self.bench(a.clock) as b:
            instance = await a.ended()
            await _move(a, b)
            assert not await b.claim(queues=[instance.queue])
            assert await b.soon(
                b.store.wait(r.Closed(entity_id=instance.entity_id, execution_id=instance.execution_id))
            )
            assert await b.send_signal("order", "x") == r.Ended(status=Status.COMPLETED)

    async def test_a_terminated_execution_is_handed_out_to_be_concluded(self) -> None:
        """As in the store that it came from."""
        async with self.bench() as a, self.bench(a.clock) as b:
            await _terminated(a)
            await _move(a, b)
            claim = await b.claim_one()
            assert claim.instance.status is Status.TERMINATED
            end = events.WorkflowDeactivated(seq=3)
            await b.committed(claim, end, status=Status.TERMINATED, deactivated=True)
            assert not await b.claim()

    async def test_an_adopted_parked_instance_is_offered_to_every_worker(self) -> None:
        """Also to workers with names that tried it in the other store; once each."""
        async with self.bench() as a, self.bench(a.clock) as b:
            await _parked(a)
            await _move(a, b)
            for worker in ("first", "second"):
                await _try(b, worker)
                assert not await b.claim(worker)

    async def test_an_adopted_dead_instance_is_handed_out_when_it_is_revived(self) -> None:
        """A dead letter stays one until it is revived."""
        async with self.bench() as a, self.bench(a.clock) as b:
            await _dead(a)
            [copy] = await _move(a, b)
            assert not await b.claim()
            assert await b.store.revive([copy.instance]) == [r.Revived(count=1)]
            await b.claim_one()

    async def test_an_adopted_scheduled_instance_waits_for_its_moment(self) -> None:
        """Also with a signal in its inbox; waiting workers are woken at its time."""
        async with self.bench() as a, self.bench(a.clock) as b:
            await _put_off(a)
            waiting = asyncio.ensure_future(b.store.wait(r.Work(worker="w", queues=(QUEUE,))))
            await b.quiet()
            await _move(a, b)
            assert not await b.claim()
            await b.pass_time(HOUR - 1)
            assert not waiting.done()
            await b.pass_time(1)
            assert await b.soon(waiting)
            assert values((await b.claim_one()).inbox) == ["one"]

    async def test_an_adopted_instance_stays_paused(self) -> None:
        """Until it is resumed; the status behind the pause moves along."""
        async with self.bench() as a, self.bench(a.clock) as b:
            await _halted(a)
            [copy] = await _move(a, b)
            assert (copy.paused, copy.instance.status) == (r.Pause.TREE, Status.RUNNING)
            assert (await b.get()).status is Status.PAUSED
            assert not await b.claim()
            await b.resume()
            assert values((await b.claim_one()).inbox) == ["workflow_paused", "workflow_resumed"]

    async def test_adopted_promises_can_be_settled(self) -> None:
        """Open promises can be settled; settled ones are settled here too."""
        async with self.bench() as a, self.bench(a.clock) as b:
            await _promising(a)
            await _move(a, b)
            resolved = events.PromiseResolved(ref=0)
            assert await b.deliver(resolved, "", promise_id=routed("p-2")) == r.Settled()
            assert await b.deliver(resolved, promise="open") == r.Delivered()
            claim = await b.claim_one()
            told = [entry.event for entry in claim.inbox]
            assert told == [replace(resolved, promise_id=promise_id) for promise_id in (routed("p-2"), routed("p-1"))]

    async def test_an_adoption_cannot_redirect_a_promise(self) -> None:
        """One that an execution of another run holds, open or ended, refuses the whole part and stays where it is."""
        async with self.bench() as a, self.bench(a.clock) as b:
            await _promising(a)
            [sent] = await a.store.transfer.copies("order")
            await b.create(SAME_ROUTE, execution_id="held", run_id="held")
            await b.committed(await b.claim_one(), promises=(OpenPromise(routed("p-1"), "pay"),))
            await self._refused(b, sent)
            assert await b.deliver(events.PromiseResolved(ref=0), "", promise_id=routed("p-1")) == r.Delivered()
            claim = await b.claim_one()
            assert claim.instance.execution_id == "held"
            await b.end(claim, consumed=ids(claim.inbox))
            await self._refused(b, sent)
            assert await b.deliver(events.PromiseResolved(ref=0), "", promise_id=routed("p-1")) == r.Settled()

    async def _refused(self, b: Bench, copy: r.Copy) -> None:
        [answer] = await b.store.transfer.adopt([_adoption(copy)])
        assert isinstance(answer, r.Exists)
        assert answer.instance.execution_id == "held"
        assert await b.store.inspector.get("order") is None

    async def test_an_adopted_attempt_takes_the_promises_of_the_one_before(self) -> None:
        """The attempt before has ended here; an older attempt that arrives later takes nothing back."""
        async with self.bench() as a, self.bench(a.clock) as b:
            await _promising(a)
            [sent] = await a.store.transfer.copies("order")
            ended = replace(sent, instance=replace(sent.instance, status=Status.FAILED, closed_at=1, deactivated=True))
            second = replace(sent.instance, execution_id="second", attempt=2)
            for copy in (ended, replace(sent, instance=second), _with_id(ended, "older")):
                [answer] = await b.store.transfer.adopt([_adoption(copy)])
                assert isinstance(answer, r.Adopted)
            assert await b.deliver(events.PromiseResolved(ref=0), "", promise_id=routed("p-1")) == r.Delivered()
            *_, newest = await b.store.transfer.copies("order")
            assert newest.instance.execution_id == "second"
            assert [getattr(event, "promise_id", None) for event in newest.inbox] == [routed("p-2"), routed("p-1")]

    # Its activities.

    async def test_an_adopted_retry_keeps_its_moment_and_its_attempt(self) -> None:
        """It is claimable after its delay, and waiting workers are woken then."""
        async with self.bench() as a, self.bench(a.clock) as b:
            await _retrying(a)
            await _move(a, b)
            assert not await b.tasks()
            await b.pass_time(HOUR - 1)
            assert not await b.tasks()
            await b.pass_time(1)
            assert await b.is_there(r.Work(worker="w", queues=(QUEUE,), instances=False))
            task = await b.task()
            assert (task.attempt, task.deliveries, task.request) == (2, 0, request(2))

    async def test_an_adopted_activity_that_was_running_is_handed_out_again(self) -> None:
        """At least once, marked as a redelivery; the answer goes to the instance in its new store."""
        async with self.bench() as a, self.bench(a.clock) as b:
            await a.wanting(2)
            await a.task()
            await _move(a, b)
            task = await b.task()
            assert (task.entity_id, task.attempt, task.deliveries) == ("order", 1, 1)
            await b.committed(await b.claim_one(queues=["wanting"]))
            assert await b.answer(task) == r.Accepted()
            [entry] = (await b.claim_one(queues=["wanting"])).inbox
            assert entry.event == completed(task)

    async def test_an_adopted_dead_activity_is_handed_out_when_it_is_revived(self) -> None:
        """Until then its reason is listed."""
        async with self.bench() as a, self.bench(a.clock) as b:
            await _troubled(a)
            [copy] = await _move(a, b)
            assert not await b.tasks()
            assert (await b.get()).activity_dead_letters == (copy.activities[0].dead_letter,)
            assert await b.store.revive([copy.instance]) == [r.Revived(count=1)]
            await b.task()


# How things come to stand as they do.


async def _move(a: Bench, b: Bench) -> tuple[r.Copy, ...]:
    copies = tuple(await a.store.transfer.copies("order"))
    [answer] = await b.store.transfer.adopt([_adoption(*copies)])
    assert isinstance(answer, r.Adopted)
    assert [arrival.new for arrival in answer.arrivals] == [True] * len(copies)
    return copies


async def _waiting(b: Bench) -> None:
    """Wait for a deadline in an hour."""
    await b.create()
    await b.committed(await b.claim_one(), wake_at=b.clock.now() + HOUR)


async def _retrying(b: Bench) -> None:
    await b.wanting(2)
    task = await b.task()
    assert await b.answer(task, retried(task, b.clock.now() + HOUR)) == r.Accepted()


async def _troubled(b: Bench) -> None:
    """Schedule an activity that became a dead letter."""
    await b.wanting(2)
    for _ in range(REDELIVERIES):
        await b.task()
        await b.pass_time(LEASE)
    assert not await b.tasks()


async def _dead(b: Bench) -> None:
    await b.create()
    for _ in range(REDELIVERIES):
        await b.claim_one()
        await b.pass_time(LEASE)
    assert not await b.claim()


async def _parked(b: Bench) -> None:
    await b.create()
    await _try(b, "first")


async def _try(b: Bench, worker: str) -> None:
    claim = await b.claim_one(worker)
    entry = events.WorkflowDiverged(seq=claim.instance.last_seq + 1, diagnosis="no")
    await b.committed(claim, entry, worker=worker, status=Status.DIVERGED)


async def _terminated(b: Bench) -> None:
    await b.create()
    delivery = r.Delivery(event=events.WorkflowTerminated(reason="enough"), entity_id="order")
    assert await b.store.deliver([delivery]) == [r.Delivered()]


async def _put_off(b: Bench) -> None:
    """Start in an hour, with a parent and with a signal in the inbox."""
    parent = events.Parent(entity_id="p", run_id="r", execution_id="e", location=Location((1, 2)), key="k")
    await b.create(begins_at=b.clock.now() + HOUR, parent=parent)
    await b.send_signals("order", "one")


async def _halted(b: Bench) -> None:
    await b.create()
    await b.pause(tree=True)


async def _promising(b: Bench) -> None:
    """Create two promises, and settle one."""
    await b.create()
    promises = (OpenPromise(routed("p-1"), "open"), OpenPromise(routed("p-2"), "settled"))
    await b.committed(await b.claim_one(), promises=promises)
    await b.deliver(events.PromiseResolved(ref=0), promise="settled")


async def _twice(b: Bench) -> None:
    """End once, and run again with a signal in the inbox."""
    await b.ended()
    await b.create(tags={"shop": "berlin"}, kind="counter")
    await b.send_signals("order", "one", "two")


def _adoption(*copies: r.Copy) -> r.Adoption:
    return r.Adoption(entity_id=copies[0].instance.entity_id, copies=copies)


def _with_id(copy: r.Copy, execution_id: str) -> r.Copy:
    return replace(copy, instance=replace(copy.instance, execution_id=execution_id))
