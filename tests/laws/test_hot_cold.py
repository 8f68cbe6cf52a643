"""Hot equals cold: at every commit, a coroutine that has lived and one that was replayed stand at the same point."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from laws import random_programs
from laws.test_replay import length_to_end
from resurgam.core import event as events
from resurgam.core.location import Location
from resurgam.core.outcome import Entry, Outcome
from resurgam.runtime.execution.execution import Execution
from resurgam.runtime.loop.outside_task import run_outside_task
from resurgam.runtime.matching.recorder import Recorder
from resurgam.testing import Simulation
from resurgam.testing.simulated_store import StoredExecution
from resurgam.testing.simulation import Again

PROGRAMS = 150
PROGRAMS_LONG = 4000


class Watched(Simulation):
    """A simulation that replays its log cold at every commit, and holds the two against each other."""

    commits = 0

    async def _outcome(self, life: StoredExecution, execution: Execution, entries: Sequence[Entry]) -> Outcome:
        cold = self._loader.load(life)
        assert isinstance(cold, Execution)
        try:
            return await self._compare(life, execution, cold, entries)
        finally:
            await run_outside_task(cold.close)

    async def _compare(
        self, life: StoredExecution, hot: Execution, cold: Execution, entries: Sequence[Entry]
    ) -> Outcome:
        if life.full_log[-1].seq > 1 and hot.delivered_seq:
            await run_outside_task(cold.replay)
            assert cold.new == ()
            assert standing(cold.recorder, life.log) == standing(hot.recorder, life.log)
            # What is under way in the worker's memory; after a crash it would be begun again.
            cold.recorder.pending.handed_out = dict(hot.recorder.pending.handed_out)
            cold._build_general().left = [] if hot._general is None else list(hot._general.left)
        # The next execution is given the whole inbox.
        known = [Entry(number, life.inbox[number]) for number in sorted(life.held) if hot.delivered_seq]
        outcome = await super()._outcome(life, hot, entries)
        again: Outcome = await run_outside_task(lambda: cold.advance([*known, *entries], life.clock))
        assert again == outcome
        self.commits += 1
        return outcome


def standing(recorder: Recorder, log: list[events.Event]) -> dict[str, object]:
    """Return all that can be told of where a run stands."""
    pending = set(recorder.pending.futures)
    return {
        "verdict": recorder.verdict.reason,
        "pending": pending,
        "now": recorder.now,
        "position": recorder.entry,
        "listeners": recorder.pending.listeners,
        "deadlines": sorted(deadline for deadline in recorder.pending.deadlines if deadline[1] in pending),
        "races": {seq: race.winner for seq, race in recorder.pending.races.items()},
        "operations": set(recorder.pending.operations),
        "variables": {name: bytes(value) for name, value in recorder.state.values.items()},
        "loops": {
            seq: (at.done, at.forgotten, bytes(at.state), at.wants) for seq, at in recorder.pending.loops.items()
        },
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


async def watch(tree: random_programs.Node, seed: int, census: Counter[str]) -> Watched:
    world = Watched(
        random_programs.program,
        tree,
        keep=True,
        chooser=random.Random(seed),
        **random_programs.outside(seed),
    )
    await world.run()
    census["programs"] += 1
    census["commits"] += world.commits
    lives = world.store.executions.values()
    census["forgot"] += any(len(life.log) < len(life.full_log) for life in lives)
    written = [entry for life in lives for entry in life.full_log]
    census["checkpoints"] += sum(isinstance(entry, events.LoopCheckpointed) for entry in written)
    census.update(entry.type for entry in written)
    return world


async def crash(world: Watched, tree: random_programs.Node, seed: int, points: int) -> None:
    """Killed after any entry, a world goes on to the very same histories, what is forgotten included."""
    for point in random.Random(seed).sample(world.points[:-1], min(points, len(world.points) - 1)):
        again = Again(world.choices[point.choices :])
        resumed = Simulation(random_programs.program, at=point, chooser=again, **random_programs.outside(seed))
        await resumed.run()
        where = f"killed after {point.entry.to_json()} of {point.execution_id}: {tree} seed {seed}"
        assert resumed.histories.keys() == world.histories.keys(), where
        for of, life in world.store.executions.items():
            end = length_to_end(life.full_log)
            assert resumed.store.executions[of].as_of(end) == life.as_of(end), where
            assert resumed.histories[of][:end] == life.full_log[:end], where


def hold(examples: int, check: Callable[[random_programs.Node, int], Any], *, fixed: bool = True) -> None:
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=fixed,
        phases=[Phase.generate, Phase.shrink],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(tree=random_programs.looping_trees, seed=st.integers(0, 2**32))
    def holds(tree: random_programs.Node, seed: int) -> None:
        asyncio.run(check(tree, seed))

    holds()


def run_law(census: Counter[str], examples: int, points: int, *, fixed: bool = True) -> None:
    async def check(tree: random_programs.Node, seed: int) -> None:
        await crash(await watch(tree, seed, census), tree, seed, points)

    hold(examples, check, fixed=fixed)


def test_hot_equals_cold_at_every_commit_and_a_crash_changes_nothing():
    census: Counter[str] = Counter()
    run_law(census, PROGRAMS, 6)

    assert census["forgot"] > PROGRAMS / 4, census
    assert census["checkpoints"] > PROGRAMS / 4, census


async def test_what_an_attempt_has_forgotten_is_not_carried_over_hot_either() -> None:
    """A loop forgot in the very advance in which the workflow failed: cold, the next attempt would know nothing of it."""
    tree = ["seq", [["loop", [["loop", [["act", 0]], 1, 1], ["flop", 1]], None, 1]]]
    await crash(await watch(tree, 0, Counter()), tree, 0, 1000)


async def test_a_loop_that_lost_a_race_inside_a_loop_is_forgotten_hot_as_cold():
    loser = ["loop", [["act", 0]], None, 1]
    tree = ["seq", [["loop", [["race", [["act", 0], loser]]], 1, 1], ["map", [["act", 0]], None]]]
    await crash(await watch(tree, 0, Counter()), tree, 0, 40)


@pytest.mark.long
def test_the_same_for_thousands_of_programs():
    census: Counter[str] = Counter()
    run_law(census, PROGRAMS_LONG, 30, fixed=False)

    print(census)
