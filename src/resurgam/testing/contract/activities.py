"""Activities in a store: leased to one worker at a time, answered once, withdrawn, retried, dead-lettered."""

from resurgam.core import event as events
from resurgam.core.outcome import Withdrawal
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.rules import REDELIVERIES
from resurgam.testing.contract.bench import LEASE, QUEUE, Bench, OpensStores, ids, retried, values


class ActivityCases(OpensStores):
    """Second answers, retries, withdrawals, dead letters."""

    async def test_a_leased_activity_is_not_handed_out_twice(self) -> None:
        """While one worker holds the lease, no other claim returns the activity."""
        async with self.bench() as b:
            await b.wanting(2)
            await b.task("first")
            assert not await b.tasks("second")
            assert not await b.tasks("first")

    async def test_a_second_answer_is_refused(self) -> None:
        """The first answer to an activity is final; the instance receives it once."""
        async with self.bench() as b:
            await b.wanting(2)
            task = await b.task()
            assert await b.answer(task) == r.Accepted()
            assert isinstance(await b.answer(task), r.Refused)
            failure = events.Failure(type="ValueError", message="no")
            failed = events.ActivityFailed(ref=2, failure=failure)
            assert isinstance(await b.answer(task, failed), r.Refused)
            claim = await b.claim_one(queues=["wanting"])
            assert values(claim.inbox) == ["activity_completed"]
            await b.committed(claim, consumed=ids(claim.inbox))
            assert isinstance(await b.answer(task), r.Refused)
            assert not await b.claim(queues=["wanting"])

    async def test_a_failure_is_an_answer(self) -> None:
        """The final failure of an activity reaches its instance with all details; the activity does not run again."""
        async with self.bench() as b:
            await b.wanting(2)
            failure = events.Failure(type="shop.NoMoney", message="no", bases=("builtins.Exception",), notes=("a",))
            failed = events.ActivityFailed(ref=2, at=9, attempt=1, failure=failure)
            assert await b.answer(await b.task(), failed) == r.Accepted()
            assert (await b.claim_one(queues=["wanting"])).inbox[0].event == failed
            await b.pass_time(10 * LEASE)
            assert not await b.tasks()

    async def test_a_retry_is_invisible_until_its_moment(self) -> None:
        """A retry is claimable at its time, not before, as the next attempt."""
        async with self.bench() as b:
            await b.wanting(2)
            for attempt in (1, 2, 3):
                task = await b.task()
                assert (task.attempt, task.deliveries) == (attempt, 0)
                assert await b.answer(task, retried(task, b.clock.now() + 700)) == r.Accepted()
                assert isinstance(await b.answer(task), r.Refused)
                await b.pass_time(699)
                assert not await b.tasks()
                await b.pass_time(1)
            assert (await b.task()).attempt == 4

    async def test_a_retry_is_told_to_the_instance(self) -> None:
        """The instance receives every failed attempt."""
        async with self.bench() as b:
            await b.wanting(2)
            task = await b.task()
            again = retried(task, b.clock.now() + 10)
            await b.answer(task, again)
            claim = await b.claim_one(queues=["wanting"])
            assert [entry.event for entry in claim.inbox] == [again]

    async def test_the_answer_of_an_earlier_attempt_is_refused(self) -> None:
        """Once the next attempt is scheduled or claimed, the lease of the earlier one is invalid."""
        async with self.bench() as b:
            await b.wanting(2)
            first = await b.task("first")
            await b.answer(first, retried(first, b.clock.now()))
            second = await b.task("second")
            assert second.epoch > first.epoch
            assert isinstance(await b.answer(first), r.Refused)
            assert await b.answer(second) == r.Accepted()

    async def test_a_limit_is_honoured(self) -> None:
        """A claim returns at most *limit* activities; the next claim returns the rest."""
        async with self.bench() as b:
            await b.wanting(*range(2, 9))
            for number in range(7):
                await b.create(f"other-{number}")
            refs: list[int] = []
            names: list[str] = []
            for size in (3, 3, 1, 0):
                tasks = await b.tasks(limit=3)
                claims = await b.claim(limit=3)
                assert len(tasks) == len(claims) == size
                refs += [task.request.ref for task in tasks]
                names += [claim.instance.entity_id for claim in claims]
            assert sorted(refs) == list(range(2, 9))
            assert len(set(names)) == 7

    # Withdrawals.

    async def test_an_unclaimed_activity_of_an_ended_workflow_is_withdrawn(self) -> None:
        """An activity that was never started is removed, and an entry in the inbox reports it."""
        async with self.bench() as b:
            await b.wanting(2)
            await self._end_with_withdrawals(b, 2)
            assert not await b.tasks()
            claim = await b.claim_one(queues=["wanting"])
            assert values(claim.inbox) == ["activity_cancelled"]
            assert claim.inbox[0].event.ref == 2
            assert (await b.queue()).activities == 0

    async def test_a_claimed_activity_of_an_ended_workflow_runs_on(self) -> None:
        """A running activity is not withdrawn by the end, and its result is accepted."""
        async with self.bench() as b:
            await b.wanting(2, 3)
            [task] = await b.tasks(limit=1)
            await self._end_with_withdrawals(b, 2, 3)
            claim = await b.claim_one(queues=["wanting"])
            assert [(entry.event.type, entry.event.ref) for entry in claim.inbox] == [
                ("activity_cancelled", 5 - task.request.ref)
            ]
            assert isinstance(await b.extend(task), r.Extended)
            assert await b.answer(task) == r.Accepted()

    async def test_a_waiting_retry_of_an_ended_workflow_is_withdrawn(self) -> None:
        """An activity that waits for its next attempt counts as not running."""
        async with self.bench() as b:
            await b.wanting(2)
            task = await b.task()
            await b.answer(task, retried(task, b.clock.now() + 1000))
            claim = await b.claim_one(queues=["wanting"])
            await self._end_claimed(b, claim, 2)
            await b.pass_time(10 * LEASE)
            assert not await b.tasks()
            assert values((await b.claim_one(queues=["wanting"])).inbox) == ["activity_cancelled"]

    async def test_a_cancelled_activity_is_gone_whether_or_not_it_was_begun(self) -> None:
        """A withdrawal whose answer is already in the log removes the activity without an entry in the inbox."""
        async with self.bench() as b:
            await b.wanting(2, 3)
            [task] = await b.tasks(limit=1)
            await b.send_signals("order", "x")
            claim = await b.claim_one(queues=["wanting"])
            log = [events.ActivityCancelled(seq=seq, ref=seq - 2) for seq in (4, 5)]
            gone = tuple(Withdrawal(ref, answered=True) for ref in (2, 3))
            await b.committed(claim, *log, consumed=ids(claim.inbox), withdrawals=gone)
            assert not await b.tasks()
            assert isinstance(await b.answer(task), r.Refused)
            assert isinstance(await b.extend(task), r.Refused)
            assert isinstance(await b.release(task), r.Refused)
            assert not await b.claim(queues=["wanting"])
            await b.pass_time(10 * LEASE)
            assert not await b.tasks()

    async def test_a_withdrawal_of_what_is_answered_changes_nothing(self) -> None:
        """The answer that came before the withdrawal is kept, and no second one is added."""
        async with self.bench() as b:
            await b.wanting(2)
            task = await b.task()
            await b.send_signals("order", "x")
            claim = await b.claim_one(queues=["wanting"])
            assert await b.answer(task) == r.Accepted()
            await self._end_claimed(b, claim, 2)
            assert values((await b.claim_one(queues=["wanting"])).inbox) == ["activity_completed"]

    async def test_a_kept_lease_hears_of_what_its_commit_withdrew(self) -> None:
        """The entry of a withdrawal is returned by the commit that withdraws."""
        async with self.bench() as b:
            await b.wanting(2)
            await b.send_signals("order", "x")
            claim = await b.claim_one(queues=["wanting"])
            kept = await b.committed(
                claim, withdrawals=(self._withdrawal(2),), consumed=ids(claim.inbox), release=False
            )
            assert values(kept.inbox) == ["activity_cancelled"]

    # Dead letters.

    async def test_an_activity_that_kills_its_workers_is_made_a_dead_letter(self) -> None:
        """After the maximum of deliveries without an answer it becomes a dead letter, is counted, and affects no other activity."""
        async with self.bench() as b:
            await b.wanting(2)
            for delivery in range(REDELIVERIES):
                task = await b.task(f"worker-{delivery}")
                assert (task.attempt, task.deliveries) == (1, delivery)
                await b.pass_time(LEASE)
            await b.wanting(2, entity_id="neighbour")
            assert (await b.task()).entity_id == "neighbour"
            await b.pass_time(0)
            assert not await b.is_there(r.Work(worker="first", queues=(QUEUE,), instances=False))
            stats = await b.store.inspector.stats()
            assert (stats.dead_activities, stats.dead_instances) == (1, 0)
            assert (await b.queue()).activities == 0

    async def test_an_activity_behind_a_dead_letter_is_claimed(self) -> None:
        """Also by claims of one at a time, and without a wait between them."""
        async with self.bench() as b:
            poison = b.beside("poison")
            await b.wanting(2, entity_id=poison)
            for _ in range(REDELIVERIES):
                await b.task()
                await b.pass_time(LEASE)
            neighbour = b.beside("neighbour")
            await b.wanting(2, entity_id=neighbour)
            tasks = [*await b.tasks(limit=1), *await b.tasks(limit=1)]
            assert [task.entity_id for task in tasks] == [neighbour]

    async def test_an_answer_ends_the_counting_of_deliveries(self) -> None:
        """Deliveries are counted per attempt."""
        async with self.bench() as b:
            await b.wanting(2)
            for _ in range(3):
                for _ in range(REDELIVERIES - 1):
                    await b.task()
                    await b.pass_time(LEASE)
                task = await b.task()
                assert await b.answer(task, retried(task, b.clock.now())) == r.Accepted()
            assert (await b.store.inspector.stats()).dead_activities == 0

    async def test_an_instance_that_kills_its_workers_is_made_a_dead_letter(self) -> None:
        """After the maximum of deliveries without a commit it becomes a dead letter, is marked, and affects no other instance."""
        async with self.bench() as b:
            await b.create("poison")
            for _ in range(REDELIVERIES):
                await b.claim_one()
                await b.pass_time(LEASE)
            await b.create("neighbour")
            assert (await b.claim_one()).instance.entity_id == "neighbour"
            assert (await b.get("poison")).dead_letter is not None
            assert (await b.get("neighbour")).dead_letter is None
            assert (await b.store.inspector.stats()).dead_instances == 1
            await b.send_signals("poison", "x")
            assert not await b.claim()
            assert not await b.is_there(r.Work(worker="first", queues=(QUEUE,)))

    async def test_an_instance_that_was_made_a_dead_letter_waits_in_no_queue(self) -> None:
        """Its inbox is kept, but the instance does not count as work."""
        async with self.bench() as b:
            await b.create("poison")
            for _ in range(REDELIVERIES):
                await b.claim_one()
                await b.pass_time(LEASE)
            assert not await b.claim()
            assert await b.queue() == r.QueueStats()
            assert await b.send_signal("poison", "x") == r.Delivered()
            assert await b.queue() == r.QueueStats()

    async def test_a_parked_instance_that_kills_its_workers_is_made_a_dead_letter(self) -> None:
        """The limit of deliveries applies to parked instances too."""
        async with self.bench() as b:
            await b.create("poison")
            parked = events.WorkflowDiverged(seq=2, diagnosis="no")
            await b.committed(await b.claim_one("old"), parked, worker="old", status=Status.DIVERGED)
            for _ in range(REDELIVERIES):
                await b.claim_one("new")
                await b.pass_time(LEASE)
            assert not await b.claim("new")
            assert (await b.store.inspector.stats()).dead_instances == 1
            assert not await b.is_there(r.Work(worker="new", queues=(QUEUE,)))

    async def test_a_final_release_makes_an_instance_a_dead_letter(self) -> None:
        """The instance is a dead letter at once, with the given reason, and keeps its inbox; a stale release is refused."""
        async with self.bench() as b:
            await b.create("poison")
            claim = await b.claim_one()
            assert await b.release(claim, "too large", final=True) == r.Released()
            assert await b.release(claim, "too late", final=True) == r.Refused(reason="the lease is lost")
            await b.send_signals("poison", "x")
            assert (await b.get("poison")).dead_letter == "too large"
            assert (await b.store.inspector.stats()).dead_instances == 1
            assert not await b.claim()
            await b.pass_time(LEASE)
            assert not await b.claim()
            [revived] = await b.store.revive([claim.instance])
            assert revived == r.Revived(count=1)
            assert len((await b.claim_one()).inbox) == 1

    async def test_a_final_release_makes_an_activity_a_dead_letter(self) -> None:
        """Its reason is among the problems of its instance, which is no dead letter itself."""
        async with self.bench() as b:
            await b.wanting(2)
            task = await b.task()
            assert await b.release(task, "too large", final=True) == r.Released()
            await b.pass_time(LEASE)
            assert await b.tasks() == []
            stats = await b.store.inspector.stats()
            assert (stats.dead_activities, stats.dead_instances) == (1, 0)
            [revived] = await b.store.revive([task])
            assert revived == r.Revived(count=1)
            assert (await b.task()).request.ref == task.request.ref

    async def test_a_final_release_under_an_expired_lease_is_final(self) -> None:
        """No other worker has taken the work meanwhile, and none gets it afterwards."""
        async with self.bench() as b:
            await b.wanting(2)
            await b.create("poison")
            task, claim = await b.task(), await b.claim_one()
            await b.pass_time(LEASE)
            assert await b.release(task, "too large", final=True) == r.Released()
            assert await b.release(claim, "too large", final=True) == r.Released()
            assert not await b.tasks("second")
            assert not await b.claim("second")
            stats = await b.store.inspector.stats()
            assert (stats.dead_activities, stats.dead_instances) == (1, 1)

    async def test_a_graceful_release_is_no_failed_delivery(self) -> None:
        """Released instances and activities may be delivered any number of times."""
        async with self.bench() as b:
            await b.wanting(2)
            await b.create("other")
            for _ in range(2 * REDELIVERIES):
                assert await b.release(await b.claim_one()) == r.Released()
                task = await b.task()
                assert task.deliveries == 0
                assert await b.release(task) == r.Released()
            stats = await b.store.inspector.stats()
            assert (stats.dead_activities, stats.dead_instances) == (0, 0)

    async def test_a_release_in_failure_is_a_failed_delivery(self) -> None:
        """A release after a failure counts as a delivery."""
        async with self.bench() as b:
            await b.wanting(2)
            await b.create("other")
            for _ in range(REDELIVERIES):
                assert await b.release(await b.claim_one(), failed="boom") == r.Released()
                assert await b.release(await b.task(), failed="boom") == r.Released()
            assert not await b.claim()
            assert not await b.tasks()
            stats = await b.store.inspector.stats()
            assert (stats.dead_activities, stats.dead_instances) == (1, 1)

    async def test_a_commit_ends_the_counting_of_deliveries(self) -> None:
        """An instance that is claimed and committed repeatedly does not become a dead letter."""
        async with self.bench() as b:
            await b.create()
            for number in range(2 * REDELIVERIES):
                claim = await b.claim_one()
                await b.committed(claim, consumed=ids(claim.inbox))
                await b.send_signals("order", f"{number}")
            assert (await b.store.inspector.stats()).dead_instances == 0

    def _withdrawal(self, ref: int) -> Withdrawal:
        return Withdrawal(ref, answered=False, entry=events.ActivityCancelled(at=1, ref=ref))

    async def _end_with_withdrawals(self, b: Bench, *refs: int) -> None:
        await b.send_signals("order", "finish")
        await self._end_claimed(b, await b.claim_one(queues=["wanting"]), *refs)

    async def _end_claimed(self, b: Bench, claim: r.Claim, *refs: int) -> None:
        await b.committed(
            claim,
            events.WorkflowCompleted(seq=claim.instance.last_seq + 1),
            consumed=ids(claim.inbox),
            withdrawals=tuple(self._withdrawal(ref) for ref in refs),
            status=Status.COMPLETED,
        )
