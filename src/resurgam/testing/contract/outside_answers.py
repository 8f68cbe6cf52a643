"""Answers to activities from outside, as a webhook gives them: under no lease, with the attempt that is open."""

from msgspec import Raw
from msgspec.structs import replace

from resurgam.core import event as events
from resurgam.core.outcome import Withdrawal
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.testing.contract.bench import HOUR, QUEUE, Bench, OpensStores, request, retried, values

WANTING = "wanting"
"""The queue of the instances."""


class OutsideAnswerCases(OpensStores):
    """The first answer counts, whether the activity waits, or a worker runs it, or its instance has ended."""

    async def test_an_activity_that_no_worker_has_claimed_is_answered_from_outside(self) -> None:
        """It is not handed out after that, and a second answer is refused."""
        async with self.bench() as b:
            instance = await b.wanting(2)
            assert await self._answer(b, instance) == r.Accepted()
            assert not await b.tasks()
            assert isinstance(await self._answer(b, instance, 1), r.Refused)
            assert values((await b.claim_one(queues=[WANTING])).inbox) == ["activity_completed"]

    async def test_an_activity_that_waits_for_its_next_attempt_is_answered_from_outside(self) -> None:
        """With the number of that attempt; the moment of the attempt passes and nothing is handed out."""
        async with self.bench() as b:
            instance = await b.wanting(2)
            task = await b.task()
            await b.answer(task, retried(task, b.clock.now() + HOUR))
            assert isinstance(await self._answer(b, instance, 1), r.Refused)
            [waiting] = await self._open(b, instance)
            assert (waiting.attempt, waiting.visible_at) == (2, b.clock.now() + HOUR)
            assert await self._answer(b, instance) == r.Accepted()
            assert await self._open(b, instance) == ()
            assert values((await b.claim_one(queues=[WANTING])).inbox) == [
                "activity_retry_scheduled",
                "activity_completed",
            ]
            await b.pass_time(HOUR)
            assert not await b.tasks("second")

    async def test_an_activity_that_a_worker_runs_is_answered_from_outside(self) -> None:
        """What the worker says then is refused, a retry too, and its lease is lost."""
        for late in (None, HOUR):
            async with self.bench() as b:
                instance = await b.wanting(2)
                task = await b.task()
                assert await self._answer(b, instance) == r.Accepted()
                event = None if late is None else retried(task, b.clock.now() + late)
                assert isinstance(await b.answer(task, event), r.Refused)
                assert isinstance(await b.extend(task), r.Refused)
                assert await self._open(b, instance) == ()
                await b.pass_time(HOUR)
                assert not await b.tasks("second")
                assert values((await b.claim_one(queues=[WANTING])).inbox) == ["activity_completed"]

    async def test_an_activity_of_a_paused_instance_is_answered_from_outside(self) -> None:
        """The answer is there when it is resumed."""
        async with self.bench() as b:
            instance = await b.wanting(2)
            await b.pause()
            assert await self._answer(b, instance) == r.Accepted()
            await b.resume()
            assert "activity_completed" in values((await b.claim_one(queues=[WANTING])).inbox)
            assert not await b.tasks()

    async def test_an_activity_that_outlives_its_instance_is_answered_from_outside_after_the_end(self) -> None:
        """It waits beyond the end, completed or terminated, and the answer is handed to a worker to be recorded."""
        for terminated in (False, True):
            async with self.bench() as b:
                instance = await b.create(queue=WANTING)
                wanted = replace(request(2), outlives=True)
                await b.want(await b.claim_one(queues=[WANTING]), wanted)
                task = await b.task()
                await b.answer(task, retried(task, b.clock.now() + HOUR))
                await self._end(b, terminated=terminated)
                [waiting] = await self._open(b, instance)
                assert (waiting.attempt, waiting.request) == (2, wanted)
                assert await self._answer(b, instance) == r.Accepted()
                assert values((await b.claim_one(queues=[WANTING])).inbox)[-1] == "activity_completed"
                await b.pass_time(HOUR)
                assert not await b.tasks()

    async def test_an_activity_that_has_begun_is_not_withdrawn_if_it_must_never_have_started(self) -> None:
        """Of two activities of an ended instance, one of which waits for its next attempt, the other is withdrawn."""
        async with self.bench() as b:
            instance = await b.wanting(2, 3)
            [task] = await b.tasks(limit=1)
            await b.answer(task, retried(task, b.clock.now() + HOUR))
            claim = await b.claim_one(queues=[WANTING])
            entries = {ref: events.ActivityCancelled(ref=ref) for ref in (2, 3)}
            gone = [Withdrawal(ref, answered=False, entry=entry, never_started=True) for ref, entry in entries.items()]
            await b.committed(claim, status=Status.FAILED, withdrawals=tuple(gone))
            assert [one.request.ref for one in await self._open(b, instance)] == [task.request.ref]
            told = (await b.claim_one(queues=[WANTING])).inbox
            assert told[-1].event == entries[5 - task.request.ref]

    async def _end(self, b: Bench, *, terminated: bool) -> None:
        if terminated:
            assert await b.deliver(events.WorkflowTerminated(reason="enough")) == r.Delivered()
        else:
            await b.committed(await b.claim_one(queues=[WANTING]), status=Status.COMPLETED)

    async def _open(self, b: Bench, instance: r.Instance) -> tuple[r.OpenActivity, ...]:
        work = await b.store.inspector.open_work(instance)
        return () if work is None else work.activities

    async def _answer(self, b: Bench, instance: r.Instance, attempt: int | None = None) -> r.Accepted | r.Refused:
        """Answer the one open activity of an instance, at the attempt that the store shows, or at another one."""
        if attempt is None:
            [found] = await self._open(b, instance)
            assert found.request.queue == QUEUE
            attempt = found.attempt
        event = events.ActivityCompleted(ref=2, at=1, attempt=attempt, result=Raw(b'{"paid":true}'))
        part = r.ActivityResult(entity_id=instance.entity_id, execution_id=instance.execution_id, epoch=0, event=event)
        [answer] = await b.store.complete_activities([part])
        return answer
