"""Loops: what is kept, what is forgotten when, and that the code cannot tell."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import Raw

from resurgam import Break, Context, Continue, Registry
from resurgam.core import event as events
from resurgam.core.location import Location
from resurgam.core.outcome import Outcome, Span
from resurgam.core.state import Status
from resurgam.testing import Simulation

registry = Registry()
Step = Continue[Any] | Break[Any]


@registry.activity
def p(number: int = 0) -> int:
    return number


@registry.activity
def q(number: int = 0) -> int:
    return number * 10


def version(function: Any) -> Any:
    return registry.copy().workflow(name="w")(function)


class World(Simulation):
    """A simulation that keeps its outcomes."""

    def __init__(self, function: Any, *args: Any, **options: Any) -> None:
        super().__init__(version(function), *args, registry=registry, **options)
        self.outcomes: list[Outcome] = []
        advance = self._live_root.advance

        def kept(*given: Any) -> Outcome:
            self.outcomes.append(advance(*given))
            return self.outcomes[-1]

        self._live_root.advance = kept  # type: ignore[method-assign]


async def run(function: Any, log: Sequence[events.Event] = (), messages: Sequence[events.Event] = ()) -> World:
    world = World(function, log=log, messages=messages)
    await world.run()
    assert world.status in (Status.COMPLETED, Status.FAILED), world.show()
    return world


def result(world: Simulation) -> Any:
    [end] = [entry for entry in world.log if isinstance(entry, events.WorkflowCompleted)]
    return json.loads(bytes(end.result))


def failure(world: Simulation) -> events.Failure:
    [end] = [entry for entry in world.log if isinstance(entry, events.WorkflowFailed)]
    return end.failure


def end(world: Simulation) -> int:
    ends = (events.WorkflowCompleted, events.WorkflowFailed)
    return next(entry.seq for entry in world.full_log if isinstance(entry, ends))


async def survives(function: Any, messages: Sequence[events.Event] = ()) -> World:
    """Kill a run after each entry; each time it goes on to the very same history, and does nothing twice."""
    world = await run(function, (), messages)
    last = end(world)
    for point in range(1, last):
        log = world.as_of(point)
        resumed = await run(function, log, messages)
        assert resumed.as_of(last) == world.as_of(last), f"killed after {point}"
        done = {entry.ref for entry in log if isinstance(entry, events.ActivityCompleted)}
        assert not done & set(resumed.performed)
    return world


def places(log: Sequence[events.Event]) -> list[str]:
    return [str(entry.location) for entry in log if entry.location is not None]


def checkpoints(world: Simulation) -> list[int]:
    return [entry.iteration for entry in world.full_log if isinstance(entry, events.LoopCheckpointed)]


def counting(times: int, every: int | None, *, keep: int = 100) -> Any:
    async def workflow(ctx: Context) -> list[int]:
        async def body(ctx: Context, state: list[int]) -> Continue[list[int]] | Break[list[int]]:
            state = [*state, await ctx.activity(p, len(state))]
            return Break(state) if len(state) == times else Continue(state)

        first = await ctx.activity(q, 1)
        numbers = await ctx.loop(body, [], forget_every=every, keep_forgotten=keep)
        return [first, *numbers, await ctx.activity(q, 2)]

    return workflow


# When checkpoints come.


@pytest.mark.parametrize(
    ("times", "every", "expected"),
    [
        (1, 1, []),
        (1, 2, []),
        (3, 1, [1, 2]),
        (4, 2, [2]),
        (5, 2, [2, 4]),
        (6, 2, [2, 4]),
        (20, 20, []),
        (21, 20, [20]),
        (41, 20, [20, 40]),
        (5, None, []),
    ],
)
async def test_checkpoints_come_after_so_many_iterations_and_every_crash_is_survived(times, every, expected):
    world = await survives(counting(times, every))

    assert result(world) == [10, *range(times), 20]
    assert checkpoints(world) == expected
    kept = ["{1}", "{2}", "{3}"]
    assert places(world.log) == (
        kept if every else ["{1}", "{2}", *(f"{{2, {n}, 1}}" for n in range(1, times + 1)), "{3}"]
    )


async def test_a_crash_in_the_37th_iteration_goes_on_from_the_checkpoint_at_20():
    world = await run(counting(40, 20))
    log = world.as_of(next(e.seq for e in world.full_log if str(e.location) == "{2, 37, 1}"))
    ran: list[int] = []

    async def workflow(ctx: Context) -> list[int]:
        async def body(ctx: Context, state: list[int]) -> Any:
            _seen(ctx).append(len(state) + 1)
            state = [*state, await ctx.activity(p, len(state))]
            return Break(state) if len(state) == 40 else Continue(state)

        first = await ctx.activity(q, 1)
        return [first, *await ctx.loop(body, []), await ctx.activity(q, 2)]

    resumed = World(workflow, log=log)
    ran = resumed._live_root.recorder.__dict__.setdefault("ran", [])
    await resumed.run()
    assert ran == list(range(21, 41))
    assert result(resumed) == result(world)
    assert places(log)[:2] == ["{1}", "{2}"]
    assert places(log)[2:] == [f"{{2, {number}, 1}}" for number in range(21, 38)]


def _seen(ctx: Context) -> list[int]:
    ran: list[int] = ctx._recorder.__dict__.setdefault("ran", [])
    return ran


# What is kept of what is forgotten.


def kept_of(world: World) -> list[int]:
    """Return the iterations that a store would still show to tools."""
    kept: set[Location] = set()
    spans: list[Span] = []
    for outcome in world.outcomes:
        kept |= {gone.location for gone in outcome.forgotten}
        spans += outcome.dropped
        kept = {place for place in kept if not any(span.start <= place < span.end for span in spans)}
    return sorted({place.coordinates[1][0] for place in kept})


@pytest.mark.parametrize(
    ("times", "every", "keep", "expected"),
    [
        (250, 1, 100, range(151, 251)),
        (30, 20, 100, range(1, 31)),
        (30, 7, 10, range(21, 31)),
        (5, 1, 0, []),
        (5, 2, 1, [5]),
        (7, 2, 3, [5, 6, 7]),
    ],
)
async def test_the_last_forgotten_iterations_are_kept_for_tools(times, every, keep, expected):
    world = await run(counting(times, every, keep=keep))

    assert kept_of(world) == list(expected)
    assert places(world.log) == ["{1}", "{2}", "{3}"]


async def test_the_history_of_a_long_loop_stays_bounded():
    world = World(counting(300, 5))
    longest = 0
    await world.begin()
    while world.status is Status.RUNNING:
        longest = max(longest, len(world.log))
        await world.step()
    world.close()
    assert longest < 20


# Nested.


def nested(outer: int | None, inner: int | None) -> Any:
    async def within(ctx: Context, state: list[int]) -> Continue[list[int]] | Break[int]:
        state = [*state, await ctx.activity(p, len(state))]
        await ctx.sleep(1)
        return Break(sum(state)) if len(state) == 3 else Continue(state)

    async def around(ctx: Context, state: list[int]) -> Continue[list[int]] | Break[list[int]]:
        await ctx.sleep(1)
        state = [*state, await ctx.loop(within, [], forget_every=inner)]
        await ctx.activity(q, 1)
        return Break(state) if len(state) == 4 else Continue(state)

    async def workflow(ctx: Context) -> list[int]:
        return await ctx.loop(around, [], forget_every=outer)

    return workflow


@pytest.mark.parametrize("outer", [None, 1, 2, 20])
@pytest.mark.parametrize("inner", [None, 1, 2, 20])
async def test_loops_in_loops_forget_and_survive(outer, inner):
    world = await survives(nested(outer, inner))

    assert result(world) == [3, 3, 3, 3]
    inside = [place for place in places(world.log) if place != "{1}"]
    if outer is not None:
        assert inside == []
    elif inner is not None:
        assert all(len(Location.parse(place).coordinates) == 3 for place in inside)
    unseen = {str(e.location) for e in world.full_log if isinstance(e, events.LoopStarted)}
    assert unseen == {"{1}", *(f"{{1, {number}, 2}}" for number in range(1, 5))}


# What goes on beside a loop.


async def test_signals_state_and_random_across_forgotten_iterations():
    async def body(ctx: Context, state: list[Any]) -> Step:
        value = await ctx.listen("s")
        ctx.set("sum", ctx.get("sum", 0) + value)
        ctx.set(f"last{value % 2}", value)
        if value == 3:
            ctx.clear("last0")
        state = [*state, [value, ctx.random.random(), str(ctx.uuid4())]]
        return Break(state) if value == 6 else Continue(state)

    async def workflow(ctx: Context) -> Any:
        drawn = ctx.random.random()
        got = await ctx.loop(body, [], forget_every=2)
        return [drawn, got, ctx.get("sum"), ctx.get("last0"), ctx.get("last1"), ctx.random.random()]

    messages = [events.SignalReceived(name="s", id=str(n), value=Raw(b"%d" % n)) for n in range(1, 7)]
    world = await survives(workflow, messages)

    _, got, total, even, odd, _ = result(world)
    assert [value for value, *_ in got] == [1, 2, 3, 4, 5, 6]
    assert len({number for _, number, _ in got}) == 6
    assert (total, even, odd) == (21, 6, 5)
    assert not any(isinstance(entry, events.SignalReceived) for entry in world.log)


async def test_a_signal_that_is_sent_again_after_it_was_forgotten_is_not_heard_again():
    async def body(ctx: Context, state: list[int]) -> Step:
        state = [*state, await ctx.listen("s")]
        return Break(state) if len(state) == 3 else Continue(state)

    async def workflow(ctx: Context) -> Any:
        return await ctx.loop(body, [], forget_every=1)

    sent = [events.SignalReceived(name="s", id=str(n), value=Raw(b"%d" % n)) for n in (1, 2, 1, 2, 3)]
    assert result(await run(workflow, (), sent)) == [1, 2, 3]


async def test_a_signal_that_was_not_taken_is_not_forgotten():
    async def body(ctx: Context, number: int) -> Step:
        await ctx.sleep(1)
        return Break(number) if number == 3 else Continue(number + 1)

    async def workflow(ctx: Context) -> Any:
        await ctx.loop(body, 0, forget_every=1)
        return await ctx.listen("s")

    world = await survives(workflow, [events.SignalReceived(name="s", id="1", value=Raw(b"7"))])
    assert result(world) == 7


async def test_a_checkpoint_is_put_off_by_work_that_an_iteration_left_behind():
    async def body(ctx: Context, number: int) -> Step:
        if number == 0:
            asyncio.create_task(_slowly(ctx))  # noqa: RUF006 -- left behind is the point
        await ctx.sleep(1)
        return Break(number) if number == 5 else Continue(number + 1)

    async def workflow(ctx: Context) -> Any:
        return await ctx.loop(body, 0, forget_every=1)

    world = await survives(workflow)
    assert result(world) == 5
    assert checkpoints(world) == [4, 5]


async def _slowly(ctx: Context) -> None:
    await ctx.sleep(3.5)
    await ctx.activity(p, 0)


async def test_work_left_open_at_the_end_keeps_the_iterations():
    async def body(ctx: Context, number: int) -> Step:
        asyncio.create_task(_slowly(ctx))  # noqa: RUF006 -- as above
        await ctx.sleep(1)
        return Break(number) if number == 1 else Continue(number + 1)

    async def workflow(ctx: Context) -> Any:
        got = await ctx.loop(body, 0, forget_every=1)
        await ctx.sleep(1)
        return got

    world = await survives(workflow)
    assert result(world) == 1
    assert checkpoints(world) == []
    assert "{1, 1, 1}" in places(world.log)


async def test_suspended_with_a_checkpoint_pending():
    """The checkpoint is an entry of its own: a run that is cut right before it makes it when it goes on."""
    world = await run(counting(4, 2))
    made = next(entry for entry in world.full_log if isinstance(entry, events.LoopCheckpointed))
    before = await run(counting(4, 2), world.as_of(made.seq - 1))
    assert before.full_log[len(world.as_of(made.seq - 1))] == made


async def test_a_strand_beside_a_loop_reads_the_same_when_it_is_replayed():
    async def body(ctx: Context, number: int) -> Step:
        ctx.set("k", 1)
        await ctx.sleep(5)
        return Break(0)

    async def beside(ctx: Context) -> None:
        await ctx.sleep(1)
        await ctx.activity(p if ctx.get("k") else q, 1)
        await ctx.sleep(20)

    async def workflow(ctx: Context) -> None:
        await asyncio.gather(ctx.loop(body, 0, forget_every=1), beside(ctx))

    await survives(workflow)
