"""Parking a run: answers in memory are written, and nothing new is dispatched."""

import asyncio

import pytest
from msgspec import Raw

from resurgam import Context, Registry
from resurgam.core import event as events
from resurgam.core.location import Location
from resurgam.core.outcome import Entry
from resurgam.core.state import Status
from resurgam.runtime.execution.execution import Execution
from resurgam.testing.simulation import START, start_event


@pytest.fixture(autouse=True)
def quiet(caplog):
    """Divergences are logged; they are expected here."""
    caplog.set_level("CRITICAL", logger="resurgam")


def timer_in_strand_one(seq):
    """Return a timer that another build has started at the location where this one ends."""
    return events.TimerStarted(
        seq=seq, at=START, location=Location.parse("{1, 2}"), command="Timer(0)@{1}", deadline=10**15
    )


async def test_answers_of_operations_in_memory_are_written():
    """Two operations have run when the first answer diverges; the second is written too, or it would run again."""

    async def parks(ctx: Context) -> None:
        async def first() -> None:
            await ctx.run(lambda: 1, name="x")

        async def second() -> None:
            await ctx.run(lambda: 2, name="y")
            await ctx.listen("q")

        await asyncio.gather(first(), second())

    workflow = Registry().workflow(parks)
    log = [start_event(workflow, ())]
    begun = Execution(workflow, log)
    log += begun.advance([], START).events
    begun.close()
    log.append(timer_in_strand_one(len(log) + 1))
    execution = Execution(workflow, log)
    execution.advance([], START)
    answers = [
        Entry(None, events.OperationCompleted(ref=operation.ref, at=START, result=Raw(b"1")))
        for operation in execution.take_operations()
    ]

    outcome = execution.advance(answers, START)

    assert len(answers) == 2
    assert outcome.status is Status.DIVERGED
    assert [entry.type for entry in outcome.events] == [
        "operation_completed",
        "operation_completed",
        "workflow_diverged",
    ]
    assert [entry.seq for entry in outcome.events] == [7, 8, 9]


activities = Registry()


@activities.activity
async def echo(x: int) -> int:
    return x


async def test_an_activity_cancelled_in_an_earlier_tick_is_not_dispatched():
    """It is recorded, but not put on a queue."""

    async def parks(ctx: Context) -> None:
        async def first() -> None:
            bool(await ctx.listen("q"))  # inspected, so that a rehearsal cannot predict the divergence

        async def second() -> None:
            await ctx.listen("p")
            ctx.activity("echo", 1).cancel()
            await ctx.listen("never")

        await asyncio.gather(first(), second())

    workflow = Registry().workflow(parks)
    log = [start_event(workflow, ())]
    begun = Execution(workflow, log)
    log += begun.advance([], START).events
    begun.close()
    log.append(timer_in_strand_one(len(log) + 1))
    signals = [Entry(n, events.SignalReceived(name=name, id=name, at=START)) for n, name in enumerate("pq", 1)]

    outcome = Execution(workflow, log).advance(signals, START)

    assert outcome.status is Status.DIVERGED
    assert [entry.type for entry in outcome.events] == [
        "signal_received",
        "signals_consumed",
        "activity_scheduled",
        "activity_cancelled",
        "listen_started",
        "signal_received",
        "signals_consumed",
        "workflow_diverged",
    ]
    assert outcome.activities == ()
