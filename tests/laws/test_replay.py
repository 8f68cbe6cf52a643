"""The laws of replay, over random concurrent programs: replay twice is replay once, and a crash changes nothing."""

import asyncio
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from laws import generated
from laws.mutants import MUTANTS
from resurgam.core import event as events
from resurgam.testing import Simulation
from resurgam.testing.replay import replay
from resurgam.testing.simulation import Follower

PROGRAMS = 300
PROGRAMS_LONG = 5000
CRASH_POINTS = 12
"""Crashes tried per program in the short run; the long one tries every one."""


@dataclass
class Census:
    """What the generated programs were like, so that a change of the generator cannot make the laws toothless."""

    programs: int = 0
    nested: int = 0
    racing: int = 0
    entries: list[int] = field(default_factory=list)

    def count(self, tree: generated.Node, log: list[events.Event]) -> None:
        self.programs += 1
        self.nested += generated.nests_concurrency(tree)
        self.racing += bool(generated.RACES & set(generated.kinds(tree)))
        self.entries.append(len(log))

    def check(self) -> None:
        assert self.nested >= 0.3 * self.programs, f"only {self.nested} of {self.programs} nest concurrency"
        assert self.racing >= 0.2 * self.programs, f"only {self.racing} of {self.programs} race"


async def live(tree: generated.Node, seed: int) -> list[events.Event]:
    """Run a program in a world that the seed decides."""
    world = Simulation(
        generated.program,
        tree,
        chooser=random.Random(seed),
        messages=generated.messages(seed),
        registry=generated.registry,
    )
    return await world.run()


async def resume(tree: generated.Node, seed: int, log: list[events.Event], length: int) -> list[events.Event]:
    """Go on from a prefix of a history, in a world that does what it did the first time."""
    world = Simulation(
        generated.program,
        log=log[:length],
        chooser=Follower(log),
        messages=generated.messages(seed),
        registry=generated.registry,
    )
    return await world.run()


def length_to_end(log: list[events.Event]) -> int:
    """Return how many entries there are up to the end; the end and what follows it are one commit."""
    ends = (events.WorkflowCompleted, events.WorkflowFailed, events.WorkflowCancelled)
    return next(entry.seq for entry in log if isinstance(entry, ends))


def essence(log: list[events.Event]) -> tuple[list[events.Event], list[tuple[str, int]]]:
    """Return a history up to its end exactly, and what follows the end in any order.

    Operations are left out there: one that nobody waits for any more is not run again.
    """
    length = length_to_end(log)
    rest = [entry for entry in log[length:] if not entry.type.startswith("operation")]
    return log[:length], sorted((entry.type, entry.ref or 0) for entry in rest)


async def check_replay(tree: generated.Node, seed: int) -> list[events.Event]:
    """Replaying an unchanged history appends nothing, diverges nowhere and gives the same result."""
    log = await live(tree, seed)
    for _ in range(2):
        report = await replay(generated.program, log)
        assert report.diverged is None, f"{report.diverged}\n{tree} seed {seed}"
        assert report.new == ()
        assert report.finished
    return log


async def check_crashes(tree: generated.Node, seed: int, log: list[events.Event], points: list[int]) -> None:
    """A run that is killed after any entry goes on to the very same history."""
    for length in points:
        resumed = await resume(tree, seed, log, length)
        assert essence(resumed) == essence(log), f"killed after {length}: {tree} seed {seed}"


def run_law(census: Census, examples: int, *, every_crash: bool = False, shrink: bool = True) -> None:
    """Hold the laws against this many programs."""
    phases = [Phase.generate, Phase.shrink] if shrink else [Phase.generate]

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=not every_crash,
        phases=phases,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(tree=generated.trees, seed=st.integers(0, 2**32))
    def holds(tree: generated.Node, seed: int) -> None:
        asyncio.run(check(tree, seed))

    async def check(tree: generated.Node, seed: int) -> None:
        log = await check_replay(tree, seed)
        census.count(tree, log)
        points = list(range(1, length_to_end(log)))
        if not every_crash and len(points) > CRASH_POINTS:
            points = sorted(random.Random(seed).sample(points, CRASH_POINTS))
        await check_crashes(tree, seed, log, points)

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
