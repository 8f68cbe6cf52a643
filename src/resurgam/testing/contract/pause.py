"""Paused instances: neither they nor their activities are claimable until they are resumed."""

from resurgam.core import event as events
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.testing.contract.bench import (
    HOUR,
    LEASE,
    QUEUE,
    OpensStores,
    ids,
    request,
    retried,
    scheduled,
    signal,
    values,
)

OFFER = r.EagerOffer(worker="first", queues=(QUEUE,))
WORK = r.Work(worker="first", queues=(QUEUE,))


class PauseCases(OpensStores):
    """`WorkflowPaused` and `WorkflowResumed`."""

    async def test_a_paused_instance_is_not_offered_and_shown_as_paused(self) -> None:
        """In every read; the status behind the pause is hidden."""
        async with self.bench() as b:
            await b.create()
            await b.pause()
            assert not await b.claim()
            assert not await b.is_there(WORK)
            assert (await b.get()).status is Status.PAUSED
            stats = await b.store.inspector.stats()
            assert {status: count for status, count in stats.instances.items() if count} == {"paused": 1}
            assert await b.queue() == r.QueueStats()
            [exists] = await b.store.create([r.Creation(started=b.started())])
            assert isinstance(exists, r.Exists)
            assert exists.instance.status is Status.PAUSED
            assert await b.store.purge([exists.instance]) == [r.Unfinished(status=Status.PAUSED)]
            for status, number in ((Status.PAUSED, 1), (Status.RUNNING, 0), (None, 1)):
                page = await b.store.inspector.list(r.Query(status=status))
                assert len(page.instances) == number

    async def test_what_comes_to_a_paused_instance_waits_until_it_goes_on(self) -> None:
        """Then it gets all entries in order, with the pause and its end."""
        async with self.bench() as b:
            await b.create()
            await b.send_signals("order", "one")
            await b.pause()
            await b.send_signals("order", "two")
            assert not await b.claim()
            await b.resume()
            assert (await b.get()).status is Status.RUNNING
            claim = await b.claim_one()
            assert values(claim.inbox) == ["one", "workflow_paused", "two", "workflow_resumed"]

    async def test_pausing_and_resuming_again_change_nothing(self) -> None:
        """The inbox has each once."""
        async with self.bench() as b:
            await b.create()
            await b.resume()
            for _ in range(2):
                await b.pause()
            for _ in range(2):
                await b.resume()
            assert values((await b.claim_one()).inbox) == ["workflow_paused", "workflow_resumed"]

    async def test_a_pause_can_be_widened_to_the_tree_but_not_narrowed(self) -> None:
        """Only the widening is something new."""
        async with self.bench() as b:
            await b.create()
            for tree in (False, True, False):
                await b.pause(tree=tree)
            [copy] = await b.store.transfer.copies("order")
            assert copy.paused is r.Pause.TREE
            assert [getattr(event, "tree", None) for event in copy.inbox] == [False, True]

    async def test_the_holder_of_a_paused_instance_is_notified_and_may_commit(self) -> None:
        """Its release leaves the instance paused, though there are new entries; then it is resumed."""
        async with self.bench() as b:
            instance = await b.create()
            claim = await b.claim_one()
            await b.pause()
            assert await b.is_there(
                r.InboxChanged(entity_id=instance.entity_id, execution_id=instance.execution_id, wake=claim.wake)
            )
            kept = await b.committed(claim, scheduled(request(2)), release=False)
            assert values(kept.inbox) == ["workflow_paused"]
            await b.send_signals("order", "x")
            await b.committed(
                claim,
                events.WorkflowPaused(seq=3),
                base_seq=2,
                wake=kept.wake,
                consumed=ids(kept.inbox),
            )
            assert (await b.get()).status is Status.PAUSED
            assert not await b.claim()
            await b.resume()
            assert values((await b.claim_one()).inbox) == ["x", "workflow_resumed"]

    async def test_a_lost_lease_of_a_paused_instance_is_offered_when_it_goes_on(self) -> None:
        """Not before; nor is one whose deadline has come."""
        async with self.bench() as b:
            await b.create()
            await b.claim_one()
            await b.create("sleeping", queue="sleeping")
            await b.committed(await b.claim_one(queues=["sleeping"]), wake_at=b.clock.now() + LEASE)
            for name in ("order", "sleeping"):
                await b.pause(name)
            await b.pass_time(HOUR)
            assert not await b.claim(queues=[QUEUE, "sleeping"])
            assert not await b.is_there(r.Work(worker="first", queues=(QUEUE, "sleeping")))
            for name in ("order", "sleeping"):
                await b.resume(name)
            assert len(await b.claim(queues=[QUEUE, "sleeping"])) == 2

    async def test_resuming_wakes_waiters_for_work(self) -> None:
        """And an offer takes it at once."""
        async with self.bench() as b:
            await b.create()
            await b.pause()
            await b.resume()
            assert await b.is_there(WORK)
            await b.pause()
            assert not await b.is_there(WORK)
            answer = await b.deliver(events.WorkflowResumed(at=1), offer=OFFER)
            assert isinstance(answer, r.Delivered)
            assert answer.claim is not None
            assert answer.claim.instance.status is Status.RUNNING

    async def test_an_offer_takes_nothing_that_is_paused_and_is_not_held_up_by_it(self) -> None:
        """Neither the signal nor the pause itself leads to a claim; a younger instance is taken."""
        async with self.bench() as b:
            halted = b.beside("halted")
            await b.create(halted)
            answer = await b.deliver(events.WorkflowPaused(at=1), halted, offer=OFFER)
            assert answer == r.Delivered()
            assert await b.deliver(signal("x"), halted, offer=OFFER) == r.Delivered()
            [created] = await b.store.create([r.Creation(started=b.started(), offer=OFFER)])
            assert isinstance(created, r.Created)
            assert created.claim is not None

    async def test_a_parked_instance_that_is_paused_is_not_offered(self) -> None:
        """Until it is resumed: then to workers that have not tried it."""
        async with self.bench() as b:
            await b.create()
            diverged = events.WorkflowDiverged(seq=2, diagnosis="no")
            await b.committed(await b.claim_one(), diverged, status=Status.DIVERGED)
            await b.pause()
            assert not await b.claim("second")
            assert (await b.get()).status is Status.PAUSED
            await b.resume()
            assert (await b.get()).status is Status.DIVERGED
            assert not await b.claim("first")
            await b.claim_one("second")

    # Activities.

    async def test_activities_of_a_paused_instance_are_not_offered(self) -> None:
        """Neither new ones nor lost ones nor retries; after resumption all are."""
        async with self.bench() as b:
            await b.wanting(2, 3, 4)
            lost, again = await b.tasks(limit=2)
            await b.pause()
            await b.answer(again, retried(again, b.clock.now() + 1))
            await b.pass_time(LEASE)
            assert not await b.tasks("second")
            assert not await b.is_there(r.Work(worker="first", queues=(QUEUE,), instances=False))
            await b.resume()
            tasks = await b.tasks("second")
            assert sorted(task.request.ref for task in tasks) == [2, 3, 4]
            assert isinstance(await b.answer(lost), r.Refused)

    async def test_an_activity_that_is_under_way_is_answered_while_its_instance_is_paused(self) -> None:
        """The answer waits with the rest."""
        async with self.bench() as b:
            await b.wanting(2)
            task = await b.task()
            await b.pause()
            assert await b.answer(task) == r.Accepted()
            await b.resume()
            claim = await b.claim_one(queues=["wanting"])
            assert values(claim.inbox) == ["workflow_paused", "activity_completed", "workflow_resumed"]

    async def test_an_activity_that_becomes_a_dead_letter_during_a_pause_stays_one(self) -> None:
        """The end of the pause offers the others."""
        async with self.bench() as b:
            await b.wanting(2, 3)
            poison, _ = await b.tasks()
            await b.pause()
            assert await b.release(poison, "too large", final=True) == r.Released()
            await b.pass_time(LEASE)
            await b.resume()
            assert [task.request.ref for task in await b.tasks("second")] == [5 - poison.request.ref]
            assert (await b.store.inspector.stats()).dead_activities == 1
            assert (await b.queue()).activities == 0

    async def test_a_commit_of_a_paused_instance_hands_nothing_out(self) -> None:
        """Its activities wait, and the lease ends as without free slots; a kept lease is kept."""
        for release in (True, False):
            async with self.bench() as b:
                await b.create()
                claim = await b.claim_one()
                await b.pause()
                done = await b.want(claim, request(2), eager=(2,), release=release)
                assert done.tasks == ()
                assert isinstance(await b.extend(claim), r.Refused) is release
                assert not await b.tasks()
                await b.resume()
                assert (await b.task()).deliveries == 0
                assert len(await b.claim()) == int(release)

    async def test_activities_of_a_paused_instance_do_not_block_those_of_others(self) -> None:
        """They are older, but not claimable."""
        async with self.bench() as b:
            halted = b.beside("halted")
            await b.wanting(2, entity_id=halted)
            await b.pause(halted)
            await b.create()
            done = await b.want(await b.claim_one(), request(2), eager=(2,))
            assert [task.execution_id for task in done.tasks] == [(await b.get()).execution_id]

    # The end.

    async def test_terminating_ends_the_pause_too(self) -> None:
        """The instance is claimable once more, so that its log can be completed."""
        async with self.bench() as b:
            await b.create()
            await b.pause(tree=True)
            await b.deliver(events.WorkflowTerminated())
            assert (await b.get()).status is Status.TERMINATED
            [copy] = await b.store.transfer.copies("order")
            assert copy.paused is None
            await b.claim_one()

    async def test_an_instance_may_end_while_it_is_paused(self) -> None:
        """Its holder was about to close it; then it is no longer paused, and its entries are delivered."""
        async with self.bench() as b:
            await b.create()
            claim = await b.claim_one()
            await b.pause()
            await b.committed(claim, events.WorkflowCompleted(seq=2), status=Status.COMPLETED)
            assert (await b.get()).status is Status.COMPLETED
            assert values((await b.claim_one()).inbox) == ["workflow_paused"]

    async def test_a_scheduled_instance_can_be_paused(self) -> None:
        """Its start time passes; it starts when it is resumed. A request to begin leaves it paused."""
        async with self.bench() as b:
            await b.create(begins_at=b.clock.now() + LEASE)
            await b.create("deferred", deferred=True)
            for name in ("order", "deferred"):
                await b.pause(name)
            await b.pass_time(HOUR)
            await b.deliver(events.WorkflowBegun(at=1), "deferred")
            assert not await b.claim()
            for name in ("order", "deferred"):
                await b.resume(name)
            assert len(await b.claim()) == 2

    async def test_a_scheduled_instance_that_was_paused_still_waits_for_its_moment(self) -> None:
        """Resuming does not start it."""
        async with self.bench() as b:
            await b.create(begins_at=b.clock.now() + HOUR)
            await b.pause()
            await b.resume()
            assert (await b.get()).status is Status.SCHEDULED
            assert not await b.claim()
            await b.pass_time(HOUR)
            await b.claim_one()
