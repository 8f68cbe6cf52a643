"""The schemas of accepted signals, stored with an instance for its senders."""

from typing import Any, Final

from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.outcome import Succession
from resurgam.core.state import Status
from resurgam.store import export
from resurgam.store import records as r
from resurgam.testing.contract.bench import QUEUE, OpensStores, request, signal, values

_BOOL: Final = {"approve": Raw(b'{"type":"boolean"}')}
_MORE: Final = {
    "approve": Raw(b'{"type":"string"}'),
    "größe, 'quoted'": Raw(b'{"type":"integer","maximum":9007199254740993}'),
}


class SignalSchemaCases(OpensStores):
    """`Outcome.signal_schemas` and `Instance.signal_schemas`."""

    async def test_what_code_takes_is_kept_with_its_commit(self) -> None:
        """Reading the instance returns the schemas; before the first commit there are none."""
        async with self.bench() as b:
            assert (await b.create()).signal_schemas == {}
            claim = await b.claim_one()
            assert claim.instance.signal_schemas == {}
            await b.committed(claim, signal_schemas=_BOOL)
            assert (await b.get()).signal_schemas == _BOOL
            assert (await b.store.inspector.list(r.Query())).instances[0].signal_schemas == _BOOL
            await b.send_signals("order", "x")
            assert (await b.claim_one()).instance.signal_schemas == _BOOL

    async def test_it_stays_until_a_commit_says_otherwise(self) -> None:
        """A commit without schemas leaves them unchanged; a commit with schemas replaces all of them."""
        async with self.bench() as b:
            await b.create()
            claim = await b.claim_one()
            for said, kept in ((_BOOL, _BOOL), (None, _BOOL), (_MORE, _MORE), (None, _MORE), ({}, {})):
                await b.committed(claim, signal_schemas=said, release=False)
                assert (await b.get()).signal_schemas == kept

    async def test_it_comes_with_all_kinds_of_commits(self) -> None:
        """With entries and activities, with the lease kept or not, parked or ended."""
        async with self.bench() as b:
            await b.create()
            claim = await b.claim_one()
            await b.want(claim, request(2), signal_schemas=_BOOL, release=False, eager=(2,))
            assert (await b.get()).signal_schemas == _BOOL
            await b.committed(claim, signal_schemas=_MORE, base_seq=2, status=Status.DIVERGED, diagnosis="no")
            assert (await b.get()).signal_schemas == _MORE

    async def test_a_commit_that_is_refused_says_nothing(self) -> None:
        """Like all other parts of the commit."""
        async with self.bench() as b:
            await b.create()
            claim = await b.claim_one()
            assert isinstance(await b.commit(claim, signal_schemas=_BOOL, base_seq=7), r.Refused)
            await b.deliver(events.ChildCompleted(ref=0, at=1, child="{1}"))
            assert isinstance(await b.commit(claim, signal_schemas=_BOOL, strict=True), r.Refused)
            assert (await b.get()).signal_schemas == {}

    async def test_a_signal_that_was_checked_against_other_schemas_is_not_delivered(self) -> None:
        """Whether a worker offers to serve it or not; with the schemas of the store, or without any, it is delivered."""
        async with self.bench() as b:
            execution_id = (await b.create()).execution_id
            await b.committed(await b.claim_one(), signal_schemas=_BOOL)
            offer = r.EagerOffer(worker="a", queues=(QUEUE,))
            ways: tuple[dict[str, Any], ...] = ({}, {"offer": offer}, {"execution_id": execution_id})
            for schemas in ({}, _MORE, {**_BOOL, "more": Raw(b"{}")}):
                for way in ways:
                    assert await b.deliver(signal("no"), schemas=schemas, **way) == r.Outdated()
            assert await b.claim() == []
            assert await b.deliver(signal("yes"), schemas=_BOOL) == r.Delivered()
            assert await b.deliver(signal("also")) == r.Delivered()
            claim = await b.claim_one()
            assert values(claim.inbox) == ["yes", "also"]
            await b.committed(claim, consumed=[entry.id for entry in claim.inbox])
            eager = await b.deliver(signal("at once"), schemas=_BOOL, offer=offer)
            assert isinstance(eager, r.Delivered)
            assert eager.claim is not None

    async def test_an_instance_that_is_closed_or_missing_is_so_whatever_its_schemas_were(self) -> None:
        """The sender learns that nothing can be sent, not that it should check again."""
        async with self.bench() as b:
            assert await b.deliver(signal("no"), schemas=_BOOL) == r.Missing()
            await b.create()
            ended = events.WorkflowCompleted(seq=2, result=Raw(b"null"))
            await b.committed(await b.claim_one(), ended, status=Status.COMPLETED)
            assert await b.deliver(signal("no"), schemas=_BOOL) == r.Ended(status=Status.COMPLETED)

    async def test_the_execution_that_follows_begins_with_nothing(self) -> None:
        """The schemas of the execution before stay with that execution."""
        async with self.bench() as b:
            old = await b.create()
            claim = await b.claim_one()
            await b.committed(claim, signal_schemas=_BOOL, release=False)
            successor = Succession(started=b.started(run_id=old.run_id, attempt=2))
            ended = events.WorkflowRetried(
                seq=2, execution_id=successor.started.execution_id, next_at=0, failure=_failure()
            )
            await b.committed(claim, ended, status=Status.FAILED, successor=successor)
            assert (await b.get()).signal_schemas == {}
            assert [copy.instance.signal_schemas for copy in await b.store.transfer.copies("order")] == [_BOOL, {}]

    async def test_it_moves_to_another_store(self) -> None:
        """Unchanged, also as JSON lines."""
        async with self.bench() as a, self.bench(a.clock) as b:
            await a.create()
            await a.committed(await a.claim_one(), signal_schemas=_MORE)
            copies = tuple(await a.store.transfer.copies("order"))
            assert copies[0].instance.signal_schemas == _MORE
            read = export.read(export.write(copies))
            assert read == copies
            await b.store.transfer.adopt([r.Adoption(entity_id="order", copies=read)])
            assert tuple(await b.store.transfer.copies("order")) == copies
            assert (await b.get()).signal_schemas == _MORE


def _failure() -> events.Failure:
    return events.Failure(type="ValueError", message="no")
