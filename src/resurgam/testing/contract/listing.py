"""Looking at what there is: lists, pages, filters, counts."""

from msgspec.structs import replace

from resurgam.core import event as events
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.testing.contract.bench import QUEUE, Bench, OpensStores, ids, request


class ListingCases(OpensStores):
    """The read side of a store."""

    async def test_a_list_is_newest_first(self) -> None:
        """Instances are listed by the moment of their creation, whatever happened to them since."""
        async with self.bench() as b:
            for number in range(5):
                await b.create(f"order-{number}", queue="children" if number % 2 else QUEUE)
                await b.pass_time(1)
            await b.end(await self._claim_of(b, "order-0"))
            page = await b.store.list(r.Query())
            assert [found.entity_id for found in page.instances] == [f"order-{number}" for number in (4, 3, 2, 1, 0)]
            assert page.cursor is None

    async def test_pages_neither_repeat_nor_leave_out(self) -> None:
        """Many instances of one millisecond are all listed once, whatever the size of the pages."""
        async with self.bench() as b:
            for number in range(23):
                await b.create(f"order-{number}")
                if number in (7, 15):
                    await b.pass_time(1)
            whole = [found.execution_id for found in (await b.store.list(r.Query())).instances]
            assert len(whole) == len(set(whole)) == 23
            for limit in (1, 4, 23, 24):
                pages = await self._pages(b, r.Query(limit=limit))
                assert [found.execution_id for page in pages for found in page.instances] == whole
                assert all(0 < len(page.instances) <= limit for page in pages)

    async def test_what_is_created_meanwhile_does_not_disturb_the_paging(self) -> None:
        """New instances go to the front, so the later pages stay what they were; a purged one leaves no hole."""
        async with self.bench() as b:
            for number in range(6):
                await b.ended(f"order-{number}")
                await b.pass_time(1)
            first = await b.store.list(r.Query(limit=2))
            await b.create("newer")
            await b.store.purge([first.instances[-1].execution_id])
            rest = await self._pages(b, r.Query(limit=2, cursor=first.cursor))
            names = [found.entity_id for page in rest for found in page.instances]
            assert names == ["order-3", "order-2", "order-1", "order-0"]

    async def test_a_list_can_be_filtered(self) -> None:
        """By status, by name, by tags, by the moment of creation, and by all of them at once."""
        async with self.bench() as b:
            await b.create("a", name="sell", tags={"region": "eu", "kind": "big"})
            await b.create("b", name="sell", tags={"region": "eu"})
            await b.create("c", name="buy", tags={"region": "us"})
            await b.pass_time(100)
            await b.create("d", name="sell", tags={"region": "eu"})
            await b.end(await self._claim_of(b, "b"))
            since = b.clock.now()
            for query, expected in (
                (r.Query(), "dcba"),
                (r.Query(status=Status.COMPLETED), "b"),
                (r.Query(status=Status.RUNNING), "dca"),
                (r.Query(status=Status.FAILED), ""),
                (r.Query(name="sell"), "dba"),
                (r.Query(name="sel"), ""),
                (r.Query(tags={"region": "eu"}), "dba"),
                (r.Query(tags={"region": "eu", "kind": "big"}), "a"),
                (r.Query(tags={"region": "big"}), ""),
                (r.Query(since=since), "d"),
                (r.Query(since=since + 1), ""),
                (r.Query(since=since - 100, name="sell", tags={"region": "eu"}, status=Status.RUNNING), "da"),
            ):
                for limit in (1, 100):
                    pages = await self._pages(b, replace(query, limit=limit))
                    assert "".join(found.entity_id for page in pages for found in page.instances) == expected

    async def test_a_list_shows_every_execution(self) -> None:
        """Executions of one entity are listed each by itself."""
        async with self.bench() as b:
            old = await b.ended("order")
            await b.pass_time(1)
            new = await b.create("order")
            page = await b.store.list(r.Query())
            assert [found.execution_id for found in page.instances] == [new.execution_id, old.execution_id]

    async def test_an_empty_store_lists_nothing(self) -> None:
        """There is one page, with nothing in it and nothing after it."""
        async with self.bench() as b:
            assert await b.store.list(r.Query()) == r.Page(instances=(), cursor=None)
            stats = await b.store.stats()
            assert sum(stats.instances.values()) == stats.dead_instances == stats.dead_activities == 0

    async def test_the_counts_follow_an_instance_through_its_life(self) -> None:
        """What waits, what is being worked on and what has ended is counted by queue and by status at every step."""
        async with self.bench() as b:
            await b.create("order", queue="flows")
            assert (await b.store.stats()).instances == {"running": 1}
            assert await b.queue("flows") == r.QueueStats(instances=1)
            claim = await b.claim_one(queues=["flows"])
            assert await b.queue("flows") == r.QueueStats()
            await b.want(claim, request(2, "work"), request(3, "work"))
            assert await b.queue("work") == r.QueueStats(activities=2)
            [task] = await b.tasks(queues=["work"], limit=1)
            assert await b.queue("work") == r.QueueStats(activities=1, claimed_activities=1)
            await b.answer(task)
            assert await b.queue("work") == r.QueueStats(activities=1)
            assert await b.queue("flows") == r.QueueStats(instances=1)
            await b.answer(await b.task(queues=["work"]))
            assert await b.queue("flows") == r.QueueStats(instances=1)
            last = await b.claim_one(queues=["flows"])
            await b.end(last, consumed=ids(last.inbox))
            stats = await b.store.stats()
            assert {status: count for status, count in stats.instances.items() if count} == {"completed": 1}
            assert set(stats.queues.values()) <= {r.QueueStats()}

    async def test_every_status_is_counted(self) -> None:
        """Instances are counted by where they stand."""
        async with self.bench() as b:
            await b.create("scheduled", deferred=True)
            await b.create("paused")
            await b.store.deliver([r.Delivery(event=events.WorkflowPaused(), entity_id="paused")])
            for status in set(Status) - {Status.SCHEDULED, Status.PAUSED}:
                await b.create(status)
                log = [events.WorkflowDiverged(seq=2, diagnosis="no")] if status is Status.DIVERGED else []
                await b.committed(await self._claim_of(b, status), *log, status=status)
            counts = (await b.store.stats()).instances
            assert counts == {str(status): 1 for status in Status}

    async def _claim_of(self, b: Bench, entity_id: str) -> r.Claim:
        """Claim one instance among others, and give the others back."""
        mine: r.Claim | None = None
        for claim in await b.claim():
            if claim.instance.entity_id == entity_id:
                mine = claim
            else:
                await b.release(claim)
        assert mine is not None
        return mine

    async def _pages(self, b: Bench, query: r.Query) -> list[r.Page]:
        pages: list[r.Page] = []
        while not pages or pages[-1].cursor is not None:
            cursor = pages[-1].cursor if pages else query.cursor
            pages.append(await b.store.list(replace(query, cursor=cursor)))
            assert len(pages) < 100, "the pages have no end"
        return [page for page in pages if page.instances]
