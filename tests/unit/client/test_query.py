"""Queries: answered here where the code is known, otherwise by a worker that knows it; nothing changes by them."""

import asyncio

import pytest
from msgspec import Raw, json

from resurgam import Context, Engine, Registry, errors
from resurgam.client.access import ANY
from resurgam.runtime.rehearsal import query
from resurgam.store import records as r
from resurgam.store.memory.store import MemoryStore
from resurgam.testing import ManualClock
from support.limits import HANGS
from support.manual_worker import FAILURE, workerless_engine

registry = Registry()


@registry.workflow
async def sell(ctx: Context) -> None:
    await ctx.listen("go")


def stub(workflow, log, query, written, settings):
    """Stand in for a replay: the handler of `total` adds, that of `broken` raises."""
    if query == "total":
        return Raw(json.encode([workflow.name, len(log), sum(json.decode(written))])), ANY
    if query == "broken":
        raise ValueError("no total")
    if query == "stopped":
        raise asyncio.CancelledError
    raise errors.NotFound(f"workflow 'sell' has no handler for {query!r}; it has 'total'")


@pytest.fixture(autouse=True)
def _stubbed(monkeypatch):
    monkeypatch.setattr(query, "answer_query", stub)


async def test_a_query_is_answered_here_by_the_code_that_is_known_here():
    async with workerless_engine(registry) as (engine, worker):
        handle = await engine.start(sell, id="o-1")

        assert await handle.query("total", 1, 2) == ["sell", 1, 3]
        await worker.completes("o-1")
        assert await handle.query("total") == ["sell", 2, 0]
        with pytest.raises(ValueError, match="no total"):
            await handle.query("broken")
        with pytest.raises(errors.NotFound, match="workflow 'sell' has no handler for 'odd'; it has 'total'"):
            await handle.query("odd")


async def test_a_query_for_unknown_code_is_answered_by_a_worker_of_the_queue():
    async with workerless_engine() as (engine, worker):
        handle = await engine.start("sell", id="o-1", queue="slow")
        waiting = asyncio.ensure_future(handle.query("total", 1))
        await worker.quiet()
        [task] = await worker.store.queries.claim("first", ["slow"], 10)
        await worker.store.queries.complete([r.QueryResult(query_id=task.query_id, result=Raw(b'{"a": 5}'))])

        assert (task.name, bytes(task.input)) == ("total", b"[1]")
        assert await worker.soon(waiting) == {"a": 5}


async def test_what_the_handler_raised_there_is_raised_here():
    async with workerless_engine() as (engine, worker):
        handle = await engine.start("sell", id="o-1")
        waiting = asyncio.ensure_future(handle.query("total"))
        await worker.quiet()
        [task] = await worker.store.queries.claim("first", ["default"], 10)
        await worker.store.queries.complete([r.QueryResult(query_id=task.query_id, failure=FAILURE)])

        with pytest.raises(ValueError, match="no"):
            await worker.soon(waiting)


async def test_a_query_without_an_answer_names_the_queue():
    async with workerless_engine() as (engine, worker):
        handle = await engine.start("sell", id="o-1", queue="slow")
        waiting = asyncio.ensure_future(handle.query("total"))
        await worker.quiet()
        await worker.pass_time(29_999)
        assert not waiting.done()
        await worker.pass_time(1)

        with pytest.raises(TimeoutError, match="no worker of queue 'slow' answered it; start one, or allow more time"):
            await waiting


BAD = [
    (lambda e: e.handle("o-9").query("total"), errors.NotFound, "there is no workflow with id 'o-9'"),
    (lambda e: e.handle("o-1").query(""), ValueError, "query name must be a non-empty string, got ''"),
    (lambda e: e.handle("o-1").query(5), ValueError, "query name must be a non-empty string, got 5"),
    (lambda e: e.handle("o-1").query("total", timeout=-1), ValueError, "timeout must be 0 or more, got -1"),
    (
        lambda e: e.handle("o-1").query("total", timeout="x"),
        ValueError,
        "a duration must be seconds or a timedelta, got 'x'",
    ),
    (
        lambda e: e.handle("o-1").query("total", object()),
        errors.SerializationError,
        "arguments of query 'total'[0]: values of type object cannot be written",
    ),
    (lambda e: e.handle("o-1").query("total", "x" * 200), errors.PayloadTooLarge, "arguments of query 'total': 204"),
]


@pytest.mark.parametrize(("call", "kind", "text"), BAD, ids=[f"{n} {text[:30]}" for n, (*_, text) in enumerate(BAD)])
async def test_a_query_that_makes_no_sense_is_refused(call, kind, text):
    async with workerless_engine(registry, max_payload=100) as (engine, _):
        await engine.start("sell", id="o-1")
        with pytest.raises(kind) as found:
            await call(engine)

        assert text in str(found.value)


# Workers.


async def asked_of_a_worker(query, *args, known=registry, queue="default"):
    """Ask a client without code, while a worker with the code in *known* serves the default queue."""
    clock = ManualClock()
    store = MemoryStore(clock)
    async with Engine(store, worker=False, clock=clock, registry=Registry()) as client:
        handle = await client.start("sell", id="o-1", queue=queue)
        async with Engine(store, clock=clock, registry=known, queues=["default"]):
            return await asyncio.wait_for(handle.query(query, *args), HANGS)


async def test_a_worker_answers_for_those_who_do_not_have_the_code():
    name, entries, total = await asked_of_a_worker("total", 1, 2)

    assert (name, total) == ("sell", 3)
    assert entries >= 1


async def test_a_worker_answers_for_a_run_that_it_does_not_advance():
    """The run is closed and not held, and nothing of it changes."""
    clock = ManualClock()
    store = MemoryStore(clock)
    async with (
        Engine(store, clock=clock, registry=registry),
        Engine(store, worker=False, clock=clock, registry=Registry()) as client,
    ):
        handle = await client.start("sell", id="o-1")
        await handle.terminate()
        before = await handle.history()
        [name, *_] = await asyncio.wait_for(handle.query("total"), HANGS)

        assert name == "sell"
        assert len(before) <= len(await handle.history()) <= len(before) + 1  # deactivated meanwhile


@pytest.mark.parametrize(
    ("query", "kind", "text"),
    [
        ("broken", ValueError, "no total"),
        ("odd", errors.NotFound, "workflow 'sell' has no handler for 'odd'"),
        ("stopped", errors.StoreError, "the query handler raised CancelledError"),
    ],
)
async def test_what_goes_wrong_with_a_question_is_its_answer(query, kind, text):
    with pytest.raises(kind, match=text):
        await asked_of_a_worker(query)


async def test_a_worker_that_does_not_know_the_workflow_says_so():
    with pytest.raises(errors.NotFound, match="workflow 'sell' is not registered here"):
        await asked_of_a_worker("total", known=Registry())


async def test_a_question_that_never_ends_is_interrupted_and_the_worker_goes_on(monkeypatch):
    def stuck(*_):
        while True:
            pass

    monkeypatch.setattr(query, "answer_query", stuck)
    clock = ManualClock()
    store = MemoryStore(clock)
    async with Engine(store, worker=False, clock=clock, registry=Registry()) as client:
        handle = await client.start("sell", id="o-1")
        async with Engine(store, clock=clock, registry=registry, tick_limit=0.5) as engine:
            with pytest.raises(Exception, match=r"ran 0\.5 s without yielding and was interrupted"):
                await asyncio.wait_for(handle.query("total"), HANGS)
            done = await engine.start(sell)
            await done.signal("go")
            await asyncio.wait_for(done.result(), HANGS)
