"""Queries: submitted by a client, claimed by a worker, answered once."""

from typing import Any

from msgspec import Raw

from resurgam.core import event as events
from resurgam.store import records as r
from resurgam.testing.contract.bench import HOUR, LEASE, QUEUE, UNKNOWN, Bench, OpensStores, routed

QUESTIONS = r.Work(worker="first", queues=(QUEUE,), instances=False, activities=False)


class QueryCases(OpensStores):
    """`Queries` and the watch `QueryAnswered`."""

    async def test_a_query_is_answered(self) -> None:
        """A worker of its queue claims it, and the client gets the result."""
        async with self.bench() as b:
            task = await self._submit(b)
            assert await b.store.queries.result(routed("q-1")) is None
            assert await b.store.queries.claim("first", ["other"], 10) == []
            assert await b.store.queries.claim("first", ["other", QUEUE], 10) == [task]
            reply = r.QueryResult(query_id=routed("q-1"), result=Raw(b'{"total":9007199254740993}'))
            await b.store.queries.complete([reply])
            assert await b.store.queries.result(routed("q-1")) == reply
            assert await b.store.queries.claim("first", [QUEUE], 10) == []

    async def test_a_failure_is_a_reply_too(self) -> None:
        """With all its details."""
        async with self.bench() as b:
            await self._submit(b)
            failure = events.Failure(type="ValueError", message="no", traceback="here", args=Raw(b"[1]"))
            await b.store.queries.complete([r.QueryResult(query_id=routed("q-1"), failure=failure)])
            assert await b.store.queries.result(routed("q-1")) == r.QueryResult(query_id=routed("q-1"), failure=failure)

    async def test_a_query_of_an_unknown_execution_is_missing(self) -> None:
        """A query of a held, paused or closed instance is accepted."""
        async with self.bench() as b:
            until = b.clock.now() + HOUR
            unknown = query_task("q-0", UNKNOWN, until)
            assert await b.store.queries.submit([unknown]) == [r.Missing()]
            await b.create("held")
            await b.claim_one()
            await b.create("halted")
            await b.pause("halted")
            await b.ended("ended")
            for name in ("held", "halted", "ended"):
                about = await b.get(name)
                assert await b.store.queries.submit([query_task(name, about, until)]) == [r.Submitted()]
            assert len(await b.store.queries.claim("first", [QUEUE], 10)) == 3

    async def test_a_query_is_with_one_worker_for_as_long_as_a_lease(self) -> None:
        """After that another worker can claim it, unless it is answered; waiting workers are woken for it."""
        async with self.bench() as b:
            await self._submit(b)
            assert len(await b.store.queries.claim("first", [QUEUE], 10)) == 1
            assert await b.store.queries.claim("second", [QUEUE], 10) == []
            assert not await b.is_there(QUESTIONS)
            await b.pass_time(LEASE)
            assert await b.is_there(QUESTIONS)
            assert len(await b.store.queries.claim("second", [QUEUE], 10)) == 1

    async def test_no_more_queries_are_handed_out_than_asked_for(self) -> None:
        """The oldest come first; a claimed query is not returned again."""
        async with self.bench() as b:
            for number in (1, 2, 2, 3):
                await self._submit(b, f"q-{number}")
            names = [[task.query_id for task in await b.store.queries.claim("first", [QUEUE], 2)] for _ in range(2)]
            assert names == [[routed("q-1"), routed("q-2")], [routed("q-3")]]

    async def test_the_first_reply_counts(self) -> None:
        """A second result, or a result of an unknown query, has no effect."""
        async with self.bench() as b:
            await self._submit(b)
            for result in (b"1", b"2"):
                await b.store.queries.complete([r.QueryResult(query_id=routed("q-1"), result=Raw(result))])
            await b.store.queries.complete([r.QueryResult(query_id=routed("no"), result=Raw(b"3"))])
            assert await b.store.queries.result(routed("q-1")) == r.QueryResult(
                query_id=routed("q-1"), result=Raw(b"1")
            )
            assert await b.store.queries.result(routed("no")) is None

    async def test_a_query_is_given_up_at_its_moment(self) -> None:
        """After its deadline a query is not claimable, a result has no effect, and an existing result is removed."""
        async with self.bench() as b:
            await self._submit(b, "open")
            await self._submit(b, "answered")
            await b.store.queries.complete([r.QueryResult(query_id=routed("answered"), result=Raw(b"1"))])
            await b.pass_time(HOUR - 1)
            assert await b.is_there(QUESTIONS)
            assert await b.store.queries.result(routed("answered")) is not None
            await b.pass_time(1)
            assert not await b.is_there(QUESTIONS)
            assert await b.store.queries.claim("first", [QUEUE], 10) == []
            await b.store.queries.complete([r.QueryResult(query_id=routed("open"), result=Raw(b"1"))])
            for name in ("open", "answered"):
                assert await b.store.queries.result(routed(name)) is None

    async def test_a_query_wakes_waiters_for_work_in_its_queue(self) -> None:
        """Unless they do not wait for queries."""
        async with self.bench() as b:
            instance = await b.create(queue="elsewhere")
            assert not await b.is_there(QUESTIONS)
            await b.store.queries.submit([query_task("q-1", instance, b.clock.now() + HOUR)])
            assert await b.is_there(QUESTIONS)
            assert not await b.is_there(r.Work(worker="first", queues=(QUEUE,), queries=False))
            assert not await b.is_there(r.Work(worker="first", queues=("other",)))

    async def test_a_reply_wakes_its_waiters(self) -> None:
        """The result stays available."""
        async with self.bench() as b:
            await self._submit(b)
            watch = r.QueryAnswered(query_id=routed("q-1"))
            assert not await b.is_there(watch)
            await b.store.queries.complete([r.QueryResult(query_id=routed("q-1"), result=Raw(b"1"))])
            for _ in range(2):
                assert await b.is_there(watch)

    async def test_purging_takes_the_queries_along(self) -> None:
        """No query is left to be answered or awaited."""
        async with self.bench() as b:
            instance = await b.ended()
            await b.store.queries.submit([query_task("q-1", instance, b.clock.now() + HOUR)])
            await b.store.purge([instance])
            assert await b.store.queries.claim("first", [QUEUE], 10) == []
            assert await b.is_there(r.QueryAnswered(query_id=routed("q-1")))
            await b.store.queries.complete([r.QueryResult(query_id=routed("q-1"), result=Raw(b"1"))])
            assert await b.store.queries.result(routed("q-1")) is None

    async def test_a_query_touches_nothing_of_its_instance(self) -> None:
        """Its log, its inbox and its readiness do not change."""
        async with self.bench() as b:
            instance = await b.create()
            await b.committed(await b.claim_one())
            before = await b.store.transfer.copies("order")
            await b.store.queries.submit([query_task("q-1", instance, b.clock.now() + HOUR)])
            await b.store.queries.complete([r.QueryResult(query_id=routed("q-1"), result=Raw(b"1"))])
            assert await b.store.transfer.copies("order") == before
            assert not await b.claim()

    async def _submit(self, b: Bench, name: str = "q-1", **fields: Any) -> r.QueryTask:
        found = await b.store.inspector.get("order")
        about = found or await b.create(queue="elsewhere")
        task = query_task(name, about, b.clock.now() + HOUR, **fields)
        assert await b.store.queries.submit([task]) == [r.Submitted()]
        return task


def query_task(name: str, about: r.Addressed, until: int, **fields: Any) -> r.QueryTask:
    """Return a query, whose id is made of *name* and the route of its entity."""
    return r.QueryTask(
        query_id=routed(name, about.entity_id),
        entity_id=about.entity_id,
        execution_id=about.execution_id,
        until=until,
        **{"queue": QUEUE, "name": "total", "input": Raw(b"[1]"), **fields},
    )
