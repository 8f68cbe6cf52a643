"""Entries that a claim puts into the inbox of its instance: an attempt begins, and nobody is woken for it."""

from typing import Final

from msgspec import Raw
from msgspec.structs import replace

from resurgam.core import event as events
from resurgam.core.flow_event import WorkStarted
from resurgam.core.outcome import ActivityRequest, Entry
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.rules import REDELIVERIES
from resurgam.testing.contract.bench import (
    LEASE,
    QUEUE,
    Bench,
    OpensStores,
    completed,
    ids,
    request,
    retried,
    signal,
    values,
)

HOLDING: Final = "holding"
"""The queue of the instances."""


class StartCases(OpensStores):
    """`ActivityRequest.starts`: which claims write it, when it is returned, and where it moves."""

    # What a claim writes.

    async def test_the_claim_of_an_activity_puts_its_prepared_entry_into_the_inbox(self) -> None:
        """With the number of the delivery, and before the task is returned."""
        async with self.bench() as b:
            instance = await _waiting(b, starting(2))
            assert await _inbox(b, instance) == []
            assert (await b.task()).request == starting(2)
            assert await _inbox(b, instance) == [began(2, 1)]

    async def test_the_claim_of_an_activity_without_a_prepared_entry_writes_none(self) -> None:
        """Whatever its input looks like."""
        async with self.bench() as b:
            looks_alike = Raw(b'[{"starts":{"type":"work_started","item":2,"step":"x"}}]')
            instance = await _waiting(b, replace(request(2), input=looks_alike))
            await b.task()
            assert await _inbox(b, instance) == []

    async def test_a_prepared_entry_is_found_whatever_stands_before_it_and_in_it(self) -> None:
        """Text that looks like it, quotes, braces and other scripts change nothing."""
        async with self.bench() as b:
            step = 'a,"starts":{"type":"x"}} \\ "b" \N{GREEK SMALL LETTER ALPHA}\n'
            given = Raw(b'[{"a":1,"starts":{"type":"work_started","item":9,"step":"no"}}]')
            wanted = replace(starting(2, step=step), input=given)
            instance = await _waiting(b, wanted)
            assert (await b.task()).request == wanted
            assert await _inbox(b, instance) == [began(2, 1, step=step)]

    async def test_each_activity_of_a_claim_has_its_entry(self) -> None:
        """Of several instances, and of one."""
        async with self.bench() as b:
            one = await _waiting(b, starting(2), starting(3), request(4))
            other = await _waiting(b, starting(2), entity_id="other")
            assert len(await b.tasks()) == 4
            assert sorted(await _inbox(b, one), key=lambda event: getattr(event, "item", 0)) == [
                began(2, 1),
                began(3, 1),
            ]
            assert await _inbox(b, other) == [began(2, 1)]

    async def test_every_delivery_of_an_activity_has_an_entry_with_its_number(self) -> None:
        """The worker was lost, or gave it back with a failure; one that was given back without counts as never delivered."""
        async with self.bench() as b:
            instance = await _waiting(b, starting(2))
            await b.task()
            await b.pass_time(LEASE)
            again = await b.task("second")
            assert await _inbox(b, instance) == [began(2, 1), began(2, 2)]
            await b.release(again, "no")
            third = await b.task()
            await b.release(third)
            await b.task()
            assert await _inbox(b, instance) == [began(2, number) for number in (1, 2, 3, 3)]

    async def test_the_deliveries_of_the_next_attempt_are_numbered_anew_behind_the_failed_one(self) -> None:
        """The entry of an attempt stands before its result and behind that of the attempt before."""
        async with self.bench() as b:
            instance = await _waiting(b, starting(2))
            task = await b.task()
            failed = retried(task, b.clock.now())
            assert await b.answer(task, failed) == r.Accepted()
            last = await b.task()
            assert (last.attempt, last.request) == (2, starting(2))
            assert await b.answer(last) == r.Accepted()
            assert await _inbox(b, instance) == [began(2, 1), failed, began(2, 1), completed(last)]

    async def test_an_activity_that_was_handed_out_too_often_does_not_begin_again(self) -> None:
        """It becomes a dead letter, without another entry; once it is revived, it begins."""
        async with self.bench() as b:
            instance = await _waiting(b, starting(2))
            for _ in range(REDELIVERIES):
                await b.task()
                await b.pass_time(LEASE)
            assert not await b.tasks()
            reason = f"activity 'charge' (entry 2) was handed out {REDELIVERIES} times without an answer"
            assert (await b.get()).activity_dead_letters == (reason,)
            assert await _inbox(b, instance) == [began(2, number + 1) for number in range(REDELIVERIES)]
            assert await b.store.revive([instance]) == [r.Revived(count=1)]
            await b.task()
            assert (await _inbox(b, instance))[-1] == began(2, 1)

    async def test_an_activity_of_a_closed_instance_does_not_begin_again(self) -> None:
        """Its cancellation is all that comes."""
        async with self.bench() as b:
            instance = await _waiting(b, starting(2))
            await b.task()
            await b.deliver(events.WorkflowTerminated(reason="enough"))
            await b.pass_time(LEASE)
            assert not await b.tasks()
            assert [event.type for event in await _inbox(b, instance)] == ["work_started", "activity_cancelled"]

    # What a commit claims.

    async def test_an_activity_that_a_commit_claims_has_no_entry(self) -> None:
        """With a lease of its own or covered: the commit itself may say that it begins."""
        for covers in (False, True):
            async with self.bench() as b:
                instance = await b.create(queue=HOLDING)
                claim = await b.claim_one(queues=(HOLDING,))
                answer = await b.want(claim, starting(2), eager=(2,), covers=covers)
                assert [task.request for task in answer.tasks] == [starting(2)]
                assert (answer.inbox, await _inbox(b, instance)) == ((), [])

    async def test_an_activity_that_a_commit_has_claimed_begins_again_as_the_second_delivery(self) -> None:
        """If its own lease is lost, or the one that covers it."""
        for covers in (False, True):
            async with self.bench() as b:
                instance = await b.create(queue=HOLDING)
                await b.want(await b.claim_one(queues=(HOLDING,)), starting(2), eager=(2,), covers=covers)
                await b.pass_time(LEASE)
                await b.claim_one("second", (HOLDING,))
                assert (await b.task("second")).request == starting(2)
                assert await _inbox(b, instance) == [began(2, 2)]

    async def test_a_covered_activity_keeps_its_prepared_entry_wherever_it_goes(self) -> None:
        """Back to its queue with its instance, or to a lease of its own, which then is lost."""
        async with self.bench() as b:
            instance = await b.create(queue=HOLDING)
            claim = await b.claim_one(queues=(HOLDING,))
            await b.want(claim, starting(2), starting(3), eager=(2, 3), covers=True)
            own = r.Lease(entity_id="order", execution_id=instance.execution_id, epoch=0, ref=2)
            assert isinstance((await b.store.extend([own]))[0], r.Extended)
            assert await b.release(claim) == r.Released()
            assert [task.request for task in await b.tasks("second")] == [starting(3)]
            await b.pass_time(LEASE)
            assert len(await b.tasks("second")) == 2
            assert sorted((event.item, event.attempt) for event in await _starts(b, instance)) == [
                (2, 2),
                (3, 1),
                (3, 2),
            ]

    async def test_a_further_attempt_that_a_commit_schedules_begins_with_an_entry(self) -> None:
        """The failed attempt was covered."""
        async with self.bench() as b:
            instance = await b.create(queue=HOLDING)
            claim = await b.claim_one(queues=(HOLDING,))
            [task] = (await b.want(claim, starting(2), eager=(2,), covers=True)).tasks
            failed = replace(retried(task, b.clock.now()), seq=3)
            again = r.Pending(request=starting(2), visible_at=b.clock.now(), attempt=2)
            await b.committed(claim, failed, base_seq=2, covers=True, retries=(again,))
            assert (await b.task()).attempt == 2
            assert await _inbox(b, instance) == [began(2, 1)]

    # Nobody is woken.

    async def test_a_free_instance_is_not_woken_by_the_claim_of_its_activity(self) -> None:
        """No worker can claim it, and none is told that there is work."""
        async with self.bench() as b:
            await _waiting(b, starting(2))
            await b.task()
            assert not await b.claim(queues=(HOLDING,))
            assert not await b.is_there(r.Work(worker="first", queues=(HOLDING,)))
            assert (await b.queue(HOLDING)).instances == 0

    async def test_a_held_instance_is_not_woken_by_the_claim_of_its_activity(self) -> None:
        """Its holder is not told, neither by a watch nor by a commit or a renewal; nor is it ready after its release."""
        async with self.bench() as b:
            instance, claim = await _held(b, starting(2))
            await b.task("second")
            watch = r.InboxChanged(entity_id="order", execution_id=instance.execution_id, wake=claim.wake)
            assert not await b.is_there(watch)
            kept = await b.committed(claim, release=False)
            assert (kept.wake, kept.inbox) == (claim.wake, ())
            assert await b.extend(claim, claim.wake) == r.Extended(wake=claim.wake)
            assert (await b.committed(claim)).wake == claim.wake
            assert not await b.claim(queues=(HOLDING,))

    # When it is returned.

    async def test_a_start_is_returned_together_with_the_next_entry_that_wakes(self) -> None:
        """By a claim, in the order in which they came."""
        async with self.bench() as b:
            await _waiting(b, starting(2))
            await b.task()
            await b.send_signals("order", "x")
            assert values((await b.claim_one(queues=(HOLDING,))).inbox) == ["work_started", "x"]

    async def test_a_start_is_returned_to_the_holder_with_the_next_entry_that_wakes(self) -> None:
        """By a commit that keeps the lease and by a renewal, behind what the holder has seen."""
        async with self.bench() as b:
            _, claim = await _held(b, starting(2))
            await b.send_signals("order", "seen")
            seen = await b.committed(claim, release=False)
            task = await b.task("second")
            assert await b.answer(task) == r.Accepted()
            renewed = await b.extend(claim, seen.wake)
            assert isinstance(renewed, r.Extended)
            kept = await b.committed(claim, wake=seen.wake, release=False)
            for inbox in (renewed.inbox, kept.inbox):
                assert [entry.event for entry in inbox] == [began(2, 1), completed(task)]
            later = await b.committed(claim, wake=kept.wake, release=False)
            assert later.inbox == ()

    async def test_starts_between_other_entries_keep_their_places(self) -> None:
        """Those that came while nothing else did, too, and whatever was consumed before."""
        async with self.bench() as b:
            await _waiting(b, starting(2), starting(3, "gpu"), starting(4, "tpu"))
            await b.send_signals("order", "one", "two")
            claim = await b.claim_one(queues=(HOLDING,))
            await b.committed(claim, consumed=ids(claim.inbox[:1]))
            await b.task(queues=("gpu",))
            await b.task(queues=(QUEUE,))
            await b.send_signals("order", "three")
            await b.task(queues=("tpu",))
            await b.send_signals("order", "four")
            claim = await b.claim_one(queues=(HOLDING,))
            assert _told(claim.inbox) == ["two", 3, 2, "three", 4, "four"]

    async def test_a_start_is_consumed_by_its_id(self) -> None:
        """As any other entry: the others stay, and one that was not consumed comes again."""
        async with self.bench() as b:
            await _waiting(b, starting(2), starting(3, "gpu"))
            await b.task()
            await b.task(queues=("gpu",))
            await b.send_signals("order", "one", "two")
            claim = await b.claim_one(queues=(HOLDING,))
            first, second, one, two = claim.inbox
            await b.committed(claim, consumed=ids((second, one)))
            await b.send_signals("order", "three")
            claim = await b.claim_one(queues=(HOLDING,))
            assert claim.inbox[:2] == (first, two)
            assert _told(claim.inbox) == [2, "two", "three"]
            await b.committed(claim, consumed=ids(claim.inbox))
            assert not await b.claim(queues=(HOLDING,))

    async def test_a_start_that_comes_after_one_was_consumed_is_another_entry(self) -> None:
        """Its id is not mistaken for the one before."""
        async with self.bench() as b:
            instance = await _waiting(b, starting(2), starting(3, "gpu"))
            await b.send_signals("order", "one")
            await b.task()
            claim = await b.claim_one(queues=(HOLDING,))
            await b.committed(claim, consumed=ids(claim.inbox[1:]), release=False)
            await b.task(queues=("gpu",))
            assert await _inbox(b, instance) == [signal("one"), began(3, 1)]
            await b.committed(claim, wake=claim.wake, consumed=ids(claim.inbox))
            assert await _inbox(b, instance) == [began(3, 1)]

    # Out of a store and into another.

    async def test_prepared_entries_and_starts_move_with_their_execution(self) -> None:
        """The numbers of deliveries go on there."""
        async with self.bench() as a, self.bench(a.clock) as b:
            await _waiting(a, starting(2), starting(3, "gpu"))
            await a.task()
            copies = tuple(await a.store.transfer.copies("order"))
            [copy] = copies
            assert copy.inbox == (began(2, 1),)
            assert [pending.request for pending in copy.activities] == [starting(2), starting(3, "gpu")]
            await b.store.transfer.adopt([r.Adoption(entity_id="order", copies=copies)])
            assert tuple(await b.store.transfer.copies("order")) == copies
            await b.tasks(queues=(QUEUE, "gpu"))
            found = await _starts(b, copy.instance)
            assert sorted((event.item, event.attempt) for event in found) == [(2, 1), (2, 2), (3, 1)]

    async def test_an_execution_with_a_new_start_is_not_removed(self) -> None:
        """The copy that was made before does not have it."""
        async with self.bench() as b:
            await _waiting(b, starting(2))
            copies = tuple(await b.store.transfer.copies("order"))
            await b.task()
            assert await b.store.transfer.remove([r.Removal(entity_id="order", copies=copies)]) == [r.Changed()]
            copies = tuple(await b.store.transfer.copies("order"))
            assert await b.store.transfer.remove([r.Removal(entity_id="order", copies=copies)]) == [r.Removed()]

    async def test_a_purged_execution_leaves_no_start_behind(self) -> None:
        """One that is created with the same id begins with an empty inbox."""
        async with self.bench() as b:
            instance = await _waiting(b, starting(2))
            await b.task()
            await b.send_signals("order", "x")
            claim = await b.claim_one(queues=(HOLDING,))
            end = events.WorkflowCompleted(seq=claim.instance.last_seq + 1)
            await b.committed(claim, end, status=Status.COMPLETED, deactivated=True)
            assert await b.store.purge([instance]) == [r.Purged()]
            again = await b.create(execution_id=instance.execution_id, queue=HOLDING)
            await b.send_signals("order", "y")
            assert values((await b.claim_one(queues=(HOLDING,))).inbox) == ["y"]
            assert await _inbox(b, again) == [signal("y")]


