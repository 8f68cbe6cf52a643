"""Archiving complete executions: what is reserved, what stays in the store, and how a log comes back."""

import asyncio
from typing import Any, Final

from msgspec.structs import replace

from resurgam.core import event as events
from resurgam.core.outcome import Message, OpenPromise
from resurgam.core.state import Status
from resurgam.store import export
from resurgam.store import records as r
from resurgam.testing.contract.bench import HOUR, Bench, OpensStores, request, routed, signal

_URL: Final = "file:///srv/archive/größe 'a'/{x}.jsonl.zst"


class ArchivalCases(OpensStores):
    """`Transfer.reserve` and `archive`, and what archived executions are to the other verbs."""

    # Reservations.

    async def test_a_reservation_is_the_last_entry_of_a_complete_log(self) -> None:
        """It enters the feed and ends waits for the log, and no worker is woken."""
        async with self.bench() as b:
            ended = await b.ended()
            cursor = await b.store.feed.now()
            grown = r.LogGrown(entity_id="order", execution_id=ended.execution_id, last_seq=ended.last_seq)
            feed = asyncio.ensure_future(b.store.wait(r.FeedGrown(after=cursor)))
            event = _archiving(ended)
            assert await _reserve(b, ended, event) == r.Reserved()
            assert await b.soon(feed)
            assert await b.is_there(grown)
            assert (await b.get()) == replace(ended, last_seq=ended.last_seq + 1)
            assert (await b.store.inspector.history(ended))[-1] == event
            page = await b.store.feed.read(r.FeedQuery(after=cursor))
            assert [entry.type for entry in page.entries] == ["workflow_archiving"]
            await b.pass_time(HOUR)
            assert await b.claim(queues=["ended"]) == []

    async def test_only_a_complete_execution_can_be_reserved(self) -> None:
        """Not an open one, not one with work outstanding, nor one that is gone; nothing is appended."""
        async with self.bench() as b:
            opened = await b.create()
            assert await _reserve(b, opened) == r.Changed()
            await b.want(await b.claim_one(), request(2, "work"))
            await b.tasks(queues=["work"])
            await b.deliver(events.WorkflowTerminated())
            assert await _reserve(b, await b.get()) == r.Changed()
            assert (await b.get()).last_seq == 3
            ended = await b.ended("gone")
            await b.store.purge([ended])
            assert await _reserve(b, ended) == r.Changed()

    async def test_a_reservation_must_follow_the_last_entry(self) -> None:
        """Of two archivers only one reserves it; an execution of another entity is not found."""
        async with self.bench() as b:
            ended = await b.ended()
            stranger = r.Reservation(entity_id="other", execution_id=ended.execution_id, event=_archiving(ended))
            assert await b.store.transfer.reserve([stranger]) == [r.Changed()]
            part = r.Reservation(entity_id="order", execution_id=ended.execution_id, event=_archiving(ended))
            assert await b.store.transfer.reserve([part, part]) == [r.Reserved(), r.Changed()]
            assert await b.store.transfer.reserve([]) == []
            assert (await b.get()).last_seq == ended.last_seq + 1

    # What stays.

    async def test_of_an_archived_execution_only_its_row_stays(self) -> None:
        """Its log and its promises are gone; it is found and listed as before, with the archive."""
        async with self.bench() as b:
            await b.create("other", queue="elsewhere")
            before = await _rich(b)
            assert await _archive(b, "order") == r.Archived()
            found = await b.get()
            assert found == replace(before, archived=_URL)
            assert await b.store.read(found) == []
            assert await b.store.inspector.history(found, forgotten=True) == []
            assert await b.store.inspector.open_work(found) == r.OpenWork()
            assert await b.store.inspector.promise(r.Delivery(event=signal("x"), promise_id=routed("p-1"))) is None
            assert list(await b.store.transfer.copies("order")) == [r.Copy(instance=found, log=())]
            for query in (r.Query(name=found.name), r.Query(tags={"shop": "berlin"}), r.Query(status=found.status)):
                assert found in (await b.store.inspector.list(query)).instances
            assert (await b.store.inspector.stats()).instances == {"running": 1, "completed": 1}
            await b.pass_time(HOUR)
            assert [claim.instance.entity_id for claim in await b.claim(queues=("default", "elsewhere"))] == ["other"]

    async def test_an_archived_child_keeps_the_answer_that_it_has_sent(self) -> None:
        """A parent that is retried asks for it again."""
        async with self.bench() as b:
            await b.create("parent", queue="parents")
            child = await b.create("child")
            answer = events.ChildCompleted(ref=0, at=1, child="{1}", by="x")
            message = Message(event=answer, entity_id="parent", kept=True)
            await b.end(await b.claim_one(), messages=(message,))
            assert await _archive(b, "child") == r.Archived()
            [copy] = await b.store.transfer.copies("child")
            assert (copy.instance.execution_id, copy.log, copy.answer) == (child.execution_id, (), answer)
            assert export.read(export.write([copy])) == (copy,)

    async def test_the_events_of_an_archived_execution_leave_the_feed(self) -> None:
        """Cursors stay valid, and events that come later are read."""
        async with self.bench() as b:
            await b.ended()
            cursor = await b.store.feed.now()
            assert await _archive(b, "order") == r.Archived()
            assert (await b.store.feed.read(r.FeedQuery())).entries == ()
            await b.create("next")
            page = await b.store.feed.read(r.FeedQuery(after=cursor))
            assert [entry.entity_id for entry in page.entries] == ["next"]

    async def test_nothing_is_archived_that_has_changed_or_is_not_complete(self) -> None:
        """An entry that was appended meanwhile is kept, and so is an open execution."""
        async with self.bench() as b:
            ended = await b.ended()
            copies = tuple(await b.store.transfer.copies("order"))
            assert await _reserve(b, ended) == r.Reserved()
            part = r.Archival(entity_id="order", copies=copies, archive=_URL)
            assert await b.store.transfer.archive([part]) == [r.Changed()]
            assert len(await b.store.read(ended)) == ended.last_seq + 1
            await b.create("open")
            assert await _archive(b, "open") == r.Changed()
            assert (await b.get("open")).archived is None
            assert len(await b.claim()) == 1

    async def test_each_part_is_answered_by_itself_and_a_second_time_is_refused(self) -> None:
        """What is archived already has another copy than before."""
        async with self.bench() as b:
            parts = []
            for name in ("one", "two"):
                await b.ended(name)
                copies = tuple(await b.store.transfer.copies(name))
                parts.append(r.Archival(entity_id=name, copies=copies, archive=f"{_URL}#{name}"))
            assert await _reserve(b, await b.get("one")) == r.Reserved()
            assert await b.store.transfer.archive(parts) == [r.Changed(), r.Archived()]
            assert await b.store.transfer.archive(parts) == [r.Changed(), r.Changed()]
            assert await b.store.transfer.archive([]) == []
            assert await _archive(b, "two") == r.Changed()
            assert (await b.get("two")).archived == f"{_URL}#two"

    async def test_older_executions_of_an_open_chain_can_be_archived_by_themselves(self) -> None:
        """Others of the entity stay as they are, and so does their order."""
        async with self.bench() as b:
            first, second = await b.ended(), await b.ended()
            current = await b.create()
            copies = tuple(await b.store.transfer.copies("order"))[:1]
            part = r.Archival(entity_id="order", copies=copies, archive=_URL)
            assert await b.store.transfer.archive([part]) == [r.Archived()]
            assert await b.get() == current
            kept = [copy.instance for copy in await b.store.transfer.copies("order")]
            assert kept == [replace(first, archived=_URL), second, current]
            assert len(await b.store.read(second)) == second.last_seq
            assert len(await b.claim()) == 1

    # Other verbs.

    async def test_archived_executions_are_listed_apart_from_complete_ones(self) -> None:
        """By age, status and name, page by page."""
        async with self.bench() as b:
            for name in ("a", "b", "c"):
                await b.ended(name)
                await b.pass_time(1)
            for name in ("a", "c"):
                assert await _archive(b, name) == r.Archived()
            assert await _listed(b) == ["b"]
            assert await _listed(b, archived=True) == ["a", "c"]
            assert await _listed(b, archived=True, status=Status.COMPLETED, name="sell") == ["a", "c"]
            assert await _listed(b, archived=True, status=Status.FAILED) == []
            assert await _listed(b, archived=True, name="buy") == []
            [first] = await b.store.inspector.ended(r.EndedQuery(before=b.clock.now(), limit=1, archived=True))
            after = (first.closed_at or 0, first.execution_id)
            assert await _listed(b, archived=True, after=after) == ["c"]

    async def test_an_archived_execution_is_closed_to_all_verbs(self) -> None:
        """It takes no events, its id is free for another run, and it can be purged."""
        async with self.bench() as b:
            await b.ended()
            await _archive(b, "order")
            archived = await b.get()
            assert await b.deliver(signal("late")) == r.Ended(status=Status.COMPLETED)
            assert await b.store.revive([archived]) == [r.Revived(count=0)]
            attached = await b.store.create([r.Creation(started=b.started(), attach=True)])
            assert attached == [r.Exists(instance=archived)]
            assert (await b.create()).status is Status.RUNNING
            assert await b.store.purge([archived]) == [r.Purged()]
            assert len(await b.store.transfer.copies("order")) == 1
            assert await _listed(b, archived=True) == []

    # The way back.

    async def test_an_archived_execution_gets_back_its_log(self) -> None:
        """Adopting its copy restores everything; those that are in the store stay as they are."""
        async with self.bench() as b:
            await _rich(b)
            await b.ended()
            copies = tuple(await b.store.transfer.copies("order"))
            part = r.Archival(entity_id="order", copies=copies[:1], archive=_URL)
            assert await b.store.transfer.archive([part]) == [r.Archived()]
            [adopted] = await b.store.transfer.adopt([r.Adoption(entity_id="order", copies=copies)])
            assert isinstance(adopted, r.Adopted)
            assert [arrival.new for arrival in adopted.arrivals] == [True, False]
            assert tuple(await b.store.transfer.copies("order")) == copies
            assert len(await _listed(b)) == 2
            assert await _listed(b, archived=True) == []
            assert len((await b.store.feed.read(r.FeedQuery())).entries) == sum(len(copy.log) for copy in copies)
            assert len((await b.store.inspector.list(r.Query(tags={"shop": "berlin"}))).instances) == 1

    async def test_an_older_copy_does_not_replace_an_archived_execution(self) -> None:
        """It was made while the execution was open, or before its last entries."""
        async with self.bench() as b:
            await b.create()
            opened = tuple(await b.store.transfer.copies("order"))
            await b.end(await b.claim_one())
            whole = tuple(await b.store.transfer.copies("order"))
            assert await _archive(b, "order") == r.Archived()
            await b.create()
            archived, current = await b.store.transfer.copies("order")
            short = replace(whole[0], instance=replace(whole[0].instance, last_seq=1), log=whole[0].log[:1])
            for older in (opened, (short,)):
                [adopted] = await b.store.transfer.adopt([r.Adoption(entity_id="order", copies=older)])
                assert isinstance(adopted, r.Adopted)
                assert [arrival.new for arrival in adopted.arrivals] == [False]
                assert list(await b.store.transfer.copies("order")) == [archived, current]

    async def test_an_archived_execution_moves_to_another_store_without_its_log(self) -> None:
        """Also as JSON lines; one that is whole there is not replaced by it."""
        async with self.bench() as a, self.bench(a.clock) as b:
            await _rich(a)
            whole = tuple(await a.store.transfer.copies("order"))
            assert await _archive(a, "order") == r.Archived()
            copies = tuple(await a.store.transfer.copies("order"))
            assert export.read(export.write(copies)) == copies
            await b.store.transfer.adopt([r.Adoption(entity_id="order", copies=copies)])
            assert tuple(await b.store.transfer.copies("order")) == copies
            assert (await b.get()).archived == _URL
            assert await _listed(b, archived=True) == ["order"]
            [removed] = await b.store.transfer.remove([r.Removal(entity_id="order", copies=copies)])
            assert removed == r.Removed()
            await b.store.transfer.adopt([r.Adoption(entity_id="order", copies=whole)])
            [again] = await b.store.transfer.adopt([r.Adoption(entity_id="order", copies=copies)])
            assert isinstance(again, r.Adopted)
            assert [arrival.new for arrival in again.arrivals] == [False]
            assert tuple(await b.store.transfer.copies("order")) == whole


