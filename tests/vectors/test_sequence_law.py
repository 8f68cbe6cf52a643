"""Unchanged code fits its history under either matcher: nothing diverges, nothing is new, nothing is left."""

import asyncio
import random

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from laws import generated
from programs import PROGRAMS
from programs_laws import simulate
from resurgam import Break, Context, Continue
from resurgam.core import event as events
from resurgam.core.location import Location
from resurgam.core.outcome import Entry
from resurgam.core.state import Status
from resurgam.runtime.definition import Workflow, WorkflowOptions
from resurgam.runtime.execution import Execution
from resurgam.testing import Simulation, replay
from resurgam.testing.simulation import START, Follower
from vectors.sequence_world import history, started, told, workflow

OTHER = {"location": "sequence", "sequence": "location"}
PROGRAM_COUNT = 100


def by(matching: str, definition: Workflow) -> Workflow:
    """Return the same code under another matcher, with everything compared that can be."""
    options = WorkflowOptions(matching=matching, input_check="strict", late_new="error", orphans="error")
    return type(definition)(definition.name, definition.function, definition.queue, options=options)


def apart(log: list[events.Event]) -> list[str]:
    """Return a history without the name of its matcher."""
    return [msgspec.structs.replace(log[0], matching=None).to_json(), *(entry.to_json() for entry in log[1:])]


async def check(tree: generated.Node, seed: int) -> None:
    logs = {}
    for matching in OTHER:
        world = Simulation(
            by(matching, generated.program),
            tree,
            chooser=random.Random(seed),
            messages=generated.messages(seed),
            registry=generated.registry,
        )
        logs[matching] = await world.run()
    assert apart(logs["location"]) == apart(logs["sequence"])
    for matching, log in logs.items():
        report = await replay(by(matching, generated.program), log, matching=OTHER[matching])
        assert (report.diverged, report.new, report.orphans, report.finished) == (None, (), (), True), report
        await check_crashes(seed, matching, log)


async def check_crashes(seed: int, matching: str, log: list[events.Event]) -> None:
    """Killed after any entry it goes on to the very same history, under the matcher that it did not begin with."""
    end = next(
        entry.seq for entry in log if entry.type in ("workflow_completed", "workflow_failed", "workflow_cancelled")
    )
    for length in random.Random(seed).sample(range(1, end), min(3, end - 1)):
        first = msgspec.structs.replace(log[0], matching=OTHER[matching])
        world = Simulation(
            by(OTHER[matching], generated.program),
            log=[first, *log[1:length]],
            chooser=Follower(log),
            messages=generated.messages(seed),
            registry=generated.registry,
        )
        assert apart((await world.run())[:end]) == apart(log[:end]), f"killed after {length}"


@settings(
    max_examples=PROGRAM_COUNT, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
@given(tree=generated.trees, seed=st.integers(0, 2**32))
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
    with pytest.raises(ValueError, match="matching is 'keyed'; it is one of"):
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
