"""Loops: edits of them while they run, what a body may share, and what it may take and give back."""

import datetime as dt
import uuid
from dataclasses import dataclass
from typing import Any

import pytest

from laws.test_forgetting import Step, checkpoints, failure, p, places, q, result, run, survives, version
from resurgam import Break, Context, Continue
from resurgam.core import event as events
from resurgam.core.errors import HistoryDiverged, LatentHistory, NotDeterministic
from resurgam.core.state import Status
from resurgam.runtime.execution.execution import Execution
from resurgam.runtime.loop.outside_task import run_outside_task
from resurgam.testing import Simulation


def until(world: Simulation, place: str) -> list[events.Event]:
    """Return the log as it was when a command was written there."""
    return world.as_of(next(entry.seq for entry in world.full_log if str(entry.location) == place))


def written(world: Simulation, log: list[events.Event]) -> list[str]:
    return [f"{e.location}v{e.version}" for e in world.full_log if e.location is not None and e.seq > log[-1].seq]


async def against(function: Any, log: list[events.Event]) -> HistoryDiverged:
    """Return how code and history part; nothing may be written then but that."""
    execution = Execution(version(function), log)
    outcome = await run_outside_task(lambda: execution.advance([], log[-1].at))
    execution.close()
    assert outcome.status is Status.DIVERGED
    assert [entry.type for entry in outcome.events] == ["workflow_diverged"]
    assert outcome.activities == ()
    assert isinstance(execution.verdict, HistoryDiverged)
    return execution.verdict


# Edits.


def pairs(
    *, every: int | None, inserted: bool = False, last: bool = True, removed: bool = False, times: int = 4
) -> Any:
    async def body(ctx: Context, number: int) -> Step:
        await ctx.activity(p, number)
        if inserted:
            await ctx.v(2).sleep(1)
        if last:
            await ctx.activity(q, number)
        elif removed:
            await ctx.removed.activity(q)
        return Break(number) if number + 1 == times else Continue(number + 1)

    async def workflow(ctx: Context) -> int:
        await ctx.sleep(1)
        return await ctx.loop(body, 0, forget_every=every)

    return workflow


async def test_a_step_inserted_into_a_body_goes_into_the_iteration_under_way_and_takes_its_turn_in_later_ones():
    log = until(await run(pairs(every=1)), "{2, 3, 2}")
    world = await survives_from(pairs(every=1, inserted=True), log)
    assert written(world, log) == ["{2, 3, 1.1}v2", "{2, 4, 1}v1", "{2, 4, 2}v2", "{2, 4, 3}v1"]


async def test_without_forgetting_it_goes_into_all_iterations():
    log = until(await run(pairs(every=None, times=3)), "{2, 2, 2}")
    world = await survives_from(pairs(every=None, times=3, inserted=True), log)
    places = ["{2, 1, 1.1}v2", "{2, 2, 1.1}v2", "{2, 3, 1}v1", "{2, 3, 2}v2", "{2, 3, 3}v1"]
    assert written(world, log) == places


async def test_a_step_removed_from_a_body_leaves_marks_from_the_next_iteration_on():
    log = until(await run(pairs(every=2)), "{2, 3, 2}")
    world = await survives_from(pairs(every=2, last=False, removed=True), log)
    assert written(world, log) == ["{2, 4, 1}v1", "{2, 4, 2}v1"]
    assert [e.type for e in world.full_log if str(e.location) == "{2, 4, 2}"] == ["step_removed"]


@pytest.mark.parametrize("every", [None, 1, 2, 20])
async def test_what_a_body_no_longer_asks_for_is_latent_in_its_iteration(every):
    log = until(await run(pairs(every=every)), "{2, 3, 2}")
    found = await against(pairs(every=every, last=False), log)
    first = {None: 1, 1: 3, 2: 3, 20: 1}[every]
    assert str(found.location) == f"{{2, {first}, 2}}"
    assert isinstance(found, LatentHistory) or found.field == "name"
    assert found.remedy or found.field == "name"


