"""Matching by location while code is edited: marks, versions, loops, strands and waits keep their places.

The table of edits (`edit_table`), the recipes (`edit_recipes`) and the stories of gates (`test_gates`) cover the rest.
"""

import asyncio
import json

import pytest

from resurgam import Context, Registry, SignalTimeout
from resurgam.core import event as events
from resurgam.errors import ActivityFailed, LatentHistory
from resurgam.runtime.execution.execution import Execution
from resurgam.testing import Environment, ManualClock, Simulation, replay
from resurgam.testing.simulation import START, start_event
from vectors.deployments import ID, World, found
from vectors.history_notation import told
from vectors.player import player, workflow
from vectors.program_notation import branch, gather, loop, program, removed, strand


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


@pytest.fixture(autouse=True)
def quiet(caplog):
    """Divergences are logged; they are expected here."""
    caplog.set_level("CRITICAL", logger="resurgam")


# Places and versions.


async def test_a_removed_call_in_a_branch_with_a_version_is_marked_with_that_version(world):
    """Not with version 1."""
    code = program("a", branch("-k n", v=2), "b")
    await world.deploy(code)

    again = await world.deploy(code, open_end=False)

    assert again.history == "1=a 2=~branch@2 2/1=~gone:k@2 2/2=n@2 3=b"
    assert (again.status, again.written) == ("completed", "")


KINDS = {"activity": "k", "sleep": None, "listen": "go", "set": "k", "run": "r", "branch": None, "loop": None}


@pytest.mark.parametrize("marked", KINDS)
@pytest.mark.parametrize("asked", KINDS)
async def test_the_mark_of_a_removed_call_keeps_its_kind(world, marked, asked):
    """So that the same code finds it again."""
    first = await world.deploy(program("a", removed(marked, KINDS[marked])))
    mark = first.log[-1]
    assert isinstance(mark, events.StepRemoved)

    again = await world.deploy(program("a", removed(asked, KINDS[asked]), "b"))

    marks = [entry.removed for entry in again.log if isinstance(entry, events.StepRemoved)]
    assert (marks == [mark.removed]) == (marked == asked)


async def test_a_version_given_twice_is_the_last_one(world):
    """``ctx.v(3).v(2)`` is ``ctx.v(2)``; neither is added to the other."""
    registry = world.registry()

    @registry.workflow
    async def twice(ctx: Context) -> None:
        await ctx.v(3).v(2).activity("a")

    history = await Simulation(twice, registry=registry).run()

    assert told(history) == "1=a@2"


async def test_a_loop_that_forgets_has_a_version_too():
    registry = Registry()

    @registry.workflow
    async def looping(ctx: Context) -> int:
        from resurgam import Break

        async def body(ctx: Context, state: None) -> Break[int]:
            ctx.v(2).set("k", 1)
            return Break(7)

        return await ctx.v(2).loop(body, forget_every=1)

    execution = Execution(looping, [start_event(looping, ())])
    outcome = execution.advance([], START)

    assert told(outcome.events) == "1=~loop@2 1/1/1=~set@3"


async def test_a_step_that_failed_and_was_caught_keeps_its_place(world):
    """The next call does not take its place."""
    registry = world.registry()

    @registry.activity
    async def fails() -> None:
        raise ValueError("no")

    @registry.workflow(name="edited")
    async def catching(ctx: Context) -> str:
        try:
            await ctx.activity(fails)
        except ActivityFailed:
            await ctx.activity("b", 1)
        return await ctx.activity("c", 1)

    history = await Simulation(catching, registry=registry).run()

    assert told(history) == "1=fails 2=b 3=c"
    assert (await replay(catching, history)).result == "c1"


# Finding it in time.


async def test_a_renamed_first_step_is_not_run_before_it_is_found(world):
    await world.deploy(program("a b"))

    parted = await world.deploy(program("x b"), open_end=False)

    assert parted.status == "diverged"
    assert "x" not in world.ran


async def test_an_older_worker_does_nothing_to_a_run_of_newer_code(world):
    """In a rolling deployment it finds steps that it does not know: it parks the run, and the newer code takes it up."""
    await world.deploy(program("a b"))
    await world.deploy(program("a x@2 b"))
    ran = dict(world.ran)

    older = await world.deploy(program("a b c"), open_end=False)
    assert (older.status, older.written, dict(world.ran)) == ("diverged", "", ran)

    newer = await world.deploy(program("a x@2 b c"), open_end=False)
    assert (newer.status, newer.written) == ("completed", "3=c")


@pytest.mark.parametrize("deployments", [1, 3])
async def test_what_is_left_over_in_the_last_iteration_is_found_every_time(world, deployments):
    """Also when the run is revived."""
    old, new = (program("a", loop(2, body), "b") for body in ("p q", "p"))
    await world.deploy(old)

    for _ in range(deployments):
        assert (await world.deploy(new, open_end=False)).status == "diverged"

    error = await found(player(new), world.log)
    assert isinstance(error, LatentHistory)
    assert str(error.location) == "{2, 1, 2}"


