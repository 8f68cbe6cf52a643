"""Edits that no open run can go on with: each is found, where it is, before anything has been done."""

import random
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace

from laws.edit_generator import Author, Slot, needed, put, slots
from laws.edit_programs import Block, Step, workflow_of
from laws.test_edits import before_end, world
from resurgam.core import event as events
from resurgam.core.errors import HistoryDiverged
from resurgam.core.location import Location
from resurgam.core.state import Status
from resurgam.runtime.execution.execution import Execution
from resurgam.runtime.loop.outside_task import run_outside_task

EDITS = 250
EDITS_LONG = 8000
_SAID = {"child": "promise", "promise": "signal", "signal": "publish", "publish": "step", "step": "child"}
OTHER = {"act": "op", "op": "set", "set": "act", "branch": "act"} | _SAID
TOLD_APART = tuple(OTHER)
"""Kinds that are told apart by their names; the names that a listener asks for may change."""
Mistake = Callable[[Block, Slot, Step], Block]


def insert(block: Block, slot: Slot, new: Step) -> Block:
    """Put a step before another one without a version."""
    return put(block, slot, lambda at: (*at[: slot.index], new, *at[slot.index :]))


def delete(block: Block, slot: Slot, _: Step) -> Block:
    """Take a step away without a note."""
    return put(block, slot, lambda at: (*at[: slot.index], *at[slot.index + 1 :]))


def rename(block: Block, slot: Slot, new: Step) -> Block:
    """Let a step be another one of its kind."""
    renamed = replace(slot.rest[0], label=new.label)
    return put(block, slot, lambda at: (*at[: slot.index], renamed, *at[slot.index + 1 :]))


def swap(block: Block, slot: Slot, new: Step) -> Block:
    """Put two steps in the other order."""
    first, *second = slot.rest[:2]
    pair = (*(second or [new]), first)
    return put(block, slot, lambda at: (*at[: slot.index], *pair, *at[slot.index + 2 :]))


def change(block: Block, slot: Slot, new: Step) -> Block:
    """Let a step be of another kind."""
    changed = replace(slot.rest[0], kind=OTHER[slot.rest[0].kind], blocks=())
    return put(block, slot, lambda at: (*at[: slot.index], changed, *at[slot.index + 1 :]))


MISTAKES: tuple[Mistake, ...] = (insert, delete, rename, swap, change)


class Case:
    """A program, part of its history, and a mistake about a step that this history holds."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.author = Author(self.chance)
        self.block = self.author.program()
        self.mistake = self.chance.choice(MISTAKES)
        self.log: list[events.Event] = []

    async def draw(self) -> tuple[Slot, Location] | None:
        """Return where the mistake is to be made, and the place of the step that is there."""
        whole = world(self.block, (), self.chance)
        await whole.run()
        self.log = whole.as_of(self.chance.randint(1, before_end(whole.full_log)))
        places = first_places(self.log)
        fit = [slot for slot in slots(self.block) if self._is_told_apart(slot)]
        held = [(slot, places[slot.rest[0].label]) for slot in fit if slot.rest[0].label in places]
        return self.chance.choice(held) if held else None

    def _is_told_apart(self, slot: Slot) -> bool:
        """Whether the history tells the step here from what stands there after the mistake."""
        if slot.last or slot.rest[0].kind not in TOLD_APART:
            return False
        nameless = len(slot.rest) > 1 and slot.rest[1].kind in ("gather", "map")
        return not (slot.rest[0].kind == "branch" and nameless and self.mistake in (delete, swap))

    def in_race(self, slot: Slot) -> bool:
        """Whether a strand can be cut off before it comes here, once something is inserted before."""
        block = self.block
        for index, number in zip(slot.route[::2], slot.route[1::2], strict=True):
            if block[index].kind == "race":
                return True
            block = block[index].blocks[number]
        return False

    def new_step(self) -> Step:
        self.author.labels += 1
        return Step(kind="act", label=f"new{self.author.labels}", born=2)

    async def advance(self, block: Block) -> tuple[HistoryDiverged | None, list[events.Event], Execution]:
        execution = Execution(workflow_of(block)[0], self.log)
        outcome = await run_outside_task(lambda: execution.advance([], self.log[-1].at))
        verdict = execution.verdict if isinstance(execution.verdict, HistoryDiverged) else None
        assert (verdict is None) == (outcome.status is not Status.DIVERGED)
        if verdict is not None:
            assert outcome.activities == outcome.children == outcome.messages == outcome.publications == ()
            assert execution.take_operations() == []
        execution.close()
        return verdict, list(outcome.events), execution


def first_places(log: Sequence[events.Event]) -> dict[str, Location]:
    """Return where each named step is first met: iterations come in the order of their places."""
    places: dict[str, Location] = {}
    for entry in log:
        if isinstance(entry, events.Command) and entry.name is not None:
            places.setdefault(entry.name.partition(" ")[0], entry.location)
    return places


async def check(seed: int, made: Counter[str]) -> None:
    """A mistake is found at its place, and nothing is written or begun but the diagnosis."""
    case = Case(seed)
    drawn = await case.draw()
    if drawn is None:
        return
    slot, place = drawn
    made[case.mistake.__name__] += 1
    verdict, written, _ = await case.advance(case.mistake(case.block, slot, case.new_step()))
    assert verdict is not None, case.mistake
    assert verdict.location == place, (case.mistake, str(verdict), str(place))
    assert [entry.type for entry in written] == ["workflow_diverged"]


async def check_behind_an_insertion(seed: int, made: Counter[str]) -> None:
    """A mistake that comes after a legal insertion is found before what was inserted is begun."""
    case = Case(seed)
    drawn = await case.draw()
    if drawn is None:
        return
    slot, place = drawn
    if case.in_race(slot):
        return
    inserted = replace(case.new_step(), version=needed(slot.rest), looks=case.chance.random() < 0.3)
    wrong = case.mistake(case.block, slot, case.new_step())
    before = put(wrong, slot, lambda at: (*at[: slot.index], inserted, *at[slot.index :]))
    verdict, written, _ = await case.advance(before)
    if verdict is not None:
        made["before"] += 1
        assert verdict.location == place, (case.mistake, str(verdict), str(place))
        assert [entry.type for entry in written] == ["workflow_diverged"]
        return
    made["looked"] += 1
    assert inserted.looks, "only code that looks at what is not known yet may go on"
    simulation = world(before, case.log, case.chance, case.block)
    await simulation.run()
    assert simulation.status is Status.DIVERGED
    begun = [e for e in simulation.full_log if isinstance(e, events.Command) and e.seq > case.log[-1].seq]
    assert {e.name for e in begun if e.location.scope == place.scope} == {inserted.label}, "beyond the mistake"


async def hold(seeds: Sequence[int]) -> Counter[str]:
    made: Counter[str] = Counter()
    for seed in seeds:
        try:
            await check(seed, made)
            await check_behind_an_insertion(seed, made)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    return made


async def test_mistakes_are_found_where_they_are_before_anything_is_done():
    made = await hold(range(EDITS))

    assert min(made[mistake.__name__] for mistake in MISTAKES) > EDITS / 20, made


@pytest.mark.long
async def test_the_same_for_thousands_of_mistakes():
    print(await hold(range(EDITS, EDITS + EDITS_LONG)))
