"""Removing executions that another store has adopted."""

import asyncio

from resurgam.core import event as events
from resurgam.core.outcome import OpenPromise, Outcome
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.testing.contract.bench import (
    HOUR,
    LEASE,
    QUEUE,
    Bench,
    OpensStores,
    completed,
    ids,
    request,
    routed,
    signal,
    values,
)
from resurgam.testing.contract.children import request_of


class RemovalCases(OpensStores):
    """`remove` and `flush`."""

    async def test_what_was_removed_is_gone_with_all_that_belongs_to_it(self) -> None:
        """An open run, its log, its inbox, its activities, its promises and its queries; others stay."""
        async with self.bench() as b:
            await b.create("other", queue="elsewhere")
            await _busy(b)
            instance = await b.get()
            assert await _remove(b, "order") == r.Removed()
            assert await b.store.inspector.get("order") is None
            assert await b.store.transfer.copies("order") == []
            assert await b.store.read(instance) == []
            assert await b.store.inspector.open_work(instance) is None
            assert await b.store.inspector.promise(r.Delivery(event=signal("x"), promise_id=routed("p-1"))) is None
            assert await b.store.deliver([r.Delivery(event=signal("x"), entity_id="order")]) == [r.Missing()]
            assert [one.entity_id for one in (await b.store.inspector.list(r.Query())).instances] == ["other"]
            assert not await b.tasks()
            await b.pass_time(HOUR)
            assert [claim.instance.entity_id for claim in await b.claim(queues=(QUEUE, "elsewhere"))] == ["other"]
            stats = await b.store.inspector.stats()
            assert (stats.instances, stats.dead_activities, stats.dead_instances) == ({"running": 1}, 0, 0)

    async def test_executions_in_any_state_can_be_removed(self) -> None:
        """Ready, paused, parked, closed, and put off; none of them is offered any more, or listed."""
        for arrange in (_ready, _paused, _parked, _twice, _put_off):
            async with self.bench() as b:
                await arrange(b)
                assert await _remove(b, "order") == r.Removed()
                await b.pass_time(2 * HOUR)
                assert not await b.claim()
                assert (await b.store.inspector.list(r.Query())).instances == ()
                assert (await b.store.inspector.stats()).instances == {}

    async def test_nothing_is_removed_that_has_changed_since_it_was_copied(self) -> None:
        """An entry that came, a commit, an answer, a pause, a settled promise, an end: each is kept."""
        for change in (_signal, _commit, _answer, _pause, _settle, _end):
            async with self.bench() as b:
                await _busy(b)
                copies = tuple(await b.store.transfer.copies("order"))
                await change(b)
                after = await b.store.transfer.copies("order")
                part = r.Removal(entity_id="order", copies=copies)
                assert await b.store.transfer.remove([part]) == [r.Changed()], change
                assert await b.store.transfer.copies("order") == after

    async def test_each_removal_is_answered_by_itself(self) -> None:
        """One that is refused holds up no other; copies of executions that are gone are refused too."""
        async with self.bench() as b:
            for name in ("one", "two"):
                await b.create(name)
            parts = [
                r.Removal(entity_id=name, copies=tuple(await b.store.transfer.copies(name))) for name in ("one", "two")
            ]
            await b.send_signals("one", "x")
            assert await b.store.transfer.remove(parts) == [r.Changed(), r.Removed()]
            assert await b.store.transfer.remove(parts) == [r.Changed(), r.Changed()]
            assert await b.store.transfer.remove([]) == []

    async def test_only_the_executions_that_are_named_are_removed(self) -> None:
        """Others of the entity stay, older ones and newer ones."""
        async with self.bench() as b:
            for _ in range(3):
                await b.ended()
            first, second, third = await b.store.transfer.copies("order")
            part = r.Removal(entity_id="order", copies=(second,))
            assert await b.store.transfer.remove([part]) == [r.Removed()]
            assert await b.store.transfer.copies("order") == [first, third]
            assert await b.get() == third.instance

    async def test_what_was_removed_can_be_adopted_again(self) -> None:
        """There is nothing left of it that could be in the way."""
        async with self.bench() as b:
            await _busy(b)
            copies = tuple(await b.store.transfer.copies("order"))
            assert await b.store.transfer.remove([r.Removal(entity_id="order", copies=copies)]) == [r.Removed()]
            [adopted] = await b.store.transfer.adopt([r.Adoption(entity_id="order", copies=copies)])
            assert isinstance(adopted, r.Adopted)
            assert [arrival.new for arrival in adopted.arrivals] == [True]
            assert tuple(await b.store.transfer.copies("order")) == copies
            assert values((await b.claim_one()).inbox) == ["one"]

    async def test_leases_on_what_was_removed_are_lost(self) -> None:
        """The worker that holds the instance, and the one that runs its activity, are refused."""
        async with self.bench() as b:
            await b.wanting(2)
            task = await b.task()
            await b.send_signals("order", "one")
            claim = await b.claim_one(queues=("wanting",))
            assert await _remove(b, "order") == r.Removed()
            assert isinstance(await b.commit(claim), r.Refused)
            assert isinstance(await b.extend(claim), r.Refused)
            assert isinstance(await b.answer(task), r.Refused)

    async def test_those_who_wait_for_what_was_removed_are_woken(self) -> None:
        """As those who wait for what is purged."""
        async with self.bench() as b:
            instance = await b.create()
            watch = r.Closed(entity_id="order", execution_id=instance.execution_id)
            waiting = asyncio.ensure_future(b.store.wait(watch))
            await b.quiet()
            assert not waiting.done()
            assert await _remove(b, "order") == r.Removed()
            assert await b.soon(waiting)

    async def test_effects_have_arrived_after_a_flush(self) -> None:
        """The child that a commit has requested is there, and the answer is in the inbox of its parent."""
        async with self.bench() as b:
            parent = await b.create()
            children = tuple(request_of(b, parent, name, ref=n) for n, name in enumerate(("one", "two", "three"), 2))
            claim = await b.claim_one()
            part = r.Commit(
                entity_id="order",
                execution_id=parent.execution_id,
                epoch=claim.epoch,
                base_seq=1,
                wake=claim.wake,
                outcome=Outcome(children=children),
            )
            assert isinstance((await b.store.commit([part]))[0], r.Committed)
            await b.store.transfer.flush()
            for name in ("one", "two", "three"):
                assert await b.store.inspector.get(name) is not None
            work = await b.store.inspector.open_work(parent)
            assert work is not None
            assert len(work.inbox) == len(children)