def starting(ref: int, queue: str = QUEUE, *, step: str = "pack") -> ActivityRequest:
    """Return the request for an activity with a prepared entry."""
    return replace(request(ref, queue), starts=WorkStarted(item=ref, step=step))


def began(item: int, attempt: int, *, step: str = "pack") -> WorkStarted:
    """Return the entry of a claim."""
    return WorkStarted(item=item, step=step, attempt=attempt)


async def _waiting(b: Bench, *requests: ActivityRequest, entity_id: str = "order") -> r.Instance:
    """Return a free instance with activities."""
    instance = await b.create(entity_id, queue=HOLDING)
    await b.want(await b.claim_one(queues=(HOLDING,)), *requests)
    return instance


async def _held(b: Bench, *requests: ActivityRequest) -> tuple[r.Instance, r.Claim]:
    """Return an instance with activities, and a claim of it."""
    instance = await _waiting(b, *requests)
    await b.send_signals("order", "begin")
    claim = await b.claim_one(queues=(HOLDING,))
    await b.committed(claim, consumed=ids(claim.inbox), release=False)
    return instance, claim


async def _inbox(b: Bench, instance: r.Instance) -> list[events.Event]:
    work = await b.store.inspector.open_work(instance)
    assert work is not None
    return list(work.inbox)


async def _starts(b: Bench, instance: r.Instance) -> list[WorkStarted]:
    return [event for event in await _inbox(b, instance) if isinstance(event, WorkStarted)]


def _told(inbox: tuple[Entry, ...]) -> list[str | int]:
    """Return the ids of signals and the items of starts."""
    told = zip(values(inbox), inbox, strict=True)
    return [entry.event.item if isinstance(entry.event, WorkStarted) else value for value, entry in told]
