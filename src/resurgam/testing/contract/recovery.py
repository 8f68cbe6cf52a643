"""Recovery after the death of a worker, in every queue; and parked instances."""

import asyncio

from resurgam.core import event as events
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.rules import TRIED_KEPT
from resurgam.testing.contract.bench import HOUR, LEASE, QUEUE, Bench, OpensStores, ids, request, values

QUEUES = ("first", "second", "third")


class RecoveryCases(OpensStores):
    """Lost leases in all queues, parked instances, a clock that jumps back."""

    async def test_all_queues_are_served_by_one_claim(self) -> None:
        """A claim names several queues and gets what is ready in each of them."""
        async with self.bench() as b:
            for queue in QUEUES:
                await b.create(queue, queue=queue)
            claims = await b.claim(queues=QUEUES)
            assert {claim.instance.queue for claim in claims} == set(QUEUES)
            for claim in claims:
                await b.want(claim, request(2, claim.instance.queue))
            assert {task.request.queue for task in await b.tasks(queues=QUEUES)} == set(QUEUES)

    async def test_lost_instances_come_back_in_every_queue(self) -> None:
        """When a worker dies, its instances are claimable again in all queues, in one claim, in any order."""
        async with self.bench() as b:
            for queue in QUEUES:
                await b.create(queue, queue=queue)
            for order in (QUEUES, QUEUES[::-1]):
                lost = await b.claim("dead", order)
                assert len(lost) == len(QUEUES)
                await b.pass_time(LEASE)
            found = await b.claim("second", QUEUES)
            assert {claim.instance.queue for claim in found} == set(QUEUES)
            assert min(claim.epoch for claim in found) > max(claim.epoch for claim in lost)

    async def test_lost_activities_come_back_in_every_queue(self) -> None:
        """When a worker dies, its activities are claimable again in all queues."""
        async with self.bench() as b:
            await b.create()
            await b.want(await b.claim_one(), *(request(ref, queue) for ref, queue in enumerate(QUEUES, 2)))
            for delivery, order in enumerate((QUEUES, QUEUES[::-1], QUEUES)):
                tasks = await b.tasks(f"worker-{delivery}", order)
                assert {task.request.queue for task in tasks} == set(QUEUES)
                assert {task.deliveries for task in tasks} == {delivery}
                assert {task.attempt for task in tasks} == {1}
                await b.pass_time(LEASE)

    async def test_a_lost_instance_comes_back_with_its_whole_inbox(self) -> None:
        """Neither entries delivered to the dead worker nor later ones are lost."""
        async with self.bench() as b:
            await b.create()
            await b.send_signals("order", "one")
            await b.claim_one("dead")
            await b.send_signals("order", "two")
            await b.pass_time(LEASE)
            claim = await b.claim_one("second")
            assert values(claim.inbox) == ["one", "two"]
            await b.committed(claim, consumed=ids(claim.inbox))
            assert not await b.claim()

    async def test_a_worker_that_came_back_finds_its_own_work(self) -> None:
        """A worker of the same name gets what it lost like any other, under a new epoch."""
        async with self.bench() as b:
            await b.create()
            before = await b.claim_one("same")
            await b.pass_time(LEASE)
            after = await b.claim_one("same")
            assert after.epoch > before.epoch
            assert isinstance(await b.commit(before), r.Refused)
            await b.committed(after)

    async def test_the_oldest_work_does_not_starve(self) -> None:
        """With a small limit all ready work is claimed eventually, though new work keeps arriving."""
        async with self.bench() as b:
            await b.create(b.beside("patient"))
            for number in range(10):
                await b.create(b.beside(f"eager-{number}"))
                [claim] = await b.claim(limit=1)
                if claim.instance.entity_id == b.beside("patient"):
                    return
                await b.release(claim)
            raise AssertionError("newer work was always preferred")

    # Parked instances.

    async def test_a_parked_instance_is_offered_once_to_each_worker(self) -> None:
        """A worker that could not run it does not get it again; every other worker gets it once."""
        async with self.bench() as b:
            await b.create()
            await self._park(b, "old", "no such step")
            found = await b.get()
            assert (found.status, found.parked) == (Status.DIVERGED, "no such step")
            assert not await b.claim("old")
            assert not await b.is_there(r.Work(worker="old", queues=(QUEUE,)))
            assert await b.is_there(r.Work(worker="new", queues=(QUEUE,)))
            await self._park(b, "new", "no such step")
            assert not await b.claim("new")
            assert not await b.claim("old")
            assert not await b.claim("newest", ["elsewhere"])
            await b.claim_one("newest")
            assert not await b.claim("fourth")

    async def test_a_parked_instance_that_fits_again_goes_on(self) -> None:
        """A commit that is not a divergence ends the parking; workers that failed on it do not get it again."""
        async with self.bench() as b:
            await b.create()
            await self._park(b, "old", "no such step")
            await b.committed(await b.claim_one("new"), worker="new")
            found = await b.get()
            assert (found.status, found.parked) == (Status.RUNNING, None)
            assert not await b.claim("newest")
            await b.send_signals("order", "x")
            assert not await b.claim("old")
            await b.claim_one("newest")

    async def test_a_parked_instance_keeps_what_comes_for_it(self) -> None:
        """InboxChanged does not bring it back to a worker that has tried; the next worker finds everything."""
        async with self.bench() as b:
            await b.create()
            await self._park(b, "old", "no such step")
            await b.send_signals("order", "x", "y")
            assert not await b.claim("old")
            assert not await b.is_there(r.Work(worker="old", queues=(QUEUE,)))
            assert values((await b.claim_one("new")).inbox) == ["x", "y"]

    async def test_a_parked_instance_that_was_lost_is_offered_again(self) -> None:
        """A worker that died during its try does not count as having tried."""
        async with self.bench() as b:
            await b.create()
            await self._park(b, "old", "no such step")
            await b.claim_one("new")
            await b.pass_time(LEASE)
            await b.release(await b.claim_one("new"))
            await b.claim_one("new")

    async def test_a_parked_instance_that_was_lost_is_revived_for_those_who_tried_it(self) -> None:
        """They are woken for it, though it was claimable for others before."""
        async with self.bench() as b:
            await b.create()
            await self._park(b, "old", "no such step")
            claim = await b.claim_one("new")
            await b.pass_time(LEASE)
            work = r.Work(worker="old", queues=(QUEUE,))
            assert not await b.is_there(work)
            waiting = asyncio.ensure_future(b.store.wait(work))
            await b.quiet()
            assert await b.store.revive([claim.instance]) == [r.Revived(count=1)]
            assert await b.soon(waiting)
            await b.claim_one("old")

    # A clock that jumps back.

    async def test_a_clock_that_jumps_back_breaks_no_lease(self) -> None:
        """Leases held before the jump are held after it; renewals count from the new time."""
        async with self.bench() as b:
            await b.wanting(2)
            await b.create("other")
            claim, task = await b.claim_one(), await b.task()
            b.clock.set_back(HOUR)
            assert not await b.claim("second")
            assert not await b.tasks("second")
            assert isinstance(await b.extend(claim, claim.wake), r.Extended)
            assert isinstance(await b.extend(task), r.Extended)
            await b.pass_time(LEASE)
            lost, again = await b.claim_one("second"), await b.task("second")
            assert isinstance(await b.commit(claim), r.Refused)
            assert isinstance(await b.answer(task), r.Refused)
            await b.end(lost)
            assert await b.answer(again) == r.Accepted()

    async def test_a_clock_that_jumps_back_breaks_no_order(self) -> None:
        """Entries of an inbox stay in the order of their arrival, and what is ready stays ready."""
        async with self.bench() as b:
            await b.create()
            await b.send_signals("order", "one", "two")
            b.clock.set_back(HOUR)
            await b.send_signals("order", "three")
            claim = await b.claim_one()
            assert values(claim.inbox) == ["one", "two", "three"]
            await b.want(claim, request(2), consumed=ids(claim.inbox))
            await b.answer(await b.task())
            await b.claim_one()

    async def test_a_clock_that_jumps_back_hides_no_instance_that_is_ready(self) -> None:
        """Those that were ready before the jump are claimed after it, beside those of later."""
        async with self.bench() as b:
            later = b.beside("later")
            await b.create()
            b.clock.set_back(HOUR)
            await b.create(later)
            assert {claim.instance.entity_id for claim in await b.claim()} == {"order", later}

    async def test_a_lease_taken_after_the_clock_jumped_back_is_held(self) -> None:
        """Another worker gets the activity when the lease has expired, not before, and hears of it then."""
        async with self.bench() as b:
            await b.create(b.beside("before"), queue="before")
            b.clock.set_back(HOUR)
            await b.wanting(2)
            task = await b.task()
            work = r.Work(worker="second", queues=(QUEUE,), instances=False)
            assert not await b.tasks("second")
            assert not await b.is_there(work)
            await b.pass_time(LEASE)
            assert await b.is_there(work)
            assert (await b.task("second")).deliveries == task.deliveries + 1

    async def test_a_clock_that_jumps_back_delays_no_more_than_its_jump(self) -> None:
        """Deadlines and attempts keep their moments."""
        async with self.bench() as b:
            await b.create()
            moment = b.clock.now() + 100
            await b.committed(await b.claim_one(), wake_at=moment)
            b.clock.set_back(HOUR)
            b.clock.move_to(moment - 1)
            assert not await b.claim()
            b.clock.move_to(moment)
            await b.claim_one()

    async def test_a_listing_is_complete_though_the_clock_jumped_back(self) -> None:
        """Pages neither repeat nor leave out instances that were created on both sides of the jump."""
        async with self.bench() as b:
            for number in range(8):
                await b.create(f"order-{number}")
                if number == 4:
                    b.clock.set_back(HOUR)
            names: list[str] = []
            page = r.Page(instances=())
            while not names or page.cursor is not None:
                page = await b.store.inspector.list(r.Query(limit=3, cursor=page.cursor))
                names += [found.entity_id for found in page.instances]
            assert sorted(names) == [f"order-{number}" for number in range(8)]

    async def test_a_moment_wakes_no_worker_that_has_tried_the_run(self) -> None:
        """The code of another has taken it on; that of the first does not fit, now or later."""
        async with self.bench() as b:
            await b.create()
            tried = events.WorkflowDiverged(seq=2, diagnosis="no such step")
            await b.committed(await b.claim_one("first"), tried, worker="first", status=Status.DIVERGED)
            claim = await b.claim_one("second")
            await b.committed(claim, base_seq=2, worker="second", wake_at=b.clock.now() + 5)
            await b.pass_time(5)
            assert not await b.store.wait(r.Work(worker="first", queues=(QUEUE,)), 0)
            assert await b.store.wait(r.Work(worker="second", queues=(QUEUE,)), 0)

    async def test_the_workers_that_have_tried_a_parked_run_are_bounded(self) -> None:
        """A run may be parked for years, and each start of a worker is another one; one that is forgotten tries again."""
        async with self.bench() as b:
            await b.create()
            for number in range(TRIED_KEPT + 1):
                # The same log again: how often it is parked is not what counts here.
                await b.committed(await b.claim_one(f"w-{number}"), worker=f"w-{number}", status=Status.DIVERGED)
            assert not await b.claim(f"w-{TRIED_KEPT}")
            assert any([await b.claim(f"w-{number}") for number in range(TRIED_KEPT)])

    async def _park(self, b: Bench, worker: str, diagnosis: str, *, consume: bool = False) -> None:
        claim = await b.claim_one(worker)
        entry = events.WorkflowDiverged(seq=claim.instance.last_seq + 1, diagnosis=diagnosis, worker=worker)
        consumed = ids(claim.inbox) if consume else ()
        await b.committed(claim, entry, worker=worker, status=Status.DIVERGED, consumed=consumed)
