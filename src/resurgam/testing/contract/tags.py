"""Tags that change while an instance runs."""

from typing import Final

from resurgam.core import event as events
from resurgam.core.outcome import Outcome, Succession
from resurgam.core.state import Status
from resurgam.store import export
from resurgam.store import records as r
from resurgam.testing.contract.bench import QUEUE, Bench, OpensStores, request

_FIRST: Final = {"stage": "new", "shop": "berlin"}
_LATER: Final = {"stage": "größe, 'paid'", "": "{x}"}


class TagCases(OpensStores):
    """`Outcome.tags`."""

    async def test_the_tags_of_a_commit_take_the_place_of_those_before(self) -> None:
        """All of them: for the instance, and for lists; a commit without tags leaves them."""
        async with self.bench() as b:
            await b.create(tags=_FIRST)
            claim = await b.claim_one()
            for said, kept in ((None, _FIRST), (_LATER, _LATER), (None, _LATER), ({}, {}), (_FIRST, _FIRST)):
                await b.committed(claim, tags=said, release=False)
                assert (await b.get()).tags == kept
                for tags in (_FIRST, _LATER):
                    assert await _found(b, tags) == ["order"] * (tags == kept)

    async def test_tags_come_with_all_kinds_of_commits(self) -> None:
        """With entries and activities, with the lease kept, released or ended, and with the first advance."""
        async with self.bench() as b:
            await b.create(tags=_FIRST)
            claim = await b.claim_one()
            await b.want(claim, request(2), tags=_LATER, release=False, eager=(2,))
            assert await _found(b, _LATER) == ["order"]
            log = (events.ActivityCancelled(seq=3, ref=2), events.WorkflowCompleted(seq=4))
            await b.committed(claim, *log, base_seq=2, tags={"end": "yes"}, status=Status.COMPLETED)
            assert await _found(b, {"end": "yes"}) == ["order"]
            assert await _found(b, _LATER) == []

    async def test_tags_of_the_first_advance_come_with_the_start(self) -> None:
        """The start record has those of the caller."""
        async with self.bench() as b:
            started = b.started(tags=_FIRST)
            outcome = Outcome(tags=_LATER)
            first = r.Commit(
                entity_id="order",
                execution_id=started.execution_id,
                epoch=1,
                base_seq=1,
                wake=0,
                outcome=outcome,
                worker="first",
            )
            offer = r.EagerOffer(worker="first", queues=(QUEUE,))
            [answer] = await b.store.create([r.Creation(started=started, offer=offer, first=first)])
            assert isinstance(answer, r.Created)
            if answer.committed is None:  # a store may leave the first advance to a claim
                assert (await b.get()).tags == _FIRST
            else:
                assert (await b.get()).tags == _LATER
                assert await _found(b, _LATER) == ["order"]
                assert await _found(b, _FIRST) == []

    async def test_a_refused_commit_changes_no_tags(self) -> None:
        """Like all other parts of the commit."""
        async with self.bench() as b:
            await b.create(tags=_FIRST)
            claim = await b.claim_one()
            assert isinstance(await b.commit(claim, tags=_LATER, base_seq=7), r.Refused)
            assert (await b.get()).tags == _FIRST
            assert await _found(b, _LATER) == []

    async def test_the_successor_has_the_tags_of_its_own_start(self) -> None:
        """The execution before keeps its own."""
        async with self.bench() as b:
            await b.create(tags=_FIRST)
            claim = await b.claim_one()
            successor = Succession(started=b.started(generation=2, tags={"stage": "next"}))
            ended = events.WorkflowContinued(seq=2, run_id="r", execution_id=successor.started.execution_id)
            await b.committed(claim, ended, status=Status.CONTINUED, tags=_LATER, successor=successor)
            assert [copy.instance.tags for copy in await b.store.transfer.copies("order")] == [
                _LATER,
                {"stage": "next"},
            ]
            assert await _found(b, {"stage": "next"}) == ["order"]

    async def test_changed_tags_move_to_another_store(self) -> None:
        """Unchanged, also as JSON lines; what is removed or purged is not found by them."""
        async with self.bench() as a, self.bench(a.clock) as b:
            await a.create(tags=_FIRST)
            await a.committed(await a.claim_one(), tags=_LATER)
            copies = tuple(await a.store.transfer.copies("order"))
            assert export.read(export.write(copies)) == copies
            await b.store.transfer.adopt([r.Adoption(entity_id="order", copies=copies)])
            assert tuple(await b.store.transfer.copies("order")) == copies
            assert await _found(b, _LATER) == ["order"]
            assert await _found(b, _FIRST) == []
            await a.store.transfer.remove([r.Removal(entity_id="order", copies=copies)])
            assert await _found(a, _LATER) == []
            await b.deliver(events.WorkflowTerminated())
            await b.store.purge([await b.get()])
            assert await _found(b, _LATER) == []


async def _found(b: Bench, tags: dict[str, str]) -> list[str]:
    found = (await b.store.inspector.list(r.Query(tags=tags))).instances
    for name, value in tags.items():
        by_one = (await b.store.inspector.list(r.Query(tags={name: value}))).instances
        assert all(one in by_one for one in found)
    return [one.entity_id for one in found]