async def survives_from(function: Any, log: list[events.Event]) -> Simulation:
    """Go on from a log with other code, killed after each entry: it is always the same history."""
    world = await run(function, log)
    last = next(entry.seq for entry in world.full_log if isinstance(entry, events.WorkflowCompleted))
    for point in range(log[-1].seq, last):
        resumed = await run(function, world.as_of(point))
        assert resumed.as_of(last) == world.as_of(last), f"killed after {point}"
    return world


def around(*, loop: str) -> Any:
    async def body(ctx: Context, number: int) -> Step:
        await ctx.activity(p, number)
        await ctx.v(2).activity(q, number)
        return Break(number) if number == 2 else Continue(number + 1)

    async def workflow(ctx: Context) -> None:
        await ctx.activity(p, 9)
        if loop == "inserted":
            await ctx.v(2).loop(body, 0, forget_every=2)
        elif loop == "plain":
            await ctx.loop(body, 0, forget_every=2)
        elif loop == "removed":
            await ctx.removed.loop()
        await ctx.activity(q, 9)
        await ctx.sleep(1)

    return workflow


async def test_a_loop_inserted_with_a_version_gives_it_to_its_iterations():
    log = until(await run(around(loop="none")), "{2}")
    world = await survives_from(around(loop="inserted"), log)
    assert written(world, log) == [
        "{1.1}v2",
        *(f"{{1.1, {number}, {step}}}v{step + 1}" for number in (1, 2, 3) for step in (1, 2)),
        "{3}v1",
    ]
    assert places(world.log) == ["{1}", "{2}", "{1.1}", "{3}"]


async def test_a_loop_can_be_removed_at_every_point_of_it():
    whole = await run(around(loop="plain"))
    for point in range(1, whole.full_log[-2].seq):
        world = await survives_from(around(loop="removed"), whole.as_of(point))
        inside = [place for place in written(world, whole.as_of(point)) if place.startswith("{2, ")]
        assert inside == []
        commands = [e for e in world.log if isinstance(e, events.ActivityScheduled) and str(e.location) == "{3}"]
        assert len(commands) == 1


async def test_a_loop_that_is_gone_without_a_note_is_found():
    log = until(await run(around(loop="plain")), "{2, 2, 1}")
    found = await against(around(loop="none"), log)
    assert str(found.location) == "{2}"
    # What the loop did, the code does again behind it: to take the loop for removed would be to run that twice.
    assert "no local edit fits" in str(found)


async def test_the_recorded_forget_every_wins():
    log = until(await run(pairs(every=1)), "{2, 2, 1}")
    world = await survives_from(pairs(every=None), log)
    assert checkpoints(world) == [1, 2, 3]


# What a body may share.


def refused(body: Any, *, every: int | None = 20) -> Any:
    async def workflow(ctx: Context) -> Any:
        return await ctx.loop(body, 0, forget_every=every)

    return workflow


@dataclass(frozen=True)
class Frozen:
    number: int = 1


class Mutable:
    async def body(self, ctx: Context, number: int) -> Step:
        return Break(number)


def sharing() -> dict[str, Any]:
    box: list[int] = []
    total = 0
    mapping: dict[str, int] = {}

    async def closes(ctx: Context, number: int) -> Step:
        box.append(number)
        return Break(len(box))

    async def rebinds(ctx: Context, number: int) -> Step:
        nonlocal total
        total += 1
        return Break(total)

    async def by_a_helper(ctx: Context, number: int) -> Step:
        def helper() -> None:
            nonlocal total
            total += 1

        helper()
        return Break(0)

    async def reads_a_dict(ctx: Context, number: int) -> Step:
        return Break(len(mapping))

    async def by_default(ctx: Context, number: int, shared: list[int] = box) -> Step:
        return Break(len(shared))

    async def through_another(ctx: Context, number: int) -> Step:
        return await closes(ctx, number)

    return {
        **{f.__name__: f for f in (closes, rebinds, by_a_helper, reads_a_dict, by_default, through_another)},
        "method": Mutable().body,
    }


