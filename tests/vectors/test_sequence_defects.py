"""Every defect that is known of the engine whose rules these are, as far as it is about replay.

Those that are a row of the table are tested as that row (`test_sequence_rows`, `_matcher` and `_engine`); a test here is
named after its defect; for the rest it is said why this design cannot have it:

=====================================================  ================================================================
defect                                                 where it is tested, or why it cannot be
=====================================================  ================================================================
state writes are not validated on replay               rows 40, 41
clearing state is written again on each activation     test_clearing_state_is_not_written_again
operations are cached by name, the last one wins       test_operations_of_one_name_each_keep_their_own_value
a history that cannot be read is an empty one          row 61
the latest of two terminal entries wins                test_a_second_answer_is_neither_recorded_nor_replayed
a cancelled task is never terminal                     rows 20, 50
unknown event types are read as something else         row 57
children are answered by name                          every answer carries ``ref``, the number of its command
cancel() records nothing                               test_a_cancellation_is_recorded_once_for_its_target
cancellations are matched by position                  test_cancellations_in_another_order_replay
a second cancel(), one after the answer                test_cancelling_twice_or_too_late_has_no_effect
the workflow never hears that it is cancelled          test_a_request_to_cancel_replays
time differs from activation to activation             test_time_is_that_of_the_entry_not_of_the_activation
random numbers can be exactly 1.0                      `random.Random`, seeded by run and strand
one counter of ids for tasks, children and the user    row 52, test_ids_of_the_user_and_of_tasks_do_not_shift_each_other
waiting is an exception that code can swallow          row 55: waiting is a coroutine that is not resumed
"expected" says now the code, now the history          test_sequence_matcher: the texts
a violation is raised when polled                      row 54
a clash of state writes leaves the run running         row 41, which fails
violations are recorded as ERROR                       DETERMINISM_VIOLATION: every violation in test_sequence_rows
a cancelled run is recorded as ERROR                   test_a_request_to_cancel_replays
join takes the first error by position                 test_the_first_failure_in_the_log_is_the_one_that_is_told
select takes the lowest index that is ready            rows 24, 25
join_n in the order of polling                         there is none; `asyncio.wait` sees what the log says (laws)
a timeout prefers the inner future                     rows 22, 23
a race of nobody waits for ever                        row 60
results are handed out at creation                     rows 23 to 27, 42, 47, 48; the laws
counters are not scoped                                rows 26, 27, 65
no tools for versions                                  test_sequence_versions
inputs and durations are never compared                input_check in test_sequence_knobs
orphans are invisible                                  orphans in test_sequence_knobs
violations can be swallowed                            test_sequence_verdict
effects of ``run`` are evaluated again                 row 34: the function is given, not its value
failures of ``run`` are not recorded                   test_a_failure_of_an_operation_is_recorded_and_told_again
an absolute sleep that is past takes no place          row 53
two implementations that differ                        one matcher, run by worker, testing.replay and rehearsal alike
a Suspended entry for each wake                        there is no such event
wake-ups are lost                                      the store's wake counter, `testing.contract.wakeups`
=====================================================  ================================================================
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