async def test_a_run_stopped_in_a_loop_in_a_loop_is_not_taken_for_unvisited(world):
    code = program("a", loop(3, "p", loop(3, "q k", stop_in=2)))
    await world.deploy(code)

    done = await world.deploy(program("a", loop(3, "p", loop(3, "q k")), "b"), open_end=False)

    assert (done.status, done.error) == ("completed", None)
    assert world.ran == {"a": 1, "p": 3, "q": 9, "k": 9, "b": 1}


@pytest.mark.parametrize("looks", [False, True])
async def test_steps_that_ran_before_a_divergence_was_found_are_named(world, looks):
    """Where the code reads a result that does not exist yet, it can only be run; the report says what was started."""
    await world.deploy(program("a b"))
    registry = world.registry()

    @registry.workflow(name="edited")
    async def choosing(ctx: Context) -> None:
        await ctx.activity("a", 0)
        seen = await ctx.v(2).activity("x", 0)
        await ctx.activity("c" if looks and seen else "d", 0)

    url = f"sqlite:////{world.folder}/w.db?synchronous=off"
    async with Environment(store=url, registry=registry, clock=world.clock) as env:
        await env.engine.handle(ID).signal("look")
        await env.settle()
        description = await env.engine.handle(ID).describe()

    assert description.status == "diverged"
    assert world.ran["x"] == (1 if looks else 0)
    assert ("started before this was detected: x at {1.1}" in str(description.error)) == looks


# Silent acceptance.


@pytest.mark.parametrize(("rule", "diverges"), [("off", False), ("warn", False), ("strict", True)])
async def test_a_changed_input_is_reported_on_request(rule, diverges):
    def build(value):
        registry = World(None).registry()

        @registry.workflow(input_check=rule)
        async def gives(ctx: Context) -> None:
            await ctx.activity("a", value)

        return gives, registry

    old, registry = build(1)
    history = await Simulation(old, registry=registry).run()

    report = await replay(build(2)[0], history)

    assert (report.diverged is not None) == diverges
    if report.diverged is not None:
        assert (report.diverged.field, str(report.diverged.location)) == ("input", "{1}")


async def test_a_removal_that_does_not_fit_is_counted():
    """It has no effect, but it does not go unnoticed either."""
    old, new = program("a c"), program("a -b c")
    registry = World(None).registry()
    history = await Simulation(workflow(player(old), registry), registry=registry).run()

    execution = Execution(workflow(player(new)), history)
    execution.replay()
    execution.close()

    assert [(str(entry.location), entry.name) for entry in execution.recorder.ignored] == [("{2}", "b")]


async def test_two_branches_are_told_apart_by_their_names(world):
    await world.deploy(program("a", branch("k", name="pay"), branch("k", name="ship")))

    parted = await world.deploy(program("a", branch("k", name="ship"), branch("k", name="pay")), open_end=False)

    assert parted.status == "diverged"
    assert "the code has name 'ship'" in str(parted.error)


# Waiting.


@pytest.mark.parametrize("strands", [("~listen", "~sleep"), ("~sleep", "~listen")])
@pytest.mark.parametrize("restart", [False, True])
async def test_every_strand_that_waits_is_woken(world, strands, restart):
    """The wake-up of each is kept."""
    code = program(gather(*(strand(f"{what} {then}") for what, then in zip(strands, "ab", strict=True))))
    await world.deploy(code)
    if restart:
        await world.deploy(code)

    slept = await world.deploy(code, advance=61)
    assert sorted(world.ran) == ["b" if strands[1] == "~sleep" else "a"]
    done = await world.deploy(code, open_end=False, signal=True)

    assert (slept.status, done.status) == ("running", "completed")
    assert world.ran == {"a": 1, "b": 1}


async def test_a_sleeper_that_is_looked_at_sleeps_on_until_its_own_deadline(world):
    code = program("~sleep a")
    await world.deploy(code)
    for _ in range(3):
        await world.deploy(code, advance=15)
    assert not world.ran

    done = await world.deploy(code, open_end=False, advance=15)

    fired = next(entry for entry in done.log if isinstance(entry, events.TimerFired))
    assert fired.at == done.log[0].at + 60_000
    assert world.ran == {"a": 1}


def waiting_twice():
    registry = Registry()

    @registry.workflow(name="edited")
    async def edited(ctx: Context) -> list[str]:
        try:
            first = await ctx.listen("go", type=str, timeout=60)
        except SignalTimeout:
            first = "timed out"
        return [first, await ctx.listen("go", type=str)]

    return registry


