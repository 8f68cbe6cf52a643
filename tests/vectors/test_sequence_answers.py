"""Sequence matching and what answers commands: results, failures, cancellations, time and ids are the same on replay.

What is a row of the table is tested as that row (`test_sequence_rows`, `test_sequence_matcher`, `test_sequence_engine`).
"""

import asyncio
from typing import Any

import pytest
from msgspec import Raw

from resurgam import Context
from resurgam.core import event as events
from resurgam.core.outcome import Entry
from resurgam.core.state import Status
from resurgam.errors import ActivityFailed, CorruptHistory, OperationFailed
from resurgam.runtime.execution.execution import Execution
from resurgam.store.memory.store import MemoryStore
from resurgam.testing import Environment, ManualClock, Simulation, replay
from resurgam.testing.simulation import START
from vectors.event_notation import answer_of, history, registry_of, told, workflow

BOTH = pytest.mark.parametrize("matching", ["sequence", "location"])


async def lives(code: Any, count: int = 3, **options: Any) -> tuple[Any, list[events.Event]]:
    """Run a workflow that waits for a signal *count* times, each time in a new engine and an hour later."""
    clock = ManualClock()
    store = MemoryStore(clock)
    registry = registry_of()
    workflow(code, registry, **options)
    async with Environment(store=store, clock=clock, registry=registry) as env:
        await env.start("w", id="x")
    for _ in range(count):
        clock.move_to(clock.now() + 3_600_000)
        async with Environment(store=store, clock=clock, registry=registry) as env:
            handle = env.engine.handle("x")
            await handle.signal("go")
            await env.settle()
            log = await handle.history()
    assert log[-1].type == "workflow_deactivated"
    report = await replay(registry.workflows.find("w"), log)
    assert (report.diverged, report.new) == (None, ())
    return answer_of(log), log


@BOTH
async def test_clearing_state_is_not_written_again(matching):
    async def code(ctx: Context) -> object:
        ctx.set("temp", 1)
        ctx.clear("temp")
        for _ in range(3):
            await ctx.listen("go")
        return ctx.get("temp")

    result, log = await lives(code, matching=matching)

    assert result is None
    assert [entry.type for entry in log].count("state_cleared") == 1


@BOTH
async def test_operations_of_one_name_each_keep_their_own_value(matching):
    ran: list[int] = []

    async def code(ctx: Context) -> list[int]:
        def draw() -> int:
            ran.append(len(ran))
            return ran[-1]

        drawn = [await ctx.run(draw), await ctx.run(draw)]
        await ctx.listen("go")
        drawn.append(await ctx.run(draw))
        await ctx.listen("go")
        return drawn

    result, _ = await lives(code, 2, matching=matching)

    assert result == [0, 1, 2]
    assert ran == [0, 1, 2]


async def waits_for_a(ctx: Context) -> str:
    return await ctx.activity("A")


async def test_a_second_answer_is_neither_recorded_nor_replayed():
    """A failure stays one, whatever comes later; a history that holds both is refused."""
    execution = Execution(workflow(waits_for_a), history("task A"))
    failed = events.ActivityFailed(ref=2, at=START, failure=events.Failure(type="builtins.ValueError", message="no"))
    done = events.ActivityCompleted(ref=2, at=START, result=Raw(b'"late"'))
    outcome = execution.advance([Entry(1, failed), Entry(2, done)], START)

    assert [entry.type for entry in outcome.events] == ["activity_failed", "workflow_failed", "workflow_deactivated"]
    assert outcome.consumed == (1, 2)
    with pytest.raises(CorruptHistory, match="answers entry 2, which is not open"):
        await replay(workflow(waits_for_a), history('task A | failed 0 no | done 0 "late"'))


@BOTH
async def test_a_cancellation_is_recorded_once_for_its_target(matching):
    async def code(ctx: Context) -> str:
        first, second = ctx.sleep(10**6), ctx.sleep(10**6)
        second.cancel()
        await ctx.listen("go")
        first.cancel()
        await ctx.listen("go")
        return f"{first.cancelled()} {second.cancelled()}"

    result, log = await lives(code, 2, matching=matching)

    assert result == "True True"
    assert [entry.ref for entry in log if isinstance(entry, events.TimerCancelled)] == [3, 2]


async def test_cancellations_in_another_order_replay():
    """They take no place, so their order among each other is nothing that could differ."""

    def code(*order: int) -> Any:
        async def cancels(ctx: Context) -> str:
            timers = [ctx.sleep(100), ctx.sleep(200), ctx.sleep(300)]
            for index in order:
                timers[index].cancel()
            await ctx.activity("A")
            return "done"

        return workflow(cancels)

    log = await Simulation(code(0, 1, 2), registry=registry_of()).run()
    report = await replay(code(2, 0, 1), log)

    assert (report.diverged, report.new, report.result) == (None, (), "done")


