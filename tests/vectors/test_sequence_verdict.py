"""A divergence cannot be swallowed: whatever the code does with it, the run ends as diverged and nothing else is done."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from resurgam import Context, Engine, Registry
from resurgam.core import event as events
from resurgam.core.outcome import Entry
from resurgam.core.state import Status
from resurgam.errors import DeterminismViolation, HistoryDiverged
from resurgam.runtime.execution.execution import Execution
from resurgam.runtime.loop.outside_task import run_outside_task
from resurgam.store.memory.store import MemoryStore
from resurgam.testing import Environment, ManualClock, Simulation, replay
from resurgam.testing.simulation import START
from vectors.event_notation import history, registry_of, started, workflow

BOTH = pytest.mark.parametrize("matching", ["sequence", "location"])
STUBBORN = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""Python complains of a coroutine that catches even its being closed; that is what such code is."""

PARKED = {"on_divergence": "block"}


async def catches_everything(ctx: Context) -> int:
    try:
        await ctx.activity("B")
    except BaseException:
        return 7
    return 8


async def catches_it_again_and_again(ctx: Context) -> int:
    for _ in range(20):
        with suppress(BaseException):
            await ctx.activity("B")
    return 7


async def catches_it_for_ever(ctx: Context) -> int:
    while True:
        with suppress(BaseException):
            await ctx.activity("B")


async def gathers_what_was_raised(ctx: Context) -> int:
    async def strand() -> None:
        await ctx.activity("A")
        await ctx.run(lambda: 1, name="never")

    async def other() -> None:
        await ctx.activity("B")

    await asyncio.gather(other(), strand(), other(), return_exceptions=True)
    return 7


async def does_not_await(ctx: Context) -> int:
    ctx.activity("B")
    return 7


async def leaves_a_task_behind(ctx: Context) -> int:
    async def strand() -> None:
        await ctx.activity("B")

    task = asyncio.create_task(strand())
    await asyncio.sleep(0)
    task.cancel()
    return 7


async def cleans_up(ctx: Context) -> int:
    try:
        await ctx.activity("B")
    finally:
        await ctx.activity("X")
        ctx.set("cleaned", 1)
    return 7


async def returns_in_finally(ctx: Context) -> int:
    try:
        await ctx.activity("B")
    finally:
        return 7  # noqa: B012 -- as users do


async def groups(ctx: Context) -> int:
    async def strand() -> None:
        await ctx.activity("B")

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(strand())
    except BaseException:
        ctx.set("seen", 1)
    return 7


async def waits_with_a_limit(ctx: Context) -> int:
    async def strand() -> None:
        await ctx.activity("B")

    with suppress(BaseException):
        await asyncio.wait_for(strand(), 5)
    return 7


async def races(ctx: Context) -> int:
    async def strand() -> None:
        await ctx.activity("B")

    with suppress(BaseException):
        await ctx.race(strand(), strand())
    return 7


async def maps(ctx: Context) -> int:
    async def strand(ctx: Context, item: int) -> None:
        await ctx.activity("B")

    with suppress(BaseException):
        await ctx.map(strand, [1, 2])
    return 7


async def generates(ctx: Context) -> int:
    async def values() -> Any:
        try:
            yield await ctx.activity("B")
        finally:
            await ctx.activity("X")

    with suppress(BaseException):
        async for _ in values():
            pass
    return 7


async def calls_back(ctx: Context) -> int:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.add_done_callback(lambda _: ctx.activity("B"))
    future.set_result(None)
    await asyncio.sleep(0)
    return 7


async def raises_something_else(ctx: Context) -> int:
    try:
        await ctx.activity("B")
    except BaseException as error:
        raise ValueError("mine") from error
    return 7


SWALLOWING = [
    catches_everything,
    catches_it_again_and_again,
    catches_it_for_ever,
    does_not_await,
    cleans_up,
    returns_in_finally,
    generates,
    calls_back,
    raises_something_else,
]
"""Code whose root itself asks for B where the history holds A."""

IN_STRANDS = [gathers_what_was_raised, leaves_a_task_behind, groups, waits_with_a_limit, races, maps]
"""Code that does so in a strand: below `{1}` where it is a branch or a race, in the map below `{1, 1}`."""

ENDING = [
    (code, rule) for code in (*SWALLOWING, *IN_STRANDS) if code is not catches_it_for_ever for rule in ("block", "fail")
]
"""Parking searches for a remedy; for code that never ends, that takes seconds."""

HELD = {races: "race 2 | branch @{1} | task A @{1, 1}", maps: "map | task A @{1, 1}", waits_with_a_limit: "task A"}


