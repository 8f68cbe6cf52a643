"""Arrange boxes in levels, so that links run from left to right with few crossings. The same input gives the same picture.

A link that passes a level without a box of its own gets a place there, which links of the same origin share. The boxes of
a level are ordered by the mean position of their neighbours, and then moved towards them as far as there is room.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

GAP: Final = 28.0
"""The least distance between two boxes of a level."""

_PASSAGE: Final = 4.0
"""The height of the place of a passing link."""

_SWEEPS: Final = 8


class Box(msgspec.Struct, frozen=True):
    """A box of a level, as high as it is."""

    level: int
    height: float


class Link(msgspec.Struct, frozen=True):
    """A link between two boxes by their numbers, from a point of one to a point of another: how far below its top."""

    source: int
    leaves: float
    target: int
    enters: float


class Layout(msgspec.Struct, frozen=True):
    """Where everything is: the tops of the boxes, and the heights at which each link passes the levels between."""

    tops: Sequence[float]
    passages: Sequence[Sequence[float]]
    height: float


class _End(msgspec.Struct, frozen=True):
    """A neighbour of a box: from which point of the box to which point of the neighbour."""

    point: float
    neighbour: int
    far_point: float


def arrange(boxes: Sequence[Box], links: Sequence[Link]) -> Layout:
    """Return the places of boxes and links. A link leads from its level to a higher one."""
    levels = _Levels(boxes, links)
    for _ in range(_SWEEPS):
        levels.order_by(levels.before, levels.rows)
        levels.order_by(levels.after, levels.rows[::-1])
    levels.stack()
    for _ in range(_SWEEPS):
        levels.move_towards(levels.before, levels.rows)
        levels.move_towards(levels.after, levels.rows[::-1])
    highest = min(levels.tops, default=0.0)
    tops = [top - highest for top in levels.tops]
    return Layout(
        tops=tops[: len(boxes)],
        passages=[[tops[place] + _PASSAGE / 2 for place in places] for places in levels.passages],
        height=max((top + height for top, height in zip(tops, levels.heights, strict=True)), default=0.0),
    )


class _Levels:
    """The boxes of each level, places of passing links among them, in the order from top to bottom."""

    def __init__(self, boxes: Sequence[Box], links: Sequence[Link]) -> None:
        self.heights = [box.height for box in boxes]
        self.rows: list[list[int]] = [[] for _ in range(max((box.level for box in boxes), default=-1) + 1)]
        for number, box in enumerate(boxes):
            self.rows[box.level].append(number)
        self.before: list[list[_End]] = [[] for _ in boxes]
        self.after: list[list[_End]] = [[] for _ in boxes]
        self.tops: list[float] = []
        shared: dict[tuple[int, float, int], int] = {}
        self.passages = [self._pass(link, boxes, shared) for link in links]

    def _pass(self, link: Link, boxes: Sequence[Box], shared: dict[tuple[int, float, int], int]) -> Sequence[int]:
        """Return the places of a link in the levels between its ends, and note who is beside whom."""
        places: list[int] = []
        last, point = link.source, link.leaves
        for level in range(boxes[link.source].level + 1, boxes[link.target].level):
            key = (link.source, link.leaves, level)
            if key not in shared:
                shared[key] = self._add_place(level)
                self._join(last, point, shared[key], _PASSAGE / 2)
            last, point = shared[key], _PASSAGE / 2
            places.append(last)
        self._join(last, point, link.target, link.enters)
        return places

    def _add_place(self, level: int) -> int:
        self.heights.append(_PASSAGE)
        self.before.append([])
        self.after.append([])
        self.rows[level].append(len(self.heights) - 1)
        return len(self.heights) - 1

    def _join(self, left: int, leaves: float, right: int, enters: float) -> None:
        self.after[left].append(_End(leaves, right, enters))
        self.before[right].append(_End(enters, left, leaves))

    def order_by(self, neighbours: Sequence[Sequence[_End]], rows: Iterable[list[int]]) -> None:
        """Order every row by the mean position of the neighbours on one side."""
        positions = {number: float(place) for row in self.rows for place, number in enumerate(row)}
        for row in rows:
            wanted: dict[int, float] = {}
            for number in row:
                mean = _mean([_position(positions, end) for end in neighbours[number]])
                wanted[number] = positions[number] if mean is None else mean  # without neighbours it stays
            row.sort(key=wanted.__getitem__)
            positions |= {number: float(place) for place, number in enumerate(row)}

    def stack(self) -> None:
        """Put the boxes of each level one below the other."""
        self.tops = [0.0] * len(self.heights)
        for row in self.rows:
            self._separate(row)

    def move_towards(self, neighbours: Sequence[Sequence[_End]], rows: Iterable[list[int]]) -> None:
        """Move the boxes of each row towards their neighbours on one side, and keep their order."""
        for row in rows:
            wanted = {number: self.tops[number] for number in row}
            for number in row:
                ends = neighbours[number]
                mean = _mean([self.tops[end.neighbour] + end.far_point - end.point for end in ends])
                if mean is not None:
                    wanted[number] = self.tops[number] = mean
            self._separate(row)
            # What had to move down for want of room moved all the others too far from where they belong.
            excess = _mean([self.tops[number] - wanted[number] for number in row]) or 0.0
            for number in row:
                self.tops[number] -= excess

    def _separate(self, row: Sequence[int]) -> None:
        below = float("-inf")
        for number in row:
            self.tops[number] = max(self.tops[number], below)
            below = self.tops[number] + self.heights[number] + GAP


def _position(positions: dict[int, float], end: _End) -> float:
    """Return where a neighbour is in its row; of two points of one box the lower one comes later."""
    return positions[end.neighbour] + end.far_point / 10_000


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
