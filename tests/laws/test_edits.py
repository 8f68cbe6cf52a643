"""The laws of editing: random programs, random legal edits one after another, over histories cut anywhere."""

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from laws.edit_generator import Author
from laws.edit_programs import Block, Settled, expected, workflow_of
from resurgam.core import event as events
from resurgam.core.codec import codec_for
from resurgam.core.errors import HistoryDiverged
from resurgam.core.location import Location
from resurgam.core.state import Status
from resurgam.runtime.execution.execution import Execution
from resurgam.runtime.loop.outside_task import run_outside_task
from resurgam.testing import Simulation
from resurgam.testing.crash import answered
from resurgam.testing.simulation import Point

LINES = 150
LINES_LONG = 6000
ANY = codec_for(Any)
Answers = dict[tuple[str, tuple[int, ...]], int]


def world(
    block: Block,
    log: Sequence[events.Event],
    chance: random.Random,
    before: Block = (),
    **options: Any,
) -> Simulation:
    workflow, registry = workflow_of(block, before)
    return Simulation(workflow, log=log, chooser=chance, registry=registry, promises=Settled(), **options)


async def cold(block: Block, log: Sequence[events.Event]) -> Execution:
    """Return the code, at the end of a history, with nothing new begun."""
    execution = Execution(workflow_of(block)[0], log)
    await run_outside_task(execution.replay)
    execution.close()
    return execution


def named(command: events.Command) -> tuple[str, str]:
    """Return which step, and for which items and iterations, a command is of."""
    return command.name or "", bytes(getattr(command, "input", b"")).decode()


def completed(log: Sequence[events.Event]) -> set[tuple[str, str]]:
    done = {entry.ref for entry in log if isinstance(entry, events.ActivityCompleted)}
    return {named(entry) for entry in log if isinstance(entry, events.ActivityScheduled) and entry.seq in done}


def check_unique(ever: Sequence[events.Event]) -> None:
    """No place is given twice, and no step takes two."""
    commands = [entry for entry in ever if isinstance(entry, events.Command)]
    assert len({entry.location for entry in commands}) == len(commands)
    asked = Counter(named(entry) for entry in commands if isinstance(entry, events.ActivityScheduled))
    assert not asked or max(asked.values()) == 1, asked


def check_order(log: Sequence[events.Event], recorder: Any) -> None:
    """Each strand's sorted history is what its code asked for, in that order; one that was cut off may have more."""
    trace: list[tuple[Location, str, str, str | None]] = recorder.trace
    recorded: dict[Location, list[events.Command]] = {}
    for entry in sorted((e for e in log if isinstance(e, events.Command)), key=lambda e: e.location):
        recorded.setdefault(entry.location.scope, []).append(entry)
    for scope in {place for place, *_ in trace}:
        left = recorded.get(scope, [])
        for _, what, tag, name in (call for call in trace if call[0] == scope):
            found = left[0] if left else None
            matches = found is not None and found.type == tag and (name is None or found.name == name)
            if what == "removed":
                matches = matches or (
                    isinstance(found, events.StepRemoved) and (found.removed, found.name) == (tag, name)
                )
            if matches:
                left = left[1:]
            else:
                assert what != "call", f"{scope}: {tag} {name} is not at {found}"
        assert not left or scope in recorder.cut, f"{scope}: {left[0]} was not asked for"


class Line:
    """The life of one run through several generations of its code."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.author = Author(self.chance)
        self.block = self.author.program()
        self.point: Point | None = None
        self.log: list[events.Event] = []
        self.answers: Answers = {}

    async def live(self) -> None:
        """Run each generation up to some entry, and the last one to its end."""
        for _ in range(self.chance.randint(1, 3)):
            whole = await self.run()
            self.point = self.chance.choice([point for point in whole.points if is_under_way(point)])
            self.log = self.point.log
            self.answers = await self.recorded_answers()
            self.block = self.author.edit(self.block)
        await self.run()

    async def run(self) -> Simulation:
        """Run the newest code from here to its end, and hold it to the laws."""
        simulation = world(self.block, (), self.chance, at=self.point, keep=True)
        await simulation.run()
        assert simulation.status is Status.COMPLETED, simulation.log[-1]
        lives = {} if self.point is None else self.point.store.executions
        done = {(of, ref) for of, life in lives.items() for ref in answered(life.full_log)}
        assert not done.intersection(simulation.performed_by), "what was done is done again"
        performed = {named(entry) for entry in simulation.full_log if entry.seq in simulation.performed}
        assert not performed & completed(self.log), "what was done is done again"
        check_unique(simulation.full_log)
        hot: Answers = simulation._live_root.recorder.answers  # type: ignore[attr-defined]
        assert all(hot[key] == answer for key, answer in self.answers.items() if key in hot), "an answer flips"
        await self.check_again(simulation.log, hot)
        return simulation

    async def check_again(self, log: list[events.Event], hot: Answers) -> None:
        """Replaying the same code once more writes nothing, and comes to the same."""
        for _ in range(2):
            again = await cold(self.block, log)
            assert again.verdict is None or not isinstance(again.verdict, HistoryDiverged), again.verdict
            assert again.new == ()
            answers: Answers = again.recorder.answers  # type: ignore[attr-defined]
            assert all(hot[key] == answer for key, answer in answers.items()), "an answer flips"
            check_order(log, again.recorder)
            [end] = [entry for entry in log if isinstance(entry, events.WorkflowCompleted)]
            assert ANY.decode(end.result, "") == expected(self.block, (), answers)

    async def recorded_answers(self) -> Answers:
        """Return what the history so far answers to the version checks of its code, and must answer for ever."""
        before = await cold(self.block, self.log)
        new = {entry.location.scope for entry in before.new if isinstance(entry, events.VersionChecked)}
        given: Answers = before.recorder.answers  # type: ignore[attr-defined]
        return {} if new else given


def is_under_way(point: Point) -> bool:
    return not any(isinstance(entry, events.WorkflowCompleted) for entry in point.log)


def before_end(ever: Sequence[events.Event]) -> int:
    return next(entry.seq for entry in ever if isinstance(entry, events.WorkflowCompleted)) - 1


async def hold(seeds: Sequence[int]) -> Counter[str]:
    """Hold the laws against these lives; return how often each edit was made."""
    made: Counter[str] = Counter()
    for seed in seeds:
        line = Line(seed)
        try:
            await line.live()
        except BaseException as error:
            error.add_note(f"seed {seed}, edits {line.author.done}")
            raise
        made.update(line.author.done)
    return made


async def test_legal_edits_keep_every_run_going():
    made = await hold(range(LINES))

    assert min(made[edit] for edit in ("insert", "append", "remove", "wrap")) > LINES / 5, made


@pytest.mark.long
async def test_the_same_for_thousands_of_lives():
    made = await hold(range(LINES, LINES + LINES_LONG))

    print(f"{LINES_LONG} lives, edits {made}")