def _archiving(instance: r.Instance) -> events.WorkflowArchiving:
    return events.WorkflowArchiving(seq=instance.last_seq + 1, at=5, archiver="keeper")


async def _reserve(
    b: Bench, instance: r.Instance, event: events.WorkflowArchiving | None = None
) -> r.Reserved | r.Changed:
    part = r.Reservation(
        entity_id=instance.entity_id, execution_id=instance.execution_id, event=event or _archiving(instance)
    )
    [answer] = await b.store.transfer.reserve([part])
    return answer


async def _archive(b: Bench, entity_id: str) -> r.Archived | r.Changed:
    copies = tuple(await b.store.transfer.copies(entity_id))
    [answer] = await b.store.transfer.archive([r.Archival(entity_id=entity_id, copies=copies, archive=_URL)])
    return answer


async def _listed(b: Bench, **fields: Any) -> list[str]:
    found = await b.store.inspector.ended(r.EndedQuery(before=b.clock.now() + 1, **fields))
    return [one.entity_id for one in found]


async def _rich(b: Bench) -> r.Instance:
    """Return a complete execution with tags and a promise, an activity of which ran."""
    await b.create(tags={"shop": "berlin"})
    promises = (OpenPromise(routed("p-1"), "open"),)
    claim = await b.claim_one()
    await b.want(claim, request(2, "work"), promises=promises, release=False)
    task = await b.task(queues=["work"])
    await b.answer(task)
    [entry] = (await b.extended(claim)).inbox
    done = events.ActivityCompleted(seq=3, ref=2)
    assert entry.id is not None
    log = (done, events.WorkflowCompleted(seq=4), events.WorkflowDeactivated(seq=5))
    await b.committed(
        claim, *log, base_seq=2, wake=claim.wake + 1, consumed=(entry.id,), status=Status.COMPLETED, deactivated=True
    )
    return await b.get()