@pytest.mark.parametrize("name", sharing())
async def test_a_body_that_shares_what_can_change_is_refused(name):
    world = await run(refused(sharing()[name]))
    assert failure(world).type.endswith(NotDeterministic.__name__)
    assert "forget_every=None" in failure(world).message

    assert isinstance(result(await run(refused(sharing()[name], every=None))), int)


async def test_a_body_may_share_what_cannot_change():
    number, text, many = 3, "x", (1, (2, "y"))
    frozen, moment = Frozen(), dt.timedelta(1)

    async def helper(ctx: Context) -> int:
        return await ctx.activity(p, number)

    async def workflow(ctx: Context) -> Any:
        async def body(inner: Context, state: int) -> Step:
            kept = [await helper(ctx), text, list(many), frozen.number, moment.days]
            kept_in_it: list[int] = []

            def add() -> None:
                kept_in_it.append(state)

            add()
            return Break([*kept, kept_in_it])

        return await ctx.loop(body, 5)

    assert result(await survives(workflow)) == [3, "x", [1, [2, "y"]], 1, 1, [5]]


# What it takes and gives.


@dataclass
class Cart:
    items: list[str]
    id: uuid.UUID


async def test_state_and_value_have_the_types_of_the_annotations():
    async def body(ctx: Context, cart: Cart) -> Continue[Cart] | Break[dt.timedelta]:
        assert isinstance(cart, Cart)
        assert isinstance(cart.id, uuid.UUID)
        await ctx.sleep(1)
        cart.items.append("x")
        return Break(dt.timedelta(len(cart.items))) if len(cart.items) == 3 else Continue(cart)

    async def workflow(ctx: Context) -> int:
        took = await ctx.loop(body, Cart([], uuid.UUID(int=1)), forget_every=1)
        assert isinstance(took, dt.timedelta)
        return took.days

    assert result(await survives(workflow)) == 3


async def test_without_annotations_they_are_plain():
    async def body(ctx, state):
        await ctx.sleep(1)
        return Break(state) if len(state) == 2 else Continue([*state, (1, 2)])

    async def workflow(ctx: Context) -> Any:
        return await ctx.loop(body, (), forget_every=1)

    assert result(await survives(workflow)) == [[1, 2], [1, 2]]


async def test_a_state_changed_in_place_by_an_iteration_that_was_cut_off_is_as_it_was():
    async def body(ctx: Context, state: list[int]) -> Step:
        state.append(1)
        await ctx.activity(p, len(state))
        state.append(2)
        await ctx.activity(q, len(state))
        return Break(state) if len(state) > 5 else Continue(state)

    async def workflow(ctx: Context) -> Any:
        return await ctx.loop(body, [], forget_every=2)

    assert result(await survives(workflow)) == [1, 2] * 3


async def test_a_body_that_returns_something_else_fails_and_says_so():
    async def body(ctx: Context, state: int) -> Any:
        await ctx.sleep(1)
        return state

    async def workflow(ctx: Context) -> Any:
        return await ctx.loop(body, 7)

    world = await run(workflow)
    assert failure(world).type.endswith("TypeError")
    assert "returned 7; return Continue(state)" in failure(world).message


@pytest.mark.parametrize("every", [None, 1, 2, 20])
async def test_what_a_body_raises_leaves_the_loop_and_can_be_caught(every):
    async def body(ctx: Context, number: int) -> Step:
        await ctx.activity(p, number)
        if number == 3:
            raise ValueError(number)
        return Continue(number + 1)

    async def workflow(ctx: Context) -> str:
        try:
            await ctx.loop(body, 0, forget_every=every)
        except ValueError as error:
            await ctx.activity(q, 1)
            return f"caught {error}"
        return "not"

    world = await survives(workflow)
    assert result(world) == "caught 3"


@pytest.mark.parametrize("every", [0, -1, 1.5, "2"])
async def test_numbers_that_mean_nothing_are_refused(every):
    async def body(ctx: Context, number: int) -> Step:
        return Break(0)

    assert failure(await run(refused(body, every=every))).type.endswith("ValueError")
