"""No lost wake-up: every entry reaches its instance, whatever its holder does; and nothing wakes it without reason."""

from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.testing.contract.bench import LEASE, QUEUE, OpensStores, ids, request, scheduled, values


class WakeUpCases(OpensStores):
    """The wake counter, the inbox, deadlines."""

    async def test_what_comes_while_an_instance_is_held_makes_it_ready_after_its_release(self) -> None:
        """Delivered between claim and commit: the commit that releases makes the instance ready again."""
        async with self.bench() as b:
            await b.create()
            claim = await b.claim_one()
            await b.send_signals("order", "x")
            assert not await b.claim("second")
            await b.committed(claim)
            assert values((await b.claim_one("second")).inbox) == ["x"]

    async def test_what_comes_after_the_release_makes_an_instance_ready(self) -> None:
        """Delivered after the commit that released: the delivery itself makes the instance ready."""
        async with self.bench() as b:
            await b.create()
            await b.committed(await b.claim_one())
            assert not await b.claim()
            await b.send_signals("order", "x")
            assert values((await b.claim_one()).inbox) == ["x"]

    async def test_nothing_wakes_an_instance_for_which_nothing_came(self) -> None:
        """An instance with an empty inbox stays idle after its commit."""
        async with self.bench() as b:
            await b.create()
            await b.send_signals("order", "x")
            claim = await b.claim_one()
            await b.committed(claim, consumed=ids(claim.inbox))
            await b.pass_time(100 * LEASE)
            assert not await b.claim()
            assert not await b.is_there(r.Work(worker="first", queues=(QUEUE,)))
            assert (await b.queue()).instances == 0

    async def test_what_comes_while_the_lease_is_kept_is_returned_by_the_commit(self) -> None:
        """A commit that keeps its lease returns the entries since the last reply, once, and no others."""
        async with self.bench() as b:
            await b.create()
            await b.send_signals("order", "known")
            claim = await b.claim_one()
            await b.send_signals("order", "one", "two")
            kept = await b.committed(claim, release=False)
            assert values(kept.inbox) == ["one", "two"]
            again = await b.committed(claim, wake=kept.wake, release=False)
            assert values(again.inbox) == []
            await b.committed(claim, wake=again.wake, consumed=ids((*claim.inbox, *kept.inbox)))
            assert not await b.claim()

    async def test_what_comes_while_the_lease_is_kept_is_returned_by_renewing_it(self) -> None:
        """Renewing returns the entries since the given counter, on every call."""
        async with self.bench() as b:
            await b.create()
            claim = await b.claim_one()
            await b.send_signals("order", "x")
            extended = await b.extend(claim, claim.wake)
            assert isinstance(extended, r.Extended)
            assert values(extended.inbox) == ["x"]
            assert await b.extend(claim, claim.wake) == extended
            later = await b.extend(claim, extended.wake)
            assert isinstance(later, r.Extended)
            assert later.inbox == ()
            await b.committed(claim, wake=extended.wake, consumed=ids(extended.inbox))
            assert not await b.claim()

    async def test_what_was_returned_but_not_reckoned_with_wakes_the_instance(self) -> None:
        """A commit with an outdated counter makes the instance ready, rather than lose an entry."""
        async with self.bench() as b:
            await b.create()
            claim = await b.claim_one()
            await b.send_signals("order", "x")
            assert isinstance(await b.extend(claim, claim.wake), r.Extended)
            await b.committed(claim)
            assert values((await b.claim_one()).inbox) == ["x"]

    async def test_an_entry_delivered_twice_to_a_holder_is_one_entry(self) -> None:
        """An entry reported by both commit and claim has one id, and is gone when that id is consumed."""
        async with self.bench() as b:
            await b.create()
            claim = await b.claim_one()
            await b.send_signals("order", "x")
            kept = await b.committed(claim, release=False)
            await b.pass_time(LEASE)
            second = await b.claim_one("second")
            assert second.inbox == kept.inbox
            await b.committed(second, consumed=ids(kept.inbox))
            assert not await b.claim()

    async def test_entries_are_consumed_by_id(self) -> None:
        """Consuming the later of two entries leaves the earlier one in place."""
        async with self.bench() as b:
            await b.create()
            await b.send_signals("order", "early", "late", "last")
            claim = await b.claim_one()
            await b.committed(claim, consumed=(ids(claim.inbox)[1],), release=False)
            await b.release(claim)
            assert values((await b.claim_one()).inbox) == ["early", "last"]

    async def test_what_came_later_than_the_consumed_stays(self) -> None:
        """Consuming all entries of a claim does not affect later ones."""
        async with self.bench() as b:
            await b.create()
            await b.send_signals("order", "seen")
            claim = await b.claim_one()
            await b.send_signals("order", "unseen")
            await b.committed(claim, consumed=ids(claim.inbox))
            assert values((await b.claim_one()).inbox) == ["unseen"]

    async def test_entries_of_others_cannot_be_consumed(self) -> None:
        """An id that is not, or no longer, in this inbox is ignored."""
        async with self.bench() as b:
            await b.create("order")
            await b.create("other")
            await b.send_signals("order", "mine")
            await b.send_signals("other", "theirs")
            claims = {claim.instance.entity_id: claim for claim in await b.claim()}
            mine, theirs = claims["order"], claims["other"]
            await b.committed(mine, consumed=(*ids(mine.inbox), *ids(mine.inbox), 10**9), release=False)
            await b.release(mine)
            await b.release(theirs)
            inboxes = {claim.instance.entity_id: values(claim.inbox) for claim in await b.claim()}
            assert inboxes == {"order": [], "other": ["theirs"]}

    async def test_an_inbox_keeps_the_order_of_arrival(self) -> None:
        """Entries come out as they went in, however many there are, through batches and claims."""
        async with self.bench() as b:
            await b.create()
            expected = [f"{number}" for number in range(25)]
            await b.send_signals("order", *expected[:10])
            await b.release(await b.claim_one())
            await b.send_signals("order", *expected[10:])
            assert values((await b.claim_one()).inbox) == expected

    async def test_a_result_that_comes_while_the_instance_is_held_is_not_lost(self) -> None:
        """The answer of an activity wakes a held instance exactly as a signal does."""
        async with self.bench() as b:
            await b.wanting(2)
            await b.send_signals("order", "x")
            claim = await b.claim_one(queues=["wanting"])
            assert await b.answer(await b.task()) == r.Accepted()
            await b.committed(claim, consumed=ids(claim.inbox))
            assert values((await b.claim_one(queues=["wanting"])).inbox) == ["activity_completed"]

    async def test_a_refused_commit_consumes_nothing(self) -> None:
        """Entries that a stale commit tried to consume are still there."""
        async with self.bench() as b:
            await b.create()
            await b.send_signals("order", "x")
            stale = await b.claim_one("first")
            await b.pass_time(LEASE)
            fresh = await b.claim_one("second")
            assert isinstance(await b.commit(stale, consumed=ids(stale.inbox)), r.Refused)
            await b.release(fresh)
            assert values((await b.claim_one()).inbox) == ["x"]

    # Deadlines.

    async def test_a_deadline_wakes_an_instance_at_its_moment(self) -> None:
        """An instance is claimable when its deadline has come, and not a millisecond before."""
        async with self.bench() as b:
            await b.create()
            deadline = b.clock.now() + 5000
            await b.committed(await b.claim_one(), wake_at=deadline)
            assert (await b.get()).wake_at == deadline
            await b.pass_time(4999)
            assert not await b.claim()
            await b.pass_time(1)
            claim = await b.claim_one()
            assert claim.inbox == ()
            await b.committed(claim)
            await b.pass_time(LEASE)
            assert not await b.claim()
            assert (await b.get()).wake_at is None

    async def test_a_deadline_that_is_past_wakes_at_once(self) -> None:
        """A deadline that came while the instance was held wakes it as soon as it is released."""
        async with self.bench() as b:
            await b.create()
            claim = await b.claim_one()
            deadline = b.clock.now() + 10
            await b.pass_time(20)
            await b.committed(claim, wake_at=deadline)
            await b.claim_one()

    async def test_a_deadline_stands_until_a_commit_changes_it(self) -> None:
        """Neither a claim, nor a release, nor a lost lease takes a deadline away."""
        async with self.bench() as b:
            await b.create()
            deadline = b.clock.now() + 10 * LEASE
            await b.committed(await b.claim_one(), wake_at=deadline)
            await b.send_signals("order", "x")
            await b.release(await b.claim_one("first"))
            claim = await b.claim_one("second")
            await b.pass_time(LEASE)
            again = await b.claim_one("third")
            assert again.epoch > claim.epoch
            assert again.instance.wake_at == deadline
            await b.committed(again, consumed=ids(again.inbox), wake_at=deadline)
            b.clock.move_to(deadline - 1)
            assert not await b.claim()
            b.clock.move_to(deadline)
            await b.claim_one()

    async def test_a_deadline_that_was_changed_wakes_at_the_new_moment_only(self) -> None:
        """The deadline of the last commit counts: a later one, an earlier one, or none."""
        async with self.bench() as b:
            await b.create()
            begin = b.clock.now()
            for deadline in (1000, 5000, 3000):
                claim = await b.claim_one()
                await b.committed(claim, consumed=ids(claim.inbox), wake_at=begin + deadline)
                if deadline != 3000:
                    await b.send_signals("order", "x")
            b.clock.move_to(begin + 2999)
            assert not await b.claim()
            b.clock.move_to(begin + 3000)
            await b.committed(await b.claim_one(), wake_at=None)
            b.clock.move_to(begin + 10_000)
            assert not await b.claim()

    async def test_a_terminal_commit_leaves_no_deadline(self) -> None:
        """Nothing wakes an instance that has ended."""
        async with self.bench() as b:
            await b.create()
            await b.committed(await b.claim_one(), wake_at=b.clock.now() + 100)
            await b.send_signals("order", "x")
            claim = await b.claim_one()
            await b.end(claim, consumed=ids(claim.inbox))
            await b.pass_time(10 * LEASE)
            assert not await b.claim()

    # After the end.

    async def test_an_instance_that_has_ended_takes_nothing_from_outside(self) -> None:
        """A delivery to an execution that has ended answers Ended with its status, and wakes no waiter."""
        async with self.bench() as b:
            instance = await b.ended("order")
            assert await b.send_signal("order", "x") == r.Ended(status=Status.COMPLETED)
            assert await b.send_signal("order", "x", instance.execution_id) == r.Ended(status=Status.COMPLETED)
            assert not await b.claim(queues=["ended"])

    async def test_an_ended_instance_takes_results_until_it_is_deactivated(self) -> None:
        """An activity that was claimed before the end hands its result in; the instance is ready to record it."""
        async with self.bench() as b:
            instance = await b.wanting(2)
            task = await b.task()
            await b.send_signals("order", "finish")
            claim = await b.claim_one(queues=["wanting"])
            end = events.WorkflowCompleted(seq=3, result=Raw(b"1"))
            await b.committed(claim, end, consumed=ids(claim.inbox), status=Status.COMPLETED)
            found = await b.get()
            assert (found.status, found.deactivated) == (Status.COMPLETED, False)
            assert not await b.claim(queues=["wanting"])
            closed_at = found.closed_at
            await b.pass_time(100)
            assert await b.answer(task) == r.Accepted()
            late = await b.claim_one(queues=["wanting"])
            assert values(late.inbox) == ["activity_completed"]
            last = events.WorkflowDeactivated(seq=4)
            await b.committed(late, last, consumed=ids(late.inbox), status=Status.COMPLETED, deactivated=True)
            found = await b.get()
            assert (found.deactivated, found.closed_at, found.last_seq) == (True, closed_at, 4)
            assert list(await b.store.read(instance, 2)) == [end, last]
            assert isinstance(await b.answer(task), r.Refused)

    async def test_a_signal_that_crosses_the_end_leaves_the_instance_tidy(self) -> None:
        """An entry that arrived before the terminal commit, but was not consumed by it, makes the instance ready for clean-up."""
        async with self.bench() as b:
            await b.create()
            claim = await b.claim_one()
            await b.send_signals("order", "late")
            await b.end(claim)
            again = await b.claim_one()
            assert again.instance.status is Status.COMPLETED
            assert values(again.inbox) == ["late"]
            await b.committed(again, consumed=ids(again.inbox), status=Status.COMPLETED, deactivated=True)
            assert not await b.claim()

    async def test_events_and_activities_of_one_commit_are_there_together(self) -> None:
        """An activity is visible only together with the entry that schedules it."""
        async with self.bench() as b:
            instance = await b.create()
            await b.want(await b.claim_one(), request(2), request(3))
            for task in await b.tasks():
                log = await b.store.read(instance)
                assert log[task.request.ref - 1] == scheduled(task.request)
