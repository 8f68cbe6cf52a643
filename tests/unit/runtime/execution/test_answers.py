"""Answers reach the code in the same tick live and on replay, also after an end or between attempts."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from resurgam import Context, Registry, RetryPolicy
from resurgam.core import event as events
from resurgam.core.outcome import Entry
from resurgam.errors import ChildWorkflowFailed
from resurgam.runtime.execution import late_results
from resurgam.runtime.execution.execution import Execution
from resurgam.runtime.loop.outside_task import run_outside_task
from resurgam.testing import Simulation, crash_everywhere

registry = Registry()


@registry.activity
def a(value: int) -> int:
    return value


@registry.workflow
async def child(ctx: Context, value: int) -> int:
    return await ctx.activity(a, value)


def code(function: Any) -> Any:
    return registry.copy().workflow(function)


async def cut_after(workflow: Any, kind: type[events.Event], **outside: Any) -> tuple[Simulation, Simulation]:
    """Run a workflow, and once more from right after the first entry of a kind."""
    whole = Simulation(workflow, keep=True, registry=registry, **outside)
    await whole.run()
    point = next(point for point in whole.points if isinstance(point.entry, kind))
    resumed = Simulation(workflow, at=point, registry=registry, **outside)
    await resumed.run()
    return whole, resumed


async def test_a_child_cancelled_before_its_start_is_cancelled_at_once_on_replay_too():
    """Not only in the tick of its entry."""

    @code
    async def parent(ctx: Context) -> list[int]:
        async def called_off() -> int:
            gone = ctx.workflow(child, 1)
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
            return await ctx.activity(a, 2)

        async def beside() -> int:
            for _ in range(9):
                await asyncio.sleep(0)
            return await ctx.activity(a, 3)

        return list(await asyncio.gather(called_off(), beside()))

    whole, resumed = await cut_after(parent, events.ChildCancelled)

    assert len(whole.histories) == 1
    assert [entry.to_json() for entry in resumed.log] == [entry.to_json() for entry in whole.log]


def types(log: Any) -> list[str]:
    return [entry.type for entry in log]


def outcome_of(world: Simulation) -> bytes:
    [end] = [entry for entry in world.log if isinstance(entry, events.WorkflowCompleted)]
    return bytes(end.result)


async def test_code_that_no_longer_cancels_a_child_before_its_start_gets_the_recorded_cancellation():
    def version(*, called_off: bool) -> Any:
        async def parent(ctx: Context) -> str:
            gone = ctx.workflow(child, 1)
            if called_off:
                gone.cancel()
            [outcome] = await asyncio.gather(gone, return_exceptions=True)
            await ctx.activity(a, 1)
            return type(outcome).__name__

        return code(parent)

    before = Simulation(version(called_off=True), registry=registry)
    await before.run()
    after = Simulation(version(called_off=False), log=before.as_of(4), registry=registry)

    assert types(await after.run()) == types(before.log)
    assert outcome_of(after) == outcome_of(before) == b'"CancelledError"'


async def test_an_answer_from_outside_is_recorded_after_the_end():
    """It carries an address, by which its command is found."""

    @code
    async def workflow(ctx: Context) -> None:
        ctx.promise("p")
        await ctx.resolve(ctx.promise("q").promise_id, 1)

    log = list((await crash_everywhere(workflow, registry=registry)).history)
    ended = next(number for number, entry in enumerate(log) if isinstance(entry, events.WorkflowCompleted))
    created = next(entry for entry in log if isinstance(entry, events.PromiseCreated))
    settled = events.PromiseResolved(ref=0, promise_id=created.promise_id, at=log[ended].at)
    late = late_results.record(log[: ended + 1], [Entry(1, settled)], log[ended].at)

    assert [(entry.type, entry.ref) for entry in late.events] == [
        ("promise_resolved", created.seq),
        ("workflow_deactivated", None),
    ]


async def test_an_update_that_waits_for_its_handler_does_not_hold_up_a_deadline():

    @code
    async def workflow(ctx: Context) -> None:
        await ctx.sleep(1)
        await ctx.sleep(0)
        await ctx.activity(a, 1)

    update = events.UpdateAccepted(name="not handled", id="u")
    whole = Simulation(workflow, keep=True, registry=registry, messages=[update])
    await whole.run()
    log = next(point.log for point in whole.points if isinstance(point.entry, events.TimerFired))
    execution = Execution(workflow, log)
    sent = msgspec.structs.replace(update, at=log[-1].at)
    outcome = await run_outside_task(lambda: execution.advance([Entry(1, sent)], log[-1].at))
    execution.close()

    assert types(outcome.events) == ["timer_started", "timer_fired", "activity_scheduled"]


async def test_a_stale_entry_does_not_let_a_later_one_overtake_a_deadline():
    @code
    async def workflow(ctx: Context) -> object:
        return await ctx.race(ctx.sleep(1), ctx.listen("s"))

    started = Simulation(workflow, registry=registry).log
    execution = Execution(workflow, started)
    begun = started[0].at
    signals = [events.SignalReceived(name="t", id="1", at=begun), events.SignalReceived(name="t", id="1", at=begun)]
    late = events.SignalReceived(name="s", id="2", at=begun + 1500)
    await run_outside_task(lambda: execution.advance([Entry(1, signals[0])], begun))
    outcome = await run_outside_task(lambda: execution.advance([Entry(2, signals[1]), Entry(3, late)], begun + 2000))
    execution.close()

    assert types(outcome.events)[:2] == ["timer_fired", "race_decided"]


class LastAttemptLast:
    """Delivers everything else before the entries of a second attempt."""

    def choice(self, seq: Sequence[Any], /) -> Any:
        return next((one for one in seq if one.of != "execution-1" and one.kind == "activity"), seq[0])


async def test_a_child_that_ends_between_two_attempts_of_its_parent_is_not_run_again():
    """Also if the next attempt calls the child in the tick that delivers its answer."""

    @registry.copy().workflow(retry=RetryPolicy(max_attempts=2, initial_interval=0))
    async def parent(ctx: Context) -> int:
        begun = ctx.workflow(child, 3)
        if ctx.info.attempt == 1:
            await begun.started
            raise ValueError
        return await begun

    whole = Simulation(parent, chooser=LastAttemptLast(), registry=registry)
    await whole.run()

    assert outcome_of(whole) == b"3"
    assert types(whole.log) == [
        *("workflow_started", "child_scheduled", "child_completed", "workflow_completed", "workflow_deactivated")
    ]
    assert len(whole.histories) == 3, "two attempts, one child"


async def test_awaiting_the_start_of_a_child_that_never_starts_ends():
    @code
    async def parent(ctx: Context) -> str:
        unborn = ctx.workflow(child, 1)
        unborn.cancel()
        [outcome] = await asyncio.gather(unborn.started, return_exceptions=True)
        return type(outcome).__name__

    whole = Simulation(parent, registry=registry)
    await whole.run()

    assert outcome_of(whole) == b'"CancelledError"'


@registry.workflow
async def waiting(ctx: Context) -> None:
    await ctx.listen("never")


async def test_the_start_of_a_child_whose_id_is_in_use_fails_as_the_child_does():

    @code
    async def parent(ctx: Context) -> str:
        await ctx.workflow(waiting, id="one").started
        try:
            return await ctx.workflow(child, 1, id="one").started
        except ChildWorkflowFailed as error:
            return type(error.__cause__).__name__

    whole = Simulation(parent, registry=registry)
    await whole.run()

    assert outcome_of(whole) == b'"AlreadyExists"'


async def test_a_child_whose_answer_is_carried_over_has_been_started():
    """Awaiting its start succeeds."""

    @registry.copy().workflow(retry=RetryPolicy(max_attempts=2))
    async def parent(ctx: Context) -> int:
        begun = ctx.workflow(child, 3)
        await begun.started
        result = await begun
        if ctx.info.attempt == 1:
            raise ValueError
        return result

    whole = Simulation(parent, registry=registry)
    await whole.run()

    assert outcome_of(whole) == b"3"
