"""Leases: calls under a lost lease are refused, calls under a held one are not affected."""

from resurgam.core import event as events
from resurgam.core.outcome import Outcome
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.testing.contract.bench import (
    LEASE,
    QUEUE,
    UNKNOWN,
    Bench,
    OpensStores,
    completed,
    lease_of,
    request,
    retried,
    scheduled,
    signal,
)


class FencingCases(OpensStores):
    """Stale epochs, expired leases, batches of which a part is refused."""

    async def test_a_worker_that_lost_its_lease_is_refused(self) -> None:
        """After expiry a second worker claims with a higher epoch, and the first one is refused."""
        async with self.bench() as b:
            instance = await b.create()
            stale = await b.claim_one("first")
            await b.pass_time(LEASE)
            fresh = await b.claim_one("second")
            assert fresh.epoch > stale.epoch
            refused = await b.commit(stale, scheduled(request(2)), activities=(request(2),))
            assert isinstance(refused, r.Refused)
            assert isinstance(await b.extend(stale), r.Refused)
            assert isinstance(await b.release(stale), r.Refused)
            assert len(await b.store.read(instance)) == 1
            assert not await b.tasks()
            await b.end(fresh)

    async def test_a_stale_heartbeat_does_not_take_the_lease_back(self) -> None:
        """Renewing a lost lease does not change the new holder's lease."""
        async with self.bench() as b:
            await b.create()
            stale = await b.claim_one("first")
            await b.pass_time(LEASE)
            fresh = await b.claim_one("second")
            await b.pass_time(LEASE - 1)
            assert isinstance(await b.extend(stale), r.Refused)
            assert not await b.claim("third")
            await b.pass_time(1)
            third = await b.claim_one("third")
            assert third.epoch > fresh.epoch

    async def test_of_two_leases_on_an_instance_in_one_batch_only_the_held_one_is_renewed(self) -> None:
        """Workers of one process renew their leases together, also one that does not know yet that it lost its own."""
        async with self.bench() as b:
            await b.create()
            stale = await b.claim_one("first")
            await b.pass_time(LEASE)
            fresh = await b.claim_one("second")
            answers = await b.store.extend([lease_of(stale), lease_of(fresh), lease_of(stale)])
            assert [type(answer) for answer in answers] == [r.Refused, r.Extended, r.Refused]

    async def test_an_activity_that_lost_its_lease_is_refused(self) -> None:
        """A stale epoch completes, renews and releases nothing; the new holder's answer counts."""
        async with self.bench() as b:
            await b.wanting(2)
            stale = await b.task("first")
            await b.pass_time(LEASE)
            fresh = await b.task("second")
            assert fresh.epoch > stale.epoch
            assert (fresh.attempt, fresh.deliveries) == (1, 1)
            assert isinstance(await b.answer(stale), r.Refused)
            assert isinstance(await b.extend(stale), r.Refused)
            assert isinstance(await b.release(stale), r.Refused)
            assert not await b.claim(queues=["wanting"])
            assert await b.answer(fresh) == r.Accepted()

    async def test_a_stale_epoch_is_refused_after_the_new_holder_has_finished(self) -> None:
        """A lease that was lost stays lost when the instance is at rest again, with or without events to append."""
        async with self.bench() as b:
            await b.create()
            stale = await b.claim_one("first")
            await b.pass_time(LEASE)
            await b.committed(await b.claim_one("second"))
            assert isinstance(await b.commit(stale), r.Refused)
            assert isinstance(await b.commit(stale, scheduled(request(2))), r.Refused)
            assert isinstance(await b.extend(stale), r.Refused)
            assert isinstance(await b.release(stale), r.Refused)
            assert not await b.claim()

    async def test_a_lease_that_was_never_given_is_refused(self) -> None:
        """A future epoch and an unknown execution are refused."""
        async with self.bench() as b:
            instance = await b.create()
            ahead = r.Lease(entity_id=instance.entity_id, execution_id=instance.execution_id, epoch=1)
            unknown = r.Lease(entity_id="unknown", execution_id="unknown", epoch=1)
            for answer in await b.store.extend([ahead, unknown]):
                assert isinstance(answer, r.Refused)
            for freed in await b.store.release([r.Release(lease=ahead), r.Release(lease=unknown)]):
                assert isinstance(freed, r.Refused)
            await b.claim_one()

    async def test_a_lease_holds_to_its_last_millisecond(self) -> None:
        """A lease cannot be claimed before it expires."""
        async with self.bench() as b:
            await b.create()
            await b.claim_one("first")
            await b.pass_time(LEASE - 1)
            assert not await b.claim("second")
            await b.pass_time(1)
            await b.claim_one("second")

    async def test_a_renewed_lease_holds_from_the_renewal_on(self) -> None:
        """Renewing counts from the moment of renewal, for instances and for activities."""
        async with self.bench() as b:
            await b.wanting(2)
            await b.create("other")
            claim, task = await b.claim_one(), await b.task()
            for _ in range(5):
                await b.pass_time(LEASE - 1)
                assert isinstance(await b.extend(claim, claim.wake), r.Extended)
                assert isinstance(await b.extend(task), r.Extended)
            await b.pass_time(LEASE - 1)
            assert not await b.claim("second")
            assert not await b.tasks("second")
            await b.end(claim)
            assert await b.answer(task) == r.Accepted()

    async def test_an_expired_lease_that_was_not_taken_still_commits(self) -> None:
        """A slow worker whose work was not claimed by another loses nothing."""
        async with self.bench() as b:
            await b.wanting(2)
            await b.create("other")
            claim, task = await b.claim_one(), await b.task()
            await b.pass_time(2 * LEASE)
            await b.end(claim)
            assert await b.answer(task) == r.Accepted()
            assert not await b.claim()

    async def test_an_expired_lease_commits_though_others_have_looked(self) -> None:
        """Claims by others that return other work do not end a lease."""
        async with self.bench() as b:
            await b.wanting(2)
            await b.create("other")
            claim, task = await b.claim_one(), await b.task()
            await b.pass_time(2 * LEASE)
            assert await b.is_there(r.Work(worker="second", queues=(QUEUE,)))
            assert not await b.claim("second", ["elsewhere"])
            assert not await b.tasks("second", ["elsewhere"])
            await b.end(claim)
            assert await b.answer(task) == r.Accepted()
            assert not await b.claim()
            assert not await b.tasks()

    async def test_an_expired_lease_that_was_not_taken_is_renewed(self) -> None:
        """A late heartbeat renews the lease, if no other worker has claimed it."""
        async with self.bench() as b:
            await b.wanting(2)
            await b.create("other")
            claim, task = await b.claim_one(), await b.task()
            await b.pass_time(2 * LEASE)
            assert await b.is_there(r.Work(worker="second", queues=(QUEUE,)))
            assert isinstance(await b.extend(claim, claim.wake), r.Extended)
            assert isinstance(await b.extend(task), r.Extended)
            assert not await b.claim("second")
            assert not await b.tasks("second")

    async def test_a_released_instance_is_ready_at_once(self) -> None:
        """After a release others can claim at once, with the whole inbox."""
        async with self.bench() as b:
            await b.create()
            await b.send_signals("order", "x")
            first = await b.claim_one("first")
            assert await b.release(first) == r.Released()
            second = await b.claim_one("second")
            assert second.epoch > first.epoch
            assert second.inbox == first.inbox
            assert isinstance(await b.release(first), r.Refused)

    async def test_a_released_activity_is_ready_at_once(self) -> None:
        """A released activity is claimable again, as the same attempt."""
        async with self.bench() as b:
            await b.wanting(2)
            first = await b.task("first")
            assert await b.release(first) == r.Released()
            assert isinstance(await b.answer(first), r.Refused)
            second = await b.task("second")
            assert (second.attempt, second.request) == (1, first.request)
            assert await b.answer(second) == r.Accepted()

    async def test_a_commit_from_another_state_is_refused(self) -> None:
        """A commit names the seq it started from; if the log has another, nothing is applied."""
        async with self.bench() as b:
            instance = await b.create()
            await b.send_signals("order", "x")
            claim = await b.claim_one()
            for base_seq in (0, 2):
                refused = await b.commit(
                    claim,
                    scheduled(request(2)),
                    base_seq=base_seq,
                    activities=(request(2),),
                    consumed=tuple(entry.id or 0 for entry in claim.inbox),
                )
                assert isinstance(refused, r.Refused)
            assert len(await b.store.read(instance)) == 1
            assert not await b.tasks()
            await b.release(claim)
            assert (await b.claim_one()).inbox == claim.inbox

    async def test_a_kept_lease_commits_again(self) -> None:
        """A commit that keeps its lease is followed by others under the same epoch."""
        async with self.bench() as b:
            await b.create()
            claim = await b.claim_one()
            first = await b.committed(claim, scheduled(request(2)), activities=(request(2),), release=False)
            assert not await b.claim("second")
            await b.committed(claim, scheduled(request(3)), base_seq=2, wake=first.wake)
            assert isinstance(await b.commit(claim, scheduled(request(4)), base_seq=3), r.Refused)
            assert (await b.get()).last_seq == 3

    async def test_creations_are_answered_one_by_one(self) -> None:
        """In a batch of creations one that is refused holds up no other, and the same id twice is created once."""
        async with self.bench() as b:
            known = await b.create("known")
            parts = [r.Creation(started=b.started(name)) for name in ("new", "known", "twice", "twice")]
            answers = await b.store.create(parts)
            kinds = [type(answer) for answer in answers]
            assert kinds == [r.Created, r.Exists, r.Created, r.Exists]
            assert answers[1] == r.Exists(instance=known)
            assert {claim.instance.entity_id for claim in await b.claim()} == {"known", "new", "twice"}

    async def test_deliveries_are_answered_one_by_one(self) -> None:
        """In a batch of deliveries one that is refused holds up no other."""
        async with self.bench() as b:
            await b.ended("ended")
            await b.create("open")
            parts = [r.Delivery(event=signal("x"), entity_id=name) for name in ("unknown", "open", "ended", "open")]
            answers = await b.store.deliver(parts)
            assert list(answers) == [r.Missing(), r.Delivered(), r.Ended(status=Status.COMPLETED), r.Delivered()]
            assert len((await b.claim_one()).inbox) == 2

    async def test_commits_are_answered_one_by_one(self) -> None:
        """In a batch of commits one that is refused holds up no other."""
        async with self.bench() as b:
            claims = await self._three(b)
            end = Outcome(events=(events.WorkflowCompleted(seq=2),), status=Status.COMPLETED)
            parts = [
                r.Commit(
                    execution_id=claim.instance.execution_id,
                    entity_id=claim.instance.entity_id,
                    epoch=claim.epoch + stale,
                    base_seq=1,
                    wake=claim.wake,
                    outcome=end,
                )
                for claim, stale in zip(claims, (0, -1, 0), strict=True)
            ]
            answers = await b.store.commit(parts)
            assert [type(answer) for answer in answers] == [r.Committed, r.Refused, r.Committed]
            statuses = [(await b.get(claim.instance.entity_id)).status for claim in claims]
            assert statuses == [Status.COMPLETED, Status.RUNNING, Status.COMPLETED]

    async def test_leases_are_renewed_and_released_one_by_one(self) -> None:
        """In a batch of leases, instances and activities mixed, one that is refused holds up no other."""
        async with self.bench() as b:
            await b.wanting(2, entity_id="worked")
            task = await b.task()
            claims = await self._three(b)
            leases = [
                lease_of(claims[0]),
                r.Lease(entity_id="unknown", execution_id="unknown", epoch=1),
                lease_of(task),
                lease_of(claims[2]),
            ]
            expected = [r.Extended, r.Refused, r.Extended, r.Extended]
            assert [type(answer) for answer in await b.store.extend(leases)] == expected
            freed = await b.store.release([r.Release(lease=lease) for lease in leases])
            assert [type(answer) for answer in freed] == [r.Released, r.Refused, r.Released, r.Released]
            assert len(await b.claim("second")) == 2
            assert len(await b.tasks("second")) == 1

    async def test_results_are_answered_one_by_one(self) -> None:
        """In a batch of results one that is refused holds up no other."""
        async with self.bench() as b:
            await b.wanting(2, 3, 4)
            tasks = sorted(await b.tasks(), key=lambda task: task.request.ref)
            later = retried(tasks[2], b.clock.now() + 5)
            parts = [
                r.ActivityResult(
                    entity_id=task.entity_id, execution_id=task.execution_id, epoch=task.epoch + stale, event=event
                )
                for task, stale, event in (
                    (tasks[0], 0, completed(tasks[0])),
                    (tasks[1], -1, completed(tasks[1])),
                    (tasks[0], 0, completed(tasks[0])),
                    (tasks[2], 0, later),
                )
            ]
            answers = await b.store.complete_activities(parts)
            assert [type(answer) for answer in answers] == [r.Accepted, r.Refused, r.Refused, r.Accepted]
            refs = [entry.event.ref for entry in (await b.claim_one(queues=["wanting"])).inbox]
            assert refs == [2, 4]

    async def test_purges_are_answered_one_by_one(self) -> None:
        """In a batch of purges one that is refused holds up no other."""
        async with self.bench() as b:
            ended, running = await b.ended("ended"), await b.create("running")
            wanted: list[r.Addressed] = [running, UNKNOWN, ended, ended]
            answers = await b.store.purge(wanted)
            assert list(answers) == [r.Unfinished(status=Status.RUNNING), r.Missing(), r.Purged(), r.Missing()]
            assert await b.store.inspector.get("ended") is None

    async def test_an_empty_batch_is_answered_with_nothing(self) -> None:
        """Every verb accepts an empty batch."""
        async with self.bench() as b:
            store = b.store
            for answers in (
                await store.create([]),
                await store.deliver([]),
                await store.commit([]),
                await store.extend([]),
                await store.release([]),
                await store.complete_activities([]),
                await store.purge([]),
                await store.claim("first", [], 10),
                await store.claim_activities("first", [], 10),
            ):
                assert list(answers) == []

    async def _three(self, b: Bench) -> list[r.Claim]:
        for name in ("one", "two", "three"):
            await b.create(name)
        claims = {claim.instance.entity_id: claim for claim in await b.claim("first")}
        return [claims[name] for name in ("one", "two", "three")]
