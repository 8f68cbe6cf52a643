"""Edits that the laws found to go wrong, as small as they became."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import Raw

from resurgam import Break, Context, Continue, Registry
from resurgam.core import event as events
from resurgam.core.errors import HistoryDiverged
from resurgam.core.state import Status
from resurgam.runtime.execution.execution import Execution
from resurgam.runtime.loop.outside_task import run_outside_task
from resurgam.testing import Simulation

registry = Registry()


@registry.activity
def a() -> int:
    return 1


@registry.activity
def x() -> int:
    return 2


def version(function: Any) -> Any:
    return registry.copy().workflow(name="w")(function)


async def run(function: Any, log: Any = (), messages: Any = ()) -> Simulation:
    simulation = Simulation(version(function), log=log, registry=registry, messages=messages)
    await simulation.run()
    return simulation


def up_to(simulation: Simulation, kind: type[events.Event]) -> list[events.Event]:
    return simulation.as_of(next(entry.seq for entry in simulation.ever if isinstance(entry, kind)))


async def finishes(function: Any, log: list[events.Event], messages: Any = ()) -> list[str]:
    """Run new code over an older history; return the places of what it wrote."""
    simulation = await run(function, log, messages)
    assert simulation.status is Status.COMPLETED, simulation.show()
    again = await run(function, simulation.log, messages)
    assert again.log == simulation.log
    return [str(entry.location) for entry in simulation.ever[len(log) :] if entry.location is not None]


async def test_a_step_inserted_into_the_winner_of_a_decided_race():
    def code(*, inserted: bool) -> Any:
        async def winner(ctx: Context) -> None:
            if inserted:
                await ctx.v(2).activity(x)
            await ctx.activity(a)

        async def race(ctx: Context) -> None:
            await ctx.race(winner(ctx), ctx.sleep(100))
            await ctx.sleep(1)

        return race

    log = up_to(await run(code(inserted=False)), events.RaceDecided)
    assert await finishes(code(inserted=True), log) == ["{2, 1, 0.1}", "{3}"]


def called_off(*, inserted: bool, listens: bool = False) -> Any:
    async def workflow(ctx: Context) -> None:
        other = ctx.listen("s") if listens else ctx.sleep(1)
        await ctx.activity(a)
        if inserted:
            await ctx.v(2).sleep(5)
        other.cancel()
        await asyncio.gather(other, return_exceptions=True)
        await ctx.activity(a)

    return workflow


async def test_a_timer_that_the_history_calls_off_does_not_fire_before_edited_code_does():
    log = up_to(await run(called_off(inserted=False)), events.TimerCancelled)
    log += [entry for entry in (await run(called_off(inserted=False))).log if entry.seq == log[-1].seq + 1]
    assert await finishes(called_off(inserted=True), log) == ["{2.1}"]


async def test_a_listener_that_the_history_calls_off_takes_no_signal_before_edited_code_does():
    signal = events.SignalReceived(name="s", id="1", value=Raw(b"1"))
    whole = await run(called_off(inserted=False, listens=True))
    log = whole.as_of(up_to(whole, events.ListenCancelled)[-1].seq + 1)
    assert await finishes(called_off(inserted=True, listens=True), log, [signal]) == ["{2.1}"]


async def test_a_named_version_check_before_another():
    async def first(ctx: Context) -> None:
        await ctx.activity(a)
        await ctx.check_version(2, "one")
        await ctx.activity(a)

    answers = []

    async def second(ctx: Context) -> None:
        await ctx.activity(a)
        answers.append((await ctx.check_version(3, "two"), await ctx.check_version(2, "one")))
        await ctx.activity(a)

    log = up_to(await run(first), events.VersionChecked)
    assert await finishes(second, log) == ["{3}"]
    assert set(answers) == {(2, 2)}


async def test_a_divergence_that_is_found_dry_puts_nothing_on_a_queue():
    async def old(ctx: Context) -> None:
        await ctx.activity(a)
        await ctx.sleep(1)

    async def new(ctx: Context) -> None:
        await ctx.v(2).activity(x)
        await ctx.sleep(1)

    log = up_to(await run(old), events.TimerStarted)
    execution = Execution(version(new), log)
    outcome = await run_outside_task(lambda: execution.advance([], log[-1].at))
    assert outcome.status is Status.DIVERGED
    assert [entry.type for entry in outcome.events] == ["workflow_diverged"]
    assert outcome.activities == ()


async def test_a_step_deleted_at_the_end_of_an_iteration_is_told_of_there_with_its_remedy():
    def code(*, whole: bool) -> Any:
        async def workflow(ctx: Context) -> None:
            async def body(ctx: Context, number: int) -> Any:
                await ctx.sleep(1)
                if whole:
                    await ctx.activity(a)
                return Continue(number + 1) if number < 2 else Break(number)

            await ctx.loop(body, 0, forget_every=None)
            await ctx.sleep(1)

        return workflow

    log = (await run(code(whole=True))).as_of(12)
    execution = Execution(version(code(whole=False)), log)
    await run_outside_task(lambda: execution.advance([], log[-1].at))
    assert isinstance(execution.verdict, HistoryDiverged)
    assert str(execution.verdict.location) == "{1, 1, 2}"
    assert execution.verdict.remedy


def handling(kind: str, *, inserted: bool, handled: bool = True) -> Any:
    """Code that handles something; *inserted*, only after another step."""

    async def workflow(ctx: Context) -> list[int]:
        heard: list[int] = []

        async def handle(value: int) -> None:
            heard.append(value + await ctx.activity(a))

        if inserted:
            await ctx.v(2).activity(x)
        if handled and kind == "signal":
            ctx.on_signal("s")(handle)
        elif handled:
            ctx.on_update("s")(handle)
        await ctx.sleep(1)
        await ctx.activity(a)
        return heard

    return workflow


SENT: dict[str, events.Event] = {
    "signal": events.SignalReceived(name="s", id="1", value=Raw(b"1")),
    "update": events.UpdateAccepted(name="s", id="1", input=Raw(b"[1]")),
}


@pytest.mark.parametrize("kind", SENT)
async def test_a_step_inserted_before_a_handler_that_has_been_called(kind):
    """The handler is registered later than it was called: that is no reason to park the run."""
    whole = await run(handling(kind, inserted=False), messages=[SENT[kind]])
    log = up_to(whole, events.TimerFired)
    # Not cut between the handler's step and what follows: both belong to it.
    assert any(entry.location is not None and str(entry.location) == "{0, 1, 1}" for entry in log)

    written = await finishes(handling(kind, inserted=True), log, [SENT[kind]])

    assert written == ["{0.1}", "{2}"]


@pytest.mark.parametrize("kind", SENT)
async def test_a_handler_that_is_gone_is_found_behind_an_inserted_step_too(kind):
    log = up_to(await run(handling(kind, inserted=False), messages=[SENT[kind]]), events.TimerFired)
    after = await run(handling(kind, inserted=True, handled=False), log, [SENT[kind]])

    assert after.status is Status.DIVERGED
    assert not any(entry.name == "x" for entry in after.log), "found before anything is done"


async def test_a_step_inserted_before_a_handler_of_a_strand_that_is_called_off_before_it_comes_there():
    """Whether the handler is gone cannot be told then, so the run goes on."""

    def code(*, inserted: bool) -> Any:
        async def workflow(ctx: Context) -> None:
            async def loser() -> None:
                if inserted:
                    await ctx.v(2).sleep(100)
                ctx.on_signal("s")(handle)
                await ctx.listen("never")

            async def handle(value: int) -> None:
                await ctx.activity(a)

            await ctx.race(loser(), ctx.sleep(10))
            await ctx.activity(a)

        return workflow

    log = up_to(await run(code(inserted=False), messages=[SENT["signal"]]), events.SignalHandled)
    assert await finishes(code(inserted=True), log, [SENT["signal"]]) == ["{2, 1, 0.1}", "{3}"]


async def test_an_answer_to_a_strand_that_is_called_off_before_it_comes_to_the_call():
    """A step was inserted before the call, and then the strand lost its race: nobody asks for the answer any more."""

    def code(*, inserted: bool) -> Any:
        async def workflow(ctx: Context) -> None:
            async def loser() -> None:
                if inserted:
                    await ctx.v(2).sleep(100)
                await ctx.activity(a)
                await ctx.listen("never")

            other = ctx.sleep(10)
            await ctx.race(loser(), ctx.listen("s"))
            await other

        return workflow

    class MessagesFirst:
        def choice(self, seq: Sequence[Any], /) -> Any:
            return next((one for one in seq if one.kind == "message"), seq[0])

    log = up_to(await run(code(inserted=False), messages=[SENT["signal"]]), events.ActivityScheduled)
    simulation = Simulation(
        version(code(inserted=True)), log=log, registry=registry, messages=[SENT["signal"]], chooser=MessagesFirst()
    )
    await simulation.run()

    assert simulation.status is Status.COMPLETED, simulation.show()
    assert [entry.type for entry in simulation.log if entry.ref == log[-1].seq] == ["activity_completed"]
