"""Draws programs, and edits of them: such as keep every open run going, and such as do not."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace

from laws.edit_programs import LEAVES, NAMED, NESTS, TAGS, Block, Step, steps


@dataclass(frozen=True)
class Slot:
    """A place between steps: before step *index* of the block that *route* leads to (step and block, alternating).

    *rest* are the steps that may follow it in the same strand, out of the arms of version checks too; *last* if none of
    them is of the same block.
    """

    route: tuple[int, ...]
    index: int
    rest: Block
    last: bool


@dataclass
class Author:
    """Writes programs, and goes on writing them."""

    chance: random.Random
    generation: int = 1
    labels: int = 0
    done: list[str] = field(default_factory=list)
    # Handlers here keep what they came to in variables, so nothing beside them may forget.
    handles: bool = False

    def program(self) -> Block:
        """Write a first generation."""
        self.handles = self.chance.random() < 0.3
        return self._block(2, self.chance.randint(2, 5))

    def _block(self, depth: int, size: int, version: int = 1) -> Block:
        return tuple(self._step(depth, version) for _ in range(size))

    def _step(self, depth: int, version: int = 1) -> Step:
        nests = (*NESTS, "handler") if self.handles else NESTS
        kind = self.chance.choice(nests if depth and self.chance.random() < 0.4 else LEAVES)
        self.labels += 1
        arms = {"gather": 2, "race": 2, "branch": 1, "map": 1, "loop": 1, "handler": 1}.get(kind, 0)
        forgets = kind == "loop" and not self.handles
        return Step(
            kind=kind,
            label=f"{kind}{self.labels}",
            born=self.generation,
            version=version,
            blocks=tuple(self._block(depth - 1, self.chance.randint(1, 3)) for _ in range(arms)),
            times=self.chance.randint(1, 3),
            every=self.chance.choice((None, 1, 2)) if forgets else None,
        )

    # Legal edits.

    def edit(self, block: Block) -> Block:
        """Write the next generation, which every run of all generations before can go on with."""
        self.generation += 1
        for _ in range(self.chance.randint(1, 3)):
            edited = self.chance.choice((self.insert, self.insert, self.append, self.remove, self.wrap))(block)
            block = block if ambiguous(edited) else edited
        return block

    def insert(self, block: Block) -> Block:
        """Put a step somewhere, with a version that is high enough."""
        slot = self.chance.choice(list(slots(block)))
        step = self._step(1, needed(slot.rest) + self.chance.choice((0, 0, 1)))
        self.done.append("insert")
        return put(block, slot, lambda at: (*at[: slot.index], step, *at[slot.index :]))

    def append(self, block: Block) -> Block:
        """Put a step where nothing follows; it needs no version."""
        slot = self.chance.choice([slot for slot in slots(block) if not slot.rest])
        step = self._step(1)
        self.done.append("append")
        return put(block, slot, lambda at: (*at, step))

    def remove(self, block: Block) -> Block:
        """Leave a note instead of a step."""
        chosen = [slot for slot in slots(block) if _removable(slot)]
        if not chosen:
            return block
        slot = self.chance.choice(chosen)
        self.done.append("remove")
        gone = replace(slot.rest[0], removed=True)
        return put(block, slot, lambda at: (*at[: slot.index], gone, *at[slot.index + 1 :]))

    def wrap(self, block: Block) -> Block:
        """Keep some steps for older runs only, and give newer ones others."""
        slot = self.chance.choice([slot for slot in slots(block) if slot.rest])  # an empty arm is one too
        version, size = max(2, needed(slot.rest)), self.chance.randint(1, 2)
        newer = self._block(1, self.chance.randint(0, 2), self.chance.choice((1, version)))
        self.labels += 1
        self.done.append("wrap")

        def wrapped(at: Block) -> Block:
            check = Step(
                kind="check",
                label=f"check{self.labels}",
                born=self.generation,
                version=version,
                blocks=(at[slot.index : slot.index + size], newer),
            )
            return (*at[: slot.index], check, *at[slot.index + size :])

        return put(block, slot, wrapped)


def slots(block: Block, route: tuple[int, ...] = (), after: Block = ()) -> Iterator[Slot]:
    """Return every place where something could be put, below removed steps aside."""
    for index in range(len(block) + 1):
        yield Slot(route, index, (*block[index:], *after), index == len(block))
    for index, step in enumerate(block):
        following = (*block[index + 1 :], *after) if step.kind == "check" else ()
        for number, inner in enumerate(step.blocks if not step.removed else ()):
            yield from slots(inner, (*route, index, number), following)


def put(block: Block, slot: Slot, change: Callable[[Block], Block]) -> Block:
    """Return a program with the block of a slot changed."""
    return _put(block, slot.route, change)


def _put(block: Block, route: tuple[int, ...], change: Callable[[Block], Block]) -> Block:
    if not route:
        return change(block)
    index, number = route[:2]
    step = block[index]
    inner = _put(step.blocks[number], route[2:], change)
    blocks = (*step.blocks[:number], inner, *step.blocks[number + 1 :])
    return (*block[:index], replace(step, blocks=blocks), *block[index + 1 :])


def needed(rest: Block) -> int:
    """Return the version that a step needs before these, in whatever run: more than any that may be recorded next."""
    return 1 + max((step.version for step in following(rest)), default=0)


def following(rest: Block) -> Iterator[Step]:
    """Return the steps that a history may go on with: up to the first that every run has which came as far."""
    for step in rest:
        yield step
        if step.kind == "check":
            for older in following(step.blocks[0]):
                yield older
                if older.born == 1 and older.kind != "check":
                    return
        elif step.born == 1:
            return


def _removable(slot: Slot) -> bool:
    if slot.last or slot.rest[0].removed or slot.rest[0].kind == "check":
        return False
    # A run that has called a handler cannot go on without it.
    return not any(step.kind == "handler" for step in steps(slot.rest[:1]))


def ambiguous(block: Block) -> bool:
    """Whether the note of a removed step could be taken for another, in a run that never had that step.

    That is so for kinds without a name: where two sleeps were, a note of one says nothing about which.
    """
    return any(
        not slot.last
        and slot.rest[0].removed
        and slot.rest[0].born > 1
        and slot.rest[0].kind not in NAMED
        and any(TAGS[other.kind] == TAGS[slot.rest[0].kind] for other in following(slot.rest[1:]))
        for slot in slots(block)
    )
