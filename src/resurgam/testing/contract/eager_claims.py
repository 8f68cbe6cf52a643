"""Activities that are claimed by the commit that schedules them, for a worker with free slots."""

import msgspec

from resurgam.core.outcome import ActivityRequest
from resurgam.store import records as r
from resurgam.testing.contract.bench import LEASE, QUEUE, Bench, OpensStores, completed, request, scheduled


class EagerClaimCases(OpensStores):
    """Activities claimed by a commit, activities left to others, and answers carried by a commit."""

    async def test_a_commit_claims_the_activities_that_it_names(self) -> None:
        """The rest waits in its queue."""
        async with self.bench() as b:
            answer = await self._schedule(b, request(2), request(3), request(4), eager=(2, 4))
            assert [task.request.ref for task in answer.tasks] == [2, 4]
            assert [(task.epoch, task.attempt, task.entity_id) for task in answer.tasks] == [(1, 1, "order")] * 2
            left = await b.store.claim_activities("other", (QUEUE,), 10)
            assert [task.request.ref for task in left] == [3]

    async def test_a_commit_claims_the_activities_that_it_names_in_each_queue(self) -> None:
        """The rest waits in its queue, whichever that is."""
        async with self.bench() as b:
            requests = [request(2), request(3, "gpu"), request(4), request(5, "gpu")]
            answer = await self._schedule(b, *requests, eager=(2, 5))
            assert [task.request.ref for task in answer.tasks] == [2, 5]
            assert [task.request.ref for task in await b.tasks("other", (QUEUE,))] == [4]
            assert [task.request.ref for task in await b.tasks("other", ("gpu",))] == [3]

    async def test_a_commit_that_names_no_activity_claims_none_and_releases(self) -> None:
        """The activities wait, and so does the instance."""
        async with self.bench() as b:
            answer = await self._schedule(b, request(2))
            assert answer.tasks == ()
            assert len(await b.store.claim_activities("other", (QUEUE,), 10)) == 1
            await b.send_signals("order", "x")
            await b.claim_one("other")

    async def test_a_commit_that_claims_keeps_the_lease(self) -> None:
        """No other worker can claim the instance while its worker runs the activities, even if entries arrive."""
        async with self.bench() as b:
            await self._schedule(b, request(2), eager=(2,))
            await b.send_signals("order", "x")
            assert not await b.claim("other")
            b.clock.move_to(b.clock.now() + LEASE)
            await b.claim_one("other")

    async def test_older_work_goes_first(self) -> None:
        """While older work waits in a queue, no commit claims activities of that queue."""
        async with self.bench() as b:
            await self._schedule(b, request(2), entity_id=b.beside("older"))
            answer = await self._schedule(b, request(2), eager=(2,))
            assert answer.tasks == ()
            tasks = await b.store.claim_activities("other", (QUEUE,), 10)
            assert [task.entity_id for task in tasks] == [b.beside("older"), "order"]

    async def test_older_work_of_one_queue_does_not_hold_up_another(self) -> None:
        """The commit claims the activities that it names in the other queue."""
        async with self.bench() as b:
            await self._schedule(b, request(2), entity_id=b.beside("older"))
            answer = await self._schedule(b, request(2), request(3, "gpu"), eager=(2, 3))
            assert [task.request.ref for task in answer.tasks] == [3]

    async def test_an_activity_that_a_commit_named_in_vain_is_not_released_by_its_worker(self) -> None:
        """A worker that lost the answer of its commit releases what it named, with epoch 1; a later claim has another."""
        async with self.bench() as b:
            await self._schedule(b, request(2), entity_id=b.beside("older"))
            await self._schedule(b, request(2), eager=(2,))
            [_, task] = await b.tasks("other")
            lease = r.Lease(entity_id="order", execution_id=task.execution_id, epoch=1, ref=2)
            assert isinstance((await b.store.release([r.Release(lease=lease)]))[0], r.Refused)

    async def test_what_a_commit_claimed_is_leased_as_any_other(self) -> None:
        """It expires, and can then be claimed by another worker."""
        async with self.bench() as b:
            [task] = (await self._schedule(b, request(2), eager=(2,))).tasks
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
            [task] = (await b.committed(claim, scheduled(intent), activities=(intent,), eager=(2,))).tasks
            answer = msgspec.structs.replace(completed(task), seq=3)
            await b.committed(claim, answer, base_seq=2)
            b.clock.move_to(b.clock.now() + LEASE)
            assert not await b.store.claim_activities("other", (QUEUE,), 10)
            late = r.ActivityResult(
                entity_id=task.entity_id, execution_id=task.execution_id, epoch=task.epoch, event=completed(task)
            )
            assert isinstance((await b.store.complete_activities([late]))[0], r.Refused)

    async def _schedule(
        self, b: Bench, *intents: ActivityRequest, eager: tuple[int, ...] = (), entity_id: str = "order"
    ) -> r.Committed:
        await b.create(entity_id)
        log = [scheduled(intent) for intent in intents]
        return await b.committed(await b.claim_one(), *log, activities=intents, eager=eager)
