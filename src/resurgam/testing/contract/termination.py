"""Termination of an instance from outside, and revival of dead letters."""

import msgspec

from resurgam.core import event as events
from resurgam.core.location import Location
from resurgam.core.state import InstanceState, Status
from resurgam.store import records as r
from resurgam.store.rules import REDELIVERIES
from resurgam.testing.contract.bench import LEASE, QUEUE, UNKNOWN, Bench, OpensStores, ids, request


class TerminationCases(OpensStores):
    """`WorkflowTerminated` through deliver, and `revive`."""

    async def test_a_terminated_instance_has_ended_at_once(self) -> None:
        """The event is in the log, the status has changed, and the instance accepts no more deliveries."""
        async with self.bench() as b:
            instance = await b.create()
            assert await self._terminate(b) == r.Delivered()
            found = await b.get()
            assert (found.status, found.last_seq, found.wake_at) == (Status.TERMINATED, 2, None)
            assert found.closed_at is not None
            log = await b.store.read(instance)
            assert [entry.type for entry in log] == ["workflow_started", "workflow_terminated"]
            assert InstanceState(log).status is Status.TERMINATED
            assert await self._terminate(b) == r.Ended(status=Status.TERMINATED)

    async def test_the_holder_of_a_terminated_instance_is_fenced(self) -> None:
        """Its commit is refused, and so is its next renewal."""
        async with self.bench() as b:
            await b.create()
            claim = await b.claim_one()
            await self._terminate(b)
            assert isinstance(await b.commit(claim, _timer()), r.Refused)
            lease = r.Lease(
                entity_id=claim.instance.entity_id, execution_id=claim.instance.execution_id, epoch=claim.epoch
            )
            assert isinstance((await b.store.extend([lease]))[0], r.Refused)

    async def test_a_terminated_instance_is_handed_out_to_be_concluded(self) -> None:
        """Once, to any worker; after its commit it is idle."""
        async with self.bench() as b:
            await b.create()
            await self._terminate(b)
            claim = await b.claim_one()
            assert claim.instance.status is Status.TERMINATED
            end = events.WorkflowDeactivated(seq=3)
            await b.committed(claim, end, status=Status.TERMINATED, deactivated=True)
            assert not await b.claim()

    async def test_an_activity_of_an_ended_instance_is_not_handed_out_again(self) -> None:
        """A running attempt may finish; if its worker dies, the activity is recorded as cancelled."""
        async with self.bench() as b:
            await b.create()
            await b.committed(await b.claim_one(), activities=(request(2),))
            assert len(await b.store.claim_activities("first", (QUEUE,), 10)) == 1
            await self._terminate(b)
            concluding = await b.claim_one()
            await b.committed(concluding, status=Status.TERMINATED)
            b.clock.move_to(b.clock.now() + LEASE)
            assert not await b.store.claim_activities("other", (QUEUE,), 10)
            [told] = (await b.claim_one("other")).inbox
            assert (told.event.type, told.event.ref) == ("activity_cancelled", 2)

    async def test_an_activity_that_outlives_its_instance_is_handed_out_after_the_end(self) -> None:
        """Also one that the last commit or a later one schedules, and again if its worker dies; its result is delivered."""
        async with self.bench() as b:
            await b.create()
            before, last, later = (msgspec.structs.replace(request(ref), outlives=True) for ref in (2, 3, 4))
            await b.committed(await b.claim_one(), activities=(before,))
            await b.send_signal("order", "go on")
            await b.committed(await b.claim_one(), activities=(last, request(5)), status=Status.FAILED)
            first = {task.request.ref: task for task in await b.tasks()}
            assert sorted(first) == [2, 3]
            await b.answer(first[2])
            late = await b.claim_one()
            told = {entry.event.ref: entry.event.type for entry in late.inbox}
            assert (told[2], told[5]) == ("activity_completed", "activity_cancelled")
            await b.committed(late, activities=(later,), status=Status.FAILED, consumed=ids(late.inbox))
            assert [task.request.ref for task in await b.tasks()] == [4]
            b.clock.move_to(b.clock.now() + LEASE)
            again = await b.tasks("other")
            assert sorted(task.request.ref for task in again) == [3, 4]
            assert [await b.answer(task) for task in again] == [r.Accepted(), r.Accepted()]

    async def test_a_dead_instance_that_is_revived_is_handed_out_again(self) -> None:
        """With a new delivery count; a healthy instance is unchanged."""
        async with self.bench() as b:
            instance = await b.create()
            assert await b.store.revive([instance, UNKNOWN]) == [r.Revived(count=0), r.Missing()]
            for _ in range(REDELIVERIES):
                await b.claim_one()
                b.clock.move_to(b.clock.now() + LEASE)
            assert not await b.claim()
            assert (await b.get()).dead_letter is not None
            assert await b.store.revive([instance]) == [r.Revived(count=1)]
            assert (await b.get()).dead_letter is None
            await b.claim_one()

    async def test_a_dead_activity_that_is_revived_is_handed_out_again(self) -> None:
        """The instance itself was healthy all the time."""
        async with self.bench() as b:
            instance = await b.create()
            await b.committed(await b.claim_one(), activities=(request(2),))
            for _ in range(REDELIVERIES):
                assert len(await b.store.claim_activities("w", (QUEUE,), 1)) == 1
                b.clock.move_to(b.clock.now() + LEASE)
            assert not await b.store.claim_activities("w", (QUEUE,), 1)
            assert (await b.get()).activity_dead_letters != ()
            assert await b.store.revive([instance]) == [r.Revived(count=1)]
            assert (await b.get()).activity_dead_letters == ()
            assert len(await b.store.claim_activities("w", (QUEUE,), 1)) == 1

    async def test_a_parked_instance_that_is_revived_is_offered_to_those_who_tried_it(self) -> None:
        """As after a deployment that kept its workers running."""
        async with self.bench() as b:
            instance = await b.create()
            entry = events.WorkflowDiverged(seq=2, diagnosis="no")
            await b.committed(await b.claim_one("w"), entry, worker="w", status=Status.DIVERGED)
            assert not await b.claim("w")
            assert await b.store.revive([instance]) == [r.Revived(count=1)]
            assert (await b.claim_one("w")).instance.status is Status.DIVERGED

    async def _terminate(self, b: Bench) -> r.Delivered | r.Missing | r.Ended | r.Settled | r.Outdated:
        event = events.WorkflowTerminated(reason="enough")
        [answer] = await b.store.deliver([r.Delivery(event=event, entity_id="order")])
        return answer


def _timer() -> events.TimerStarted:
    return events.TimerStarted(seq=2, location=Location.parse("{1}"), command="Timer(0)", deadline=0)
