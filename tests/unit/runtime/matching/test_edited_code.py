"""Edited code over a recorded history: it finds its recorded commands, or diverges at the entry where it differs."""

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
from resurgam.testing import Simulation, replay

GO = events.SignalReceived(name="go", id="1", value=Raw(b'"value"'))


activities = Registry()


@activities.activity
async def echo(x: int) -> int:
    return x


@pytest.fixture(autouse=True)
def quiet(caplog):
    """Divergences are logged; they are expected here."""
    caplog.set_level("CRITICAL", logger="resurgam")


class Ending:
    """The chooser that ends the activity with the highest number first, then sends messages."""

    def choice(self, seq):
        at_work = [possible for possible in seq if possible.kind == "activity"]
        return at_work[-1] if at_work else seq[0]


def race_of_futures(size):
    async def racing(ctx: Context) -> int:
        competitors = [ctx.activity("echo", i) for i in range(3)]
        _, value = await ctx.race(*competitors[:size])
        await ctx.listen("go")
        return value

    return Registry().workflow(racing)


def race_of_strands(size):
    async def racing(ctx: Context) -> int:
        async def strand(i: int) -> int:
            return await ctx.activity("echo", i)

        _, value = await ctx.race(*(strand(i) for i in range(size)))
        await ctx.listen("go")
        return value

    return Registry().workflow(racing)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("make", [race_of_futures, race_of_strands])
async def test_a_race_edited_to_fewer_competitors_than_its_winner_diverges(make, size):
    """The recorded winner is not among the competitors: a divergence, not an IndexError."""
    history = await Simulation(make(3), registry=activities, chooser=Ending(), messages=[GO]).run()
    decided = next(entry for entry in history if isinstance(entry, events.RaceDecided))
    assert decided.winner == 2

    report = await replay(make(size), history)

    assert report.diverged is not None
    assert not report.finished


async def test_the_divergence_of_a_race_names_the_entry_and_the_winner():

    history = await Simulation(race_of_futures(3), registry=activities, chooser=Ending(), messages=[GO]).run()

    report = await replay(race_of_futures(2), history)

    assert str(report.diverged).startswith(
        "Race(0) at {4}: the code has winner 'none such, or not there yet', entry 7 of the history has 'competitor 2'"
    )


async def test_a_race_that_is_unchanged_replays():
    """All competitors are present, and none is refused."""
    history = await Simulation(race_of_strands(3), registry=activities, chooser=Ending(), messages=[GO]).run()

    report = await replay(race_of_strands(3), history)

    assert report.diverged is None
    assert report.result == 2


def listening(name):
    async def listens(ctx: Context) -> list[str]:
        value = await ctx.listen(name)
        await ctx.sleep(1)
        return [name, value]

    return Registry().workflow(listens)


async def test_a_listen_that_was_renamed_diverges():
    """The value of one signal is never given to code that listens for another."""
    history = await Simulation(listening("go"), messages=[GO]).run()

    report = await replay(listening("reject"), history)
    same = await replay(listening("go"), history)

    assert report.result is None
    assert "the code has signal 'reject', entry 4 of the history has 'go'" in str(report.diverged)
    assert same.result == ["go", "value"]


class Telling:
    """The chooser that sends messages before anything else."""

    def choice(self, seq):
        return next((possible for possible in seq if possible.kind == "message"), seq[0])


def cleaning(*, cleans):
    async def cleans_up(ctx: Context) -> None:
        try:
            await ctx.sleep(100)
        finally:
            if cleans:
                await ctx.activity("echo", 1)
                await ctx.activity("echo", 2)

    return Registry().workflow(cleans_up)


@pytest.mark.parametrize("length", [5, 6, 7, 8])
async def test_clean_up_that_was_removed_while_recorded_diverges(length):
    """A run that was cleaning up after a cancellation is not taken for cancelled by code that no longer cleans up."""
    history = await Simulation(
        cleaning(cleans=True), registry=activities, chooser=Telling(), messages=[events.CancelRequested()]
    ).run()
    assert [entry.type for entry in history] == [
        "workflow_started",
        "timer_started",
        "cancel_requested",
        "timer_cancelled",
        "activity_scheduled",
        "activity_completed",
        "activity_scheduled",
        "activity_completed",
        "workflow_cancelled",
        "workflow_deactivated",
    ]

    report = await replay(cleaning(cleans=False), history[:length])

    assert "the code has end 'CancelledError', entry 5 of the history has 'activity_scheduled" in str(report.diverged)
    assert not report.finished


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
    return simulation.as_of(next(entry.seq for entry in simulation.full_log if isinstance(entry, kind)))


async def finishes(function: Any, log: list[events.Event], messages: Any = ()) -> list[str]:
    """Run new code over an older history; return the locations of the commands it wrote."""
    simulation = await run(function, log, messages)
    assert simulation.status is Status.COMPLETED, simulation.show()
    again = await run(function, simulation.log, messages)
    assert again.log == simulation.log
    return [str(entry.location) for entry in simulation.full_log[len(log) :] if entry.location is not None]


async def test_a_step_may_be_inserted_into_the_winner_of_a_decided_race():
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


async def test_a_timer_cancelled_by_the_history_does_not_fire_before_edited_code_cancels_it():
    log = up_to(await run(called_off(inserted=False)), events.TimerCancelled)
    log += [entry for entry in (await run(called_off(inserted=False))).log if entry.seq == log[-1].seq + 1]
    assert await finishes(called_off(inserted=True), log) == ["{2.1}"]


async def test_a_listener_cancelled_by_the_history_takes_no_signal_before_edited_code_cancels_it():
    signal = events.SignalReceived(name="s", id="1", value=Raw(b"1"))
    whole = await run(called_off(inserted=False, listens=True))
    log = whole.as_of(up_to(whole, events.ListenCancelled)[-1].seq + 1)
    assert await finishes(called_off(inserted=True, listens=True), log, [signal]) == ["{2.1}"]


async def test_a_named_version_check_may_be_put_before_another():
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


async def test_a_divergence_found_in_rehearsal_dispatches_nothing():
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


async def test_a_step_deleted_at_the_end_of_an_iteration_is_reported_there_with_its_remedy():
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
    """Code that registers a handler; with *inserted*, only after another step."""

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
async def test_a_step_may_be_inserted_before_a_handler_that_has_been_called(kind):
    """The handler is registered later than it was called; the run is not parked for it."""
    whole = await run(handling(kind, inserted=False), messages=[SENT[kind]])
    log = up_to(whole, events.TimerFired)
    # Not cut between the handler's step and its successor: both belong to the handler.
    assert any(entry.location is not None and str(entry.location) == "{0, 1, 1}" for entry in log)

    written = await finishes(handling(kind, inserted=True), log, [SENT[kind]])

    assert written == ["{0.1}", "{2}"]


@pytest.mark.parametrize("kind", SENT)
async def test_a_removed_handler_is_found_behind_an_inserted_step(kind):
    log = up_to(await run(handling(kind, inserted=False), messages=[SENT[kind]]), events.TimerFired)
    after = await run(handling(kind, inserted=True, handled=False), log, [SENT[kind]])

    assert after.status is Status.DIVERGED
    assert not any(entry.name == "x" for entry in after.log), "found before anything is done"


async def test_a_step_may_be_inserted_before_a_handler_that_a_cancelled_task_never_reaches():
    """Whether the handler was removed is unknown then, so the run continues."""

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


async def test_an_answer_to_a_call_that_a_cancelled_task_never_reaches_is_dropped():
    """A step was inserted before the call, and then the branch lost its race."""

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