def held(code: Any, matching: str) -> list[events.Event]:
    """Return a history in which A stands where the code asks for B."""
    text = "task A" if code in SWALLOWING else HELD.get(code, "branch | task A @{1}")
    if code is waits_with_a_limit and matching == "location":
        text = "timer 5 | task A"
    if code is maps:
        log = history("map | branch @{1} | task A @{1, 1}", started(matching))
        log[2] = events.BranchStarted(seq=3, at=START, location=log[2].location, command="Branch(0)@{1}", key="1")
        return log
    return history(text, started(matching))


@BOTH
@STUBBORN
@pytest.mark.parametrize("code", [*SWALLOWING, *IN_STRANDS])
async def test_it_cannot_be_swallowed(code, matching):
    report = await replay(workflow(code, matching=matching), held(code, matching))

    assert isinstance(report.diverged, DeterminismViolation if matching == "sequence" else HistoryDiverged)
    assert (report.diverged.field, report.diverged.code_value, report.diverged.history_value) == ("name", "B", "A")
    assert not report.finished
    assert (report.result, report.error) == (None, None)


@BOTH
@STUBBORN
@pytest.mark.parametrize(("code", "rule"), [*ENDING, (catches_it_for_ever, "fail")])
async def test_nothing_is_written_but_the_diagnosis(code, matching, rule, caplog):
    log = held(code, matching)
    world = Simulation(workflow(code, matching=matching, on_divergence=rule), log=log, registry=registry_of())
    whole = await world.run()

    written = [entry.type for entry in whole[len(log) :]]
    assert written[0] == ("workflow_diverged" if rule == "block" else "workflow_failed")
    assert set(written[1:]) <= {"activity_cancelled", "workflow_deactivated"}
    assert whole[: len(log)] == log
    assert world.performed == []


@BOTH
async def test_it_poisons_the_instance(matching):
    """Every later durable call, of any kind and any strand, raises the very same error."""
    raised: list[BaseException] = []

    async def code(ctx: Context) -> None:
        calls = [
            lambda: ctx.activity("B"),
            lambda: ctx.sleep(1),
            lambda: ctx.run(lambda: 1),
            lambda: ctx.set("k", 1),
            lambda: ctx.clear("k"),
            lambda: ctx.listen("go"),
            lambda: ctx.race(ctx.sleep(1)),
            lambda: ctx.map(registry_of("A").activities.find("A"), [1]),
            lambda: ctx.removed.activity("A"),
            lambda: asyncio.get_running_loop().call_later(1, print),
        ]
        for call in calls:
            try:
                call()
            except BaseException as error:
                raised.append(error)

    execution = Execution(workflow(code, matching=matching), history("task A", started(matching)))
    await run_outside_task(execution.replay)

    assert len(raised) == 10
    assert set(map(id, raised)) == {id(execution.verdict)}
    execution.close()


@BOTH
async def test_a_parked_run_is_offered_once_to_each_start_of_a_worker(matching, caplog):
    clock = ManualClock()
    store = MemoryStore(clock)

    def build(name: str) -> Registry:
        registry = registry_of("A", "B")

        async def code(ctx: Context) -> str:
            value = await ctx.activity(name)
            await ctx.listen("go")
            return value

        workflow(code, registry, matching=matching, **PARKED)
        return registry

    async with Environment(store=store, clock=clock, registry=build("A"), name="one") as env:
        before = await (await env.start("w", id="x")).history()
    async with Engine(store, clock=clock, worker=False, registry=Registry()) as client:
        await client.handle("x").signal("other")
    for start in (1, 2, 3):
        async with Environment(store=store, clock=clock, registry=build("B"), name="one") as env:
            await env.settle()
            await env.advance(3600)
            assert (await env.engine.handle("x").describe()).status is Status.DIVERGED
        complaints = [record for record in caplog.records if "diverged:" in record.getMessage()]
        assert len(complaints) == start
    async with Environment(store=store, clock=clock, registry=build("A"), name="one") as env:
        handle = env.engine.handle("x")
        await handle.signal("go")
        assert await env.finish(handle.result()) == "A"
        whole = await handle.history()
    assert whole[: len(before)] == before
    assert [entry.type for entry in whole].count("workflow_diverged") == 1


# What else is a change of the code.


async def with_a_typo(ctx: Context) -> None:
    await ctx.activity("A")
    raise NameError("name 'recipt' is not defined")


async def asks_for_a_list(ctx: Context) -> None:
    await ctx.activity(Registry().activity(name="A")(lists))


async def lists() -> list[str]:
    return []


