"""The plain course of an advance equals the general one: the same outcomes and histories, to the byte."""

import asyncio
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from laws import random_programs
from resurgam.core import event as events
from resurgam.core.outcome import Entry, Outcome
from resurgam.runtime.context.context import Context
from resurgam.runtime.execution.execution import Execution
from resurgam.runtime.execution.general_course import GeneralCourse
from resurgam.runtime.registry import Registry
from resurgam.testing import Simulation
from resurgam.testing.clock import START
from resurgam.testing.simulated_store import StoredExecution
from resurgam.testing.simulation import start_event
from support.programs import MESSAGES, PROGRAMS
from support.programs import registry as named

RANDOM_PROGRAMS = 150
registry = Registry()


class Kept(Simulation):
    """A simulation that keeps every outcome."""

    outcomes: list[Outcome]

    async def _outcome(self, life: StoredExecution, execution: Execution, entries: Sequence[Entry]) -> Outcome:
        outcome = await super()._outcome(life, execution, entries)
        self.__dict__.setdefault("outcomes", []).append(outcome)
        return outcome


@contextmanager
def general_course() -> Iterator[None]:
    """Let no run be on its plain course."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GeneralCourse, "_is_plain", lambda _: False)
        patch.setattr(Execution, "_starts_plainly", lambda _: False)
        patch.setattr(Execution, "_plain_outcome", None)
        yield


@contextmanager
def counted() -> Iterator[list[int]]:
    """Count the advances on the plain course, each by the number of its results."""
    numbers: list[int] = []
    advance = Execution._advance_plainly

    def counting(self: Execution, inbox: Sequence[Entry], *rest: Any) -> Outcome:
        numbers.append(len(inbox))
        return advance(self, inbox, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Execution, "_advance_plainly", counting)
        yield numbers


async def both(*args: Any, seed: int, **options: Any) -> int:
    """Run a program on either course, compare them, and return the number of advances on the plain one."""
    with counted() as numbers:
        plain = Kept(*args, chooser=random.Random(seed), **options)
        await plain.run()
    with general_course():
        general = Kept(*args, chooser=random.Random(seed), **options)
        await general.run()
    assert plain.outcomes == general.outcomes
    assert written(plain) == written(general)
    return len(numbers)


def written(world: Simulation) -> dict[str, list[str]]:
    return {of: [entry.to_json() for entry in log] for of, log in world.histories.items()}


async def test_named_programs_write_the_same_on_either_course():
    plain = {
        name: sum([await both(PROGRAMS[name], seed=seed, registry=named, messages=MESSAGES[name]) for seed in range(4)])
        for name in PROGRAMS
    }
    assert sum(number > 0 for number in plain.values()) > len(PROGRAMS) / 3, plain


def test_random_programs_write_the_same_on_either_course():
    numbers = []

    @settings(
        max_examples=RANDOM_PROGRAMS,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(tree=random_programs.trees | random_programs.looping_trees, seed=st.integers(0, 2**32))
    def holds(tree: random_programs.Node, seed: int) -> None:
        program, outside = random_programs.program, random_programs.outside(seed)
        numbers.append(asyncio.run(both(program, tree, seed=seed, **outside)))

    holds()
    assert sum(number > 0 for number in numbers) > RANDOM_PROGRAMS / 4


# Several results in one inbox.


@registry.activity
async def act(number: int) -> int:
    return number


@registry.workflow
async def gathers(ctx: Context) -> int:
    """Wait for all."""
    return sum(await asyncio.gather(*[ctx.activity(act, number) for number in range(12)]))


@registry.workflow
async def follows_up(ctx: Context) -> list[int]:
    """Call the next activity for each result, in the order of the results."""
    seen: list[int] = []

    async def one(number: int) -> None:
        seen.append(await ctx.activity(act, number))
        seen.append(await ctx.activity(act, 10 * number))
        ctx.set("seen", seen)

    async with asyncio.TaskGroup() as group:
        for number in range(6):
            group.create_task(one(number))
    return seen


@registry.workflow
async def comes_to_all(ctx: Context) -> str:
    """Make every kind of call between activities, so that the plain course is left and found again."""
    first = [ctx.activity(act, number) for number in range(4)]
    await first[0]
    await ctx.sleep(0)
    first[3].cancel()
    won, _ = await ctx.race(ctx.activity(act, 4), ctx.sleep(60))
    await asyncio.gather(*first[1:3])
    await ctx.map(act, range(3))
    ctx.on_signal("go")(lambda _: None)
    await asyncio.gather(*[ctx.activity(act, number) for number in range(3)])
    return str(won)


@registry.workflow
async def fails(ctx: Context) -> None:
    """Raise in the middle of an inbox."""
    one, two = ctx.activity(act, 1), ctx.activity(act, 2)
    await one
    raise ValueError(await two if two.done() else "too soon")


@registry.workflow
async def waits_for_a_condition(ctx: Context) -> int:
    """Wait for what other tasks do, beside activities."""
    got: list[int] = []
    for future in [ctx.activity(act, number) for number in range(5)]:
        future.add_done_callback(lambda done: got.append(done.result()))
    await ctx.until(lambda: len(got) > 2)
    return len(got)


def drive(name: str, seed: int) -> list[Outcome]:
    """Advance a workflow to its end, by inboxes of a random number of results, some of them twice or unreadable."""
    chance, outcomes = random.Random(seed), []
    workflow = registry.workflows.find(name)
    execution = Execution(workflow, [start_event(workflow, ())])
    clock, inbox, open_refs, number = START, [], [], 0
    for _ in range(60):
        outcome = execution.advance(inbox, clock)
        outcomes.append(outcome)
        if execution.closed:
            return outcomes
        open_refs += [request.ref for request in outcome.activities]
        inbox, clock = [], max(clock + 1, outcome.wake_at or 0)
        for _ in range(min(len(open_refs), chance.randint(1, 5))):
            ref = open_refs.pop(chance.randrange(len(open_refs)))
            result = b'"text"' if chance.random() < 0.02 else b"%d" % ref
            event = events.ActivityCompleted(ref=ref, at=clock, attempt=1, result=events.Raw(result))
            number += 1
            inbox += [Entry(number if chance.random() < 0.5 else None, event)] * (2 if chance.random() < 0.1 else 1)
        if chance.random() < 0.1:
            inbox.append(Entry(number + 1000, events.SignalReceived(name="go", id=str(number), at=clock)))
    return outcomes


@pytest.mark.parametrize("name", ["gathers", "follows_up", "comes_to_all", "fails", "waits_for_a_condition"])
def test_many_results_in_one_inbox_give_the_same_on_either_course(name: str):
    several = 0
    for seed in range(40):
        with counted() as numbers:
            plain = drive(name, seed)
        several += sum(number > 1 for number in numbers)
        with general_course():
            assert drive(name, seed) == plain, f"{name} {seed=}"
    assert several > 20


def test_a_run_returns_to_its_plain_course_when_what_came_up_is_gone():
    workflow = registry.workflows.find("comes_to_all")
    execution = Execution(workflow, [start_event(workflow, ())])
    outcome = execution.advance([], START)
    course = execution.recorder.course
    assert course.plain

    def give(ref: int) -> Outcome:
        result = events.ActivityCompleted(ref=ref, attempt=1, result=events.Raw(b"1"))
        return execution.advance([Entry(None, result)], START)

    outcome = give(outcome.activities[0].ref)  # the timer fires at once; then one is cancelled, and a race begins
    assert not course.plain
    give(outcome.activities[-1].ref)  # the race is decided, its timer cancelled
    assert course.plain
    execution.close()
