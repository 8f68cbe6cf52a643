"""The read side: lists, pages, filters, counts."""

from msgspec.structs import replace

from resurgam.core import event as events
from resurgam.core.location import Location
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
            page = await b.store.inspector.list(r.Query())
            assert [found.entity_id for found in page.instances] == [f"order-{number}" for number in (4, 3, 2, 1, 0)]
            assert page.cursor is None

    async def test_pages_neither_repeat_nor_leave_out(self) -> None:
        """Many instances of one millisecond are all listed once, whatever the size of the pages."""
        async with self.bench() as b:
            for number in range(23):
                await b.create(f"order-{number}")
                if number in (7, 15):
                    await b.pass_time(1)
            whole = [found.execution_id for found in (await b.store.inspector.list(r.Query())).instances]
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
            first = await b.store.inspector.list(r.Query(limit=2))
            await b.create("newer")
            await b.store.purge([first.instances[-1]])
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
                (r.Query(until=since), "cba"),
                (r.Query(until=since + 1), "dcba"),
                (r.Query(since=since - 100, until=since, name="sell"), "ba"),
                (r.Query(since=since - 100, name="sell", tags={"region": "eu"}, status=Status.RUNNING), "da"),
            ):
                for limit in (1, 100):
                    pages = await self._pages(b, replace(query, limit=limit))
                    assert "".join(found.entity_id for page in pages for found in page.instances) == expected

    async def test_a_list_can_be_of_one_kind(self) -> None:
        """By the kind that the first event names, in whichever index the list is looked up."""
        async with self.bench() as b:
            call = events.Parent(entity_id="p", run_id="r", execution_id="e", location=Location((1,)), key="k")
            for name, kind in (("a", "workflow"), ("b", "counter"), ("c", "counter")):
                created = await b.create(name, kind=kind, tree_id="tree", parent=call)
                assert created.kind == kind
                [claim] = await b.claim()
                assert claim.instance.kind == kind
                failed = events.WorkflowFailed(failure=events.Failure(type="ValueError", message=""))
                await b.committed(claim, failed, status=Status.FAILED, failure="ValueError")
                await b.pass_time(1)
            failed_by = r.Query(failure="ValueError")
            for query in (r.Query(), r.Query(tree_id="tree"), r.Query(parent="p"), failed_by):
                for wanted, expected in (("counter", "cb"), ("workflow", "a"), ("flow", ""), (None, "cba")):
                    page = await b.store.inspector.list(replace(query, kind=wanted))
                    assert "".join(found.entity_id for found in page.instances) == expected

    async def test_a_list_shows_every_execution(self) -> None:
        """Executions of one entity are listed each by itself."""
        async with self.bench() as b:
            old = await b.ended("order")
            await b.pass_time(1)
            new = await b.create("order")
            page = await b.store.inspector.list(r.Query())
            assert [found.execution_id for found in page.instances] == [new.execution_id, old.execution_id]

    async def test_a_list_can_show_the_newest_execution_of_each_entity(self) -> None:
        """In pages of any size, whatever lies between; the other filters are asked of the newest execution alone."""
        async with self.bench() as b:
            for _ in range(3):
                for name in "abc":
                    await b.ended(name)
                    await b.pass_time(1)
            await b.create("b")
            for query, expected in (
                (r.Query(), "bca"),
                (r.Query(status=Status.COMPLETED), "ca"),
                (r.Query(until=b.clock.now()), "ca"),
                (r.Query(until=b.clock.now() - 3), ""),
                (r.Query(since=b.clock.now() - 1), "bc"),
            ):
                for limit in (1, 2, 100):
                    pages = await self._pages(b, replace(query, newest_only=True, limit=limit))
                    assert "".join(found.entity_id for page in pages for found in page.instances) == expected
            newest = await b.get("b")
            await b.end(await b.claim_one())
            await b.store.purge([newest])
            [page] = await self._pages(b, r.Query(newest_only=True))
            assert "".join(found.entity_id for found in page.instances) == "cba"

    async def test_a_list_can_be_filtered_by_the_type_of_failure(self) -> None:
        """The name is the one that the closing commit gave; later commits keep it, and it moves with the execution."""
        async with self.bench() as b, self.bench(b.clock) as other:
            for name, failure in (("a", "ValueError"), ("b", "KeyError"), ("c", "ValueError"), ("d", None)):
                await b.create(name, tags={"shop": name})
                claim = await b.claim_one()
                failed = events.WorkflowFailed(seq=2, failure=events.Failure(type=f"builtins.{failure}", message="no"))
                end = failed if failure else events.WorkflowCompleted(seq=2)
                status = Status.FAILED if failure else Status.COMPLETED
                await b.committed(claim, end, status=status, failure=failure, release=False)
                late = replace(claim, instance=replace(claim.instance, last_seq=2))
                await b.committed(late, events.WorkflowDeactivated(seq=3), status=status, deactivated=True)
                await b.pass_time(1)
            for query, expected in (
                (r.Query(failure="ValueError"), "ca"),
                (r.Query(failure="KeyError"), "b"),
                (r.Query(failure="Error"), ""),
                (r.Query(failure="ValueError", tags={"shop": "a"}), "a"),
                (r.Query(failure="ValueError", until=b.clock.now() - 3), "a"),
                (r.Query(failure="ValueError", newest_only=True), "ca"),
            ):
                for limit in (1, 100):
                    pages = await self._pages(b, replace(query, limit=limit))
                    assert "".join(found.entity_id for page in pages for found in page.instances) == expected
            assert (await b.get("b")).failure == "KeyError"
            await other.store.transfer.adopt(
                [r.Adoption(entity_id="b", copies=tuple(await b.store.transfer.copies("b")))]
            )
            assert [
                one.entity_id for one in (await other.store.inspector.list(r.Query(failure="KeyError"))).instances
            ] == ["b"]

    async def test_children_are_filtered_by_the_type_of_failure(self) -> None:
        """Also those of one tree."""
        async with self.bench() as b:
            call = events.Parent(entity_id="p", run_id="r", execution_id="e", location=Location((1,)), key="k")
            for name, failure in (("a", "ValueError"), ("b", "KeyError")):
                await b.create(name, parent=call, tree_id="t")
                await b.committed(await b.claim_one(), status=Status.FAILED, failure=failure)
            for query in (r.Query(parent="p", failure="KeyError"), r.Query(tree_id="t", failure="KeyError")):
                assert [found.entity_id for found in (await b.store.inspector.list(query)).instances] == ["b"]

    async def test_an_empty_store_lists_nothing(self) -> None:
        """There is one page, with nothing in it and nothing after it."""
        async with self.bench() as b:
            assert await b.store.inspector.list(r.Query()) == r.Page(instances=(), cursor=None)
            stats = await b.store.inspector.stats()
            assert sum(stats.instances.values()) == stats.dead_instances == stats.dead_activities == 0

    async def test_the_counts_follow_an_instance_through_its_life(self) -> None:
        """Waiting, running and closed instances are counted by queue and by status at every step."""
        async with self.bench() as b:
            await b.create("order", queue="flows")
            assert (await b.store.inspector.stats()).instances == {"running": 1}
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
            stats = await b.store.inspector.stats()
            assert {status: count for status, count in stats.instances.items() if count} == {"completed": 1}
            assert set(stats.queues.values()) <= {r.QueueStats()}

    async def test_every_status_is_counted(self) -> None:
        """Instances are counted by status."""
        async with self.bench() as b:
            await b.create("scheduled", deferred=True)
            await b.create("paused")
            await b.store.deliver([r.Delivery(event=events.WorkflowPaused(), entity_id="paused")])
            for status in set(Status) - {Status.SCHEDULED, Status.PAUSED}:
                await b.create(status)
                log = [events.WorkflowDiverged(seq=2, diagnosis="no")] if status is Status.DIVERGED else []
                await b.committed(await self._claim_of(b, status), *log, status=status)
            counts = (await b.store.inspector.stats()).instances
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
            pages.append(await b.store.inspector.list(replace(query, cursor=cursor)))
            assert len(pages) < 100, "the pages have no end"
        return [page for page in pages if page.instances]
