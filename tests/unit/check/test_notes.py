"""A note of a removed call can be deleted once no open run holds that call; check says so."""

from typing import Any

import pytest

from resurgam import Context, Registry
from resurgam.check.document import document
from resurgam.check.examined import Run
from resurgam.check.examiner import Examiner
from resurgam.check.groups import Report
from resurgam.check.text import lines
from resurgam.core import event as events
from resurgam.testing import replay
from resurgam.testing.simulation import Simulation

registry = Registry()


@registry.activity
async def charge() -> None: ...


@registry.activity
async def ship() -> None: ...


def define(function: Any, matching: str = "location") -> Any:
    return registry.copy().workflow(name="order", matching=matching)(function)


async def charging(ctx: Context) -> None:
    await ctx.activity(charge)
    await ctx.activity(ship)
    await ctx.listen("arrived")


async def noted(ctx: Context) -> None:
    await ctx.removed.activity("charge")
    await ctx.activity(ship)
    await ctx.listen("arrived")


async def clean(ctx: Context) -> None:
    await ctx.activity(ship)
    await ctx.listen("arrived")


async def record(code: Any) -> list[events.Event]:
    simulation = Simulation(code, registry=registry)
    await simulation.begin()
    while not any(isinstance(entry, events.ListenStarted) for entry in simulation.log):
        await simulation.step()
    simulation.close()
    return list(simulation.log)


def checked(*histories: list[events.Event]) -> Report:
    code, report = define(noted), Report()
    examiner = Examiner(lambda _: code)
    for number, log in enumerate(histories):
        report.add(examiner.examine(Run(f"o-{number}", f"x-{number}", "order"), log))
    return report


@pytest.mark.parametrize("matching", ["location", "sequence"])
async def test_a_run_begun_under_the_note_goes_on_without_it(matching):
    log = await record(define(noted, matching))
    assert "step_removed" in [entry.type for entry in log]

    report = await replay(define(clean, matching), log)

    assert (report.diverged, report.new, report.orphans) == (None, (), ())


async def test_a_run_that_holds_the_removed_call_needs_the_note():
    log = await record(define(charging))

    assert (await replay(define(noted), log)).diverged is None
    assert (await replay(define(clean), log)).diverged is not None


async def test_check_says_whether_a_note_is_needed():
    begun_before, begun_under_it = await record(define(charging)), await record(define(noted))
    line = noted.__code__.co_firstlineno + 1

    needed = checked(begun_before, begun_under_it)
    assert next(lines(needed, "simulated")) == (
        f"order: keep ctx.removed.activity('charge') at {__file__}:{line}: 1 run holds that call"
    )
    over = checked(begun_under_it)
    assert next(lines(over, "simulated")) == (
        f"order: ctx.removed.activity('charge') at {__file__}:{line} can be deleted: no open run holds that call"
    )
    assert document(over, "simulated")["notes"][0]["held_by"] == 0


async def test_a_note_behind_an_inserted_step_is_needed_by_runs_that_have_not_executed_the_step():
    """Their replay stops at the step; what comes behind it is rehearsed."""

    async def inserted_before(ctx: Context) -> None:
        await ctx.v(2).activity(ship)
        await ctx.removed.activity("charge")
        await ctx.activity(ship)
        await ctx.listen("arrived")

    report, examiner = Report(), Examiner(lambda _: define(inserted_before))
    for number, log in enumerate([await record(define(charging)), await record(define(inserted_before))]):
        report.add(examiner.examine(Run(f"o-{number}", f"x-{number}", "order"), log))
    [(_, note, held)] = report.settled_notes()
    assert (note.name, held) == ("charge", 1)


async def test_check_says_nothing_of_notes_while_a_run_of_the_workflow_does_not_fit():
    async def other(ctx: Context) -> None:
        await ctx.activity("pack")
        await ctx.listen("arrived")

    registry_of_other = registry.copy()
    registry_of_other.activity(name="pack")(charge.function)
    simulation = Simulation(define(other), registry=registry_of_other)
    await simulation.begin()
    simulation.close()

    assert checked(await record(define(noted)), list(simulation.log)).settled_notes() == []
