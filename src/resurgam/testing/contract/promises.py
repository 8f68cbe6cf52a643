"""Promises: settled once, by id or by name; later settlements are reported as late."""

from typing import Any

from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.outcome import Message, OpenPromise, Succession
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.rules import PROMISES_KEPT
from resurgam.testing.contract.bench import HOUR, QUEUE, Bench, OpensStores, ids, routed, values

OFFER = r.EagerOffer(worker="first", queues=(QUEUE,))
APPROVAL = OpenPromise(routed("p-1"), "approval")


class PromiseCases(OpensStores):
    """`Outcome.promises`, `Outcome.closed` and deliveries with a promise."""

    async def test_a_promise_is_settled_once(self) -> None:
        """The first settlement enters the inbox with the id; a later one is answered as late."""
        async with self.bench() as b:
            await self._promising(b, APPROVAL)
            assert await b.deliver(resolved("1"), "", promise_id=routed("p-1")) == r.Delivered()
            assert await b.deliver(resolved("2"), "", promise_id=routed("p-1")) == r.Settled()
            rejected = events.PromiseRejected(ref=0, failure=events.Failure(type="E", message="no"))
            assert await b.deliver(rejected, "order", promise="approval") == r.Settled()
            claim = await b.claim_one()
            assert [entry.event for entry in claim.inbox] == [resolved("1", routed("p-1"))]

    async def test_a_promise_is_settled_by_its_name(self) -> None:
        """In the current execution of the entity, or in the one that is named."""
        async with self.bench() as b:
            instance = await self._promising(b, APPROVAL, OpenPromise(routed("p-2"), "other"))
            assert await b.deliver(resolved("1"), promise="other") == r.Delivered()
            by_execution = {"execution_id": instance.execution_id, "promise": "approval"}
            assert await b.deliver(resolved("2"), **by_execution) == r.Delivered()
            claim = await b.claim_one()
            assert [entry.event for entry in claim.inbox] == [
                resolved("1", routed("p-2")),
                resolved("2", routed("p-1")),
            ]

    async def test_a_promise_can_be_looked_up_as_it_is_settled(self) -> None:
        """By id or by name, with its schema and its execution: the oldest open one of a name, else the oldest."""
        async with self.bench() as b:
            typed = OpenPromise(routed("p-2"), "same", Raw(b'{"type":"integer"}'))
            instance = await self._promising(
                b, OpenPromise(routed("p-1"), "same"), typed, OpenPromise(routed("p-3"), "other")
            )
            to = r.Delivery(event=resolved("1"), entity_id="order", promise="same")
            by_id = r.Delivery(event=resolved("1"), promise_id=routed("p-2"))

            async def found(to: r.Delivery) -> tuple[str, bool, bytes]:
                held = await b.store.inspector.promise(to)
                assert held is not None
                assert held.instance == await b.get()
                return held.promise.promise_id, held.promise.settled, bytes(held.promise.schema)

            assert await found(to) == (routed("p-1"), False, b"null")
            assert await found(by_id) == (routed("p-2"), False, b'{"type":"integer"}')
            await b.store.deliver([to])
            by_execution = r.Delivery(
                event=resolved("1"), entity_id="order", execution_id=instance.execution_id, promise="same"
            )
            assert await found(by_execution) == (routed("p-2"), False, b'{"type":"integer"}')
            await b.store.deliver([to])
            assert await found(to) == (routed("p-1"), True, b"null")
            assert await found(by_id) == (routed("p-2"), True, b'{"type":"integer"}')
            claim = await b.claim_one()
            await b.end(claim, consumed=ids(claim.inbox))
            assert await found(by_id) == (routed("p-2"), True, b'{"type":"integer"}')
            unknowns: tuple[dict[str, Any], ...] = (
                {"promise_id": routed("p-4")},
                {"promise_id": "no"},
                {"entity_id": "order", "promise": "no"},
                {"entity_id": "unknown", "promise": "same"},
            )
            for unknown in unknowns:
                assert await b.store.inspector.promise(r.Delivery(event=resolved("1"), **unknown)) is None

    async def test_of_several_with_one_name_the_oldest_open_one_is_settled(self) -> None:
        """One after the other, until all are settled."""
        async with self.bench() as b:
            await self._promising(b, OpenPromise(routed("b"), "same"), OpenPromise(routed("a"), "same"))
            answers = [await b.deliver(resolved(str(n)), promise="same") for n in range(3)]
            assert answers == [r.Delivered(), r.Delivered(), r.Settled()]
            claim = await b.claim_one()
            assert [entry.event for entry in claim.inbox] == [resolved("0", routed("b")), resolved("1", routed("a"))]

    async def test_an_unknown_promise_is_missing(self) -> None:
        """By id or by name, while its execution is open and after its end. So is an id that begins with no route."""
        async with self.bench() as b:
            await self._promising(b, APPROVAL)
            for unknown in (routed("no"), "no", ""):
                assert await b.deliver(resolved("1"), "", promise_id=unknown) == r.Missing()
            assert await b.deliver(resolved("1"), promise="no") == r.Missing()
            assert await b.deliver(resolved("1"), "unknown", promise="approval") == r.Missing()
            await b.send_signals("order", "x")
            claim = await b.claim_one()
            await b.end(claim, consumed=ids(claim.inbox))
            for unknown in (routed("no"), "no", ""):
                assert await b.deliver(resolved("1"), "", promise_id=unknown) == r.Missing()
            assert await b.deliver(resolved("1"), promise="no") == r.Ended(status=Status.COMPLETED)

    async def test_a_promise_of_an_ended_execution_counts_as_settled_until_the_purge(self) -> None:
        """By id and by name, settled before or not; its inbox gets nothing. After the purge the promise is missing."""
        async with self.bench() as b:
            instance = await self._promising(b, APPROVAL, OpenPromise(routed("p-2"), "settled"))
            await b.deliver(resolved("0"), "", promise_id=routed("p-2"))
            claim = await b.claim_one()
            await b.end(claim, consumed=ids(claim.inbox))
            for late in (
                {"promise_id": routed("p-1")},
                {"promise_id": routed("p-2")},
                {"promise": "approval"},
                {"promise": "settled"},
            ):
                assert await b.deliver(resolved("1"), **late) == r.Settled(), late
            [copy] = await b.store.transfer.copies("order")
            assert copy.inbox == ()
            assert [promise.settled for promise in copy.promises] == [False, True]
            assert await b.store.purge([instance]) == [r.Purged()]
            for promise_id in (routed("p-1"), routed("p-2")):
                assert await b.deliver(resolved("1"), "", promise_id=promise_id) == r.Missing()

    async def test_a_promise_of_a_terminated_execution_counts_as_settled(self) -> None:
        """Termination ends the wait for it as any other end does."""
        async with self.bench() as b:
            await self._promising(b, APPROVAL)
            await b.deliver(events.WorkflowTerminated())
            assert await b.deliver(resolved("1"), "", promise_id=routed("p-1")) == r.Settled()
            assert await b.deliver(resolved("1"), promise="approval") == r.Settled()

    async def test_a_promise_that_is_closed_counts_as_settled(self) -> None:
        """Its execution has received a settlement, or no longer waits: later settlements are late."""
        async with self.bench() as b:
            await self._promising(b, APPROVAL)
            await b.send_signals("order", "x")
            await b.committed(await b.claim_one(), closed=(routed("p-1"), routed("never there")))
            assert await b.deliver(resolved("1"), "", promise_id=routed("p-1")) == r.Settled()
            assert await b.deliver(resolved("1"), promise="approval") == r.Settled()

    async def test_only_the_last_settled_promises_are_kept(self) -> None:
        """A loop that runs for ever leaves no more than that; what is open is kept in any case."""
        async with self.bench() as b:
            many = [OpenPromise(routed(f"p-{n:05}"), "many") for n in range(PROMISES_KEPT + 10)]
            await b.create()
            claim = await b.claim_one()
            closed = tuple(promise.promise_id for promise in many[1:])
            await b.committed(claim, promises=tuple(many), closed=closed)
            [copy] = await b.store.transfer.copies("order")
            assert [promise.promise_id for promise in copy.promises if not promise.settled] == [routed("p-00000")]
            assert copy.promises[-1].promise_id == many[-1].promise_id
            assert len(copy.promises) == PROMISES_KEPT + 1
            assert await b.deliver(resolved("1"), "", promise_id=routed("p-00001")) == r.Missing()

    async def test_a_settlement_reaches_leased_paused_and_scheduled_instances(self) -> None:
        """It stays in the inbox like any other entry."""
        async with self.bench() as b:
            await self._promising(b, APPROVAL)
            await b.pause()
            assert await b.deliver(resolved("1"), promise="approval") == r.Delivered()
            assert not await b.claim()
            await b.resume()
            claim = await b.claim_one()
            assert values(claim.inbox) == ["workflow_paused", "promise_resolved", "workflow_resumed"]
            kept = await b.committed(claim, promises=(OpenPromise(routed("p-2"), "more"),), release=False)
            await b.deliver(resolved("2"), "", promise_id=routed("p-2"))
            extended = await b.extend(claim, kept.wake)
            assert isinstance(extended, r.Extended)
            assert values(extended.inbox) == ["promise_resolved"]

    async def test_an_offer_takes_what_a_settlement_makes_ready(self) -> None:
        """As with a signal."""
        async with self.bench() as b:
            await self._promising(b, APPROVAL)
            answer = await b.deliver(resolved("1"), "", promise_id=routed("p-1"), offer=OFFER)
            assert isinstance(answer, r.Delivered)
            assert answer.claim is not None

    async def test_a_refused_commit_opens_and_closes_nothing(self) -> None:
        """Its promises do not exist, and the promises that it closed are still open."""
        async with self.bench() as b:
            await self._promising(b, APPROVAL)
            await b.send_signals("order", "x")
            claim = await b.claim_one()
            stale = await b.commit(
                claim, base_seq=7, promises=(OpenPromise(routed("p-2"), "new"),), closed=(routed("p-1"),)
            )
            assert isinstance(stale, r.Refused)
            assert await b.deliver(resolved("1"), "", promise_id=routed("p-2")) == r.Missing()
            assert await b.deliver(resolved("1"), "", promise_id=routed("p-1")) == r.Delivered()

    # Retries.

    async def test_a_retry_takes_the_promises_along(self) -> None:
        """A settlement reaches it even before its code has run; a late one is still late."""
        async with self.bench() as b:
            await self._retried(b, APPROVAL, OpenPromise(routed("p-2"), "settled"))
            assert await b.deliver(resolved("2"), "", promise_id=routed("p-2")) == r.Settled()
            assert await b.deliver(resolved("1"), promise="approval") == r.Delivered()
            await b.pass_time(HOUR)
            claim = next(claim for claim in await b.claim() if claim.instance.attempt == 2)
            assert [entry.event for entry in claim.inbox] == [resolved("1", routed("p-1"))]
            # The settlement is not lost when the code then makes the same promise again.
            await b.committed(claim, promises=(APPROVAL,), status=Status.RUNNING)
            assert await b.deliver(resolved("3"), "", promise_id=routed("p-1")) == r.Settled()

    async def test_a_settlement_sent_by_the_commit_that_ends_an_attempt_reaches_the_next(self) -> None:
        """The next attempt creates the promise again, and must not wait for a settlement that was already accepted."""
        async with self.bench() as b:
            instance = await self._promising(b, APPROVAL)
            await b.send_signals("order", "x")
            claim = await b.claim_one()
            successor = Succession(started=b.started(run_id=instance.run_id, attempt=2), moves=("promise_resolved",))
            settling = Message(event=resolved("1"), promise_id=routed("p-1"))
            await b.committed(claim, status=Status.FAILED, messages=(settling,), successor=successor)
            _, following = await b.store.transfer.copies("order")
            assert following.inbox == (resolved("1", routed("p-1")),)
            assert await b.deliver(resolved("2"), "", promise_id=routed("p-1")) == r.Settled()

    async def test_a_promise_that_is_made_again_can_be_settled_again(self) -> None:
        """By an attempt that has read the settlement of the one before, or does not reuse it."""
        async with self.bench() as b:
            await self._retried(b, APPROVAL, OpenPromise(routed("p-2"), "settled"))
            await b.pass_time(HOUR)
            claim = next(claim for claim in await b.claim() if claim.instance.attempt == 2)
            promises = (APPROVAL, OpenPromise(routed("p-2"), "settled"))
            await b.committed(claim, promises=promises, status=Status.RUNNING)
            for promise in (routed("p-1"), routed("p-2")):
                assert await b.deliver(resolved("1"), "", promise_id=promise) == r.Delivered()

    async def test_a_retry_by_hand_takes_the_promises_along(self) -> None:
        """A promise that was open when the attempt before failed can be settled before the new attempt's code has run."""
        async with self.bench() as b:
            instance = await self._promising(b, APPROVAL, OpenPromise(routed("p-2"), "settled"))
            await b.deliver(resolved("0"), "", promise_id=routed("p-2"))
            claim = await b.claim_one()
            await b.committed(claim, consumed=ids(claim.inbox), status=Status.FAILED)
            assert await b.deliver(resolved("1"), "", promise_id=routed("p-1")) == r.Settled()
            started = b.started(run_id=instance.run_id, attempt=2)
            [created] = await b.store.create([r.Creation(started=started, follows=instance.execution_id)])
            assert isinstance(created, r.Created)
            assert await b.deliver(resolved("2"), "", promise_id=routed("p-2")) == r.Settled()
            assert await b.deliver(resolved("1"), "", promise_id=routed("p-1")) == r.Delivered()
            old, new = await b.store.transfer.copies("order")
            assert (old.promises, old.inbox) == ((), ())
            assert new.inbox == (resolved("1", routed("p-1")),)

    async def test_a_continuation_leaves_the_promises_behind(self) -> None:
        """It is another run, and does not wait for them."""
        async with self.bench() as b:
            await self._promising(b, APPROVAL)
            await b.send_signals("order", "x")
            claim = await b.claim_one()
            successor = Succession(started=b.started(generation=2))
            await b.committed(claim, status=Status.CONTINUED, successor=successor)
            assert await b.deliver(resolved("1"), "", promise_id=routed("p-1")) == r.Settled()
            assert await b.deliver(resolved("1"), promise="approval") == r.Missing()

    async def _promising(self, b: Bench, *promises: OpenPromise) -> r.Instance:
        """Return a new idle instance with open promises."""
        instance = await b.create()
        await b.committed(await b.claim_one(), promises=promises)
        return instance

    async def _retried(self, b: Bench, *promises: OpenPromise) -> None:
        """End an execution that has made promises, of which the second is settled, and let another attempt follow."""
        instance = await self._promising(b, *promises)
        await b.deliver(resolved("0"), "", promise_id=routed("p-2"))
        claim = await b.claim_one()
        started = b.started(run_id=instance.run_id, attempt=2, begins_at=b.clock.now() + HOUR)
        successor = Succession(started=started)
        await b.committed(claim, status=Status.FAILED, consumed=ids(claim.inbox), successor=successor)


def resolved(value: str, promise_id: str = "") -> events.PromiseResolved:
    """Return the settlement of a promise."""
    return events.PromiseResolved(ref=0, at=1, promise_id=promise_id, value=Raw(value.encode()))
