"""Commands that the recorded code cancelled, but that changed code awaits."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Raw

from resurgam import Context, Registry
from resurgam.core import event as events
from resurgam.core.state import Status
from resurgam.runtime.definitions.definition import Workflow
from resurgam.testing import replay
from resurgam.testing.simulation import Simulation

GO = events.SignalReceived(name="go", id="1", value=Raw(b"1"))
CALLS: dict[str, Callable[[Context], Any]] = {
    "timer": lambda ctx: ctx.sleep(100),
    "activity": lambda ctx: ctx.activity("never", 1),
    "promise": lambda ctx: ctx.promise("p"),
    "listen": lambda ctx: ctx.listen("never"),
    "operation": lambda ctx: ctx.run(forever),
}
BOTH = pytest.mark.parametrize("matching", ["location", "sequence"])


async def forever() -> None:
    await asyncio.Event().wait()


def define(code: Callable[[Context], Any], matching: str = "location") -> Workflow[..., Any]:
    registry = Registry()

    async def changing(ctx: Context) -> str:
        return await code(ctx)

    return registry.workflow(name="changing", matching=matching)(changing)


async def record(code: Workflow[..., Any]) -> list[events.Event]:
    """Return the history of a run up to its first wait."""
    simulation = Simulation(code)
    try:
        await simulation.begin()
        return list(simulation.log)
    finally:
        simulation.close()


@BOTH
@pytest.mark.parametrize("call", CALLS)
async def test_awaiting_a_command_that_the_history_cancelled_raises_cancelled_error(call, matching):
    async def cancels(ctx: Context) -> str:
        CALLS[call](ctx).cancel()
        await ctx.listen("go")
        return "old"

    async def awaits(ctx: Context) -> str:
        future = CALLS[call](ctx)
        await ctx.listen("go")
        try:
            await future
        except asyncio.CancelledError:
            return "cancelled"
        return "a value"

    log = await record(define(cancels, matching))
    simulation = Simulation(define(awaits, matching), log=log, messages=[GO], registry=Registry())
    history = await simulation.run()

    assert simulation.status is Status.COMPLETED
    assert history[-2].result == Raw(b'"cancelled"')
    again = await replay(define(awaits, matching), history)
    assert (again.diverged, again.result) == (None, "cancelled")


async def test_the_cancellation_is_delivered_even_while_the_code_waits_for_something_else():
    """The order of the log decides: the future is settled at the recorded entry, not when nothing else is awaited."""

    async def cancels(ctx: Context) -> str:
        ctx.sleep(100).cancel()
        await ctx.listen("go")
        return "old"

    async def waits_for_either(ctx: Context) -> str:
        reminder, go = ctx.sleep(100), ctx.listen("go")
        done, _ = await asyncio.wait({reminder, go}, return_when=asyncio.FIRST_COMPLETED)
        return "reminder" if reminder in done else "go"

    log = await record(define(cancels))
    simulation = Simulation(define(waits_for_either), log=log)
    history = await simulation.run()

    assert history[-2].result == Raw(b'"reminder"')


async def test_a_task_in_asyncio_sleep_is_cancelled_with_its_recorded_timer():
    async def cancels(ctx: Context) -> str:
        task = asyncio.create_task(asyncio.sleep(100))
        await ctx.sleep(0)
        task.cancel()
        await ctx.listen("go")
        return "old"

    async def awaits(ctx: Context) -> str:
        task = asyncio.create_task(asyncio.sleep(100))
        await ctx.sleep(0)
        await ctx.listen("go")
        try:
            await task
        except asyncio.CancelledError:
            return "cancelled"
        return "slept"

    simulation = Simulation(define(cancels))
    await simulation.begin()
    while not any(isinstance(entry, events.ListenStarted) for entry in simulation.log):
        await simulation.step()
    log = list(simulation.log)
    simulation.close()
    assert "timer_cancelled" in [entry.type for entry in log]

    following = Simulation(define(awaits), log=log, messages=[GO])
    history = await following.run()

    assert history[-2].result == Raw(b'"cancelled"')


async def test_the_cancellation_of_a_call_delayed_by_an_inserted_step_is_kept():
    async def cancels(ctx: Context) -> str:
        ctx.sleep(100).cancel()
        await ctx.listen("go")
        return "old"

    async def inserts(ctx: Context) -> str:
        await ctx.v(2).sleep(5)
        reminder = ctx.sleep(100)
        await ctx.listen("go")
        try:
            await reminder
        except asyncio.CancelledError:
            return "cancelled"
        return "slept"

    log = await record(define(cancels))
    simulation = Simulation(define(inserts), log=log, messages=[GO])
    history = await simulation.run()

    assert history[-2].result == Raw(b'"cancelled"')
    again = await replay(define(inserts), history)
    assert (again.diverged, again.result) == (None, "cancelled")


async def cancels_the_first(ctx: Context) -> str:
    first, _ = ctx.sleep(100), ctx.sleep(200)
    first.cancel()
    await ctx.listen("go")
    return "old"


async def cancels_the_second(ctx: Context) -> str:
    _, second = ctx.sleep(100), ctx.sleep(200)
    second.cancel()
    await ctx.listen("go")
    return "new"


async def cancels_both(ctx: Context) -> str:
    first, second = ctx.sleep(100), ctx.sleep(200)
    first.cancel()
    second.cancel()
    await ctx.listen("go")
    return "new"


async def test_by_sequence_cancelling_another_timer_than_the_recorded_one_is_a_mismatch():
    log = await record(define(cancels_the_first, "sequence"))

    found = (await replay(define(cancels_the_second, "sequence"), log)).diverged

    assert str(found) == "Timer cancellation mismatch at Timer(0): expected 'Timer(1)', got 'Timer(0)'"


@pytest.mark.parametrize(
    ("code", "matching"),
    [(cancels_both, "sequence"), (cancels_both, "location"), (cancels_the_second, "location")],
)
async def test_cancelling_more_than_the_history_did_fits(code, matching):
    log = await record(define(cancels_the_first, matching))

    assert (await replay(define(code, matching), log)).diverged is None