async def _remove(b: Bench, entity_id: str) -> r.Removed | r.Changed:
    copies = tuple(await b.store.transfer.copies(entity_id))
    [answer] = await b.store.transfer.remove([r.Removal(entity_id=entity_id, copies=copies)])
    return answer


# How things come to stand as they do.


async def _busy(b: Bench) -> None:
    """Have a deadline, two activities of which one has run, an open promise and a signal."""
    await b.create(tags={"shop": "berlin"})
    promises = (OpenPromise(routed("p-1"), "open"),)
    await b.want(await b.claim_one(), request(2), request(3), promises=promises)
    await b.tasks(limit=1)
    await b.pass_time(LEASE)
    await b.send_signals("order", "one")


async def _ready(b: Bench) -> None:
    await b.create()


async def _paused(b: Bench) -> None:
    await b.wanting(2)
    await b.pause()


async def _parked(b: Bench) -> None:
    await b.create()
    claim = await b.claim_one()
    entry = events.WorkflowDiverged(seq=claim.instance.last_seq + 1, diagnosis="no")
    await b.committed(claim, entry, status=Status.DIVERGED)


async def _twice(b: Bench) -> None:
    await b.ended()
    await b.create()


async def _put_off(b: Bench) -> None:
    await b.create(begins_at=b.clock.now() + HOUR)


# What may change.


async def _signal(b: Bench) -> None:
    await b.send_signals("order", "two")


async def _commit(b: Bench) -> None:
    claim = await b.claim_one()
    await b.committed(claim, consumed=ids(claim.inbox))


async def _answer(b: Bench) -> None:
    task, _ = await b.tasks()
    assert await b.answer(task, completed(task)) == r.Accepted()


async def _pause(b: Bench) -> None:
    await b.pause()


async def _settle(b: Bench) -> None:
    await b.deliver(events.PromiseResolved(ref=0), promise="open")


async def _end(b: Bench) -> None:
    await b.end(await b.claim_one())
