"""What `describe()` tells of open work, and of the input, the result and the state of a workflow."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from msgspec import Raw

from resurgam import Context, Registry, RetryPolicy, activity
from resurgam.core import event as events
from resurgam.store import records as r
from resurgam.testing import Environment
from resurgam.testing.contract.bench import LEASE, lease_of, request, retried
from support.manual_worker import FAILURE, at, workerless_engine

registry = Registry()


@registry.activity
async def crawl(url: str) -> None:
    activity.heartbeat({"page": 3})
    await asyncio.get_running_loop().create_future()


@registry.workflow
async def index(ctx: Context, url: str) -> None:
    await ctx.activity(crawl, url)


@registry.workflow(retry=RetryPolicy(max_attempts=3, initial_interval=60, jitter=0))
async def look_up(ctx: Context, key: str) -> None:
    raise LookupError(f"no {key}")


@registry.workflow
async def search(ctx: Context, key: str) -> None:
    await ctx.workflow(look_up, key, id="child")


@registry.workflow
async def count(ctx: Context, upto: int) -> list[int]:
    ctx.set("seen", [1, 2])
    ctx.set("gone", 1)
    ctx.clear("gone")

    @ctx.on_update("add")
    async def add(number: int) -> None:
        await ctx.sleep(60)

    await ctx.listen("go")
    return list(range(upto))


def moment(milliseconds):
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


async def pending(handle):
    [work] = (await handle.describe()).pending
    return work


async def test_an_activity_tells_its_attempt_its_worker_and_its_last_error():
    async with workerless_engine() as (engine, worker):
        handle = await engine.start("sell", id="o-1")
        scheduled = events.ActivityScheduled(name="charge", queue="q", **at(1))
        await worker.does("o-1", scheduled, activities=(request(2, "q"),))
        work = await pending(handle)
        assert (work.kind, work.name, work.queue, str(work.location)) == ("activity", "charge", "q", "{1}")
        assert (work.status, work.attempt, work.max_attempts, work.worker) == ("queued", 1, 5, None)

        await worker.task(queues=["q"])
        assert ((await pending(handle)).status, (await pending(handle)).worker) == ("running", "first")
        await worker.pass_time(LEASE)
        assert ((await pending(handle)).status, (await pending(handle)).worker) == ("lost", "first")
        task = await worker.task("second", queues=["q"])
        work = await pending(handle)
        assert (work.status, work.worker, work.redeliveries, work.error) == ("running", "second", 1, None)

        next_at = worker.clock.now() + 500
        await worker.answer(task, retried(task, next_at))  # which the workflow has not read yet
        work = await pending(handle)
        assert (work.status, work.attempt, work.redeliveries, work.next_try) == ("retrying", 2, 0, moment(next_at))
        assert str(work.error) == "no"
        await worker.pass_time(500)
        assert (await pending(handle)).status == "queued"


async def test_an_activity_tells_its_last_heartbeat():
    async with workerless_engine() as (engine, worker):
        handle = await engine.start("sell", id="o-1")
        scheduled = events.ActivityScheduled(name="charge", queue="q", **at(1))
        await worker.does("o-1", scheduled, activities=(request(2, "q"),))
        lease = lease_of(await worker.task(queues=["q"]))
        assert (await pending(handle)).heartbeat_at is None
        beat = r.Lease(
            entity_id=lease.entity_id,
            execution_id=lease.execution_id,
            epoch=lease.epoch,
            ref=2,
            details=Raw(b'{"page":3}'),
            heartbeat_at=7000,
        )
        await worker.store.extend([beat])
        work = await pending(handle)
        assert (work.heartbeat_at, work.details) == (moment(7000), {"page": 3})


async def test_a_worker_reports_heartbeats_with_its_leases():
    async with Environment(registry=registry, lease=30, name="crawler") as env:
        handle = await env.start(index, "https://example.org")
        beat_at = env.now()
        await env.advance(timedelta(seconds=11))
        work = await pending(handle)
        assert (work.status, work.heartbeat_at, work.details) == ("running", beat_at, {"page": 3})
        assert work.worker.startswith("crawler-")


async def test_an_answer_that_the_workflow_has_not_read_is_told():
    async with workerless_engine() as (engine, worker):
        handle = await engine.start("sell", id="o-1")
        scheduled = events.ActivityScheduled(name="charge", queue="q", **at(1))
        await worker.does("o-1", scheduled, activities=(request(2, "q"),))
        await worker.answer(await worker.task(queues=["q"]))
        assert (await pending(handle)).status == "answered"


async def test_a_child_tells_its_attempt_its_last_error_and_its_next_try():
    async with Environment(registry=registry) as env:
        handle = await env.start(search, "key")
        work = await pending(handle)
        assert (work.kind, work.entity_id, work.status, work.attempt) == ("child", "child", "running", 2)
        assert (repr(work.error), work.next_try) == ("LookupError('no key')", env.now() + timedelta(seconds=60))
        child = await env.engine.handle("child").describe()
        assert repr(child.previous_error) == "LookupError('no key')"
        assert (await handle.describe()).previous_error is None


async def test_updates_are_told_while_they_wait_and_while_they_are_handled():
    async with workerless_engine() as (engine, worker):
        handle = await engine.start("sell", id="o-1")
        await worker.store.deliver(
            [r.Delivery(event=events.UpdateAccepted(at=5, name="add", id="u-1"), entity_id="o-1")]
        )
        work = await pending(handle)
        assert (work.kind, work.name, work.entity_id, work.status) == ("update", "add", "u-1", "queued")
    async with Environment(registry=registry) as env:
        handle = await env.start(count, 3)
        waiting = asyncio.create_task(handle.update("add", 1, id="u-2"))
        await env.settle()
        found = await handle.describe()
        assert [(one.kind, one.status) for one in found.pending] == [
            ("listener", "open"),
            ("timer", "open"),
            ("update", "running"),
        ]
        waiting.cancel()


async def test_input_result_and_state_are_plain_values():
    async with Environment(registry=registry) as env:
        handle = await env.start(count, 3)
        found = await handle.describe()
        assert (found.input, found.state, found.result) == ([3], {"seen": [1, 2]}, None)
        await handle.signal("go")
        await env.settle()
        found = await handle.describe()
        assert (found.status, found.result, found.pending) == ("completed", [0, 1, 2], ())


async def test_an_execution_tells_who_holds_it_and_how_often_it_was_handed_out():
    async with workerless_engine() as (engine, worker):
        handle = await engine.start("sell", id="o-1")
        await worker.claim()
        found = await handle.describe()
        assert (found.worker, found.redeliveries) == ("first", 0)
        await worker.pass_time(LEASE)
        assert (await handle.describe()).worker is None
        await worker.claim("second")
        found = await handle.describe()
        assert (found.worker, found.redeliveries) == ("second", 1)


@pytest.mark.parametrize(
    ("command", "kind", "until", "entity_id"),
    [
        (events.TimerStarted(deadline=9000, **at(1)), "timer", 9000, None),
        (events.ListenStarted(name="go", names=("go",), deadline=9000, **at(1)), "listener", 9000, None),
        (events.PromiseCreated(name="pay", promise_id="p-1", deadline=9000, **at(1)), "promise", 9000, "p-1"),
        (events.SignalSent(name="go", entity_id="o-2", id="s", **at(1)), "signal", None, "o-2"),
        (events.OperationStarted(name="read", **at(1)), "operation", None, None),
    ],
    ids=lambda value: getattr(value, "type", None),
)
async def test_what_is_open_tells_its_kind_and_its_deadline(command, kind, until, entity_id):
    async with workerless_engine() as (engine, worker):
        handle = await engine.start("sell", id="o-1")
        await worker.does("o-1", command)
        work = await pending(handle)
        assert (work.kind, work.entity_id, work.status) == (kind, entity_id, "open")
        assert work.until == (None if until is None else moment(until))


async def test_an_activity_that_outlives_its_workflow_is_still_told():
    async with workerless_engine() as (engine, worker):
        handle = await engine.start("sell", id="o-1")
        scheduled = events.ActivityScheduled(name="charge", queue="q", **at(1))
        await worker.does("o-1", scheduled, events.TimerStarted(deadline=9, **at(2)), activities=(request(2, "q"),))
        await worker.task(queues=["q"])
        await worker.send_signals("o-1", "x")
        await worker.fails("o-1", FAILURE)
        work = await pending(handle)
        assert (work.kind, work.status) == ("activity", "running")
        assert (await handle.describe()).waiting_for == ()
