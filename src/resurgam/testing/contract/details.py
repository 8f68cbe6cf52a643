"""Heartbeat details for the next attempt; and activities that are withdrawn only if they were never started."""

from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.outcome import Withdrawal
from resurgam.store import records as r
from resurgam.testing.contract.bench import LEASE, Bench, OpensStores, ids, retried, values


class DetailsCases(OpensStores):
    """`Lease.details`, `ActivityResult.details` and `Withdrawal.never_started`."""

    async def test_what_an_attempt_told_last_comes_to_the_next_one(self) -> None:
        """Whether the attempt failed, was released, or its worker died; a heartbeat without details keeps them."""
        async with self.bench() as b:
            await b.wanting(2)
            task = await b.task()
            assert task.details is None
            for details in (Raw(b'{"page":1}'), Raw(b'{"page":9007199254740993}'), None):
                assert await self._beat(b, task, details) == r.Extended()
            await b.pass_time(LEASE)
            lost = await b.task("second")
            assert lost.details == Raw(b'{"page":9007199254740993}')
            await b.release(lost)
            again = await b.task()
            assert again.details == lost.details
            await b.answer(again, retried(again, b.clock.now()))
            assert (await b.task()).details == lost.details

    async def test_a_failed_attempt_may_bring_its_details_with_it(self) -> None:
        """They replace earlier details."""
        async with self.bench() as b:
            await b.wanting(2)
            task = await b.task()
            await self._beat(b, task, Raw(b"1"))
            failed = r.ActivityResult(
                entity_id=task.entity_id,
                execution_id=task.execution_id,
                epoch=task.epoch,
                event=retried(task, b.clock.now()),
                details=Raw(b"2"),
            )
            assert await b.store.complete_activities([failed]) == [r.Accepted()]
            assert (await b.task()).details == Raw(b"2")

    async def test_a_worker_that_lost_its_lease_keeps_no_details(self) -> None:
        """The details of the current holder stay."""
        async with self.bench() as b:
            await b.wanting(2)
            stale = await b.task()
            await b.pass_time(LEASE)
            fresh = await b.task("second")
            await self._beat(b, fresh, Raw(b"1"))
            assert isinstance(await self._beat(b, stale, Raw(b"2")), r.Refused)
            await b.release(fresh)
            assert (await b.task()).details == Raw(b"1")

    async def test_details_move_to_another_store(self) -> None:
        """With the activity that they belong to."""
        async with self.bench() as a, self.bench(a.clock) as b:
            await a.wanting(2)
            await self._beat(a, await a.task(), Raw(b"[7]"))
            copies = tuple(await a.store.transfer.copies("order"))
            assert copies[0].activities[0].details == Raw(b"[7]")
            await b.store.transfer.adopt([r.Adoption(entity_id="order", copies=copies)])
            assert tuple(await b.store.transfer.copies("order")) == copies
            assert (await b.task()).details == Raw(b"[7]")

    async def test_an_activity_that_was_never_started_is_withdrawn(self) -> None:
        """And its instance gets an entry."""
        async with self.bench() as b:
            await b.wanting(2)
            await self._withdraw(b)
            assert values((await b.claim_one(queues=["wanting"])).inbox) == ["activity_cancelled"]
            assert not await b.tasks()

    async def test_an_activity_that_is_running_is_not_withdrawn(self) -> None:
        """The attempt continues, and its answer is accepted."""
        async with self.bench() as b:
            await b.wanting(2)
            task = await b.task()
            await self._withdraw(b)
            assert not await b.claim(queues=["wanting"])
            assert await b.answer(task) == r.Accepted()

    async def test_an_activity_that_was_started_once_is_not_withdrawn(self) -> None:
        """Even if it is not running now: it waits for its next attempt, or was released as failed."""
        async with self.bench() as b:
            await b.wanting(2, 3)
            first, second = await b.tasks()
            await b.answer(first, retried(first, b.clock.now()))
            await b.release(second, failed="no")
            await self._withdraw(b)
            assert not await b.claim(queues=["wanting"])
            assert len(await b.tasks()) == 2

    async def _beat(self, b: Bench, task: r.ActivityTask, details: Raw | None) -> r.Extended | r.Refused:
        lease = r.Lease(
            entity_id=task.entity_id,
            execution_id=task.execution_id,
            epoch=task.epoch,
            ref=task.request.ref,
            details=details,
        )
        [answer] = await b.store.extend([lease])
        return answer

    async def _withdraw(self, b: Bench) -> None:
        """Commit a withdrawal of activities that were never started."""
        await b.send_signals("order", "x")
        claim = await b.claim_one(queues=["wanting"])
        withdrawals = tuple(
            Withdrawal(ref, answered=False, entry=events.ActivityCancelled(ref=ref), never_started=True)
            for ref in (2, 3)
        )
        await b.committed(claim, withdrawals=withdrawals, consumed=ids(claim.inbox))
