"""Hot equals cold: at every commit, a coroutine that has lived and one that was replayed stand at the same point."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from laws import generated
from laws.test_replay import length_to_end
from resurgam.core import event as events
from resurgam.core.location import Location
from resurgam.core.outcome import Entry
from resurgam.runtime.callback import outside_tasks
from resurgam.runtime.execution import Execution
from resurgam.runtime.recorder import Recorder
from resurgam.testing import Simulation
from resurgam.testing.simulation import Follower

PROGRAMS = 150
PROGRAMS_LONG = 4000


class Watched(Simulation):
    """A simulation that replays its log cold at every commit, and holds the two against each other."""

    commits = 0

    async def _advance(self, inbox: list[events.Event]) -> None:
        cold = Execution(self.workflow, list(self.log))
        try:
            await self._compare(cold, inbox)
        finally:
            await outside_tasks(cold.close)
        self.commits += 1

    async def _compare(self, cold: Execution, inbox: list[events.Event]) -> None:
        hot, before = self._execution, self.log[-1].seq
        if before > 1:
            await outside_tasks(cold.replay)
            assert cold.new == ()
            assert standing(cold.recorder, self.log) == standing(hot.recorder, self.log)
            # What is under way in the worker's memory; after a crash it would be begun again.
            cold._handed_out, cold._left = set(hot._handed_out), list(hot._left)
        await super()._advance(inbox)
        outcome = await outside_tasks(lambda: cold.advance([Entry(None, entry) for entry in inbox], self._clock))
        written = [entry for entry in self.ever if entry.seq > before]
        assert list(outcome.events) == written[: len(outcome.events)]
        assert len(outcome.events) == len(written) or outcome.withdrawals


def standing(recorder: Recorder, log: list[events.Event]) -> dict[str, object]:
    """Return all that can be told of where a run stands."""
    pending = set(recorder.pending)
    return {
        "verdict": recorder.verdict,
        "pending": pending,
        "now": recorder.now,
        "position": recorder.position,
        "listeners": recorder.listeners,
        "deadlines": sorted(deadline for deadline in recorder.deadlines if deadline[1] in pending),
        "races": {seq: race.winner for seq, race in recorder.races.items()},
        "operations": set(recorder.operations),
        "variables": {name: bytes(value) for name, value in recorder.variables.items()},
        "loops": {seq: (at.done, at.forgotten, bytes(at.state), at.wants) for seq, at in recorder.loops.items()},
        "mailbox": sorted(signal.seq for waiting in recorder.mailbox._waiting.values() for signal in waiting),
        "open": set(recorder.log.state.open),
        "tasks": sorted(str(task.scope.location) for task in recorder.loop.tasks),
        "noted": remembered(recorder.__dict__.get("noted", []), log),
    }


def remembered(noted: list[Any], log: list[events.Event]) -> list[Any]:
    """Leave out what was noted in iterations that are forgotten."""
    loops = {entry.seq: entry.location for entry in log if isinstance(entry, events.LoopStarted)}
    gone = {}
    for entry in log:
        if isinstance(entry, events.LoopCheckpointed) or (isinstance(entry, events.LoopCompleted) and entry.whole):
            gone[loops[entry.ref]] = entry.iteration

    def is_gone(place: Location) -> bool:
        return any(
            loop.contains(place) and place != loop and place.coordinates[len(loop.coordinates)][0] <= last
            for loop, last in gone.items()
        )

    return [note for note in noted if not is_gone(note[0])]


async def watch(tree: generated.Node, seed: int, census: Counter[str]) -> Watched:
    world = Watched(
        generated.program,
        tree,
        chooser=random.Random(seed),
        messages=generated.messages(seed),
        registry=generated.registry,
    )
    await world.run()
    census["programs"] += 1
    census["commits"] += world.commits
    census["forgot"] += len(world.log) < len(world.ever)
    census["checkpoints"] += sum(isinstance(entry, events.LoopCheckpointed) for entry in world.ever)
    return world


async def crash(world: Watched, tree: generated.Node, seed: int, points: int) -> None:
    """Killed after any entry, a run goes on to the very same history, what is forgotten included."""
    end = length_to_end(world.ever)
    for point in random.Random(seed).sample(range(1, end), min(points, end - 1)):
        resumed = Simulation(
            generated.program,
            log=world.as_of(point),
            chooser=Follower(world.ever),
            messages=generated.messages(seed),
            registry=generated.registry,
        )
        await resumed.run()
        assert resumed.as_of(end) == world.as_of(end), f"killed after {point}: {tree} seed {seed}"
        assert [e for e in resumed.ever if point < e.seq <= end] == world.ever[point:end]


def hold(examples: int, check: Callable[[generated.Node, int], Any], *, fixed: bool = True) -> None:
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=fixed,
        phases=[Phase.generate, Phase.shrink],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(tree=generated.looping_trees, seed=st.integers(0, 2**32))
    def holds(tree: generated.Node, seed: int) -> None:
        asyncio.run(check(tree, seed))

    holds()


def run_law(census: Counter[str], examples: int, points: int, *, fixed: bool = True) -> None:
    async def check(tree: generated.Node, seed: int) -> None:
        await crash(await watch(tree, seed, census), tree, seed, points)

    hold(examples, check, fixed=fixed)


def test_hot_equals_cold_at_every_commit_and_a_crash_changes_nothing():
    census: Counter[str] = Counter()
    run_law(census, PROGRAMS, 6)

    assert census["forgot"] > PROGRAMS / 3, census
    assert census["checkpoints"] > PROGRAMS / 3, census


async def test_a_loop_that_lost_a_race_inside_a_loop_is_forgotten_hot_as_cold():
    loser = ["loop", [["act", 0]], None, 1]
    tree = ["seq", [["loop", [["race", [["act", 0], loser]]], 1, 1], ["map", [["act", 0]], None]]]
    await crash(await watch(tree, 0, Counter()), tree, 0, 40)


@pytest.mark.long
def test_the_same_for_thousands_of_programs():
    census: Counter[str] = Counter()
    run_law(census, PROGRAMS_LONG, 30, fixed=False)

    print(census)
