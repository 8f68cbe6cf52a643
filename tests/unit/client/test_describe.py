"""What a workflow waits for, in words, for each kind of intent."""

import asyncio
import sqlite3
from datetime import UTC, datetime

import pytest

from resurgam import Context, Engine, Registry, Status
from resurgam.core import event as events
from resurgam.core.errors import CorruptHistory
from resurgam.testing import Environment
from support.manual_worker import at, workerless_engine

HOUR = 3_600_000
WAITS = [
    (events.ActivityScheduled(name="charge", queue="q", **at(1)), "activity 'charge' on queue 'q' at {1}"),
    (events.TimerStarted(deadline=HOUR, **at(1)), "timer until 1970-01-01T01:00:00+00:00 at {1}"),
    (events.ListenStarted(name="go", names=("go", "no"), **at(1)), "signal 'go' or 'no' at {1}"),
    (
        events.ChildScheduled(name="ship", queue="q", entity_id="c-1", run_id="r", **at(1)),
        "child workflow 'ship' (c-1) on queue 'q' at {1}",
    ),
    (events.PromiseCreated(name="pay", promise_id="p", **at(1)), "promise 'pay' at {1}"),
    (
        events.PromiseCreated(name="pay", promise_id="p", deadline=HOUR, **at(1)),
        "promise 'pay' until 1970-01-01T01:00:00+00:00 at {1}",
    ),
    (events.SignalSent(name="go", entity_id="o-2", id="s", **at(1)), "signal 'go' to reach workflow 'o-2' at {1}"),
    (events.PromiseSettled(name="pay", **at(1)), "the settlement of promise 'pay' at {1}"),
    (events.OperationStarted(name="read", **at(1)), "operation 'read' at {1}"),
    (events.SagaStepRegistered(name="charge", undo="refund", **at(1)), "a worker that serves queue 'default'"),
    (events.LoopStarted(**at(1)), "a worker that serves queue 'default'"),
]


@pytest.mark.parametrize(("command", "text"), WAITS, ids=[command.type for command, _ in WAITS])
async def test_what_is_waited_for_is_said_in_words(command, text):
    async with workerless_engine() as (engine, worker):
        handle = await engine.start("sell", id="o-1")
        await worker.does("o-1", command)

        assert (await handle.describe()).waiting_for == (text,)


async def test_a_step_of_a_saga_that_is_taken_back_is_waited_for():
    async with workerless_engine() as (engine, worker):
        handle = await engine.start("sell", id="o-1")
        step = events.SagaStepRegistered(name="charge", undo="refund", **at(1))
        await worker.does("o-1", step, events.SagaCompensationStarted(ref=2))

        assert (await handle.describe()).waiting_for == ("compensation 'refund' of saga step 'charge' at {1}",)


async def test_a_root_has_no_parent_and_no_previous_execution():
    async with workerless_engine() as (engine, worker):
        handle = await engine.start("sell", id="o-1")
        found = await handle.describe()
        await worker.continues("o-1", "run-two")
        after = await handle.describe()

        assert (found.parent, found.previous, found.paused, found.begins_at) == (None, None, False, None)
        assert (after.previous, after.generation, after.run_id) == (found.execution_id, 2, "run-two")


@pytest.fixture(autouse=True)
def quiet(caplog):
    """Divergences are logged; they are expected here."""
    caplog.set_level("CRITICAL", logger="resurgam")


async def test_a_deadline_at_the_end_of_the_calendar_can_be_described():
    """It is shown as the last day there is, also where a result does not come in time."""
    registry = Registry()

    @registry.workflow
    async def waits(ctx: Context) -> None:
        await ctx.sleep_until(datetime.max.replace(tzinfo=UTC))

    async with Environment(registry=registry) as env:
        handle = await env.start(waits)
        description = await handle.describe()
        with pytest.raises(TimeoutError, match="waits for timer until 9999-12-31T00:00:00"):
            await handle.result(timeout=0)

    assert description.waiting_for == ("timer until 9999-12-31T00:00:00+00:00 at {1}",)


async def test_the_longest_sleep_can_be_described():
    """Three thousand years are a length of time, and their end has a date."""
    registry = Registry()

    @registry.workflow
    async def waits(ctx: Context) -> None:
        last = datetime.max.replace(tzinfo=UTC)
        await asyncio.gather(ctx.sleep(9.9e10), ctx.sleep_until(last))

    async with Environment(registry=registry) as env:
        handle = await env.start(waits)
        description = await handle.describe()

    assert description.waiting_for == (
        "timer until 5161-01-21T06:13:20+00:00 at {1}",
        "timer until 9999-12-31T00:00:00+00:00 at {2}",
    )


async def test_an_entry_that_cannot_be_decoded_is_named_and_those_before_it_are_described(tmp_path):
    registry = Registry()

    @registry.workflow
    async def order(ctx: Context, item: str) -> str:
        ctx.set("stage", "new")
        ctx.set("stage", "paid")
        return await ctx.listen("approve", type=str)

    url = f"sqlite:///{tmp_path}/x.db"
    async with Environment(store=url, registry=registry) as env:
        await env.start(order, "teapot", id="o-1")
    with sqlite3.connect(tmp_path / "x.db") as connection:
        connection.execute("""UPDATE events SET body = '{"type":"of_tomorrow"}' WHERE seq = 3""")

    async with Engine(url, registry=registry, worker=False) as engine:
        found = await engine.handle("o-1").describe()

    assert (found.status, found.input, found.state) == (Status.RUNNING, ["teapot"], {"stage": "new"})
    assert (found.pending, found.waiting_for) == ((), ("a build that can read its history",))
    assert isinstance(found.error, CorruptHistory)
    assert str(found.error).startswith(f"entry 3 of execution {found.execution_id} cannot be read: ")


@pytest.mark.parametrize("recorded", [False, True])
async def test_a_condition_of_the_code_is_not_taken_for_a_missing_worker(recorded):
    """Its history shows no open command, though a worker serves its queue."""
    registry = Registry()

    @registry.workflow
    async def waits(ctx: Context) -> None:
        if recorded:
            ctx.set("stage", "paid")
        await ctx.until(lambda: False)

    async with Environment(registry=registry) as env:
        handle = await env.start(waits)
        await env.settle()
        [text] = (await handle.describe()).waiting_for
    own, _, other = text.partition("; ")
    assert own == "a condition of its own code: ctx.until, or an asyncio object"
    assert other == ("" if recorded else "or a free worker of queue 'default'")


async def test_a_dead_letter_waits_for_its_release():
    async with workerless_engine() as (engine, worker):
        handle = await engine.start("sell", id="o-1")
        await worker.release(await worker.take("o-1"), failed="it kills its worker", final=True)
        described = await handle.describe()
    assert described.waiting_for == ("handle.retry(), which releases a dead letter",)
    assert described.error == "it kills its worker"
