"""Eager claims: instances leased to the caller that makes them ready, in the same step."""

from resurgam.core.outcome import Outcome
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.rules import REDELIVERIES
from resurgam.testing.contract.bench import LEASE, QUEUE, Bench, OpensStores, ids, signal, values

OFFER = r.EagerOffer(worker="first", queues=(QUEUE,))


class OfferingCases(OpensStores):
    """Eager offers that are taken, and those that are not."""

    async def test_an_instance_created_with_an_offer_is_leased_to_its_worker(self) -> None:
        """With its log, as by any other claim: no other worker gets it until its lease expires."""
        async with self.bench() as b:
            claim = await self._created(b)
            assert claim is not None
            assert (claim.epoch, claim.inbox) == (1, ())
            assert [entry.type for entry in claim.log] == ["workflow_started"]
            assert not await b.claim("other")
            b.clock.move_to(b.clock.now() + LEASE)
            assert (await b.claim_one("other")).epoch == 2

    async def test_what_was_leased_by_an_offer_is_committed_to_as_usual(self) -> None:
        """And may be offered again afterwards."""
        async with self.bench() as b:
            claim = await self._created(b)
            assert claim is not None
            await b.committed(claim)
            again = await self._told(b)
            assert again is not None
            assert (again.epoch, values(again.inbox)) == (2, ["hello"])

    async def test_an_offer_for_other_queues_changes_nothing(self) -> None:
        """The instance waits for a worker that serves its queue."""
        async with self.bench() as b:
            assert await self._created(b, offer=r.EagerOffer(worker="first", queues=("gpu",))) is None
            await b.claim_one("other")

    async def test_an_offer_does_not_overtake_older_work(self) -> None:
        """Work that has waited longer comes first."""
        async with self.bench() as b:
            await b.create(b.beside("older"))
            assert await self._created(b) is None
            claims = await b.claim("other", limit=10)
            assert [claim.instance.entity_id for claim in claims] == [b.beside("older"), "order"]

    async def test_an_offer_with_news_does_not_overtake_older_work(self) -> None:
        """Neither what is ready, nor what is due, nor what another worker has lost."""
        async with self.bench() as b:
            ready, due, lost = map(b.beside, ("ready", "due", "lost"))
            for entity_id in ("order", ready, due, lost):
                await b.create(entity_id)
            claims = {claim.instance.entity_id: claim for claim in await b.claim(limit=10)}
            await b.committed(claims["order"])
            await b.committed(claims[due], wake_at=b.clock.now() + LEASE // 2)
            await b.release(claims[ready])
            for older in (ready, due, lost):
                assert await self._told(b) is None
                first, order = await b.claim(limit=10)
                assert (first.instance.entity_id, values(order.inbox)) == (older, ["hello"])
                await b.committed(first)
                await b.committed(order, consumed=ids(order.inbox))
                b.clock.move_to(b.clock.now() + LEASE // 2)
            assert await self._told(b) is not None

    async def test_an_offer_with_news_for_another_queue_changes_nothing(self) -> None:
        """The instance waits for a worker that serves its queue, with its news."""
        async with self.bench() as b:
            await b.create()
            await b.committed(await b.claim_one())
            assert await self._told(b, r.EagerOffer(worker="first", queues=("gpu", "tpu"))) is None
            assert values((await b.claim_one("other")).inbox) == ["hello"]

    async def test_a_claim_by_an_offer_has_everything_unread_in_its_order(self) -> None:
        """What came before without an offer, and what the offer came with."""
        async with self.bench() as b:
            await b.create()
            await b.committed(await b.claim_one())
            await b.send_signals("order", "one", "two")
            claim = await self._told(b, r.EagerOffer(worker="first", queues=("gpu", QUEUE)))
            assert claim is not None
            assert (claim.epoch, claim.wake) == (2, 3)
            assert values(claim.inbox) == ["one", "two", "hello"]
            assert sorted(ids(claim.inbox)) == list(ids(claim.inbox))
            await b.committed(claim, consumed=ids(claim.inbox))
            again = await self._told(b)
            assert again is not None
            assert (again.epoch, again.wake, values(again.inbox)) == (3, 4, ["hello"])

    async def test_a_paused_or_scheduled_instance_is_not_had_by_an_offer(self) -> None:
        """It is offered when it is resumed or begun, with what came meanwhile."""
        async with self.bench() as b:
            await b.create()
            await b.committed(await b.claim_one())
            await b.pause()
            assert await self._told(b) is None
            await b.resume()
            assert values((await b.claim_one()).inbox) == ["workflow_paused", "hello", "workflow_resumed"]
            await b.create("later", begins_at=b.clock.now() + 1000)
            assert await self._told(b, entity_id="later") is None
            await b.pass_time(1000)
            assert values((await b.claim_one()).inbox) == ["hello"]

    async def test_of_two_pieces_of_news_with_an_offer_the_first_brings_the_claim(self) -> None:
        """The other waits in the inbox of the holder."""
        async with self.bench() as b:
            await b.create()
            await b.committed(await b.claim_one())
            part = r.Delivery(event=signal("hello"), entity_id="order", offer=OFFER)
            [first, second] = await b.store.deliver([part, part])
            assert isinstance(first, r.Delivered)
            assert isinstance(second, r.Delivered)
            assert first.claim is not None
            assert (first.claim.wake, second.claim) == (1, None)
            assert values((await b.committed(first.claim, release=False)).inbox) == ["hello"]

    async def test_what_was_handed_out_too_often_is_not_had_by_an_offer(self) -> None:
        """It becomes a dead letter, and has the news when it is revived."""
        async with self.bench() as b:
            await b.create()
            for _ in range(REDELIVERIES):
                await b.release(await b.claim_one(), failed="it broke")
            assert await self._told(b) is None
            assert not await b.claim()
            found = await b.get()
            assert found.dead_letter is not None
            await b.store.revive([found])
            assert values((await b.claim_one()).inbox) == ["hello"]

    async def test_creating_again_claims_nothing(self) -> None:
        """The first caller may hold it."""
        async with self.bench() as b:
            started = b.started()
            first = r.Creation(started=started, offer=OFFER)
            answers = await b.store.create([first, first])
            assert [isinstance(answer, r.Created) and answer.claim is not None for answer in answers] == [True, False]

    async def test_news_for_an_instance_that_is_held_is_left_to_its_holder(self) -> None:
        """An offer does not take it away."""
        async with self.bench() as b:
            await b.create()
            claim = await b.claim_one("other")
            assert await self._told(b) is None
            assert values((await b.committed(claim, release=False)).inbox) == ["hello"]

    async def test_a_parked_instance_is_not_had_by_an_offer(self) -> None:
        """A worker whose code does not fit must not get it repeatedly."""
        async with self.bench() as b:
            claim = await self._created(b)
            assert claim is not None
            parked = Outcome(status=Status.DIVERGED, diagnosis="does not fit")
            commit = r.Commit(
                execution_id=claim.instance.execution_id,
                entity_id="order",
                epoch=1,
                base_seq=1,
                wake=0,
                outcome=parked,
                worker="first",
            )
            await b.store.commit([commit])
            assert await self._told(b) is None

    async def _created(self, b: Bench, offer: r.EagerOffer = OFFER) -> r.Claim | None:
        [answer] = await b.store.create([r.Creation(started=b.started(), offer=offer)])
        assert isinstance(answer, r.Created)
        return answer.claim

    async def _told(self, b: Bench, offer: r.EagerOffer = OFFER, entity_id: str = "order") -> r.Claim | None:
        [answer] = await b.store.deliver([r.Delivery(event=signal("hello"), entity_id=entity_id, offer=offer)])
        assert isinstance(answer, r.Delivered)
        return answer.claim