async def test_cancelling_twice_or_too_late_has_no_effect():
    async def code(ctx: Context) -> list[Any]:
        done = ctx.activity("A")
        heard = await done
        timer = ctx.sleep(5)
        return [heard, done.cancel(), timer.cancel(), timer.cancel(), await done]

    log = await Simulation(workflow(code), registry=registry_of()).run()

    assert answer_of(log) == ["A", False, True, False, "A"]
    assert [entry.type for entry in log].count("timer_cancelled") == 1
    assert (await replay(workflow(code), log)).result == answer_of(log)


@BOTH
async def test_a_request_to_cancel_replays(matching):
    async def code(ctx: Context) -> None:
        try:
            await ctx.activity("A")
        finally:
            await ctx.activity("B")

    definition = workflow(code, matching=matching)
    log = history("task A", workflow_started(matching))
    world = Simulation(definition, log=log, registry=registry_of(), messages=[events.CancelRequested()], chooser=Last())
    whole = await world.run()

    assert world.status is Status.CANCELLED
    assert [entry.type for entry in whole[2:6]] == [
        "cancel_requested",
        "activity_cancelled",
        "activity_scheduled",
        "activity_completed",
    ]
    for length in range(3, 6):
        again = Simulation(definition, log=whole[:length], registry=registry_of())
        assert await again.run() == whole


def workflow_started(matching: str) -> events.WorkflowStarted:
    from vectors.event_notation import started

    return started(matching)


class Last:
    """The chooser that takes the last possibility."""

    def choice(self, seq: Any) -> Any:
        return seq[-1]


@BOTH
async def test_time_is_that_of_the_entry_not_of_the_activation(matching):
    seen: list[list[str]] = []

    async def code(ctx: Context) -> list[str]:
        times = [ctx.now().isoformat()]
        seen.append(times)
        for _ in range(3):
            await ctx.listen("go")
            times.append(ctx.now().isoformat())
        return times

    result, _ = await lives(code, matching=matching)

    assert [time[11:16] for time in result] == ["22:13", "23:13", "00:13", "01:13"]
    assert all(times == result[: len(times)] for times in seen)


@BOTH
async def test_ids_of_the_user_and_of_tasks_do_not_shift_each_other(matching):
    def code(*, drawn: bool) -> Any:
        async def w(ctx: Context) -> list[str]:
            ids = [str(ctx.uuid4())]
            if drawn:
                _ = ctx.random.random()
                await ctx.activity("A")
            ids.append(str(ctx.uuid4()))
            return ids

        return workflow(w, matching=matching)

    first, second = [await Simulation(code(drawn=drawn), registry=registry_of()).run() for drawn in (True, False)]

    assert answer_of(first) == answer_of(second)
    assert len(set(answer_of(first))) == 2


@BOTH
@pytest.mark.parametrize(("order", "told_of"), [((0, 1), "first"), ((1, 0), "second")])
async def test_the_first_failure_in_the_log_is_the_one_that_is_told(order, told_of, matching):
    async def code(ctx: Context) -> str:
        try:
            await asyncio.gather(ctx.activity("A"), ctx.activity("B"))
        except ActivityFailed as error:
            return str(error.cause)
        return "none"

    failures = {0: "failed 0 first", 1: "failed 1 second"}
    text = " | ".join(["task A", "task B", *(failures[index] for index in order)])
    report = await replay(workflow(code, matching=matching), history(text, workflow_started(matching)))

    assert report.result == told_of


@BOTH
async def test_a_failure_of_an_operation_is_recorded_and_told_again(matching):
    ran: list[int] = []

    async def code(ctx: Context) -> str:
        def effect() -> None:
            ran.append(1)
            raise ValueError("once")

        try:
            await ctx.run(effect)
        except OperationFailed as error:
            await ctx.listen("go")
            return str(error.cause)
        return "none"

    result, _ = await lives(code, 1, matching=matching)

    assert result == "once"
    assert ran == [1]


async def test_a_late_answer_to_an_orphan_is_recorded_and_nothing_more():
    """Row 5, live: the orphan is still at work when the code has ended; its answer closes the history."""
    execution = Execution(workflow(waits_for_a), history('task A | done 0 "a" | task B'))
    outcome = execution.advance([], START)

    assert outcome.status is Status.COMPLETED
    assert not outcome.deactivated
    assert [withdrawal.ref for withdrawal in outcome.withdrawals] == [4]
    report = await replay(workflow(waits_for_a), history('task A | done 0 "a" | task B | done 1 "late"'))
    assert (told(report.orphans), report.result) == (["Task(1) B"], "a")
