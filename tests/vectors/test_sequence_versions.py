"""`ctx.v`, `ctx.removed` and `ctx.check_version` under sequence matching: what they find, what they write, what stays."""

import asyncio
from typing import Any

import pytest

from resurgam import Context
from resurgam.core import event as events
from resurgam.core.state import Status
from resurgam.testing import Simulation, replay
from resurgam.testing.simulation import Follower
from vectors.event_notation import answer_of, history, registry_of, started, told, workflow

GO = [events.SignalReceived(name="go", id="1")]


async def whole(code: Any, text: str = "", **options: Any) -> list[events.Event]:
    """Let code go on from a history to its end; every cut of what it adds must go on and replay the same way."""
    log, registry = history(text), registry_of()
    definition = workflow(code, **options)
    world = Simulation(definition, log=log, registry=registry, messages=GO)
    written = await world.run()
    assert world.status is Status.COMPLETED, world.show()
    end = next(entry.seq for entry in written if entry.type == "workflow_completed")
    for length in range(len(log), end):
        cut = Simulation(definition, log=written[:length], registry=registry, messages=GO, chooser=Follower(written))
        assert [entry.to_json() for entry in await cut.run()] == [entry.to_json() for entry in written], length
    report = await replay(definition, written)
    assert (report.diverged, report.new) == (None, ())
    return written


def marks(log: list[events.Event]) -> list[str]:
    """Return the commands of a history with their place and version."""
    return [f"{e.location} {e.command} {e.name} v{e.version}" for e in log if isinstance(e, events.Command)]


# v.


async def versioned(ctx: Context) -> list[str]:
    return [await ctx.v(2).activity("A"), await ctx.v(3).activity("B")]


async def test_a_version_is_stored_but_not_compared():
    report = await replay(workflow(versioned), history('task A | done 0 "a" | task B | done 1 "b"'))

    assert (report.diverged, report.new, report.result) == (None, (), ["a", "b"])
    assert marks(await whole(versioned)) == ["{1} Task(0) A v2", "{2} Task(1) B v3"]


async def test_a_version_does_not_insert():
    """By sequence a step of another name meets the next of its type, whatever its version."""

    async def code(ctx: Context) -> None:
        await ctx.v(2).activity("X")
        await ctx.activity("A")

    report = await replay(workflow(code), history("task A"))

    assert str(report.diverged) == "Task type mismatch at Task(0): expected 'X', got 'A'"


# removed.


async def without_b(ctx: Context) -> list[str]:
    first = await ctx.activity("A")
    await ctx.removed.activity("B")
    return [first, await ctx.activity("P")]


async def test_a_removed_call_takes_the_recorded_one_out_of_the_way():
    report = await replay(
        workflow(without_b), history('task A | done 0 "a" | task B | done 1 "b" | task P | done 2 "p"')
    )

    assert (report.diverged, report.new, report.orphans, report.result) == (None, (), (), ["a", "p"])


async def test_a_removed_call_that_still_runs_is_not_waited_for():
    """Its answer is recorded, and the code does not get it."""
    written = await whole(without_b, 'task A | done 0 "a" | task B')

    assert answer_of(written) == ["a", "P"]


async def test_a_removed_call_that_was_never_made_leaves_a_mark():
    written = await whole(without_b)

    assert marks(written) == ["{1} Task(0) A v1", "{2} Removed(0) B v1", "{3} Task(1) P v1"]


async def test_a_mark_is_left_even_where_the_history_goes_on():
    """By sequence a removal that finds nothing of its name writes its mark behind all that is there."""
    written = await whole(without_b, 'task A | done 0 "a" | task P')

    assert marks(written) == ["{1} Task(0) A v1", "{2} Task(1) P v1", "{3} Removed(0) B v1"]


async def test_by_location_a_removal_that_does_not_fit_is_reported():
    text = 'task A | done 0 "a" | task P | done 1 "p"'
    report = await replay(workflow(without_b, matching="location"), history(text, started("location")))

    assert (report.diverged, report.result) == (None, ["a", "p"])
    assert [(entry.name, entry.removed, str(entry.location)) for entry in report.removed_ignored] == [
        ("B", "activity_scheduled", "{2}")
    ]


async def test_a_call_of_the_name_that_was_removed_before_it_is_not_taken_for_it():
    """Unchanged code: the mark of the removal is found again, not the call that follows it."""

    async def code(ctx: Context) -> list[str]:
        await ctx.removed.activity("P")
        return [await ctx.activity("P"), str(await ctx.removed.activity("P"))]

    written = await whole(code)

    assert marks(written) == ["{1} Removed(0) P v1", "{2} Task(0) P v1", "{3} Removed(1) P v1"]
    assert answer_of(written) == ["P", "None"]


async def test_removals_before_and_behind_a_call_that_stayed_each_find_their_own():
    async def code(ctx: Context) -> str:
        await ctx.removed.activity("P")
        kept = await ctx.activity("P")
        await ctx.removed.activity("P")
        return kept

    assert answer_of(await whole(code, 'task P | done 0 "gone" | task P | done 1 "kept"')) == "kept"
    assert answer_of(await whole(code, 'task P | done 0 "gone" | task P | done 1 "kept" | task P')) == "kept"


