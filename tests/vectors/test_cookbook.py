"""Edits of the code of open runs, over runs that stand at every point of the old code."""

from collections import Counter

import pytest

from resurgam.core import event as events
from vectors.deployments import Deployment, World, found
from vectors.edit_recipes import RECIPES, Recipe
from vectors.history_notation import location
from vectors.player import player
from vectors.program_notation import Program, program
from vectors.remedies import remedied

STOPS = [(recipe, calls) for recipe in RECIPES for calls in range(len(recipe.old) + 1)]


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


@pytest.fixture(autouse=True)
def quiet(caplog):
    """Divergences are logged; they are expected here."""
    caplog.set_level("CRITICAL", logger="resurgam")


def test_every_recipe_is_there():
    assert len({recipe.title for recipe in RECIPES}) == len(RECIPES) == 26
    assert len(STOPS) == 97


async def stopped(world: World, old: Program, calls: int, *, under_way: bool = False) -> None:
    """Run the first calls of the old code; *under_way*, the last of them has not come to its end."""
    if calls == 0 and not under_way:
        await world.deploy(())
        return
    last = old[calls - 1]
    if under_way:
        world.held = {name for name in (last.name, "n", "q") if name}
    done = await world.deploy(old[:calls], signal=not under_way, advance=0 if under_way else 100)
    assert (done.status, done.error) == ("running", None)
    world.held = set()


async def finished(world: World, calls: Program) -> Deployment:
    """Deploy a program, give it what it waits for, and look whether it comes to its end."""
    done = await world.deploy(calls, open_end=False, signal=True, advance=100)
    assert (done.status, done.error) == ("completed", None), done.error
    return done


def assert_each_ran_once(world: World, done: Deployment) -> None:
    """Every recorded activity has run once; one that was removed while it was under way may have been called off."""
    called_off = {entry.ref for entry in done.log if isinstance(entry, events.ActivityCancelled)}
    scheduled = [entry for entry in done.log if isinstance(entry, events.ActivityScheduled)]
    assert world.ran == Counter(entry.name for entry in scheduled if entry.seq not in called_off)


def assert_in_order(done: Deployment) -> None:
    """What was there stands where it stood, and no place was given twice."""
    assert done.log[: len(done.before)] == done.before
    places = [word.partition("=")[0] for word in done.history.split()]
    assert len(set(places)) == len(places)
    assert sorted(map(location, places)) == list(map(location, places))


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
async def test_a_fresh_run(world: World, recipe: Recipe):
    done = await finished(world, recipe.new)

    assert done.history == recipe.fresh
    assert_each_ran_once(world, done)


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
@pytest.mark.parametrize("cohort", ["before", "after"])
async def test_a_run_that_was_stopped(world: World, recipe: Recipe, cohort: str):
    await stopped(world, recipe.old, recipe.stops[cohort == "after"])

    done = await finished(world, recipe.new)

    assert done.history == getattr(recipe, cohort)
    assert_in_order(done)
    assert_each_ran_once(world, done)


@pytest.mark.parametrize("recipe", [recipe for recipe in RECIPES if recipe.finished], ids=str)
async def test_a_run_that_had_finished(world: World, recipe: Recipe):
    before = (await finished(world, recipe.old)).log
    ran = Counter(world.ran)

    done = await world.deploy(recipe.new, open_end=False)

    assert done.history == recipe.finished
    assert [entry for entry in done.log if entry.type != "signal_received"] == [
        entry for entry in before if entry.type != "signal_received"
    ]
    assert world.ran == ran


@pytest.mark.parametrize(
    ("recipe", "calls", "under_way"),
    [(*stop, kind) for stop in STOPS for kind in (False, True)[: stop[1] + 1]],
    ids=str,
)
async def test_a_run_that_stands_anywhere(world: World, recipe: Recipe, calls: int, under_way: bool):
    """It comes to its end; nothing that is done is done again; the same code finds nothing new the next time."""
    await stopped(world, recipe.old, calls, under_way=under_way)

    first = await world.deploy(recipe.new, signal=True, advance=100)
    assert (first.status, first.error) == ("running", None)
    assert_in_order(first)
    again = await finished(world, recipe.new)

    assert again.written == ""
    assert_each_ran_once(world, again)
    for name, count in world.ran.items():
        assert count == 1 or name in recipe.twice or "loop" in recipe.title


@pytest.mark.parametrize(("recipe", "calls"), STOPS, ids=str)
async def test_the_naive_edit_fits_or_has_a_remedy_that_does(world: World, recipe: Recipe, calls: int):
    """Where it does not fit nothing is done; its remedy, written into the program, brings the run to its end."""
    await stopped(world, recipe.old, calls)
    before, past = Counter(world.ran), list(world.log)
    naive = await world.deploy(recipe.naive, open_end=False, signal=True, advance=100)
    if naive.status != "diverged":
        assert (naive.status, naive.error) == ("completed", None)
        assert_each_ran_once(world, naive)
        return

    assert (naive.written, world.ran) == ("", before)
    error = await found(player(recipe.naive), past)
    assert error is not None
    assert f"{type(error).__name__}: {error}" == naive.error
    if (recipe.title, calls) in WITHOUT_REMEDY:
        assert error.remedy == ()
        assert "no local edit fits" in str(error)
        return
    assert error.remedy
    done = await finished(world, await remedied(recipe.naive, past, tuple(error.remedy)))
    assert_in_order(done)
    assert_each_ran_once(world, done)


WITHOUT_REMEDY = {("move", 3), ("move", 4)}
"""What was done before is made again elsewhere: whichever call were taken for removed would be run a second time."""


@pytest.mark.parametrize("under_way", [False, True])
async def test_a_change_of_inputs_and_lengths(world: World, under_way: bool):
    """Steps that are done, or under way, keep what they were given; those to come get what the code says now."""
    old = program("a ~sleep b")
    world.held = {"b"} if under_way else set()
    await world.deploy(old, sleep=60, advance=0)
    assert world.clock.now() == world.log[0].at

    kept = await world.deploy(old, sleep=86400, argument=7, advance=60)

    assert kept.error is None
    timer, b = (entry for entry in kept.log if entry.command in ("Timer(0)", "Task(1)"))
    assert isinstance(timer, events.TimerStarted)
    assert timer.deadline == timer.at + 60_000
    assert isinstance(b, events.ActivityScheduled)
    assert bytes(b.input) == b"[7]"
    world.held = set()
    done = await finished(world, old)
    assert done.written == ""
    assert_each_ran_once(world, done)


NEVER = {
    "a branch before a branch without a version": (
        RECIPES[-1].old,
        program("a", RECIPES[4].naive[1], RECIPES[-1].old[1:]),
    ),
    "a sleep made a wait": (program("a ~sleep b"), program("a ~wait b")),
    "a wait made a sleep": (program("a ~wait b"), program("a ~sleep b")),
}


@pytest.mark.parametrize("title", NEVER)
async def test_what_is_never_to_be_done_is_found_before_anything_is_written(world: World, title: str):
    old, new = NEVER[title]
    await stopped(world, old, len(old))
    ran = Counter(world.ran)

    done = await world.deploy(new, open_end=False, signal=True, advance=100)

    assert done.status == "diverged"
    assert (done.written, world.ran) == ("", ran)
    assert (await finished(world, old)).written == ""
