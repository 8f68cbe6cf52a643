"""The laws of replay, over random concurrent programs: replay twice is replay once, and a crash changes nothing."""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from laws import random_programs
from laws.wrong_drivers import MUTANTS
from resurgam.core import event as events
from resurgam.core.state import ENDS, Status, is_delayed
from resurgam.testing import Simulation
from resurgam.testing.replay import replay
from resurgam.testing.simulation import Again, Point

PROGRAMS = 300
PROGRAMS_LONG = 5000
CRASH_POINTS = 12
"""Crashes tried per program in the short run; the long one tries every one."""


ENDS_BEFORE_IT_IS_ASKED_FOR: random_programs.Node = [
    "seq",
    [["seq", [["op", 0], ["race", [["op", 0], ["child", [["sleep", 0]]]]]]], ["flop", 1], ["act", 4]],
]
"""The child of the first attempt ends before the second attempt, which an operation holds up, asks for it."""
SETTLES_AND_FAILS: random_programs.Node = [
    "seq",
    [["race", [["sleep", 0], ["own_promise", 1]]], ["flop", 1], ["act", 4]],
]
"""The commit that ends the first attempt settles a promise of its own, which the second attempt makes again."""

VOCABULARY = (
    *("child_completed", "child_failed", "child_cancelled", "child_cancel_requested", "workflow_continued"),
    *("promise_resolved", "promise_rejected", "promise_timed_out", "promise_settled", "workflow_retried"),
    *("signal_delivered", "signal_failed", "message_published", "signals_consumed", "workflow_begun"),
    *("saga_compensation_started", "saga_closed", "signal_handled", "update_accepted", "update_completed"),
)
"""Kinds of entries that must not become rare."""


@dataclass
class Census:
    """What the generated programs were like, so that a change of the generator cannot make the laws toothless."""

    programs: int = 0
    nested: int = 0
    racing: int = 0
    entries: list[int] = field(default_factory=list)

    kinds: Counter[str] = field(default_factory=Counter)

    def count(self, tree: random_programs.Node, world: Simulation) -> None:
        self.programs += 1
        self.nested += random_programs.nests_concurrency(tree)
        self.racing += bool(random_programs.RACES & set(random_programs.kinds(tree)))
        self.entries.append(sum(map(len, world.histories.values())))
        self.kinds.update({entry.type for log in world.histories.values() for entry in log})

    def check(self) -> None:
        rare = {kind: self.kinds[kind] for kind in VOCABULARY if self.kinds[kind] < self.programs / 100}
        assert not rare, f"of {self.programs} programs only so many had {rare}"
        assert self.nested >= 0.3 * self.programs, f"only {self.nested} of {self.programs} nest concurrency"
        assert self.racing >= 0.2 * self.programs, f"only {self.racing} of {self.programs} race"


async def live(tree: random_programs.Node, seed: int) -> Simulation:
    """Run a program in a world that the seed decides."""
    world = Simulation(
        random_programs.program, tree, keep=True, chooser=random.Random(seed), **random_programs.outside(seed)
    )
    await world.run()
    return world


async def resume(world: Simulation, seed: int, point: Point) -> Simulation:
    """Go on from some point of a world, in one that does what it did the first time."""
    again = Again(world.choices[point.choices :])
    resumed = Simulation(random_programs.program, at=point, chooser=again, **random_programs.outside(seed))
    await resumed.run()
    return resumed


def length_to_end(log: list[events.Event]) -> int:
    """Return how many entries there are up to the end; the end and what follows it are one commit."""
    return next((entry.seq for entry in log if isinstance(entry, tuple(ENDS))), log[-1].seq)


def essence(log: list[events.Event]) -> tuple[list[events.Event], list[tuple[str, int]]]:
    """Return a history up to its end exactly, and what follows the end in any order.

    Of that only activities count: an operation without a waiter is not run again, and an answer from
    outside is recorded only if it comes before the history is complete.
    """
    length = length_to_end(log)
    rest = [entry for entry in log[length:] if entry.type.startswith(("activity", "workflow"))]
    return log[:length], sorted((entry.type, entry.ref or 0) for entry in rest)


async def check_replay(tree: random_programs.Node, seed: int) -> Simulation:
    """Replaying an unchanged history appends nothing, diverges nowhere and gives the same result."""
    world = await live(tree, seed)
    for life in world.store.executions.values():
        code = random_programs.registry.workflows.find(life.started.name)
        # Twice by its own rule, and once by the other: unchanged code fits under any.
        for matching in (None, None, "sequence"):
            report = await replay(code, life.log, matching=matching)
            assert report.diverged is None, f"{report.diverged}\n{tree} seed {seed}"
            assert report.new == ()
            # Not what has continued as new, and not what was called off before it began.
            begun = not is_delayed(life.started) or any(isinstance(entry, events.WorkflowBegun) for entry in life.log)
            assert report.finished or not begun or life.status is Status.CONTINUED
    return world


async def check_crashes(tree: random_programs.Node, seed: int, world: Simulation, points: list[Point]) -> None:
    """A world that is killed after any entry of any execution goes on to the very same histories."""
    for point in points:
        resumed = await resume(world, seed, point)
        where = f"killed after {point.entry.to_json()} of {point.execution_id}: {tree} seed {seed}"
        assert resumed.histories.keys() == world.histories.keys(), where
        for of, log in world.histories.items():
            assert essence(resumed.histories[of]) == essence(log), where
        assert resumed.published == world.published, where


def run_law(census: Census, examples: int, *, every_crash: bool = False, shrink: bool = True) -> None:
    """Hold the laws against this many programs."""
    phases = [Phase.explicit, Phase.generate, *([Phase.shrink] if shrink else [])]

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=not every_crash,
        phases=phases,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(tree=random_programs.trees, seed=st.integers(0, 2**32))
    @example(tree=ENDS_BEFORE_IT_IS_ASKED_FOR, seed=0)
    @example(tree=SETTLES_AND_FAILS, seed=0)
    def holds(tree: random_programs.Node, seed: int) -> None:
        asyncio.run(check(tree, seed))

    async def check(tree: random_programs.Node, seed: int) -> None:
        world = await check_replay(tree, seed)
        census.count(tree, world)
        points = world.points[:-1]
        if not every_crash and len(points) > CRASH_POINTS:
            points = random.Random(seed).sample(points, CRASH_POINTS)
        await check_crashes(tree, seed, world, points)

    holds()


def test_replay_twice_is_replay_once_and_a_crash_changes_nothing():
    census = Census()

    run_law(census, PROGRAMS)

    census.check()
    assert census.programs >= PROGRAMS


@pytest.mark.long
def test_the_same_for_thousands_of_programs_killed_after_every_entry():
    census = Census()

    run_law(census, PROGRAMS_LONG, every_crash=True)

    census.check()
    print(f"{census.programs} programs, {sum(census.entries)} entries, no divergence")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_law_kills_the_mutant(mutant, monkeypatch):
    """A driver that delivers otherwise than in log order, one entry at a time, is found out."""
    mutant(monkeypatch)

    with pytest.raises(AssertionError, match="seed"):
        run_law(Census(), PROGRAMS, shrink=False)