@pytest.mark.parametrize(("sent_after", "heard"), [(59, "early"), (60, "timed out"), (61, "timed out")])
async def test_a_signal_around_the_end_of_a_wait_is_heard_once(tmp_path, sent_after, heard):
    """No worker serves the run meanwhile; the first of the two counts, and the signal is never lost."""
    clock, url = ManualClock(), f"sqlite:////{tmp_path}/w.db?synchronous=off"
    async with Environment(store=url, registry=waiting_twice(), clock=clock) as env:
        await env.start("edited", id=ID)
    clock.move_to(START + sent_after * 1000)
    async with Environment(store=url, registry=waiting_twice(), clock=clock, worker=False) as client:
        await client.engine.handle(ID).signal("go", "early")
    clock.move_to(START + 90_000)
    async with Environment(store=url, registry=waiting_twice(), clock=clock) as env:
        handle = env.engine.handle(ID)
        await env.settle()
        if heard == "early":
            await handle.signal("go", "late")
        result = await env.finish(handle.result())
        history = await handle.history()

    assert result == (["early", "late"] if heard == "early" else ["timed out", "early"])
    assert sum(isinstance(entry, events.SignalsConsumed | events.ListenTimedOut) for entry in history) == 2


async def test_a_removed_wait_before_another_listener_takes_only_its_own_place(world):
    """One removal is enough, and the listener that follows keeps its place."""
    await world.deploy(program("a ~wait ~listen b"), signal=True)
    assert world.log[-1].type == "listen_started"

    done = await world.deploy(program("a -~wait ~listen b"), open_end=False, signal=True)

    assert (done.status, done.history) == ("completed", "1=a 2=~listen 3=~listen 4=b")


async def test_signals_are_heard_in_the_order_they_were_sent_whatever_their_size(tmp_path):
    """In one batch too, and if a body takes several chunks."""
    sent = ["x" * size for size in (1, 1_000_000, 3, 200_000, 2)]
    registry = Registry()

    @registry.workflow(name="edited")
    async def hears(ctx: Context) -> list[str]:
        return [await ctx.listen("go", type=str) for _ in sent]

    clock, url = ManualClock(), f"sqlite:////{tmp_path}/w.db?synchronous=off"
    async with Environment(store=url, registry=registry, clock=clock) as env:
        handle = await env.start("edited", id=ID)
        for value in sent[:3]:
            await handle.signal("go", value)
        await env.settle()
    async with Environment(store=url, registry=registry, clock=clock) as env:
        handle = env.engine.handle(ID)
        for value in sent[3:]:
            await handle.signal("go", value)
        assert await env.finish(handle.result()) == sent


# Answers that an inserted step has put off.


def first_of_two(*, inserted):
    registry = World(None).registry()

    @registry.workflow(name="edited")
    async def edited(ctx: Context) -> list[str]:
        await ctx.activity("a", 0)
        if inserted:
            await ctx.v(2).activity("x", 0)
        both = [ctx.activity("b", 0), ctx.activity("c", 0)]
        done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        first = next(iter(done)).result()
        await ctx.activity("d" if first == "b0" else "e", 0)
        await asyncio.wait(both)
        return [first]

    return edited, registry


class LastFirst:
    """The chooser that ends the activity that was asked for last."""

    def choice(self, seq):
        return [possible for possible in seq if possible.kind == "activity"][-1]


async def test_answers_that_a_step_put_in_has_put_off_come_in_their_own_order():
    """The second of two was first: what was done because of it is not done otherwise by a step put in before both."""
    old, registry = first_of_two(inserted=False)
    history = await Simulation(old, registry=registry, chooser=LastFirst()).run()
    assert json.loads(history[-2].to_json())["result"] == ["c0"]
    still_open = [entry for entry in history if entry.seq == 1 or not entry.type.startswith("workflow_")]
    new, registry = first_of_two(inserted=True)

    world = Simulation(new, registry=registry, log=still_open)
    after = await world.run()

    assert world.status == "completed"
    assert told(after) == "1=a 1.1=x@2 2=b 3=c 4=e"
    assert json.loads(after[-2].to_json())["result"] == ["c0"]
    assert (await replay(new, after)).diverged is None


# Found before damage, also where a step is under way.


async def test_what_comes_behind_a_step_that_is_under_way_is_rehearsed_before_it_is_begun(world):
    """A step that was put in is under way; what the code does behind it is looked at before anything else is begun."""
    await world.deploy(program("a b"))
    world.held = {"x"}
    await world.deploy(program("a x@2 b"))
    world.held = set()

    parted = await world.deploy(program("a x@2 y@2 c"), open_end=False)

    assert parted.status == "diverged"
    assert parted.written == ""
    assert world.ran == {"a": 1, "b": 1, "x": 1}
    assert "the remedy: " in str(parted.error)
    done = await world.deploy(program("a x@2 y@2 -b c"), open_end=False)
    assert (done.status, done.written) == ("completed", "1.2=y@2 3=c")
    assert world.ran == {"a": 1, "b": 1, "x": 1, "y": 1, "c": 1}
