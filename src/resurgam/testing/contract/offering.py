"""Eager claims: instances leased to the caller that makes them ready, in the same step."""

from resurgam.core.outcome import Outcome
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.testing.contract.bench import LEASE, QUEUE, Bench, OpensStores, signal, values

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
            await b.create("older")
            assert await self._created(b) is None
            assert [claim.instance.entity_id for claim in await b.claim("other", limit=10)] == ["older", "order"]

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

    async def _told(self, b: Bench) -> r.Claim | None:
        [answer] = await b.store.deliver([r.Delivery(event=signal("hello"), entity_id="order", offer=OFFER)])
        assert isinstance(answer, r.Delivered)
        return answer.claim
