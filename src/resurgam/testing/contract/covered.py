"""Activities that the lease on their instance covers: they share its fate until they get a lease of their own."""

import asyncio
from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from resurgam.core import event as events
from resurgam.core.outcome import ActivityRequest, Outcome, Withdrawal
from resurgam.core.retry import RetryRule
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.testing.contract.bench import (
    HOUR,
    LEASE,
    QUEUE,
    Bench,
    OpensStores,
    completed,
    lease_of,
    request,
    retried,
    scheduled,
    values,
)

COVERING = "covering"
"""The queue of the instances."""

_RULE = RetryRule(max_attempts=3, initial_interval=7000)


class CoveredCases(OpensStores):
    """Who runs a covered activity, what becomes of it when the lease ends, and which of its answers counts."""

    async def test_a_covered_activity_has_epoch_0(self) -> None:
        """It is a first attempt, delivered for the first time, and no other worker can claim it or its instance."""
        async with self.bench() as b:
            claim, [task] = await self._cover(b, request(2))
            assert (task.epoch, task.attempt, task.deliveries, task.entity_id) == (0, 1, 0, "order")
            assert task.request == request(2)
            assert not await b.tasks("other")
            await b.send_signals("order", "x")
            assert not await b.claim("other")
            assert isinstance(await b.extend(claim), r.Extended)

    async def test_an_activity_is_not_covered_where_older_work_waits(self) -> None:
        """It waits behind it, as without cover."""
        async with self.bench() as b:
            await b.wanting(2, entity_id=b.beside("older"))
            _, tasks = await self._cover(b, request(2))
            assert tasks == ()
            assert [task.entity_id for task in await b.tasks("other")] == [b.beside("older"), "order"]

    async def test_an_activity_of_a_paused_instance_is_not_covered(self) -> None:
        """It waits for the end of the pause; those that ran before the pause run on."""
        async with self.bench() as b:
            claim, _ = await self._cover(b, request(2))
            await b.pause()
            more = await b.want(
                claim, request(3), base_seq=2, eager=(3,), covers=True, running=(request(2),), release=False
            )
            assert more.tasks == ()
            assert not await b.tasks("other")
            await b.resume()
            assert [task.request.ref for task in await b.tasks("other")] == [3]
            assert [one.request.ref for one in (await self._work(b, claim)).activities] == [2, 3]

    async def test_many_activities_are_claimed_though_not_all_are_covered(self) -> None:
        """A task with another epoch than 0 has a lease of its own."""
        async with self.bench() as b:
            wanted = [request(ref) for ref in range(2, 42)]
            claim, tasks = await self._cover(b, *wanted)
            assert [task.request for task in tasks] == wanted
            own = [task for task in tasks if task.epoch]
            for task in own:
                assert isinstance(await b.extend(task), r.Extended)
            await b.pass_time(LEASE)
            await b.claim_one("second", (COVERING,))
            again = await b.tasks("second")
            assert sorted(task.request.ref for task in again) == list(range(2, 42))
            assert {task.deliveries for task in again} == {1}
            assert claim.epoch == 1

    async def test_a_covered_activity_is_lost_with_its_instance(self) -> None:
        """When another worker claims the instance, the activity is back on its queue, as delivered once."""
        async with self.bench() as b:
            wanted = replace(request(2), retry=_RULE, timeout=5)
            _, [task] = await self._cover(b, wanted)
            await b.pass_time(LEASE)
            await b.claim_one("second", (COVERING,))
            again = await b.task("second")
            assert again.request == wanted
            assert (again.attempt, again.deliveries) == (1, 1)
            assert again.epoch > task.epoch

    async def test_a_covered_activity_is_kept_by_the_renewal_of_its_instance(self) -> None:
        """It needs none of its own."""
        async with self.bench() as b:
            claim, _ = await self._cover(b, request(2))
            await b.pass_time(LEASE - 1)
            assert isinstance(await b.extend(claim), r.Extended)
            [held] = (await self._work(b, claim)).activities
            assert held.leased_until == b.clock.now() + LEASE
            await b.pass_time(LEASE - 1)
            assert not await b.claim("second")
            assert not await b.tasks("second")

    async def test_a_released_instance_gives_its_covered_activities_back(self) -> None:
        """With a failure they count as delivered, otherwise not."""
        for failed, deliveries in ((None, 0), ("no", 1)):
            async with self.bench() as b:
                claim, _ = await self._cover(b, request(2), request(3, "gpu"))
                assert await b.release(claim, failed) == r.Released()
                tasks = await b.tasks("second", (QUEUE, "gpu"))
                assert sorted((task.request.ref, task.deliveries) for task in tasks) == [
                    (2, deliveries),
                    (3, deliveries),
                ]

    async def test_a_paused_instance_that_is_released_offers_its_activities_when_it_is_resumed(self) -> None:
        """Not before, and once."""
        async with self.bench() as b:
            claim, [task] = await self._cover(b, request(2))
            await b.pause()
            assert await b.release(claim) == r.Released()
            assert not await b.tasks("second")
            await b.resume()
            await b.task("second")
            assert not await b.tasks("third")
            assert await b.answer(task) == r.Accepted()

    async def test_a_commit_that_releases_leaves_its_activities_running(self) -> None:
        """They stay leased to the same worker, with epoch 0, can be renewed, and are answered."""
        async with self.bench() as b:
            claim, [task] = await self._cover(b, request(2))
            await b.pass_time(5)
            await b.committed(claim, base_seq=2, covers=True, running=(request(2),))
            assert not await b.tasks("second")
            [held] = (await self._work(b, claim)).activities
            assert held.worker
            assert (held.leased_until, held.deliveries) == (b.clock.now() + LEASE, 1)
            await b.pass_time(LEASE - 1)
            assert isinstance(await b.extend(task), r.Extended)
            await b.pass_time(LEASE - 1)
            assert not await b.tasks("second")
            assert await b.answer(task) == r.Accepted()
            assert values((await b.claim_one("second", (COVERING,))).inbox) == ["activity_completed"]

    async def test_what_a_released_commit_left_running_can_be_lost(self) -> None:
        """It comes back when its own lease expires, and the lost worker cannot renew it."""
        async with self.bench() as b:
            claim, [task] = await self._cover(b, request(2))
            await b.committed(claim, base_seq=2, covers=True, running=(request(2),))
            await b.pass_time(LEASE)
            again = await b.task("second")
            assert (again.deliveries, again.attempt) == (1, 1)
            assert isinstance(await b.extend(task), r.Refused)

    async def test_a_terminated_instance_leaves_its_activities_running(self) -> None:
        """Their results are recorded; one whose worker is lost is cancelled."""
        async with self.bench() as b:
            claim, [task, lost] = await self._cover(b, request(2), request(3))
            assert await b.deliver(events.WorkflowTerminated(reason="enough")) == r.Delivered()
            assert not await b.tasks("second")
            work = await self._work(b, claim)
            assert [(one.request.ref, one.deliveries) for one in work.activities] == [(2, 1), (3, 1)]
            assert all(one.worker for one in work.activities)
            assert isinstance(await b.extend(lost), r.Extended)
            assert await b.answer(task) == r.Accepted()
            await b.pass_time(LEASE)
            assert not await b.tasks("second")
            assert values((await b.claim_one("second", (COVERING,))).inbox) == [
                "activity_completed",
                "activity_cancelled",
            ]

    async def test_a_dead_letter_puts_its_activities_back(self) -> None:
        """They do not need their instance to run."""
        async with self.bench() as b:
            claim, [task] = await self._cover(b, request(2))
            await b.release(claim, "it cannot be read", final=True)
            again = await b.task("second")
            assert again.deliveries == 1
            assert await b.answer(again) == r.Accepted()
            assert isinstance(await b.answer(task), r.Refused)

    async def test_a_heartbeat_gives_a_covered_activity_a_lease_of_its_own(self) -> None:
        """It is no longer given back with its instance, and its details are there for the next worker."""
        async with self.bench() as b:
            claim, [task] = await self._cover(b, request(2))
            lease = replace(lease_of(task), details=Raw(b'"half"'), heartbeat_at=b.clock.now())
            assert await b.store.extend([lease]) == [r.Extended()]
            [held] = (await self._work(b, claim)).activities
            assert (held.details, held.heartbeat_at, held.deliveries) == (Raw(b'"half"'), b.clock.now(), 1)
            assert held.worker
            assert await b.release(claim) == r.Released()
            assert not await b.tasks("second")
            await b.pass_time(LEASE)
            again = await b.task("second")
            assert (again.details, again.deliveries) == (Raw(b'"half"'), 1)
            assert isinstance(await b.extend(task), r.Refused)

    async def test_an_activity_with_a_lease_of_its_own_is_answered_by_the_commit_that_names_it(self) -> None:
        """Otherwise it would be begun again."""
        async with self.bench() as b:
            claim, [task] = await self._cover(b, request(2))
            await b.store.extend([replace(lease_of(task), details=Raw(b"1"))])
            answer = replace(completed(task), seq=3)
            await b.committed(claim, answer, base_seq=2, covers=True, answered=(2,))
            assert (await self._work(b, claim)).activities == ()
            await b.pass_time(LEASE)
            assert not await b.tasks("second")

    async def test_what_is_covered_is_counted_though_its_instance_is_left_deferred(self) -> None:
        """No moment is known at which that instance is offered again."""
        async with self.bench() as b:
            await b.create(queue=COVERING, begins_at=b.clock.now())
            claim = await b.claim_one(queues=[COVERING])
            step = {"activities": (request(2),), "eager": (2,), "covers": True, "release": False}
            await b.committed(claim, scheduled(request(2)), status=Status.SCHEDULED, **step)
            assert await b.queue(QUEUE) == r.QueueStats(claimed_activities=1)
            assert await b.queue(COVERING) == r.QueueStats()

    async def test_a_step_answers_one_and_covers_the_next(self) -> None:
        """What a commit does not name as running is answered; a lost worker's successor gets the rest only."""
        async with self.bench() as b:
            claim, [task] = await self._cover(b, request(2))
            answer = replace(completed(task), seq=3)
            step = {"base_seq": 2, "activities": (request(4),), "eager": (4,), "covers": True, "release": False}
            done = await b.committed(claim, answer, scheduled(request(4)), **step)
            assert [(one.request.ref, one.epoch) for one in done.tasks] == [(4, 0)]
            assert [one.request.ref for one in (await self._work(b, claim)).activities] == [4]
            assert isinstance(await b.answer(task), r.Refused)
            await b.pass_time(LEASE)
            await b.claim_one("second", (COVERING,))
            assert [one.request.ref for one in await b.tasks("second")] == [4]

    async def test_the_first_answer_counts_even_if_another_worker_has_leased_the_activity(self) -> None:
        """That of the lost worker, if it is the first; the other's is refused."""
        async with self.bench() as b:
            _, [task] = await self._cover(b, request(2))
            await b.pass_time(LEASE)
            await b.claim_one("second", (COVERING,))
            again = await b.task("second")
            assert await b.answer(task) == r.Accepted()
            assert isinstance(await b.answer(again), r.Refused)
            assert isinstance(await b.answer(task), r.Refused)
            assert not await b.tasks("third")

    async def test_an_answer_while_the_lease_covers_the_activity_reaches_the_inbox(self) -> None:
        """The activity is gone with it, also for a worker that claims the instance."""
        async with self.bench() as b:
            claim, [task, _] = await self._cover(b, request(2), request(3))
            assert await b.answer(task) == r.Accepted()
            extended = await b.extend(claim)
            assert isinstance(extended, r.Extended)
            assert values(extended.inbox) == ["activity_completed"]
            assert isinstance(await b.answer(task), r.Refused)
            await b.pass_time(LEASE)
            await b.claim_one("second", (COVERING,))
            assert [one.request.ref for one in await b.tasks("second")] == [3]

    async def test_an_answer_of_an_earlier_attempt_is_refused(self) -> None:
        """The activity is at its next attempt."""
        async with self.bench() as b:
            wanted = replace(request(2), retry=_RULE)
            claim, [task] = await self._cover(b, wanted)
            assert await b.answer(task, retried(task, b.clock.now() + HOUR)) == r.Accepted()
            assert isinstance(await b.answer(task), r.Refused)
            [later] = (await self._work(b, claim)).activities
            assert (later.attempt, later.deliveries, later.worker) == (2, 0, None)
            await b.pass_time(HOUR)
            again = await b.task("second")
            assert (again.attempt, again.request) == (2, wanted)
            assert await b.answer(again) == r.Accepted()

    async def test_an_attempt_that_is_retried_is_no_longer_a_dead_letter(self) -> None:
        """Its worker answers after all, though another has given it up; the next attempt is offered."""
        async with self.bench() as b:
            _, [task] = await self._cover(b, request(2))
            await b.pass_time(LEASE)
            await b.claim_one("second", (COVERING,))
            assert await b.release(await b.task("second"), "too large", final=True) == r.Released()
            assert await b.answer(task, retried(task, b.clock.now())) == r.Accepted()
            assert (await b.task("third")).attempt == 2
            assert (await b.store.inspector.stats()).dead_activities == 0

    async def test_a_commit_schedules_the_next_attempt_of_a_covered_activity(self) -> None:
        """With the recorded policy, the details of the last heartbeat, and not before its moment."""
        async with self.bench() as b:
            wanted = replace(request(2), retry=_RULE)
            claim, [task] = await self._cover(b, wanted)
            moment = b.clock.now() + HOUR
            again = r.Pending(request=wanted, visible_at=moment, attempt=2, details=Raw(b"3"), heartbeat_at=4)
            failed = replace(retried(task, moment), seq=3)
            await b.committed(claim, failed, base_seq=2, covers=True, retries=(again,))
            assert not await b.tasks("second")
            await b.pass_time(HOUR)
            next_one = await b.task("second")
            assert next_one.request == wanted
            assert (next_one.attempt, next_one.deliveries, next_one.details) == (2, 0, Raw(b"3"))
            assert isinstance(await b.answer(task), r.Refused)

    async def test_a_covered_activity_is_withdrawn_only_if_its_cancellation_is_recorded(self) -> None:
        """Otherwise it runs on: a worker has begun it."""
        cases: tuple[tuple[bool, bool, list[int]], ...] = ((True, False, []), (True, True, [2]), (False, False, [2]))
        for answered, never_started, left in cases:
            async with self.bench() as b:
                claim, _ = await self._cover(b, request(2))
                entry = None if answered else events.ActivityCancelled(ref=2)
                withdrawal = Withdrawal(2, answered=answered, never_started=never_started, entry=entry)
                running = {"covers": True, "running": (request(2),), "base_seq": 2}
                done = await b.committed(claim, withdrawals=(withdrawal,), release=False, **running)
                assert values(done.inbox) == []
                assert [one.request.ref for one in (await self._work(b, claim)).activities] == left
                await b.pass_time(LEASE)
                await b.claim_one("second", (COVERING,))
                assert [one.request.ref for one in await b.tasks("second")] == left

    async def test_covered_activities_are_shown_counted_and_copied(self) -> None:
        """With the worker and the lease of their instance."""
        async with self.bench() as b:
            claim, _ = await self._cover(b, request(2), request(3, "gpu"))
            work = await self._work(b, claim)
            assert [(one.request, one.attempt, one.deliveries) for one in work.activities] == [
                (request(2), 1, 1),
                (request(3, "gpu"), 1, 1),
            ]
            assert {(one.worker, one.leased_until) for one in work.activities} == {(work.worker, work.leased_until)}
            assert (await b.queue()).claimed_activities == (await b.queue("gpu")).claimed_activities == 1
            assert (await b.queue()).activities == 0
            [copy] = await b.store.transfer.copies("order")
            assert [(one.request.ref, one.deliveries, one.attempt) for one in copy.activities] == [(2, 1, 1), (3, 1, 1)]

    async def test_a_copy_has_its_covered_activities_to_run(self) -> None:
        """Without the lease: they are claimed where it is adopted."""
        async with self.bench() as b, self.bench() as other:
            await self._cover(b, request(2))
            copies = tuple(await b.store.transfer.copies("order"))
            await other.store.transfer.adopt([r.Adoption(entity_id="order", copies=copies)])
            assert (await other.task()).deliveries == 1

    async def test_the_end_of_a_workflow_leaves_a_covered_activity_running(self) -> None:
        """Its result completes the log."""
        async with self.bench() as b:
            claim, [task] = await self._cover(b, request(2))
            end = events.WorkflowCompleted(seq=3)
            await b.committed(claim, end, base_seq=2, status=Status.COMPLETED, covers=True, running=(request(2),))
            assert not await b.tasks("second")
            assert await b.answer(task) == r.Accepted()
            assert values((await b.claim_one("second", (COVERING,))).inbox) == ["activity_completed"]

    async def test_a_creation_brings_its_first_commit(self) -> None:
        """The execution is created, claimed and committed at once; its activity is covered."""
        async with self.bench() as b:
            [created] = await b.store.create([self._beginning(b, request(2))])
            assert isinstance(created, r.Created)
            assert created.claim is not None
            assert created.committed is not None
            assert (created.claim.epoch, created.claim.wake, created.claim.instance.last_seq) == (1, 0, 1)
            assert created.instance == await b.get()
            assert (created.instance.last_seq, created.instance.status) == (2, Status.RUNNING)
            [task] = created.committed.tasks
            assert (task.epoch, task.request) == (0, request(2))
            log = await b.store.read(created.instance)
            assert [entry.type for entry in log] == ["workflow_started", "activity_scheduled"]
            assert not await b.claim("second")
            await b.pass_time(LEASE)
            again = await b.claim_one("second")
            assert (again.epoch, again.instance.last_seq) == (2, 2)
            assert (await b.task("second")).deliveries == 1

    async def test_a_creation_whose_first_commit_releases_leaves_a_sleeper(self) -> None:
        """It is claimable at its moment, and not before."""
        async with self.bench() as b:
            moment = b.clock.now() + HOUR
            [created] = await b.store.create([self._beginning(b, wake_at=moment)])
            assert isinstance(created, r.Created)
            assert created.committed == r.Committed(wake=0)
            assert created.instance == await b.get()
            assert created.instance.wake_at == moment
            assert await self._work(b, created.claim) == r.OpenWork()
            assert not await b.claim("second")
            await b.pass_time(HOUR)
            assert (await b.claim_one("second")).epoch == 2

    async def test_the_first_commit_is_ignored_if_the_execution_is_not_claimed(self) -> None:
        """Older work waits in its queue, it exists, it begins later, or it has an inbox: then nothing of it is written."""
        async with self.bench() as b:
            await b.create(b.beside("older"))
            [created] = await b.store.create([self._beginning(b, request(2))])
            assert isinstance(created, r.Created)
            assert (created.claim, created.committed, created.instance.last_seq) == (None, None, 1)
            [exists] = await b.store.create([self._beginning(b, request(2))])
            assert exists == r.Exists(instance=created.instance)
            assert [claim.instance.last_seq for claim in await b.claim()] == [1, 1]
            assert not await b.tasks()

    async def test_two_creations_of_one_entity_in_one_batch_make_one_execution(self) -> None:
        """The second finds the first."""
        async with self.bench() as b:
            parts = [self._beginning(b, request(2)), self._beginning(b, request(2)), self._beginning(b, entity_id="x")]
            first, second, third = await b.store.create(parts)
            assert isinstance(first, r.Created)
            assert second == r.Exists(instance=first.instance)
            assert isinstance(third, r.Created)
            assert third.committed is not None

    async def test_a_creation_that_is_repeated_commits_nothing_again(self) -> None:
        """It returns the execution as it is."""
        async with self.bench() as b:
            part = self._beginning(b, request(2))
            [created] = await b.store.create([part])
            [again] = await b.store.create([part])
            assert isinstance(created, r.Created)
            assert again == r.Created(instance=created.instance)

    async def test_a_submitted_commit_is_answered_by_a_call(self) -> None:
        """Accepted or refused, once, as by `commit`; several at once in their order."""
        async with self.bench() as b:
            claim, [task] = await self._cover(b, request(2))
            answers: list[r.Committed | r.Refused | Exception] = []
            told: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def tell(answer: r.Committed | r.Refused | Exception) -> None:
                answers.append(answer)
                if len(answers) == 3:
                    told.set_result(None)

            step = r.Commit(
                entity_id="order",
                execution_id=claim.instance.execution_id,
                epoch=claim.epoch,
                base_seq=2,
                wake=claim.wake,
                outcome=Outcome(events=(replace(completed(task), seq=3),)),
                release=False,
                covers=True,
            )
            for part in (
                step,
                step,
                replace(step, base_seq=3, outcome=Outcome(events=(events.WorkflowCompleted(seq=4),))),
            ):
                b.store.submit(part, tell)
            await b.soon(told)
            assert answers[0] == answers[2] == r.Committed(wake=claim.wake)
            assert isinstance(answers[1], r.Refused)
            assert len(await b.store.read(claim.instance)) == 4

    async def test_a_submitted_commit_of_a_closed_store_is_answered_with_its_error(self) -> None:
        """It is not raised where it was submitted."""
        async with self.bench() as b:
            claim, _ = await self._cover(b, request(2))
            await b.store.close()
            answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
            part = r.Commit(
                entity_id="order",
                execution_id=claim.instance.execution_id,
                epoch=claim.epoch,
                base_seq=2,
                wake=claim.wake,
                outcome=Outcome(),
            )
            b.store.submit(part, answer.set_result)
            assert isinstance(await b.soon(answer), Exception)

    async def _cover(self, b: Bench, *wanted: ActivityRequest) -> tuple[r.Claim, tuple[r.ActivityTask, ...]]:
        """Create an execution that schedules activities, with a commit that claims and covers them."""
        await b.create(queue=COVERING)
        claim = await b.claim_one(queues=(COVERING,))
        covering: dict[str, Any] = {"eager": [one.ref for one in wanted], "covers": True, "release": False}
        return claim, (await b.want(claim, *wanted, **covering)).tasks

    async def _work(self, b: Bench, claim: r.Claim | None) -> r.OpenWork:
        assert claim is not None
        work = await b.store.inspector.open_work(claim.instance)
        assert work is not None
        return work

    def _beginning(
        self, b: Bench, *wanted: ActivityRequest, entity_id: str = "order", wake_at: int | None = None
    ) -> r.Creation:
        started = b.started(entity_id)
        first = r.Commit(
            entity_id=entity_id,
            execution_id=started.execution_id,
            epoch=1,
            base_seq=1,
            wake=0,
            outcome=replace(
                Outcome(events=tuple(scheduled(one) for one in wanted)), activities=tuple(wanted), wake_at=wake_at
            ),
            worker="first",
            eager=frozenset(one.ref for one in wanted),
            covers=True,
        )
        return r.Creation(started=started, offer=r.EagerOffer(worker="first", queues=(QUEUE,)), first=first)
