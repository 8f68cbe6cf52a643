"""`wait`: level-triggered, so that nothing is missed between a check and a wait; and bounded by its deadline."""

import asyncio
from collections.abc import Callable

from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.outcome import Publication, Succession
from resurgam.core.state import Status, closing_entry
from resurgam.store import records as r
from resurgam.testing.clock import ManualClock
from resurgam.testing.contract.bench import LEASE, QUEUE, Bench, OpensStores, ids, request, retried, routed, scheduled
from resurgam.testing.contract.children import request_of
from resurgam.testing.contract.queries import query_task

WORK = r.Work(worker="first", queues=(QUEUE,))


class WatchCases(OpensStores):
    """Work, Closed, InboxChanged, LogGrown, QueryAnswered and Published."""

    async def test_waiting_for_what_is_there_returns_at_once(self) -> None:
        """Each watch returns True as long as it holds, on every call."""
        async with self.bench() as b:
            await b.wanting(2)
            await b.create("ready")
            held = await b.create("held", queue="held")
            claim = await b.claim_one(queues=["held"])
            await b.send_signals("held", "x")
            ended = await b.ended("ended")
            for _ in range(2):
                assert await b.is_there(WORK)
                assert await b.is_there(r.Work(worker="first", queues=(QUEUE,), instances=False))
                assert await b.is_there(
                    r.InboxChanged(entity_id=held.entity_id, execution_id=held.execution_id, wake=claim.wake)
                )
                assert await b.is_there(r.Closed(entity_id=ended.entity_id, execution_id=ended.execution_id))

    async def test_waiting_ends_at_its_moment(self) -> None:
        """Without an event, every wait returns False at its deadline, and not before."""
        async with self.bench() as b:
            instance = await b.create(queue="elsewhere")
            claim = await b.claim_one(queues=["elsewhere"])
            for watch in (
                WORK,
                r.Closed(entity_id=instance.entity_id, execution_id=instance.execution_id),
                r.InboxChanged(entity_id=instance.entity_id, execution_id=instance.execution_id, wake=claim.wake),
            ):
                waiting = await self._wait(b, watch, b.clock.now() + 500)
                await b.pass_time(499)
                assert not waiting.done()
                await b.pass_time(1)
                assert await b.soon(waiting) is False

    async def test_a_moment_that_is_past_means_only_a_look(self) -> None:
        """Waiting until a past time returns the current state."""
        async with self.bench() as b:
            assert await b.soon(b.store.wait(WORK, b.clock.now() - 1000)) is False
            await b.create()
            assert await b.soon(b.store.wait(WORK, b.clock.now() - 1000)) is True

    async def test_new_work_wakes_its_waiters(self) -> None:
        """A creation, a delivery, a commit with activities, a result and a release each wake who waits for work."""
        async with self.bench() as b:
            waiting = await self._wait(b, WORK)
            await b.create()
            assert await b.soon(waiting)
            claim = await b.claim_one()
            waiting = await self._wait(b, WORK)
            await b.want(claim, request(2))
            assert await b.soon(waiting)
            task = await b.task()
            waiting = await self._wait(b, WORK)
            await b.answer(task)
            assert await b.soon(waiting)
            claim = await b.claim_one()
            waiting = await self._wait(b, WORK)
            await b.release(claim)
            assert await b.soon(waiting)
            claim = await b.claim_one()
            await b.committed(claim, consumed=ids(claim.inbox))
            waiting = await self._wait(b, WORK)
            await b.send_signals("order", "x")
            assert await b.soon(waiting)

    async def test_work_in_other_queues_wakes_no_waiter(self) -> None:
        """Work in other queues, or of another kind, does not end the wait."""
        async with self.bench() as b:
            await b.wanting(2, queue="elsewhere")
            instances = await self._wait(b, r.Work(worker="first", queues=(QUEUE,), activities=False))
            activities = await self._wait(b, r.Work(worker="first", queues=(QUEUE,), instances=False))
            neither = r.Work(worker="first", queues=(QUEUE,), instances=False, activities=False)
            nothing = await self._wait(b, neither, b.clock.now() + 1)
            await b.create("elsewhere", queue="elsewhere")
            await b.quiet()
            assert not instances.done()
            await b.create("here")
            assert await b.soon(instances)
            await b.quiet()
            assert not activities.done()
            await b.want(await b.claim_one(), request(2))
            assert await b.soon(activities)
            assert not nothing.done()
            await b.pass_time(1)
            assert await b.soon(nothing) is False

    async def test_what_comes_while_an_instance_is_held_is_no_work_for_others(self) -> None:
        """InboxChanged for a held instance wakes its holder only; others are woken by the release."""
        async with self.bench() as b:
            instance = await b.create()
            claim = await b.claim_one()
            work = await self._wait(b, WORK)
            news = await self._wait(
                b, r.InboxChanged(entity_id=instance.entity_id, execution_id=instance.execution_id, wake=claim.wake)
            )
            await b.send_signals("order", "x")
            assert await b.soon(news)
            await b.quiet()
            assert not work.done()
            await b.committed(claim)
            assert await b.soon(work)

    async def test_known_entries_wake_no_waiter(self) -> None:
        """InboxChanged is what is newer than the counter that the holder names."""
        async with self.bench() as b:
            instance = await b.create()
            await b.send_signals("order", "x")
            claim = await b.claim_one()
            waiting = await self._wait(
                b, r.InboxChanged(entity_id=instance.entity_id, execution_id=instance.execution_id, wake=claim.wake)
            )
            await b.quiet()
            assert not waiting.done()
            await b.send_signals("order", "y")
            assert await b.soon(waiting)
            extended = await b.extend(claim, claim.wake)
            assert isinstance(extended, r.Extended)
            assert not await b.is_there(
                r.InboxChanged(entity_id=instance.entity_id, execution_id=instance.execution_id, wake=extended.wake)
            )

    async def test_a_deadline_wakes_waiters_for_work(self) -> None:
        """Who waits is woken at the moment of a deadline, by the clock alone."""
        async with self.bench() as b:
            await b.create()
            await b.committed(await b.claim_one(), wake_at=b.clock.now() + 5000)
            waiting = await self._wait(b, WORK)
            await b.pass_time(4999)
            assert not waiting.done()
            await b.pass_time(1)
            assert await b.soon(waiting)
            await b.claim_one()

    async def test_a_lost_lease_wakes_waiters_for_work(self) -> None:
        """Who waits is woken when the lease of an instance or of an activity has run out."""
        async with self.bench() as b:
            await b.create()
            await b.claim_one("dead")
            await self._woken_after(b, LEASE)
            await b.want(await b.claim_one(), request(2))
            await b.task("dead")
            await self._woken_after(b, LEASE)
            await b.task()

    async def test_the_next_attempt_wakes_waiters_for_work(self) -> None:
        """Who waits is woken at the moment at which an activity is to be tried again."""
        async with self.bench() as b:
            await b.wanting(2)
            task = await b.task()
            await b.answer(task, retried(task, b.clock.now() + 3000))
            await self._woken_after(b, 3000)
            await b.task()

    async def test_an_end_wakes_its_waiters(self) -> None:
        """Every terminal status ends the wait, and so does a purge; nothing else does."""
        async with self.bench() as b:
            for status in (Status.COMPLETED, Status.FAILED, Status.CANCELLED):
                instance = await b.create(status)
                waiting = await self._wait(
                    b, r.Closed(entity_id=instance.entity_id, execution_id=instance.execution_id)
                )
                claim = await b.claim_one()
                await b.committed(claim, release=False)
                await b.send_signals(status, "x")
                await b.quiet()
                assert not waiting.done()
                await b.committed(claim, status=status, wake=claim.wake + 1)
                assert await b.soon(waiting)
            assert await b.is_there(r.Closed(entity_id="unknown", execution_id="unknown"))

    async def test_the_entry_that_is_told_with_an_end_is_the_one_in_the_log(self) -> None:
        """For a completion and for a termination; or nothing is told, and the log is read."""
        async with self.bench() as b:
            for entity_id in ("completed", "terminated"):
                instance = await b.create(entity_id)
                told: list[events.Event] = []
                watch = r.Closed(entity_id=entity_id, execution_id=instance.execution_id, tell=told.append)
                waiting = await self._wait(b, watch)
                if entity_id == "completed":
                    await b.end(await b.claim_one())
                else:
                    await b.deliver(events.WorkflowTerminated(at=1, reason="no"), entity_id)
                assert await b.soon(waiting) is True
                log = await b.store.inspector.history(instance)
                assert told in ([], [closing_entry(log)])

    async def test_parking_is_not_an_end(self) -> None:
        """A parked instance has not ended: who waits for the end goes on waiting."""
        async with self.bench() as b:
            instance = await b.create()
            end = await self._wait(b, r.Closed(entity_id=instance.entity_id, execution_id=instance.execution_id))
            entry = events.WorkflowDiverged(seq=2, diagnosis="no")
            await b.committed(await b.claim_one(), entry, status=Status.DIVERGED)
            await b.quiet()
            assert not end.done()
            await b.end(await b.claim_one("second"))
            assert await b.soon(end)

    async def test_all_who_wait_are_woken(self) -> None:
        """One end wakes every waiter for it, and work wakes every worker that could claim it."""
        async with self.bench() as b:
            instance = await b.create()
            ends = [
                await self._wait(b, r.Closed(entity_id=instance.entity_id, execution_id=instance.execution_id))
                for _ in range(3)
            ]
            claim = await b.claim_one()
            workers = [await self._wait(b, r.Work(worker=name, queues=(QUEUE,))) for name in ("a", "b")]
            await b.end(claim)
            assert await b.soon(asyncio.gather(*ends)) == [True, True, True]
            await b.create("other")
            assert await b.soon(asyncio.gather(*workers)) == [True, True]

    async def test_a_wait_that_is_cancelled_leaves_the_others_alone(self) -> None:
        """A cancelled wait is dropped; the others are still woken."""
        async with self.bench() as b:
            given_up, waiting = await self._wait(b, WORK), await self._wait(b, WORK)
            given_up.cancel()
            await asyncio.gather(given_up, return_exceptions=True)
            await b.create()
            assert await b.soon(waiting)

    async def test_a_clock_that_jumps_back_leaves_who_waits_to_be_woken(self) -> None:
        """Who waits across the jump is woken by news and by deadlines as before."""
        async with self.bench() as b:
            await b.create("timed")
            moment = b.clock.now() + 1000
            await b.committed(await b.claim_one(), wake_at=moment)
            waiting = await self._wait(b, WORK)
            b.clock.set_back(3_600_000)
            await b.quiet()
            assert not waiting.done()
            await b.create("order")
            assert await b.soon(waiting)
            await b.claim_one()
            waiting = await self._wait(b, WORK)
            b.clock.move_to(moment)
            assert await b.soon(waiting)

    async def test_waiting_for_an_end_stands_still_while_deadlines_pass(self) -> None:
        """A wait for an end does not poll the clock while due work is not claimed."""
        clock = _Counting()
        async with self.bench(clock) as b:
            instance = await b.create()
            await b.committed(await b.claim_one(), wake_at=b.clock.now() + 100)
            waiting = await self._wait(
                b, r.Closed(entity_id=instance.entity_id, execution_id=instance.execution_id), b.clock.now() + 2 * LEASE
            )
            await b.pass_time(LEASE)
            assert not waiting.done()
            await b.pass_time(LEASE)
            assert await b.soon(waiting) is False

    async def test_other_ways_to_become_claimable_wake_waiters(self) -> None:
        """Resumption, start, a new child, a successor, a query, and a query that was not answered."""
        async with self.bench() as b:
            await b.create("deferred", deferred=True)
            instance = await b.create()
            await b.pause()
            waiting = await self._wait(b, WORK)
            await b.resume()
            assert await b.soon(waiting)
            claim = await b.claim_one()
            waiting = await self._wait(b, WORK)
            await b.deliver(events.WorkflowBegun(), "deferred")
            assert await b.soon(waiting)
            await b.claim_one()
            waiting = await self._wait(b, WORK)
            done = await b.committed(claim, children=(request_of(b, instance, "child"),), release=False)
            assert await b.soon(waiting)
            await b.claim_one()
            waiting = await self._wait(b, WORK)
            successor = Succession(started=b.started(queue=QUEUE))
            consumed = ids((*claim.inbox, *done.inbox))
            ended = {"status": Status.CONTINUED, "wake": done.wake, "consumed": consumed}
            await b.committed(claim, successor=successor, **ended)
            assert await b.soon(waiting)
            await b.claim_one()
            waiting = await self._wait(b, WORK)
            await b.store.queries.submit([query_task("q", instance, b.clock.now() + 10 * LEASE)])
            assert await b.soon(waiting)
            await b.store.queries.claim("first", [QUEUE], 1)
            await self._woken_after(b, LEASE)

    async def test_a_scheduled_instance_wakes_waiters_at_its_moment(self) -> None:
        """A paused one does not, even when its start time or the end of its lease comes."""
        async with self.bench() as b:
            await b.create("late", begins_at=b.clock.now() + 1000)
            await self._woken_after(b, 1000)
            await b.claim_one()
            await b.pause("late")
            await b.create("halted", begins_at=b.clock.now() + 1000)
            await b.pause("halted")
            waiting = await self._wait(b, WORK)
            await b.pass_time(10 * LEASE)
            assert not waiting.done()
            await b.resume("halted")
            assert await b.soon(waiting)

    async def test_paused_instances_that_are_due_do_not_keep_the_clock_busy(self) -> None:
        """With their deadlines, leases and activities."""
        clock = _Counting()
        async with self.bench(clock) as b:
            await b.wanting(2, entity_id="wanting")
            await b.task()
            await b.create()
            await b.claim_one()
            await b.create("sleeping", queue="sleeping")
            await b.committed(await b.claim_one(queues=["sleeping"]), wake_at=b.clock.now() + 100)
            for name in ("wanting", "order", "sleeping"):
                await b.pause(name)
            work = r.Work(worker="first", queues=(QUEUE, "sleeping", "wanting"))
            waiting = await self._wait(b, work, b.clock.now() + 3 * LEASE)
            for _ in range(3):
                assert not waiting.done()
                await b.pass_time(LEASE)
            assert await b.soon(waiting) is False

    async def test_a_log_that_grows_wakes_its_waiters(self) -> None:
        """By every appended entry, and by its end; not by deliveries. A purged log does not grow."""
        async with self.bench() as b:
            instance = await b.create()
            claim = await b.claim_one()
            assert await b.is_there(growing(instance, 0))
            waiting, more = [await self._wait(b, growing(instance, seq)) for seq in (1, 2)]
            await b.send_signals("order", "x")
            await b.committed(claim, release=False)
            assert not waiting.done()
            done = await b.committed(claim, scheduled(request(2)), release=False)
            assert await b.soon(waiting)
            await b.quiet()
            assert not more.done()
            await b.deliver(events.WorkflowTerminated())
            assert await b.soon(more)
            assert await b.is_there(growing(instance, 99))
            assert done.wake == 1
            assert await b.is_there(r.LogGrown(entity_id="nothing", execution_id="nothing", last_seq=1))

    async def test_a_reply_and_a_message_wake_their_waiters(self) -> None:
        """Each wakes its own waiter only."""
        async with self.bench() as b:
            instance = await b.create()
            claim = await b.claim_one()
            until = b.clock.now() + LEASE
            await b.store.queries.submit([query_task(name, instance, until) for name in ("one", "two")])
            one, two = [await self._wait(b, r.QueryAnswered(query_id=routed(name))) for name in ("one", "two")]
            prices, weather = [await self._wait(b, r.Published(topic=name, after="")) for name in ("prices", "weather")]
            await b.store.queries.complete([r.QueryResult(query_id=routed("one"), result=Raw(b"1"))])
            assert await b.soon(one)
            await b.committed(claim, publications=(Publication("prices", Raw(b"1")),), release=False)
            assert await b.soon(prices)
            await b.quiet()
            assert not two.done()
            assert not weather.done()
            await b.store.queries.complete([r.QueryResult(query_id=routed("two"), result=Raw(b"1"))])
            await b.committed(claim, publications=(Publication("weather", Raw(b"1")),))
            assert await b.soon(two)
            assert await b.soon(weather)

    async def _wait(self, b: Bench, watch: r.Watch, until: int | None = None) -> "asyncio.Future[bool]":
        waiting = asyncio.ensure_future(b.store.wait(watch, until))
        await b.quiet()
        assert not waiting.done(), f"{watch} was there already"
        return waiting

    async def _woken_after(self, b: Bench, milliseconds: int) -> None:
        waiting = await self._wait(b, WORK)
        await b.pass_time(milliseconds - 1)
        assert not waiting.done()
        await b.pass_time(1)
        assert await b.soon(waiting)


def growing(instance: r.Instance, last_seq: int) -> r.LogGrown:
    """Wait for more of a log."""
    return r.LogGrown(entity_id=instance.entity_id, execution_id=instance.execution_id, last_seq=last_seq)


class _Counting(ManualClock):
    """A clock that limits the number of scheduled calls."""

    asked = 0

    def call_at(self, when: int, callback: Callable[[], None]) -> Callable[[], None]:
        self.asked += 1
        assert self.asked < 1000, "the store asks for a call at a moment that is past, again and again"
        return super().call_at(when, callback)