async def test_a_removed_strand_goes_with_all_that_it_did():
    async def code(ctx: Context) -> str:
        await ctx.removed.branch()
        return await ctx.activity("A")

    text = 'branch | task A @{1} | task B @{1} | task A | done 3 "a"'
    report = await replay(workflow(code, orphans="error"), history(text))

    assert (report.diverged, report.new, report.orphans, report.result) == (None, (), (), "a")


async def test_a_removed_sleep_is_the_next_timer_wherever_it_stands():
    async def code(ctx: Context) -> list[Any]:
        await ctx.removed.sleep()
        first = await ctx.activity("A")
        return [first, await ctx.sleep(7)]

    report = await replay(workflow(code), history('task A | done 0 "a" | timer 5 | fired 1 | timer 7 | fired 2'))

    assert (report.diverged, report.new, report.result) == (None, (), ["a", None])


async def test_what_was_removed_keeps_its_number():
    async def code(ctx: Context) -> None:
        await ctx.removed.activity("A")
        await ctx.activity("X")

    report = await replay(workflow(code), history("task A | task B"))

    assert str(report.diverged) == "Task type mismatch at Task(1): expected 'X', got 'B'"


# check_version.


def checked(*names: str | None) -> Any:
    async def code(ctx: Context) -> list[Any]:
        seen: list[Any] = []
        for version, name in enumerate(names, 2):
            seen.append(await ctx.check_version(version, name))
            seen.append(await ctx.activity("A"))
        return seen

    return code


async def test_a_check_in_a_new_run_is_written():
    written = await whole(checked(None, None))

    assert answer_of(written) == [2, "A", 3, "A"]
    assert told(e for e in written if isinstance(e, events.VersionChecked)) == ["VersionCheck(0)", "VersionCheck(1)"]


async def test_a_check_over_recorded_history_answers_with_its_version_and_writes_nothing():
    report = await replay(workflow(checked(None)), history('task A | done 0 "a"'))

    assert (report.new, report.result) == ((), [1, "a"])


async def test_a_check_that_history_answered_does_not_flip_when_a_later_one_is_written():
    """The first says 1, for the run is an old one; the second is new. On every later replay it is the same."""
    written = await whole(checked(None, None), "task A")

    assert answer_of(written) == [1, "A", 3, "A"]


async def test_named_checks_that_history_answered_do_not_diverge_when_a_later_one_is_written():
    assert answer_of(await whole(checked("first", "second"), "task A")) == [1, "A", 3, "A"]


async def test_a_check_is_found_wherever_it_stands():
    """Another order of types is no change by sequence: the recorded answer counts, not what stands before it."""

    async def code(ctx: Context) -> list[Any]:
        return [await ctx.check_version(5), await ctx.activity("A")]

    report = await replay(workflow(code), history('task A | done 0 "a" | check 4'))

    assert (report.diverged, report.new, report.result) == (None, (), [4, "a"])


async def test_an_orphan_before_a_check_does_not_answer_it():
    async def code(ctx: Context) -> int:
        await ctx.activity("A")
        return await ctx.check_version(5)

    report = await replay(workflow(code), history('task A | done 0 "a" | timer 5 | check 4'))

    assert (report.result, told(report.orphans)) == (4, ["Timer(0)"])


async def test_a_check_of_another_name_is_a_violation():
    log = await whole(checked("old"))
    report = await replay(workflow(checked("new")), log)

    assert str(report.diverged) == "VersionCheck name mismatch at VersionCheck(0): expected 'new', got 'old'"


async def test_a_removed_check_lets_the_next_one_have_its_own_answer():
    async def both(ctx: Context) -> list[int]:
        return [await ctx.check_version(2, "one"), await ctx.check_version(7, "two")]

    async def second(ctx: Context) -> list[int]:
        await ctx.removed.check_version("one")
        return [await ctx.check_version(9, "two")]

    report = await replay(workflow(second), await whole(both))

    assert (report.diverged, report.new, report.result) == (None, (), [7])


async def cohorts(ctx: Context) -> list[Any]:
    """Everything at once: old runs keep their path, new ones take the new one."""
    seen: list[Any] = [await ctx.check_version(2)]
    if seen[0] >= 2:
        seen.append(await ctx.v(2).activity("X"))
    else:
        seen.append(await ctx.activity("A"))
    await ctx.removed.activity("B")
    seen += await asyncio.gather(ctx.activity("P"), ctx.sleep(1))
    seen.append(await ctx.check_version(3))
    return seen


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("", [2, "X", "P", None, 3]),
        ("task A", [1, "A", "P", None, 3]),
        ('task A | done 0 "a"', [1, "a", "P", None, 3]),
        ('task A | done 0 "a" | task B', [1, "a", "P", None, 3]),
        ('task A | done 0 "a" | task B | done 1 "b"', [1, "a", "P", None, 3]),
    ],
)
async def test_old_and_new_runs_of_one_code(text, result):
    assert answer_of(await whole(cohorts, text)) == result
