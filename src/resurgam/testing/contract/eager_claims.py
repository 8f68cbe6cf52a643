"""Activities that are claimed by the commit that schedules them, for a worker with free slots."""

import msgspec

from resurgam.core.outcome import ActivityRequest
from resurgam.store import records as r
from resurgam.testing.contract.bench import LEASE, QUEUE, Bench, OpensStores, completed, request, scheduled


class EagerClaimCases(OpensStores):
    """Activities claimed by a commit, activities left to others, and answers carried by a commit."""

    async def test_a_commit_claims_no_more_activities_than_slots(self) -> None:
        """The rest waits in its queue."""
        async with self.bench() as b:
            answer = await self._schedule(b, request(2), request(3), request(4), claim_slots=2)
            assert [task.request.ref for task in answer.tasks] == [2, 3]
            assert [(task.epoch, task.attempt, task.entity_id) for task in answer.tasks] == [(1, 1, "order")] * 2
            left = await b.store.claim_activities("other", (QUEUE,), 10)
            assert [task.request.ref for task in left] == [4]

    async def test_a_commit_without_slots_claims_nothing_and_releases(self) -> None:
        """The activities wait, and so does the instance."""
        async with self.bench() as b:
            answer = await self._schedule(b, request(2), claim_slots=0)
            assert answer.tasks == ()
            assert len(await b.store.claim_activities("other", (QUEUE,), 10)) == 1
            await b.send_signals("order", "x")
            await b.claim_one("other")

    async def test_a_commit_that_claims_keeps_the_lease(self) -> None:
        """No other worker can claim the instance while its worker runs the activities, even if entries arrive."""
        async with self.bench() as b:
            await self._schedule(b, request(2), claim_slots=1)
            await b.send_signals("order", "x")
            assert not await b.claim("other")
            b.clock.move_to(b.clock.now() + LEASE)
            await b.claim_one("other")

    async def test_an_activity_for_a_queue_that_the_worker_does_not_serve_is_left_to_others(self) -> None:
        """And the instance is released."""
        async with self.bench() as b:
            answer = await self._schedule(b, request(2, queue="gpu"), claim_slots=5)
            assert answer.tasks == ()
            assert len(await b.store.claim_activities("other", ("gpu",), 10)) == 1

    async def test_older_work_goes_first(self) -> None:
        """While older work waits in a queue, no commit claims activities of that queue."""
        async with self.bench() as b:
            await self._schedule(b, request(2), claim_slots=0, entity_id="older")
            answer = await self._schedule(b, request(2), claim_slots=5)
            assert answer.tasks == ()
            tasks = await b.store.claim_activities("other", (QUEUE,), 10)
            assert [task.entity_id for task in tasks] == ["older", "order"]

    async def test_what_a_commit_claimed_is_leased_as_any_other(self) -> None:
        """It expires, and can then be claimed by another worker."""
        async with self.bench() as b:
            [task] = (await self._schedule(b, request(2), claim_slots=1)).tasks
            assert not await b.store.claim_activities("other", (QUEUE,), 10)
            b.clock.move_to(b.clock.now() + LEASE)
            [again] = await b.store.claim_activities("other", (QUEUE,), 10)
            assert (again.epoch, again.deliveries) == (task.epoch + 1, 1)

    async def test_an_answer_that_a_commit_carries_is_the_answer(self) -> None:
        """The activity is removed with it: it cannot be claimed, and a second answer is refused."""
        async with self.bench() as b:
            await b.create()
            claim = await b.claim_one()
            intent = request(2)
            [task] = (await b.committed(claim, scheduled(intent), activities=(intent,), claim_slots=1)).tasks
            answer = msgspec.structs.replace(completed(task), seq=3)
            await b.committed(claim, answer, base_seq=2)
            b.clock.move_to(b.clock.now() + LEASE)
            assert not await b.store.claim_activities("other", (QUEUE,), 10)
            late = r.ActivityResult(
                entity_id=task.entity_id, execution_id=task.execution_id, epoch=task.epoch, event=completed(task)
            )
            assert isinstance((await b.store.complete_activities([late]))[0], r.Refused)

    async def _schedule(
        self, b: Bench, *intents: ActivityRequest, claim_slots: int, entity_id: str = "order"
    ) -> r.Committed:
        await b.create(entity_id)
        log = [scheduled(intent) for intent in intents]
        return await b.committed(await b.claim_one(), *log, activities=intents, claim_slots=claim_slots)
