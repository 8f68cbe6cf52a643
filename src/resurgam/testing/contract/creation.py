"""Starts of executions: immediate, delayed, as a replacement, as a follow-up, or with signals."""

from typing import Any

from resurgam.core import event as events
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.testing.contract.bench import HOUR, LEASE, QUEUE, Bench, OpensStores, ids, signal, values

OFFER = r.EagerOffer(worker="first", queues=(QUEUE,))


class CreationCases(OpensStores):
    """All options of `create`."""

    # Put off.

    async def test_a_scheduled_instance_is_offered_from_its_moment_on(self) -> None:
        """Until then it is ``scheduled``; waiting workers are woken at its time."""
        async with self.bench() as b:
            moment = b.clock.now() + HOUR
            instance = await b.create(begins_at=moment)
            assert (instance.status, instance.wake_at) == (Status.SCHEDULED, moment)
            assert await b.get() == instance
            assert not await b.claim()
            assert (await b.queue()).instances == 0
            work = r.Work(worker="first", queues=(QUEUE,))
            assert not await b.is_there(work)
            await b.pass_time(HOUR - 1)
            assert not await b.claim()
            await b.pass_time(1)
            assert await b.is_there(work)
            claim = await b.claim_one()
            await b.committed(claim, events.WorkflowBegun(seq=2), status=Status.RUNNING)
            assert (await b.get()).status is Status.RUNNING

    async def test_a_signal_does_not_start_a_scheduled_instance(self) -> None:
        """It stays in the inbox until the start time."""
        async with self.bench() as b:
            await b.create(begins_at=b.clock.now() + HOUR)
            await b.send_signals("order", "one", "two")
            assert not await b.claim()
            await b.pass_time(HOUR)
            assert values((await b.claim_one()).inbox) == ["one", "two"]

    async def test_a_deferred_instance_begins_on_request(self) -> None:
        """A deferred execution starts on request only; a second request changes nothing."""
        async with self.bench() as b:
            await b.create(deferred=True)
            await b.send_signals("order", "one")
            await b.pass_time(HOUR)
            assert not await b.claim()
            for _ in range(2):
                assert await b.deliver(events.WorkflowBegun(at=1)) == r.Delivered()
            assert (await b.get()).status is Status.RUNNING
            claim = await b.claim_one()
            assert values(claim.inbox) == ["one", "workflow_begun"]
            assert claim.instance.status is Status.RUNNING

    async def test_what_is_under_way_cannot_be_begun(self) -> None:
        """Its inbox is unchanged, and it does not become ready."""
        async with self.bench() as b:
            await b.create()
            await b.committed(await b.claim_one())
            assert await b.deliver(events.WorkflowBegun(at=1), offer=OFFER) == r.Delivered()
            assert not await b.claim()

    async def test_a_request_to_cancel_starts_a_scheduled_instance(self) -> None:
        """It becomes claimable at once, so that it can end without having started."""
        async with self.bench() as b:
            await b.create("late", begins_at=b.clock.now() + HOUR)
            await b.create("deferred", deferred=True)
            for name in ("late", "deferred"):
                await b.deliver(events.CancelRequested(at=1), name)
                assert (await b.get(name)).status is Status.RUNNING
                claim = await b.claim_one()
                assert values(claim.inbox) == ["cancel_requested"]
                await b.end(claim, consumed=ids(claim.inbox))

    async def test_an_offer_does_not_claim_a_scheduled_instance(self) -> None:
        """Neither its creation nor a signal leads to an eager claim; the request to begin does."""
        async with self.bench() as b:
            [answer] = await b.store.create([r.Creation(started=b.started(deferred=True), offer=OFFER)])
            assert isinstance(answer, r.Created)
            assert answer.claim is None
            assert await b.deliver(signal("x"), offer=OFFER) == r.Delivered()
            told = await b.deliver(events.WorkflowBegun(at=1), offer=OFFER)
            assert isinstance(told, r.Delivered)
            assert told.claim is not None
            assert values(told.claim.inbox) == ["x", "workflow_begun"]

    async def test_a_scheduled_instance_does_not_block_an_offer(self) -> None:
        """Though it is older and has an inbox: it is not claimable."""
        async with self.bench() as b:
            late = b.beside("late")
            await b.create(late, begins_at=b.clock.now() + HOUR)
            await b.send_signals(late, "x")
            [answer] = await b.store.create([r.Creation(started=b.started(), offer=OFFER)])
            assert isinstance(answer, r.Created)
            assert answer.claim is not None

    async def test_creations_of_a_batch_are_made_in_order(self) -> None:
        """An offer counts whatever comes after it, but not while an instance before it waits."""
        async with self.bench() as b:
            names = [b.beside(name) for name in ("z", "y", "x", "a")]
            offers = (OFFER, None, None, OFFER)
            parts = [
                r.Creation(started=b.started(name), offer=offer) for name, offer in zip(names, offers, strict=True)
            ]
            answers = await b.store.create(parts)
            assert [isinstance(answer, r.Created) and answer.claim is not None for answer in answers] == [
                *(True, False, False, False),
            ]
            assert [claim.instance.entity_id for claim in await b.claim()] == names[1:]

    async def test_a_request_to_begin_that_comes_after_the_moment_leaves_the_instance_ready(self) -> None:
        """Its moment has made it ready, and nobody has claimed it yet."""
        async with self.bench() as b:
            for name in ("begun", "cancelled"):
                await b.create(name, begins_at=b.clock.now() + HOUR)
            await b.pass_time(HOUR)
            await b.send_signals("begun", "x")
            await b.send_signals("cancelled", "x")
            await b.deliver(events.WorkflowBegun(at=1), "begun")
            await b.deliver(events.CancelRequested(at=1), "cancelled")
            claims = {claim.instance.entity_id: values(claim.inbox) for claim in await b.claim()}
            assert claims == {"begun": ["x", "workflow_begun"], "cancelled": ["x", "cancel_requested"]}

    async def test_an_instance_that_has_begun_is_not_scheduled_again(self) -> None:
        """If a holder commits it as ``scheduled``, the request to begin is not lost."""
        async with self.bench() as b:
            await b.create(begins_at=b.clock.now())
            claim = await b.claim_one()
            await b.deliver(events.WorkflowBegun(at=1))
            await b.committed(claim, status=Status.SCHEDULED, wake_at=b.clock.now() + HOUR)
            assert values((await b.claim_one()).inbox) == ["workflow_begun"]

    async def test_an_instance_left_scheduled_waits_for_its_moment(self) -> None:
        """A holder that claimed it too early releases it unchanged, with or without a commit."""
        async with self.bench() as b:
            moment = b.clock.now() + HOUR
            await b.create(begins_at=b.clock.now())
            claim = await b.claim_one()
            await b.send_signals("order", "x")
            await b.committed(claim, status=Status.SCHEDULED, wake_at=moment)
            assert not await b.claim()
            await b.pass_time(HOUR)
            again = await b.claim_one()
            assert await b.release(again) == r.Released()
            assert values((await b.claim_one()).inbox) == ["x"]

    async def test_a_scheduled_instance_whose_lease_was_lost_is_offered_again(self) -> None:
        """Its start time has passed for good."""
        async with self.bench() as b:
            await b.create(begins_at=b.clock.now())
            await b.claim_one()
            await b.pass_time(LEASE)
            assert (await b.claim_one("second")).epoch == 2

    async def test_a_lost_lease_of_an_instance_left_scheduled_is_offered_at_its_moment(self) -> None:
        """Not at the end of the lease: its code may not run yet."""
        async with self.bench() as b:
            await b.create(begins_at=b.clock.now())
            later = b.clock.now() + 3 * LEASE
            await b.committed(await b.claim_one(), status=Status.SCHEDULED, wake_at=later, release=False)
            await b.pass_time(LEASE)
            assert not await b.claim("second")
            assert not await b.store.wait(r.Work(worker="second", queues=(QUEUE,)), 0)
            await b.pass_time(2 * LEASE)
            assert (await b.claim_one("second")).epoch == 2

    async def test_an_instance_that_is_scheduled_under_an_expired_lease_is_offered_at_its_moment(self) -> None:
        """Nobody has taken the lease, so its holder may use it."""
        async with self.bench() as b:
            await b.create(begins_at=b.clock.now())
            claim = await b.claim_one()
            await b.pass_time(LEASE)
            assert await b.store.wait(r.Work(worker="second", queues=(QUEUE,)), 0)
            later = b.clock.now() + LEASE
            await b.committed(claim, status=Status.SCHEDULED, wake_at=later, release=False)
            assert not await b.claim("second")
            assert not await b.store.wait(r.Work(worker="second", queues=(QUEUE,)), 0)
            await b.pass_time(LEASE)
            assert (await b.claim_one("second")).epoch == 2

    async def test_a_lost_lease_of_an_instance_left_deferred_is_offered_on_request(self) -> None:
        """Its holder does not begin it any more."""
        async with self.bench() as b:
            await b.create(begins_at=b.clock.now())
            await b.committed(await b.claim_one(), status=Status.SCHEDULED, release=False)
            await b.pass_time(LEASE)
            assert not await b.claim("second")
            await b.deliver(events.WorkflowBegun())
            assert (await b.claim_one("second")).epoch == 2

    # In the place of another.

    async def test_a_replacement_ends_the_open_one_and_begins(self) -> None:
        """In one step; the holder of the old execution is fenced, and its log records its end."""
        async with self.bench() as b:
            old = await b.create()
            held = await b.claim_one()
            answer = await self._replace(b, b.started())
            assert isinstance(answer, r.Created)
            assert (await b.get()).execution_id == answer.instance.execution_id != old.execution_id
            log = await b.store.read(old)
            assert [(entry.seq, entry.type) for entry in log] == [(1, "workflow_started"), (2, "workflow_terminated")]
            assert isinstance(await b.commit(held), r.Refused)
            claims = await b.claim()
            assert [claim.instance.status for claim in claims] == [Status.TERMINATED, Status.RUNNING]

    async def test_a_replacement_that_is_repeated_changes_nothing(self) -> None:
        """It does not terminate the execution that it created itself."""
        async with self.bench() as b:
            await b.create()
            started = b.started()
            first = await self._replace(b, started)
            assert await self._replace(b, started) == first
            assert (await b.get()).status is Status.RUNNING

    async def test_a_replacement_without_an_open_execution_only_creates(self) -> None:
        """A closed execution is unchanged."""
        async with self.bench() as b:
            old = await b.ended()
            assert isinstance(await self._replace(b, b.started()), r.Created)
            assert isinstance(await self._replace(b, b.started("other")), r.Created)
            assert await b.store.inspector.get("order", old.run_id) == old

    # Told something.

    async def test_a_new_execution_is_told_what_comes_with_it(self) -> None:
        """In order, also in an eager claim."""
        async with self.bench() as b:
            await self._tell(b, b.started(), "one", "two")
            assert values((await b.claim_one()).inbox) == ["one", "two"]
            started, inbox = b.started("other"), (signal("three"),)
            [answer] = await b.store.create([r.Creation(started=started, inbox=inbox, offer=OFFER)])
            assert isinstance(answer, r.Created)
            assert answer.claim is not None
            assert values(answer.claim.inbox) == ["three"]
            assert answer.claim.log == (started,)
            assert (await b.committed(answer.claim, release=False)).inbox == ()

    async def test_an_open_execution_is_told_instead_of_a_new_one(self) -> None:
        """The answer names the open execution, which becomes ready."""
        async with self.bench() as b:
            instance = await b.create()
            await b.committed(await b.claim_one())
            for attach in (False, True):
                answer = await self._tell(b, b.started(), f"{attach}", attach=attach)
                assert answer == r.Exists(instance=instance)
            claim = await b.claim_one()
            assert values(claim.inbox) == ["False", "True"]

    async def test_what_has_ended_is_told_nothing(self) -> None:
        """The signals go to a new execution, unless the old one is addressed in any case."""
        async with self.bench() as b:
            old = await b.ended()
            assert await self._tell(b, b.started(), "lost", attach=True) == r.Exists(instance=old)
            assert not await b.claim(queues=["ended", QUEUE])
            assert isinstance(await self._tell(b, b.started(), "found"), r.Created)
            assert values((await b.claim_one()).inbox) == ["found"]

    async def test_a_creation_with_news_that_is_repeated_tells_nothing_twice(self) -> None:
        """It is the same as the first."""
        async with self.bench() as b:
            started = b.started()
            first = await self._tell(b, started, "one")
            assert await self._tell(b, started, "one") == first
            assert values((await b.claim_one()).inbox) == ["one"]

    # After another.

    async def test_what_follows_begins_only_after_that_very_execution(self) -> None:
        """Only once: after that, another execution is the newest."""
        async with self.bench() as b:
            old = await b.ended()
            answer = await self._follow(b, old, inbox=(signal("again"),))
            assert isinstance(answer, r.Created)
            assert values((await b.claim_one()).inbox) == ["again"]
            assert await self._follow(b, old) == r.Exists(instance=answer.instance)

    async def test_what_follows_the_open_is_refused_and_delivers_nothing(self) -> None:
        """The open execution is unchanged."""
        async with self.bench() as b:
            instance = await b.create()
            await b.committed(await b.claim_one())
            assert await self._follow(b, instance, inbox=(signal("x"),)) == r.Exists(instance=instance)
            assert not await b.claim()

    async def test_what_follows_can_be_repeated(self) -> None:
        """The same run and attempt is the same execution, even if another is the newest by then."""
        async with self.bench() as b:
            old = await b.ended()
            started = b.started(run_id=old.run_id, attempt=2)
            part = r.Creation(started=started, follows=old.execution_id)
            [first] = await b.store.create([part])
            [second] = await b.store.create([part])
            assert isinstance(first, r.Created)
            assert first == second
            assert (await b.get()).attempt == 2

    async def _replace(self, b: Bench, started: events.WorkflowStarted) -> r.Created | r.Exists:
        replace = events.WorkflowTerminated(reason="replaced")
        [answer] = await b.store.create([r.Creation(started=started, replace=replace)])
        return answer

    async def _tell(
        self, b: Bench, started: events.WorkflowStarted, *values: str, **fields: Any
    ) -> r.Created | r.Exists:
        inbox = tuple(signal(value) for value in values)
        [answer] = await b.store.create([r.Creation(started=started, inbox=inbox, **fields)])
        return answer

    async def _follow(self, b: Bench, old: r.Instance, **fields: Any) -> r.Created | r.Exists:
        [answer] = await b.store.create([r.Creation(started=b.started(), follows=old.execution_id, **fields)])
        return answer