async def takes_arguments(ctx: Context, number: int) -> None:
    await ctx.activity("A")


GOES_ON = 'task A | done 0 "a" | task B | done 1 "b"'


@BOTH
@pytest.mark.parametrize(
    ("code", "said"),
    [
        (with_a_typo, "NameError: name 'recipt' is not defined"),
        (asks_for_a_list, "a type that does not fit"),
        (takes_arguments, "missing a required argument: 'number'"),
    ],
)
async def test_a_change_that_raises_during_replay_parks_the_run(code, said, matching, caplog):
    """A mistake in a deployment must not fail every open run."""
    log = history(GOES_ON, started(matching))
    world = Simulation(workflow(code, matching=matching, **PARKED), log=log, registry=registry_of())
    whole = await world.run()

    assert world.status is Status.DIVERGED
    assert [entry.type for entry in whole[len(log) :]] == ["workflow_diverged"]
    assert said in whole[-1].diagnosis


@BOTH
async def test_it_is_failed_where_the_workflow_says_so(matching, caplog):
    log = history(GOES_ON, started(matching))
    world = Simulation(workflow(with_a_typo, matching=matching, on_divergence="fail"), log=log, registry=registry_of())
    whole = await world.run()

    assert world.status is Status.FAILED
    assert whole[len(log)].failure.type == "DETERMINISM_VIOLATION"
    assert "NameError" in whole[len(log)].failure.message


@BOTH
async def test_an_exception_in_the_tick_of_a_new_entry_is_a_failure(matching):
    world = Simulation(workflow(with_a_typo, matching=matching), registry=registry_of())
    whole = await world.run()

    assert world.status is Status.FAILED
    assert whole[-2].failure.type == "builtins.NameError"


@BOTH
async def test_a_value_that_does_not_decode_in_a_new_entry_parks_the_run_too(matching, caplog):
    log = history("task A", started(matching))
    execution = Execution(workflow(asks_for_a_list, matching=matching, **PARKED), log)
    outcome = execution.advance([Entry(1, events.ActivityCompleted(ref=2, at=START))], START)

    assert outcome.status is Status.DIVERGED
    assert [entry.type for entry in outcome.events] == ["activity_completed", "workflow_diverged"]


@BOTH
async def test_a_run_that_fails_as_it_calls_something_off_that_it_began_itself(matching, caplog):
    """What it called off in the tick that is dropped is still at work, though it was asked for since the run was loaded."""

    async def code(ctx: Context) -> None:
        if await ctx.v(2).listen("first"):
            await ctx.v(2).listen("second")
        late = ctx.v(2).activity("P")
        bool(await ctx.v(2).listen("third"))  # looked at, so that what follows cannot be foreseen
        late.cancel()
        await ctx.activity("B")

    log = history("task A", started(matching))
    execution = Execution(workflow(code, matching=matching, on_divergence="fail"), log)
    if matching == "sequence":
        log[:] = history("op x", started(matching))

        async def by_type(ctx: Context) -> None:
            if await ctx.listen("first"):
                await ctx.listen("second")
            late = ctx.activity("P")
            bool(await ctx.listen("third"))
            late.cancel()
            await ctx.run(lambda: 1, name="y")

        execution = Execution(workflow(by_type, matching=matching), log)
    outcome = execution.advance([], START)
    for number, name in enumerate(("first", "second", "third")):
        signal = events.SignalReceived(name=name, id=name, at=START, value=started().input)
        outcome = execution.advance([Entry(number, signal)], START)

    assert outcome.status is Status.FAILED
    assert outcome.events[-1].type == "workflow_failed"
    assert len(outcome.withdrawals) == (2 if matching == "location" else 1)


async def test_what_was_asked_for_in_the_commit_that_fails_the_run_is_never_waited_for(caplog):
    """It was put on no queue, so it would never be answered, and the history would never be complete."""

    async def code(ctx: Context) -> None:
        if await ctx.listen("first"):
            ctx.set("looked", 1)
        ctx.activity("P")
        bool(await ctx.listen("second"))
        await ctx.run(lambda: 1, name="y")

    execution = Execution(workflow(code), history("op x"))
    execution.advance([], START)
    signals = [
        Entry(n, events.SignalReceived(name=name, id=name, at=START)) for n, name in enumerate(("first", "second"))
    ]
    outcome = execution.advance(signals, START)

    assert [entry.type for entry in outcome.events[-3:]] == [
        "workflow_failed",
        "activity_cancelled",
        "workflow_deactivated",
    ]
    assert (outcome.status, outcome.deactivated, outcome.activities) == (Status.FAILED, True, ())
