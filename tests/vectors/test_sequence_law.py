"""Unchanged code fits its history under either matcher: nothing diverges, nothing is new, nothing is left."""

import asyncio
import dataclasses
import random

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from laws import random_programs
from laws.test_replay import length_to_end
from resurgam import Break, Context, Continue
from resurgam.core import event as events
from resurgam.core.location import Location
from resurgam.core.outcome import Entry
from resurgam.core.state import Status
from resurgam.runtime.definitions.definition import Workflow, WorkflowOptions
from resurgam.runtime.execution.execution import Execution
from resurgam.testing import Simulation, replay
from resurgam.testing.simulation import START, Again, Point
from support.programs import PROGRAMS
from support.programs.simulated import simulate
from vectors.event_notation import history, started, told, workflow

OTHER = {"location": "sequence", "sequence": "location"}
PROGRAM_COUNT = 100


def by(matching: str, definition: Workflow) -> Workflow:
    """Return the same code under another matcher, with everything compared that can be."""
    options = WorkflowOptions(matching=matching, input_check="strict", late_new="error", orphans="error")
    return type(definition)(definition.name, definition.function, definition.queue, settings=options)


def apart(log: list[events.Event]) -> list[str]:
    """Return a history without the name of its matcher."""
    return [msgspec.structs.replace(log[0], matching=None).to_json(), *(entry.to_json() for entry in log[1:])]


def turned(point: Point, matching: str) -> Point:
    """Return a point of a world whose workflow goes on under another matcher."""
    world = point.store.copy()
    for life in world.executions.values():
        if life.started.entity_id == "simulated":
            life.started = msgspec.structs.replace(life.started, matching=matching)
            life.log[0] = life.full_log[0] = life.started
    return dataclasses.replace(point, store=world)


async def check(tree: random_programs.Node, seed: int) -> None:
    worlds = {}
    for matching in OTHER:
        code = by(matching, random_programs.program)
        world = Simulation(code, tree, keep=True, chooser=random.Random(seed), **random_programs.outside(seed))
        await world.run()
        worlds[matching] = world
    histories = [[apart(log) for log in world.histories.values()] for world in worlds.values()]
    assert histories[0] == histories[1]
    for matching, world in worlds.items():
        for life in world.store.executions.values():
            code = by(matching, random_programs.registry.workflows.find(life.started.name))
            report = await replay(code, life.log, matching=OTHER[matching])
            assert (report.diverged, report.new, report.orphans) == (None, (), ()), report
            assert report.finished or life.status is Status.CONTINUED
        await check_crashes(seed, matching, world)


async def check_crashes(seed: int, matching: str, world: Simulation) -> None:
    """Killed after any entry it goes on to the very same histories, under the matcher that it did not begin with."""
    for point in random.Random(seed).sample(world.points[:-1], min(3, len(world.points) - 1)):
        resumed = Simulation(
            by(OTHER[matching], random_programs.program),
            at=turned(point, OTHER[matching]),
            chooser=Again(world.choices[point.choices :]),
            **random_programs.outside(seed),
        )
        await resumed.run()
        for of, log in world.histories.items():
            end = length_to_end(log)
            assert apart(resumed.histories[of][:end]) == apart(log[:end]), f"killed after {point.entry.to_json()}"


@settings(
    max_examples=PROGRAM_COUNT, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
@given(tree=random_programs.trees, seed=st.integers(0, 2**32))
def test_a_history_recorded_under_one_matcher_verifies_under_the_other(tree, seed):
    asyncio.run(check(tree, seed))


@pytest.mark.parametrize("name", sorted(PROGRAMS))
async def test_every_named_program_verifies_by_sequence(name):
    for seed in range(2):
        log = await simulate(name, random.Random(seed)).run()
        report = await replay(by("sequence", PROGRAMS[name]), log, matching="sequence")
        assert (report.diverged, report.new, report.orphans) == (None, (), ())


# Verifying.


async def two_kinds(ctx: Context) -> list[object]:
    return [await ctx.sleep(1), await ctx.activity("A")]


async def test_an_order_that_only_sequence_takes_does_not_verify_by_location():
    log = history('task A | done 0 "a" | timer 1 | fired 1')

    by_sequence = await replay(workflow(two_kinds), log)
    by_location = await replay(workflow(two_kinds), log, matching="location")

    assert (by_sequence.diverged, by_sequence.result) == (None, [None, "a"])
    assert by_location.diverged is not None
    assert by_location.diverged.location == Location.parse("{1}")


async def test_a_location_history_is_verified_by_sequence_without_being_changed():
    log = history('timer 1 | fired 0 | task A | done 1 "a"', started("location"))
    before = [entry.to_json() for entry in log]

    report = await replay(workflow(two_kinds, matching="location"), log, matching="sequence")
    lines = await replay(workflow(two_kinds, matching="location"), "\n".join(before), matching="sequence")

    assert (report.diverged, report.result) == (None, [None, "a"])
    assert lines == report
    assert [entry.to_json() for entry in log] == before


async def test_under_which_matcher_it_was_recorded_counts_if_nothing_is_said():
    log = history('task A | done 0 "a" | timer 1 | fired 1', started("location"))

    assert (await replay(workflow(two_kinds, matching="sequence"), log)).diverged is not None


async def test_a_matcher_that_is_none_is_refused():
    with pytest.raises(ValueError, match="matching must be one of"):
        await replay(workflow(two_kinds), history(""), matching="keyed")


async def test_a_report_tells_of_orphans_and_of_removals_that_had_no_effect():
    async def code(ctx: Context) -> str:
        await ctx.removed.activity("X")
        return await ctx.activity("A")

    text = 'task A | done 0 "a" | timer 5'
    by_sequence = await replay(workflow(code), history(text))
    by_location = await replay(workflow(code), history('task A | done 0 "a"', started("location")))
    late = await replay(workflow(code), history(text, started("location")))

    assert told(by_sequence.orphans) == ["Timer(0)"]
    assert (told(by_sequence.new), by_sequence.removed_ignored) == (["Removed(0) X"], ())
    assert (told(by_location.removed_ignored), by_location.orphans) == (["Removed X"], ())
    assert (late.diverged is not None, late.orphans) == (True, ())


async def test_steps_that_are_forgotten_are_no_orphans():
    """A loop that forgets leaves nothing behind that orphans="error" could take for left over, however often it is loaded."""

    async def turn(ctx: Context, count: int) -> Continue[int] | Break[int]:
        await ctx.activity("P")
        ctx.activity("P")
        await ctx.listen("turn")
        return Continue(count + 1) if count < 6 else Break(count)

    async def code(ctx: Context) -> int:
        return await ctx.loop(turn, 0, forget_every=2)

    definition = workflow(code, orphans="error", late_new="error", input_check="strict")
    log: list[events.Event] = [started()]
    inbox: list[Entry] = []
    for number in range(40):
        execution = Execution(definition, log)
        outcome = execution.advance(inbox, START)
        execution.close()
        forgotten = {entry.seq for entry in outcome.forgotten}
        log = [entry for entry in (*log, *outcome.events) if entry.seq not in forgotten]
        if outcome.status is not Status.RUNNING:
            break
        answers = [events.ActivityCompleted(ref=request.ref, at=START) for request in outcome.activities]
        turned = events.SignalReceived(name="turn", id=f"{number}", at=START)
        inbox = [Entry(None, entry) for entry in (answers or [turned])]

    assert outcome.status is Status.COMPLETED
    assert len(log) < 25 < log[-1].seq
