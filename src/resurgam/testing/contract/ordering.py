"""The order in which work is handed out: that in which it became claimable, within a partition."""

from collections.abc import Sequence

from resurgam.store import records as r
from resurgam.testing.contract.bench import QUEUE, Bench, OpensStores, retried, signal


class OrderingCases(OpensStores):
    """Which of several claimable instances and activities comes first."""

    async def test_instances_are_claimed_in_the_order_in_which_they_became_ready(self) -> None:
        """Also within one moment, whatever the order in which they were created."""
        async with self.bench() as b:
            one, two, three = map(b.beside, ("a", "b", "c"))
            await self._at_rest(b, one, two, three)
            for entity_id in (three, one, two):
                await b.send_signals(entity_id, "x")
            assert await self._order(b) == [three, one, two]

    async def test_more_news_do_not_change_the_turn_of_an_instance(self) -> None:
        """It is ready since the first of them arrived."""
        async with self.bench() as b:
            one, two = b.beside("a"), b.beside("b")
            await self._at_rest(b, one, two)
            await b.send_signals(two, "x")
            await b.pass_time(1)
            await b.send_signals(one, "x")
            await b.send_signals(two, "y")
            assert await self._order(b) == [two, one]

    async def test_due_and_ready_instances_share_one_order(self) -> None:
        """A deadline counts from its moment, news from when they came, a lease from when it ran out."""
        async with self.bench() as b:
            late, early, told, new = map(b.beside, ("late", "early", "told", "new"))
            now = b.clock.now()
            await self._at_rest(b, late, wake_at=now + 150)
            await self._at_rest(b, early, wake_at=now + 50)
            await self._at_rest(b, told)
            await b.pass_time(100)
            await b.send_signals(told, "x")
            await b.pass_time(100)
            await b.create(new)
            assert await self._order(b) == [early, told, late, new]

    async def test_what_is_given_back_waits_behind_what_is_ready(self) -> None:
        """Otherwise a few instances that cannot be advanced would hold up all others."""
        async with self.bench() as b:
            first, second = b.beside("a"), b.beside("b")
            await b.create(first)
            claim = await b.claim_one()
            await b.create(second)
            await b.release(claim, "no")
            assert await self._order(b) == [second, first]

    async def test_instances_that_are_always_due_do_not_starve_a_new_one(self) -> None:
        """Instances with repeated short timers, more of them than one claim returns."""
        async with self.bench() as b:
            new, *pollers = map(b.beside, ("new", *(f"poller-{number}" for number in range(600))))
            await self._at_rest(b, *pollers, wake_at=b.clock.now() + 1)
            await b.pass_time(5)
            await b.create(new)
            claimed: list[str] = []
            for _ in range(7):
                for claim in await b.claim(limit=100):
                    claimed.append(claim.instance.entity_id)
                    await b.committed(claim, wake_at=b.clock.now() + 1)
                await b.pass_time(2)
            assert sorted(claimed[:601]) == sorted([*pollers, new])

    async def test_the_order_holds_across_queues(self) -> None:
        """A worker that serves several queues gets the work that has waited longest in any of them."""
        async with self.bench() as b:
            names = [b.beside(name) for name in "abc"]
            for entity_id, queue in zip(names, "xyx", strict=True):
                await b.create(entity_id, queue=queue)
                await b.pass_time(1)
            assert [claim.instance.entity_id for claim in await b.claim(queues=("y", "x"), limit=2)] == names[:2]

    async def test_an_offer_does_not_overtake_what_is_due(self) -> None:
        """The due instance is unclaimed, but became ready first."""
        async with self.bench() as b:
            due, told = b.beside("due"), b.beside("told")
            await self._at_rest(b, due, wake_at=b.clock.now() + 10)
            await self._at_rest(b, told)
            await b.pass_time(10)
            offer = r.EagerOffer(worker="first", queues=(QUEUE,))
            assert await b.deliver(signal("x"), told, offer=offer) == r.Delivered()
            assert await self._order(b) == [due, told]

    async def test_activities_are_claimed_in_the_order_in_which_they_became_available(self) -> None:
        """Those that are tried again count from the moment of the next attempt."""
        async with self.bench() as b:
            again, *others = map(b.beside, ("again", "z", "y", "x"))
            await b.wanting(2, entity_id=again)
            task = await b.task()
            await b.answer(task, retried(task, b.clock.now() + 15))
            await b.claim_one(queues=["wanting"])
            for entity_id in others:
                await b.pass_time(10)
                await b.wanting(2, entity_id=entity_id)
            first, second, third = others
            assert [task.entity_id for task in await b.tasks(limit=3)] == [first, again, second]
            assert [task.entity_id for task in await b.tasks()] == [third]

    async def _at_rest(self, b: Bench, *entity_ids: str, wake_at: int | None = None) -> None:
        """Create instances whose first commit sets their deadlines."""
        for entity_id in entity_ids:
            await b.create(entity_id)
            await b.committed(await b.claim_one(), wake_at=wake_at)

    async def _order(self, b: Bench) -> Sequence[str]:
        """Claim one at a time until nothing is left."""
        found: list[str] = []
        while claims := await b.claim(limit=1):
            found += [claim.instance.entity_id for claim in claims]
        return found
